"""CoOp, CoCoOp, TPT and DiffTPT on a tiny CLIP, against straightforward versions of their formulas."""

import copy

import numpy as np
import pytest

from acclimate import build_head, create, load_state, save_state
from acclimate.checks import LAWS, Trial, why_not
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, ModelError, StateError
from acclimate.methods import duplicate, find_method
from acclimate.methods.paper.tpt import marginal_entropy
from drawn_images import COLOURS, draw
from tiny_models import save_tiny_model

torch = pytest.importorskip("torch")
NAMES = list(COLOURS)
SHOTS = 48
FAST = {"coop": {"context_tokens": 4, "epochs": 40}, "cocoop": {"epochs": 20}}


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    return load_encoder(f"local:{tiny_clip}", "cpu")


@pytest.fixture(scope="module")
def drawn(encoder):
    """Head, features (138, d) and labels of drawn images, of which the first are shots."""
    labels = np.arange(138) % 3
    pixels = [encoder.prepare(draw(NAMES[label], i)) for i, label in enumerate(labels)]
    return build_head(encoder, NAMES, cache=False), encoder.encode_images(pixels), labels


@pytest.fixture(scope="module")
def views(drawn):
    """Return views (12, 8, d): features of a drawn image, moved a little."""
    noise = np.random.default_rng(0).standard_normal((12, 8, drawn[1].shape[1]), dtype=np.float32)
    noise[:, 0] = 0
    return drawn[1][:12, None] + 0.3 * np.linalg.norm(drawn[1][0]) / 5 * noise


class Reference:
    """The tiny CLIP with a context in new rows of its table of embeddings, padded to full length."""

    def __init__(self, encoder, names, words="a photo of a"):
        self.model = copy.deepcopy(encoder.model).double()
        self.scale = encoder.logit_scale
        table = self.model.text_model.embeddings.token_embedding
        start = encoder.token_ids([words])[0]
        start = start[1 : 1 + int((start[1:] == 1).int().argmax())]
        texts = [f"{words} {name}." for name in names]
        self.ids = encoder.token_ids(texts)
        self.ids[:, 1 : 1 + len(start)] = torch.arange(300, 300 + len(start))
        self.fixed = table.weight.detach()
        self.context = self.fixed[start].clone()
        table.register_forward_hook(lambda module, given, out: torch.cat([self.fixed, self.now])[given[0]])
        table.weight = torch.nn.Parameter(torch.zeros(304, table.weight.shape[1]).double())  # room for the new ids

    def logits(self, features, context):
        self.now = context
        vectors = self.model.get_text_features(input_ids=self.ids)
        vectors = torch.nn.functional.normalize(getattr(vectors, "pooler_output", vectors), dim=-1)
        return self.scale * torch.nn.functional.normalize(torch.as_tensor(features).double(), dim=-1) @ vectors.T

    def tpt(self, views, choose, steps, rate=5e-3):
        context = self.context.clone().requires_grad_()
        optimiser = torch.optim.AdamW([context], rate)
        chosen = choose(self.logits(views, context.detach()))
        for _ in range(steps):
            optimiser.zero_grad()
            mean = self.logits(views, context)[chosen].softmax(1).mean(0)
            (-(mean * mean.log()).sum()).backward()
            optimiser.step()
        return self.logits(views[:1], context.detach())[0].numpy()


def confident(logits, share):
    probs = logits.softmax(1)
    entropy = -(probs * probs.log()).sum(1)
    return torch.tensor(
        sorted(range(len(entropy)), key=lambda i: float(entropy[i]))[: max(1, int(share * len(entropy)))]
    )


def similar_then_confident(logits):
    cosine = [float(torch.nn.functional.cosine_similarity(logits[0], other, dim=0)) for other in logits[1:]]
    near = sorted(range(len(cosine)), key=lambda i: -cosine[i])[: int(0.8 * len(cosine))]
    kept = torch.tensor([0, *(1 + i for i in near)])
    return kept[confident(logits[kept], 0.3)]


@pytest.mark.parametrize("method", ["tpt", "difftpt"])
def test_tuned_prompts_answer_as_the_formulas_say(encoder, drawn, views, method):
    adapter = create(method, drawn[0], encoder=encoder)
    reference = Reference(encoder, NAMES)
    choose = similar_then_confident if method == "difftpt" else lambda logits: confident(logits, 0.1)
    expected = [reference.tpt(each, choose, adapter.steps) for each in views]
    np.testing.assert_allclose(adapter.step(views), expected, atol=2e-3)
    assert np.abs(adapter.step(views) - drawn[0].observe(views[:, 0]).logits).max() > 0.01  # it did something


