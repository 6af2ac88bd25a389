"""Families of dual encoders in transformers: acclimate's features are the model's own, or the model is refused."""

import json

import numpy as np
import pytest

from acclimate.arrays import unit_rows
from acclimate.encoders import load_encoder
from acclimate.encoders.convert import convert
from acclimate.encoders.loading import fingerprint_files
from acclimate.encoders.onnx import CONFIG
from acclimate.encoders.transformers import TransformersEncoder
from acclimate.errors import ModelError
from drawn_images import draw
from tiny_families import discover, save_family

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")

# Type of a model -> why it is refused; "" if it is not.
FAMILIES = {
    "aimv2": "",
    "align": "AlignModel does not encode images and texts as CLIP does: it lacks logit_scale",
    "altclip": "",
    "blip": "",
    "blip-2": "Blip2Model does not encode images and texts as CLIP does: it lacks logit_scale",
    "chinese_clip": "",
    "clip": "",
    "clipseg": "",
    "flava": "FlavaModel has no single vector per image and text",
    "groupvit": "",
    "metaclip_2": "",
    "owlv2": "the image processor asks for do_pad, which acclimate does not support",
    "owlvit": "",
    "siglip": "",
    "siglip2": "does not support models that take images of any shape",
    "tipsv2": "lacks logit_scale|Missing optional dependencies: torchvision",
    "vision-text-dual-encoder": "",
}
SERVED = [kind for kind, refusal in FAMILIES.items() if not refusal]
# Earlier versions gave other features for texts in these families, which read padding where no mask hides it.
MASKED = ("aimv2", "altclip", "blip", "chinese_clip", "vision-text-dual-encoder")
TEXTS = ["a photo of a cat.", "dog", "a photo of the large red square and a small green circle " * 3, "Füße 猫"]
SIZES = [(60, 48), (48, 60), (32, 32), (160, 64)]


@pytest.fixture(scope="module", params=FAMILIES)
def family(request, tmp_path_factory):
    """Return the type and the folder of a tiny model."""
    if request.param not in transformers.CONFIG_MAPPING:
        pytest.skip(f"this transformers has no {request.param}")
    return request.param, save_family(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture
def served(family):
    kind, folder = family
    if FAMILIES[kind]:
        pytest.skip("it is refused")
    return kind, folder


def pictures():
    return [draw(["red", "green", "blue"][i % 3], i, size) for i, size in enumerate(SIZES)]


def own_features(kind, folder):
    """Return the unit features of images and texts as transformers computes them, one after the other."""
    model = transformers.AutoModel.from_pretrained(folder).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    longest = model.config.text_config.max_position_embeddings
    padding = {"padding": "max_length", "max_length": 64} if kind == "siglip" else {"max_length": min(longest, 500)}
    features = []
    with torch.inference_mode():
        for image in pictures():
            inputs = processor(images=image, return_tensors="pt")
            features.append(model.get_image_features(**inputs))
        for text in TEXTS:
            tokens = tokenizer([text], return_tensors="pt", truncation=True, **padding)
            features.append(model.get_text_features(**tokens))
    rows = [getattr(each, "pooler_output", each).numpy() for each in features]
    return unit_rows(np.concatenate(rows), "features")


def features_of(encoder):
    images = encoder.encode_images([encoder.prepare(image) for image in pictures()])
    return unit_rows(np.concatenate([images, encoder.encode_text(TEXTS)]), "features")


def test_every_dual_encoder_of_transformers_is_among_the_families():
    assert set(discover()) <= set(FAMILIES), "write down whether the new family is served, or why it is refused"


def test_a_family_gives_its_own_features_or_is_refused(family):
    kind, folder = family
    if FAMILIES[kind]:
        with pytest.raises(ModelError, match=FAMILIES[kind]):
            load_encoder(f"local:{folder}", "cpu")
        return
    encoder = load_encoder(f"local:{folder}", "cpu")
    found = features_of(encoder)
    np.testing.assert_allclose(found, own_features(kind, folder), atol=1e-5)
    assert not np.allclose(found[-1], found[-2], atol=1e-3)
    alone = np.concatenate([encoder.encode_text([text]) for text in TEXTS])
    np.testing.assert_allclose(unit_rows(alone, "features"), found[len(SIZES) :], atol=1e-5)
    assert np.isfinite(encoder.encode_text(["cat " * 600])).all()


def test_cached_text_features_are_not_those_of_an_earlier_version(served):
    kind, folder = served
    earlier = fingerprint_files([path for path in folder.iterdir() if path.suffix in (".json", ".safetensors")])
    now = load_encoder(f"local:{folder}", "cpu").fingerprint
    assert (now != earlier) == (kind in MASKED)


def test_learned_prompts_read_words_as_the_family_does_or_are_refused(served):
    kind, folder = served
    encoder = load_encoder(f"local:{folder}", "cpu")
    if kind in (*MASKED[1:], "siglip"):
        with pytest.raises(ModelError, match=r"cannot take embeddings: it (has no table|reads a text in both)"):
            encoder.text_tower()
        return
    if kind == "owlvit":
        pytest.skip("it looks for the end by the largest id, which the end of the small tokenizer is not")
    tower = encoder.text_tower()
    context = tower.words("a photo of a")
    vectors = tower.prompts(["cat", "red dog"], len(context)).vectors(context)
    expected = unit_rows(encoder.encode_text(["a photo of a cat.", "a photo of a red dog."]), "features")
    np.testing.assert_allclose(vectors, expected, atol=1e-5)


@pytest.mark.slow
def test_a_converted_family_gives_its_own_features(served, tmp_path):
    pytest.importorskip("onnxscript")
    kind, folder = served
    assert convert(f"local:{folder}", tmp_path / "onnx") < 1e-4
    found = features_of(load_encoder(f"onnx:{tmp_path / 'onnx'}"))
    np.testing.assert_allclose(found, own_features(kind, folder), atol=1e-5)


class Unmasked(TransformersEncoder):
    """An encoder that hands token ids on without a mask, padded to the last position, as earlier versions did."""

    def tokens(self, texts, padding):
        return super().tokens(texts, "max_length")[:1]

    def text_features(self, ids, mask=None):
        return super().text_features(ids)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["chinese_clip", "clip"])
def test_a_folder_converted_earlier_is_refused_if_its_texts_need_a_mask(kind, tmp_path):
    pytest.importorskip("onnxscript")
    folder = save_family(kind, tmp_path / "model")
    loaders = (transformers.AutoModel, transformers.AutoImageProcessor, transformers.AutoTokenizer)
    encoder = Unmasked(*(loader.from_pretrained(folder) for loader in loaders))
    encoder.source = f"local:{folder}"
    encoder.padding = "max_length"
    encoder.context = 16
    convert(encoder, tmp_path / "onnx")
    config = json.loads((tmp_path / "onnx" / CONFIG).read_text())
    (tmp_path / "onnx" / CONFIG).write_text(json.dumps({k: v for k, v in config.items() if "padding" not in k}))
    converted = load_encoder(f"onnx:{tmp_path / 'onnx'}")
    if kind == "clip":
        expected = encoder.encode_text(["cat", "dog"])
        np.testing.assert_allclose(converted.encode_text(["cat", "dog"]), expected, rtol=1e-4, atol=1e-4)
        return
    for _ in range(2):
        with pytest.raises(ModelError, match="lacks the mask that its texts need; convert the model again"):
            converted.encode_text(["cat", "dog"])
