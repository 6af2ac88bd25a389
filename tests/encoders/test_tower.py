"""A text tower that takes embeddings in place of words."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from acclimate.encoders import load_encoder
from acclimate.encoders.open_clip import OpenClipEncoder
from acclimate.errors import InputError, ModelError

torch = pytest.importorskip("torch")
NAMES = ["cat", "a large red dog", "sea_lion", "triangle " * 12]
WORDS = "a photo of a"


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    return load_encoder(f"local:{tiny_clip}", "cpu")


def unit(rows):
    return rows / np.linalg.norm(rows, axis=-1, keepdims=True)


def in_words(encoder, names=NAMES):
    return unit(encoder.encode_text([f"{WORDS} {name.replace('_', ' ').strip()}." for name in names]))


class FullLength(torch.nn.Module):
    """A text tower of open_clip's kind: it reads texts of full length only, and ends them by the largest id."""

    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.token_embedding = torch.nn.Embedding(50, 16)
        self.positional_embedding = torch.nn.Parameter(torch.randn(12, 16))
        self.layer = torch.nn.TransformerEncoderLayer(16, 2, 32, batch_first=True, dropout=0.0)
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.0))
        self.register_buffer("attn_mask", torch.full((12, 12), float("-inf")).triu(1))

    def encode_text(self, ids):
        values = self.layer(self.token_embedding(ids) + self.positional_embedding, self.attn_mask)
        return values[torch.arange(len(ids)), ids.argmax(dim=1)]


def letters(texts):
    """Return token ids: a start, a token per word, an end, and zeros."""
    ids = torch.zeros(len(texts), 12, dtype=torch.int64)
    for row, text in zip(ids, texts, strict=True):
        words = [1 + sum(map(ord, word.strip("."))) % 46 for word in text.split()][:10]
        row[: len(words) + 2] = torch.tensor([48, *words, 49])
    return ids


@pytest.fixture(scope="module")
def full_length():
    return OpenClipEncoder(FullLength(), lambda image: image, letters)


@pytest.mark.parametrize("which", ["encoder", "full_length"])
def test_a_context_of_words_gives_the_vectors_of_the_words(which, request):
    encoder = request.getfixturevalue(which)
    tower = encoder.text_tower()
    context = tower.words(WORDS)
    vectors = tower.prompts(NAMES[:3], len(context)).vectors(context)
    np.testing.assert_allclose(vectors, in_words(encoder, NAMES[:3]), atol=1e-5)
    one_each = torch.stack([context, context.flip(-1), context])
    per_class = tower.prompts(NAMES[:3], len(context)).vectors(one_each)
    np.testing.assert_allclose(per_class[[0, 2]], vectors[[0, 2]], atol=1e-5)
    assert (per_class[1] - vectors[1]).abs().max() > 0.01


def test_prompts_are_as_short_as_the_longest_name_where_the_tower_allows_it(encoder, full_length):
    assert encoder.text_tower().prompts(["cat", "dog"], 4).ids.shape[1] < encoder.context
    assert full_length.text_tower().prompts(["cat", "dog"], 4).ids.shape[1] == 12


def test_a_name_that_is_too_long_is_cut_as_the_tokenizer_cuts_it(encoder):
    tower = encoder.text_tower()
    context = tower.words(WORDS)
    np.testing.assert_allclose(tower.prompts(NAMES, 4).vectors(context), in_words(encoder), atol=1e-5)


def test_two_classes_of_one_name_read_the_same(encoder):
    tower = encoder.text_tower()
    vectors = tower.prompts(["cat", "cat (2)", "cat (1990)"], 4).vectors(tower.words(WORDS))
    np.testing.assert_allclose(vectors[0], vectors[1], atol=1e-6)
    assert not np.allclose(vectors[0], vectors[2], atol=1e-4)


def test_the_model_is_as_before_and_threads_do_not_meet(encoder):
    tower = encoder.text_tower()
    assert tower is encoder.text_tower()
    before = encoder.encode_text(NAMES)
    prompts = tower.prompts(NAMES, 4)
    contexts = [torch.randn(4, tower.width) for _ in range(8)]
    expected = [prompts.vectors(context) for context in contexts]
    with ThreadPoolExecutor(4) as pool:
        words = [pool.submit(encoder.encode_text, NAMES) for _ in range(40)]
        for found, one in zip(pool.map(prompts.vectors, contexts), expected, strict=True):
            torch.testing.assert_close(found, one)
        for each in words:
            np.testing.assert_allclose(each.result(), before, atol=1e-5)
    np.testing.assert_array_equal(encoder.encode_text(NAMES), before)


def test_a_tower_in_half_precision_gives_nearly_the_same_vectors(full_length):
    half = OpenClipEncoder(FullLength().bfloat16(), lambda image: image, letters)
    exact, found = (
        each.text_tower().prompts(NAMES[:3], 4).vectors(full_length.text_tower().words(WORDS))
        for each in (full_length, half)
    )
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.detach(), exact.detach(), atol=0.05)


def test_gradients_reach_the_context_alone(encoder):
    tower = encoder.text_tower()
    context = tower.words(WORDS).requires_grad_()
    tower.prompts(NAMES, 4).vectors(context).sum().backward()
    assert context.grad.abs().max() > 0
    assert all(parameter.grad is None for parameter in encoder.model.parameters())


def test_towers_that_cannot_take_embeddings_say_so(tiny_model, encoder):
    if tiny_model.name.startswith("siglip"):
        with pytest.raises(ModelError, match="SiglipModel cannot take embeddings: it reads a text in both directions"):
            load_encoder(f"local:{tiny_model}", "cpu").text_tower()
    nameless = FullLength()
    nameless.words = nameless._modules.pop("token_embedding")
    nameless.encode_text = lambda ids: nameless.words(ids).mean(dim=1)
    with pytest.raises(ModelError, match="it has no table named token_embedding; prompts are learned with CLIP models"):
        OpenClipEncoder(nameless, lambda image: image, letters).text_tower()
    deaf = FullLength()
    deaf.encode_text = lambda ids: torch.nn.functional.one_hot(ids[:, 1], 50).float()
    with pytest.raises(ModelError, match="it does not read its table of embeddings"):
        OpenClipEncoder(deaf, lambda image: image, letters).text_tower()
    with pytest.raises(InputError, match="a context of 14 tokens does not fit; the model reads 13 at most"):
        encoder.text_tower().prompts(NAMES, 14)


def test_open_clip_models_take_embeddings():
    open_clip = pytest.importorskip("open_clip", reason="open_clip is not installed")
    model = open_clip.create_model("RN50", pretrained=None)
    encoder = OpenClipEncoder(model, lambda image: image, open_clip.get_tokenizer("RN50"))
    tower = encoder.text_tower()
    context = tower.words(WORDS)
    assert len(context) == 4
    np.testing.assert_allclose(tower.prompts(NAMES[:3], 4).vectors(context), in_words(encoder, NAMES[:3]), atol=1e-4)