def test_tpt_lowers_the_marginal_entropy_of_its_sample_and_forgets_it(encoder, drawn, views):
    adapter = create("tpt", drawn[0], encoder=encoder)
    before = {name: value.clone() for name, value in encoder.model.state_dict().items()}
    tower = encoder.text_tower()
    prompts = tower.prompts(NAMES, 4)
    context = tower.words("a photo of a")
    answers = adapter.step(views)
    for each, answer in zip(torch.as_tensor(drawn[0].unit_features(views)), answers, strict=True):
        start = context.clone().requires_grad_()
        vectors = prompts.vectors(start)
        tuned = adapter.tune(each, start, vectors)
        counted = adapter.counted(adapter.head.logit_scale * each @ vectors.detach().T)
        was, now = (
            marginal_entropy(adapter.head.logit_scale * each[counted] @ prompts.vectors(given).T)
            for given in (context, tuned)
        )
        assert now < was
        np.testing.assert_allclose(adapter.head.logit_scale * each[0] @ prompts.vectors(tuned).T, answer, atol=1e-4)
        np.testing.assert_allclose(adapter.step(each[None].numpy())[0], answer, atol=1e-4)  # whatever came in between
    for name, value in encoder.model.state_dict().items():
        assert torch.equal(value, before[name])
    assert not any(parameter.requires_grad for parameter in encoder.model.parameters())
    assert torch.equal(tower.words("a photo of a"), context)


def test_a_gradient_that_overflows_leaves_the_initial_prompt(encoder, drawn, views, monkeypatch):
    monkeypatch.setattr("acclimate.methods.paper.prompt.LOSS_SCALE", float("inf"))
    tower = encoder.text_tower()
    initial = tower.prompts(NAMES, 4).vectors(tower.words("a photo of a"))
    expected = drawn[0].logit_scale * torch.as_tensor(drawn[0].unit_features(views))[:, 0] @ initial.T
    np.testing.assert_allclose(create("tpt", drawn[0], encoder=encoder).step(views), expected, atol=1e-4)


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_callers_may_have_switched_gradients_off(encoder, drawn, views, mode):
    head, features, labels = drawn
    expected = create("tpt", head, encoder=encoder).step(views)
    fitted = create("coop", head, encoder=encoder, context_tokens=4, epochs=2)
    fitted.fit(features[:SHOTS], labels[:SHOTS])
    with mode():
        np.testing.assert_allclose(create("tpt", head, encoder=encoder).step(views), expected, atol=1e-5)
        again = create("coop", head, encoder=encoder, context_tokens=4, epochs=2)
        again.fit(features[:SHOTS], labels[:SHOTS])
        np.testing.assert_allclose(again.step(features), fitted.step(features), atol=1e-4)


def test_the_learning_rate_warms_up_and_falls_along_a_cosine(encoder, drawn):
    """As Dassl does: the cosine begins after the warm-up, with the whole rate."""
    adapter = create("coop", drawn[0], encoder=encoder, context_tokens=4, epochs=50)
    rates = [adapter.rate(epoch) for epoch in range(50)]
    expected = [1e-5, *(0.001 * (1 + np.cos(np.pi * epoch / 50)) for epoch in range(49))]
    assert rates == pytest.approx(expected)
    assert create("coop", drawn[0], encoder=encoder, context_tokens=4, epochs=1).rate(0) == 0.002


def test_a_training_that_diverges_is_refused_and_the_earlier_fit_stays(encoder, drawn):
    head, features, labels = drawn
    adapter = create("coop", head, encoder=encoder, **FAST["coop"])
    adapter.fit(features[:SHOTS], labels[:SHOTS])
    expected = adapter.step(features)
    adapter.learning_rate = 1e9
    with pytest.raises(InputError, match=r"the training diverged: .* Lower learning_rate"):
        adapter.fit(features[:SHOTS], labels[:SHOTS])
    np.testing.assert_array_equal(adapter.step(features), expected)


@pytest.mark.parametrize("settings", [{}, {"class_specific": True}, {"context": "a photo of a"}])
def test_coop_beats_zero_shot_with_a_few_shots(encoder, drawn, settings):
    _beats_zero_shot(create("coop", drawn[0], encoder=encoder, **FAST["coop"], **settings), drawn)


