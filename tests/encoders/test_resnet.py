"""CLIP with a ResNet, as in the paper's ablations: open_clip's where it is installed, and one with its interface.

A ResNet has batch normalisation, so its features must not depend on the other images of a batch.
"""

import numpy as np
import pytest

from acclimate import Classifier
from acclimate.encoders import Encoder
from acclimate.encoders.convert import convert
from acclimate.encoders.open_clip import OpenClipEncoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import InputError
from drawn_images import draw
from tiny_models import MEANS, STDS

torch = pytest.importorskip("torch")
LABELS = ["red", "green", "blue"]
IMAGES = [draw(colour, seed) for seed, colour in enumerate([*LABELS, *LABELS])]


def of_open_clip():
    open_clip = pytest.importorskip("open_clip", reason="open_clip needs torchvision")
    vision = open_clip.CLIPVisionCfg(layers=(1, 1, 1, 1), width=8, image_size=64)
    text = open_clip.CLIPTextCfg(context_length=16, width=32, heads=2, layers=1)
    model = open_clip.CLIP(24, vision, text, quick_gelu=True)
    assert type(model.visual).__name__ == "ModifiedResNet"
    return model, open_clip.image_transform(64, is_train=False), open_clip.SimpleTokenizer(context_length=16)


class ResNetClip(torch.nn.Module):
    """A stem, one residual block, pooled; texts are bags of characters."""

    def __init__(self):
        super().__init__()
        self.stem = torch.nn.Sequential(torch.nn.Conv2d(3, 8, 3, stride=4), torch.nn.BatchNorm2d(8), torch.nn.ReLU())
        self.block = torch.nn.Sequential(torch.nn.Conv2d(8, 8, 3, padding=1), torch.nn.BatchNorm2d(8))
        self.project = torch.nn.Linear(8, 24)
        self.embed = torch.nn.EmbeddingBag(128, 24)
        self.logit_scale = torch.nn.Parameter(torch.tensor(2.5))

    def encode_image(self, pixels):
        maps = self.stem(pixels)
        return self.project(torch.relu(maps + self.block(maps)).mean(dim=(2, 3)))

    def encode_text(self, ids):
        return self.embed(ids)


def with_its_interface():
    preprocess = Preprocess(64, 64, 64, "bicubic", tuple(MEANS["clip"]), tuple(STDS["clip"]))

    def tokenizer(texts):
        return torch.tensor([[ord(letter) % 128 for letter in text.ljust(16)[:16]] for text in texts])

    return ResNetClip(), preprocess, tokenizer


@pytest.fixture(params=[of_open_clip, with_its_interface], ids=lambda build: build.__name__)
def resnet(request):
    """Return a model in training mode with random weights and statistics, its preprocessing and its tokenizer."""
    torch.manual_seed(0)
    model, preprocess, tokenizer = request.param()
    for module in model.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.normal_(std=0.1)
            module.weight.data.uniform_(0.5, 1.5)
    return model, preprocess, tokenizer


def test_features_and_logits_are_those_of_the_model(resnet):
    model, preprocess, tokenizer = resnet
    encoder = OpenClipEncoder(*resnet)
    assert isinstance(encoder, Encoder)
    assert encoder.dim == 24
    assert encoder.logit_scale == pytest.approx(model.logit_scale.exp().item())
    assert encoder.logit_bias == 0.0
    pixels = [encoder.prepare(image) for image in IMAGES]
    features = encoder.encode_images(pixels)
    with torch.inference_mode():
        expected = model.eval().encode_image(torch.stack([torch.as_tensor(preprocess(image)) for image in IMAGES]))
        texts = model.encode_text(tokenizer(LABELS))
    np.testing.assert_allclose(features, expected.numpy(), atol=1e-5)
    np.testing.assert_allclose(encoder.encode_text(LABELS), texts.numpy(), atol=1e-5)
    alone = np.concatenate([encoder.encode_images([each]) for each in pixels])
    np.testing.assert_allclose(features, alone, atol=1e-5)


def test_it_classifies(resnet):
    classifier = Classifier(LABELS, resnet, method="zero-shot", cache=False)
    encoder = classifier.encoder
    images = encoder.encode_images([encoder.prepare(image) for image in IMAGES])
    texts = encoder.encode_text([f"a photo of a {label}." for label in LABELS])
    images, texts = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, texts))
    logits = encoder.logit_scale * images @ texts.T
    answers = classifier(IMAGES)
    assert [each[0]["label"] for each in answers] == [LABELS[best] for best in logits.argmax(axis=1)]
    probs = np.exp(logits[0]) / np.exp(logits[0]).sum()
    assert answers[0][0]["score"] == pytest.approx(probs.max(), abs=1e-4)
    assert len(Classifier(LABELS, resnet, method="tda", cache=False)(IMAGES)) == len(IMAGES)


def test_why_it_cannot_be_converted(resnet, tmp_path):
    with pytest.raises(InputError, match=r"open_clip models cannot be converted: their tokenizer and preprocessing"):
        convert(OpenClipEncoder(*resnet), tmp_path / "onnx")
    with pytest.raises(InputError, match="transformers has no CLIP with a ResNet"):
        convert("open_clip:RN50/openai", tmp_path / "onnx")  # said before anything is downloaded
    assert not (tmp_path / "onnx").exists()
