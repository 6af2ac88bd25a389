import hashlib
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.errors import InputError
from acclimate.prompts import build_head, default_cache_folder, prompts_for, template_sets

LABELS = ["cat", "dog", "sea_lion"]


def class_vectors(encoder, labels, templates, cache=None):
    return build_head(encoder, labels, templates, cache).class_vectors


class Words:
    """Every prompt has its own random direction and length; what was asked is kept."""

    logit_scale = 50.0
    logit_bias = -1.0

    def __init__(self, fingerprint=None, known=None):
        self.fingerprint = fingerprint
        self.known = known or {}
        self.batches = []

    def encode_text(self, prompts):
        self.batches.append(list(prompts))
        return np.array([self.known.get(prompt, self.vector(prompt)) for prompt in prompts], dtype=np.float32)

    def vector(self, prompt):
        seed = int.from_bytes(hashlib.sha256(prompt.encode()).digest()[:8], "little")
        rng = np.random.default_rng(seed)
        return rng.normal(size=16) * rng.uniform(0.1, 50)


@pytest.fixture
def files(tmp_path):
    return lambda: sorted(tmp_path.rglob("*"))


def test_vectors_are_the_clip_ensemble():
    encoder = Words()
    vectors = class_vectors(encoder, LABELS, "openai-7")
    assert vectors.dtype == np.float32
    assert vectors.shape == (3, 16)
    for row, prompts in zip(vectors, prompts_for(LABELS, "openai-7"), strict=True):
        units = [v / np.linalg.norm(v) for v in map(encoder.vector, prompts)]
        mean = np.mean(units, axis=0)
        np.testing.assert_allclose(row, mean / np.linalg.norm(mean), atol=1e-6)


@given(st.permutations([f"class {i}" for i in range(6)]), st.sampled_from(["single", "openai-7", "openai-80"]))
def test_classes_do_not_depend_on_their_order(labels, templates):
    vectors = class_vectors(Words(), labels, templates)
    alone = np.concatenate([class_vectors(Words(), [label], templates) for label in labels])
    np.testing.assert_allclose(vectors, alone, atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, atol=1e-6)


def test_every_prompt_is_encoded_once_in_batches():
    encoder = Words()
    class_vectors(encoder, [f"c{i}" for i in range(100)], ["a {}.", "a {c}.", "the {}.", lambda c: "anything", "my {}"])
    asked = [prompt for batch in encoder.batches for prompt in batch]
    assert len(asked) == len(set(asked)) == 301
    assert [len(batch) for batch in encoder.batches] == [32] * 9 + [13]


def test_prompts_said_twice_count_twice():
    twice = class_vectors(Words(), LABELS, ["a {}.", "a {c}.", "the {}."])
    full = {label: ["a {}.", "a {}.", "the {}."] for label in LABELS}
    assert np.array_equal(twice, class_vectors(Words(), LABELS, full))
    assert not np.allclose(twice, class_vectors(Words(), LABELS, ["a {}.", "the {}."]))


def test_torch_and_half_precision():
    torch = pytest.importorskip("torch")

    class Torch(Words):
        def encode_text(self, prompts):
            return torch.asarray(super().encode_text(prompts), dtype=torch.bfloat16).requires_grad_()

    np.testing.assert_allclose(
        class_vectors(Torch(), LABELS, "a {}."), class_vectors(Words(), LABELS, "a {}."), atol=0.02
    )


def test_vectors_are_kept_on_disk(tmp_path, files):
    cold = Words("model")
    warm = Words("model")
    first = class_vectors(cold, LABELS, "openai-7", tmp_path / "new" / "folder")
    second = class_vectors(warm, LABELS, "openai-7", tmp_path / "new" / "folder")
    assert np.array_equal(first, second)
    assert second.dtype == np.float32
    assert (len(cold.batches), len(warm.batches)) == (1, 0)
    assert [path.suffix for path in files() if path.is_file()] == [".safetensors"]


def test_other_prompts_or_encoders_are_kept_apart(tmp_path, files):
    seen = []
    for fingerprint in ("model", "other"):
        for labels in (LABELS, LABELS[::-1], LABELS[:2]):
            for templates in ("single", "openai-7", list(template_sets()["openai-7"][::-1])):
                seen.append(Words(fingerprint))
                class_vectors(seen[-1], labels, templates, tmp_path)
    assert all(encoder.batches for encoder in seen)
    assert len(files()) == len(seen)
    same = Words("model")
    class_vectors(same, LABELS, template_sets()["single"], tmp_path)  # only what is said matters
    class_vectors(same, ["cat", "dog", "sea lion"], lambda c: f"a photo of a {c}.", tmp_path)
    assert not same.batches


def test_grouping_prompts_otherwise_is_another_key(tmp_path):
    for full in ({"a": ["x", "y"], "b": ["z"]}, {"a": ["x"], "b": ["y", "z"]}):
        kept = class_vectors(Words("model"), ["a", "b"], full, tmp_path)
        assert np.array_equal(kept, class_vectors(Words(), ["a", "b"], full))