def test_cocoop_beats_zero_shot_with_a_few_shots(encoder, drawn):
    adapter = create("cocoop", drawn[0], encoder=encoder, **FAST["cocoop"])
    _beats_zero_shot(adapter, drawn)
    own = [adapter.step(each[None])[0] for each in drawn[1][:5]]
    np.testing.assert_allclose(adapter.step(drawn[1][:5]), own, atol=1e-4)


def _beats_zero_shot(adapter, drawn):
    head, features, labels = drawn
    before = {name: value.clone() for name, value in adapter.encoder.model.state_dict().items()}
    steps = []
    adapter.fit(features[:SHOTS], labels[:SHOTS], progress=steps.append)
    assert sum(steps) == adapter.fit_steps(SHOTS)
    scores = [
        (logits.argmax(axis=1) == labels[SHOTS:]).mean()
        for logits in (head.observe(features[SHOTS:]).logits, adapter.step(features[SHOTS:]))
    ]
    assert scores[1] > scores[0] + 0.2
    for name, value in adapter.encoder.model.state_dict().items():  # gradients reach the prompt alone
        assert torch.equal(value, before[name])


def test_the_first_step_of_coop_is_sgd_on_the_cross_entropy(encoder, drawn):
    head, features, labels = drawn
    adapter = create("coop", head, encoder=encoder, context="a photo of a", epochs=1, batch=6, learning_rate=0.1)
    adapter.fit(features[:6], labels[:6])
    reference = Reference(encoder, NAMES)
    context = reference.context.clone().requires_grad_()
    torch.nn.functional.cross_entropy(reference.logits(features[:6], context), torch.as_tensor(labels[:6])).backward()
    expected = context.detach() - 0.1 * (context.grad + 5e-4 * context.detach())
    np.testing.assert_allclose(adapter.learned["context"], expected, atol=1e-4)


def test_versions_of_a_sample_take_turns(encoder, drawn):
    head, features, labels = drawn
    versions = np.stack([features[:SHOTS], features[SHOTS : 2 * SHOTS]], axis=1)  # the same classes
    one, two = (create("coop", head, encoder=encoder, **FAST["coop"]) for _ in range(2))
    one.fit(features[:SHOTS], labels[:SHOTS])
    two.fit(versions, labels[:SHOTS])
    assert np.abs(one.learned["context"] - two.learned["context"]).max() > 1e-4


@pytest.mark.parametrize("method", ["coop", "cocoop"])
def test_a_fitted_prompt_is_saved_loaded_and_bound_to_its_model(encoder, drawn, tmp_path, method, tiny_clip):
    head, features, labels = drawn
    adapter = create(method, head, encoder=encoder, **{**FAST[method], "epochs": 2})
    with pytest.raises(InputError, match=f"the method '{method}' needs to be fitted to labelled samples first"):
        adapter.step(features)
    adapter.fit(features[:SHOTS], labels[:SHOTS])
    save_state(adapter, tmp_path / "prompt")
    for same in (load_state(tmp_path / "prompt", encoder=encoder), duplicate(adapter)):
        np.testing.assert_array_equal(same.step(features), adapter.step(features))
    other = load_encoder(f"local:{tiny_clip}", "cpu")
    other.fingerprint = "another"
    with pytest.raises(StateError, match="was made with another model"):
        load_state(tmp_path / "prompt", encoder=other)
    adapter.add_classes(head.class_vectors[:1], ["orange"])
    assert adapter.step(features[:2]).shape == (2, 4)
    adapter.remove_classes(["orange"])
    np.testing.assert_allclose(adapter.step(features), same.step(features), atol=1e-4)


