"""A method with gradients fits the frame: it reads views, may ask for the text tower, and keeps the laws."""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

from acclimate import Adapter, Classifier, Step, create, list_methods, load_state, save_state
from acclimate.arrays import move, to_host
from acclimate.checks import check_adapter
from acclimate.errors import InputError
from acclimate.methods import duplicate, register

torch = pytest.importorskip("torch")


@dataclass(eq=False, repr=False, kw_only=True)
class Shift(Adapter):
    """One step on a shift of the class vectors, down the entropy of the mean answer of the views (as TPS does)."""

    name = "shift"
    summary = "one gradient step per image"
    kind = "episodic"
    merges = "union"
    needs = frozenset({"views"})
    rate: float = 0.01

    def respond(self, evidence, ids, learn):
        vectors = torch.asarray(to_host(self.head.class_vectors))
        answers = []
        for views in torch.asarray(to_host(evidence.views)):
            shift = torch.zeros_like(vectors, requires_grad=True)
            probs = (self.head.logit_scale * views @ (vectors + shift).T).softmax(dim=-1).mean(dim=0)
            (-(probs * probs.log()).sum()).backward()
            moved = vectors - self.rate * shift.grad
            answers.append(self.head.logit_scale * views[0] @ moved.T)
        return Step(move(torch.stack(answers), evidence.logits))


@dataclass(eq=False, repr=False, kw_only=True)
class Reworded(Adapter):
    """A method that asks the text tower for other class vectors."""

    name = "reworded"
    summary = "class vectors of another prompt"
    kind = "episodic"
    needs = frozenset({"text"})
    encoder: Any
    prompt: str = "a drawing of a {}."

    def recompute(self):
        words = [self.prompt.replace("{}", name) for name in self.head.class_names]
        vectors = self.encoder.encode_text(words)
        self.vectors = (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)

    def respond(self, evidence, ids, learn):
        return Step(self.head.logit_scale * evidence.features @ self.vectors.T)


def test_a_method_with_gradients_keeps_the_laws(capsys):
    check_adapter(Shift)
    assert "sum_merge_counts_once" in capsys.readouterr().out


def test_the_text_tower_reaches_the_method(tiny_onnx, photos, tmp_path, monkeypatch):
    monkeypatch.setattr("acclimate.methods.registry._REGISTRY", list_methods())
    register(Reworded)
    classifier = Classifier(["cat", "dog"], f"onnx:{tiny_onnx}", method="reworded", cache=tmp_path)
    images = sorted(photos.rglob("*.png"))[:5]
    answers = classifier(images)
    classifier.add_labels(["bird"])
    assert len(classifier(images[0])) == 3
    classifier.remove_labels(["bird"])
    save_state(classifier.adapter, tmp_path / "state")
    for other in (load_state(tmp_path / "state", like=classifier.adapter), duplicate(classifier.adapter)):
        assert other.encoder is classifier.encoder
        classifier.adapter = other
        assert classifier(images) == answers
    with pytest.raises(InputError, match="the method 'reworded' needs the text tower of a model"):
        create("reworded", classifier.head)
    with pytest.raises(InputError, match="needs the text tower"):
        load_state(tmp_path / "state")