@pytest.mark.parametrize("fingerprint", [None, ""])
def test_an_encoder_without_fingerprint_is_not_cached(tmp_path, files, fingerprint):
    class_vectors(Words(fingerprint), LABELS, "single", tmp_path)
    assert files() == []


@pytest.mark.parametrize("where", ["start", "header", "data", "short", "empty", "foreign"])
def test_a_damaged_cache_is_computed_again(tmp_path, files, where):
    expected = class_vectors(Words("model"), LABELS, "single", tmp_path)
    (path,) = files()
    content = bytearray(path.read_bytes())
    if where in ("short", "empty"):
        content = content[: len(content) // 2 if where == "short" else 0]
    elif where == "foreign":
        content = bytearray(b"\xff" * 100)
    else:
        content[{"start": 0, "header": 20, "data": -4}[where]] ^= 1
    path.write_bytes(content)
    encoder = Words("model")
    assert np.array_equal(class_vectors(encoder, LABELS, "single", tmp_path), expected)
    assert encoder.batches
    again = Words("model")
    class_vectors(again, LABELS, "single", tmp_path)
    assert not again.batches  # the file was repaired


def test_a_cache_that_cannot_be_written_is_no_error(tmp_path, files):
    (tmp_path / "file").write_text("in the way")
    expected = class_vectors(Words(), LABELS, "single")
    assert np.array_equal(class_vectors(Words("model"), LABELS, "single", tmp_path / "file"), expected)
    class_vectors(Words("model"), LABELS, "single", tmp_path / "cache")
    (path,) = (tmp_path / "cache").iterdir()
    path.unlink()
    path.mkdir()  # a folder where the file should be
    assert np.array_equal(class_vectors(Words("model"), LABELS, "single", tmp_path / "cache"), expected)
    assert files() == [tmp_path / "cache", path, tmp_path / "file"]


def test_the_cache_folder_comes_from_the_environment(tmp_path, monkeypatch, files):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path))
    assert default_cache_folder() == tmp_path
    class_vectors(Words("model"), LABELS, "single")
    assert len(files()) == 1
    monkeypatch.setenv("ACCLIMATE_CACHE", "")
    assert default_cache_folder() == Path.home() / ".cache" / "acclimate"


def test_without_a_home_nothing_is_kept(monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", "~nobody-of-this-name/cache")
    assert default_cache_folder() is None
    assert class_vectors(Words("model"), LABELS, "single").shape == (3, 16)


@pytest.mark.parametrize(
    ("value", "kind"), [(0.0, "all zeros"), (np.nan, "NaN or infinity"), (np.inf, "NaN or infinity")]
)
def test_a_class_without_direction_is_named(tmp_path, files, value, kind):
    encoder = Words("model", known={"the sea lion.": np.full(16, value)})
    with pytest.raises(InputError, match=rf"'sea_lion': the encoder gives {kind} for 'the sea lion\.'"):
        class_vectors(encoder, LABELS, ["a {}.", "the {}."], tmp_path)
    assert files() == []


def test_prompts_that_cancel_are_named():
    direction = np.random.default_rng(0).normal(size=16)
    encoder = Words(known={"a dog.": direction, "the dog.": -3 * direction})
    with pytest.raises(InputError, match="'dog': its prompts cancel"):
        class_vectors(encoder, LABELS, ["a {}.", "the {}."])


@pytest.mark.parametrize("shape", [(3,), (2, 16), (3, 0), (3, 2, 2)])
def test_an_encoder_of_other_shapes_is_refused(shape):
    class Odd(Words):
        def encode_text(self, prompts):
            return np.ones(shape)

    with pytest.raises(InputError, match="shape"):
        class_vectors(Odd(), LABELS, "single")


def test_an_encoder_that_changes_its_width_is_refused():
    class Growing(Words):
        def encode_text(self, prompts):
            return np.ones((len(prompts), len(prompts)))

    with pytest.raises(InputError, match="the same d for all"):
        class_vectors(Growing(), [f"c{i}" for i in range(300)], "single")


def test_a_head_has_the_models_scale_and_the_clean_labels(tmp_path, files):
    head = build_head(Words("model"), [" cat ", "dog"], "a {}.", cache=False)
    assert (head.logit_scale, head.logit_bias, head.class_names) == (50.0, -1.0, ("cat", "dog"))
    assert files() == []


def test_labels_are_checked():
    with pytest.raises(InputError, match="WordNet"):
        class_vectors(Words(), ["n01440764"], "single")


def test_progress_counts_the_prompts_that_are_encoded(tmp_path, monkeypatch):
    monkeypatch.setattr("acclimate.prompts.head.BATCH_PROMPTS", 2)
    calls = []
    for _ in range(2):  # the second time, the vectors are on disk
        build_head(
            Words("words"), ["cat", "dog", "cow"], "a {}", tmp_path, lambda done, total: calls.append((done, total))
        )
    assert calls == [(0, 3), (2, 3), (1, 3)]