def test_unsupported_models_and_settings_are_reported(encoder, drawn, tiny_onnx):
    head, features, labels = drawn
    for method in ("coop", "cocoop", "tpt", "difftpt"):
        with pytest.raises(InputError, match="needs the text tower of a model"):
            create(method, head)
        with pytest.raises(ModelError, match=r"takes embeddings, which OnnxEncoder does not have; use a CLIP model"):
            create(method, head, encoder=load_encoder(f"onnx:{tiny_onnx}"))
    for method, settings, message in (
        ("coop", {"context_tokens": 0}, "context_tokens must be at least 1"),
        (
            "coop",
            {"context_tokens": 40, "epochs": 1},
            "a context of 40 tokens does not fit; the model reads 13 at most",
        ),
        ("coop", {"epochs": 0}, "epochs and batch must be at least 1"),
        ("coop", {"learning_rate": 0.0}, "learning_rate must be above 0"),
        ("coop", {"seed": 2**63}, "seed from 0 to"),
        ("cocoop", {"batch": 0}, "epochs and batch must be at least 1"),
        ("cocoop", {"seed": -1}, "seed from 0 to"),
        ("cocoop", {"context": ""}, "context must be words"),
        ("cocoop", {"context": "a " * 20}, "a context of 14 tokens does not fit"),
        ("tpt", {"confident": 0.0}, "confident must be a share"),
        ("tpt", {"context": ""}, "context must be words"),
        ("tpt", {"context": "a " * 20}, "a context of 14 tokens does not fit"),
        ("tpt", {"learning_rate": -1.0}, "learning_rate above 0"),
        ("difftpt", {"similar": 2.0}, "similar must be a share"),
    ):
        with pytest.raises(InputError, match=message):
            create(method, head, encoder=encoder, **settings)
    with pytest.raises(InputError, match="no labelled sample of 'blue'; every class needs at least one"):
        create("coop", head, encoder=encoder, context_tokens=4).fit(features[:2], labels[:2])
    specific = create("coop", head, encoder=encoder, class_specific=True, context_tokens=4, epochs=1)
    specific.fit(features[:3], labels[:3])
    with pytest.raises(InputError, match="a new class has none; fit again"):
        specific.add_classes(head.class_vectors[:1], ["orange"])


def test_a_context_of_zeros_answers(encoder, drawn):
    """No training ends there, but a file may say so."""
    head, features, labels = drawn
    adapter = create("coop", head, encoder=encoder, context_tokens=4, epochs=1)
    adapter.fit(features[:3], labels[:3])
    zeros = np.zeros((4, 32), np.float32)
    adapter.restore({"exports.context": zeros})
    assert np.isfinite(adapter.step(features)).all()


def test_diverging_prompts_are_reported(encoder, drawn, views, monkeypatch):
    monkeypatch.setattr("acclimate.methods.adapter.LARGEST_REAL", 1e30)  # no rate that is allowed diverges here
    head, features, labels = drawn
    for method in ("coop", "cocoop"):
        adapter = create(method, head, encoder=encoder, learning_rate=1e30, **FAST[method] | {"epochs": 2})
        with pytest.raises(InputError, match="the training diverged"):
            adapter.fit(features[:6], labels[:6])
        with pytest.raises(InputError, match="needs to be fitted"):
            adapter.step(features)
    with pytest.raises(InputError, match="the prompts of 'tpt' diverged"):
        create("tpt", head, encoder=encoder, learning_rate=1e30).step(views)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device here")
def test_mixed_precision_on_a_gpu_answers_like_the_cpu(encoder, tiny_clip, drawn, views):
    head, features, labels = drawn
    on_gpu = load_encoder(f"local:{tiny_clip}", "cuda")
    for method in ("tpt", "difftpt"):
        here, there = (create(method, head, encoder=text).step(views) for text in (encoder, on_gpu))
        assert np.abs(here - there).max() < 0.25
    for method in ("coop", "cocoop"):
        adapters = [create(method, head, encoder=text, **FAST[method]) for text in (encoder, on_gpu)]
        for adapter in adapters:
            adapter.fit(features[:SHOTS], labels[:SHOTS])
        here, there = ((each.step(features[SHOTS:]).argmax(axis=1) == labels[SHOTS:]).mean() for each in adapters)
        assert abs(here - there) < 0.1


LONG = ("memory_is_bounded",)  # thousands of samples, each through the text tower


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    """Return a CLIP with a text tower of one layer: the laws send it thousands of samples."""
    folder = save_tiny_model("clip", tmp_path_factory.mktemp("small"), layers=1, text_width=16, text_layers=1)
    return load_encoder(f"local:{folder}", "cpu")


@pytest.mark.slow
@pytest.mark.untraced  # the tests above cover the same lines
@pytest.mark.parametrize(
    ("law", "name"),
    [
        pytest.param(law, name, id=f"{name}-{law.__name__}")
        for name in ("coop", "cocoop", "tpt", "difftpt")
        for law in LAWS
        if law.__name__ not in LONG and why_not(law, find_method(name), text=True) is None
    ],
)
def test_law(small, law, name):
    method = find_method(name)
    quick = {"coop": {"context_tokens": 4, "epochs": 1}, "cocoop": {"epochs": 1}, "difftpt": {"steps": 1}}
    law(Trial(method, encoder=small, **quick.get(name, {})))
