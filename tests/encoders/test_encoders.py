"""Tiny real models, loaded in every way."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest

from acclimate.encoders import Encoder, load_encoder
from acclimate.encoders.convert import convert
from acclimate.encoders.onnx import FILES
from acclimate.errors import InputError, MissingExtraError, ModelError
from drawn_images import draw

WORDS = ["a photo of a cat.", "dog", "", "a very long text " * 30, "Füße 猫"]


def pictures():
    return [draw(colour, i) for i, colour in enumerate(["red", "green", "blue", "red", "green"])]


def test_a_transformers_model_gives_its_own_features(tiny_model):
    torch = pytest.importorskip("torch")
    import transformers

    encoder = load_encoder(f"local:{tiny_model}", "cpu")
    assert isinstance(encoder, Encoder)
    model = transformers.AutoModel.from_pretrained(tiny_model).eval()
    images = np.stack([encoder.prepare(image) for image in pictures()])
    tokens = transformers.AutoTokenizer.from_pretrained(tiny_model)(
        WORDS, padding="max_length", truncation=True, max_length=16, return_tensors="pt"
    )
    with torch.inference_mode():
        output = model(**tokens, pixel_values=torch.from_numpy(images))
    features = encoder.encode_images(list(images))
    vectors = encoder.encode_text(WORDS)
    assert features.shape == (5, encoder.dim)
    for ours, theirs in ((features, output.image_embeds), (vectors, output.text_embeds)):
        unit = ours / np.linalg.norm(ours, axis=1, keepdims=True)
        np.testing.assert_allclose(unit, theirs.numpy(), atol=1e-5)
    cosines = output.image_embeds.numpy() @ output.text_embeds.numpy().T
    logits = encoder.logit_scale * cosines + encoder.logit_bias
    np.testing.assert_allclose(logits, output.logits_per_image.numpy(), atol=1e-3)


def test_converting_changes_nothing(tiny_model, tmp_path):
    pytest.importorskip("onnxscript")
    encoder = load_encoder(f"local:{tiny_model}", "cpu")
    assert convert(encoder, tmp_path / "onnx") < 1e-4
    converted = load_encoder(f"onnx:{tmp_path / 'onnx'}")
    assert isinstance(converted, Encoder)
    assert (converted.dim, converted.context) == (encoder.dim, encoder.context)
    assert (converted.logit_scale, converted.logit_bias) == (encoder.logit_scale, encoder.logit_bias)
    prepared = [encoder.prepare(image) for image in pictures()]
    assert all(
        np.array_equal(converted.prepare(image), pixels) for image, pixels in zip(pictures(), prepared, strict=True)
    )
    logits = []
    for side in (encoder, converted):
        images = side.encode_images(prepared)
        texts = side.encode_text(WORDS)
        images, texts = (rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in (images, texts))
        logits.append(side.logit_scale * images @ texts.T + side.logit_bias)
    np.testing.assert_allclose(logits[0], logits[1], atol=1e-3)
    assert sorted(path.name for path in (tmp_path / "onnx").iterdir()) == sorted(FILES)
    with pytest.raises(InputError, match="exists; choose another folder"):
        convert(encoder, tmp_path / "onnx")


def test_only_torch_models_are_converted(tiny_onnx, tmp_path):
    with pytest.raises(InputError, match="only models loaded from hf: or local:"):
        convert(load_encoder(f"onnx:{tiny_onnx}"), tmp_path / "x")


def test_fingerprints_follow_the_weights(tiny_onnx, tiny_clip, tmp_path):
    for prefix, folder, weights in (("onnx", tiny_onnx, "image.onnx"), ("local", tiny_clip, "model.safetensors")):
        same = tmp_path / f"{prefix}-same"
        other = tmp_path / f"{prefix}-other"
        shutil.copytree(folder, same)
        shutil.copytree(folder, other)
        content = bytearray((other / weights).read_bytes())
        content[-1] ^= 1
        (other / weights).write_bytes(content)
        prints = [load_encoder(f"{prefix}:{path}", "cpu").fingerprint for path in (folder, same, other)]
        assert prints[0] == prints[1] != prints[2]


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("hf-openai/clip-vit-base-patch16", "did you mean hf:openai/clip-vit-base-patch16"),
        ("open_clip/ViT-B-16/openai", "did you mean open_clip:ViT-B-16/openai"),
        ("zzzzzz", "write one of bundled, onnx:clip/, hf:openai"),
        ("hf:", "unknown model 'hf:'"),
        (
            "onnx:no-such-folder",
            r"no ONNX model in no-such-folder \(no such folder\); make one with `acclimate convert",
        ),
        ("local:no-such-folder", "there is no such folder; save one there"),
    ],
)
def test_unknown_models_are_refused(name, message):
    with pytest.raises(ModelError, match=message):
        load_encoder(name)


def test_a_folder_without_a_prefix(tiny_onnx):
    with pytest.raises(ModelError, match="write a folder as onnx:"):
        load_encoder(str(tiny_onnx))


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda f: (f / "text.onnx").unlink(), "text.onnx missing"),
        (lambda f: (f / "image.onnx").write_bytes(b"junk"), "image.onnx cannot be loaded"),
        (lambda f: (f / "acclimate.json").write_text("{"), "acclimate.json is damaged"),
        (lambda f: (f / "acclimate.json").write_text(json.dumps({"format": "x", "version": 0})), "another version"),
    ],
)
def test_damaged_onnx_folders(tiny_onnx, tmp_path, spoil, message):
    shutil.copytree(tiny_onnx, tmp_path / "model")
    spoil(tmp_path / "model")
    with pytest.raises(ModelError, match=message):
        load_encoder(f"onnx:{tmp_path / 'model'}")


def test_cuda_that_is_not_available(tiny_onnx):
    import onnxruntime

    if "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("CUDA is here")
    with pytest.raises(ModelError, match="cannot use CUDA; pip install onnxruntime-gpu"):
        load_encoder(f"onnx:{tiny_onnx}", "cuda")


def test_damaged_and_foreign_transformers_folders(tiny_clip, tmp_path):
    shutil.copytree(tiny_clip, tmp_path / "bare", ignore=shutil.ignore_patterns("tokenizer*", "preprocessor*"))
    with pytest.raises(ModelError, match=r"the folder must contain config\.json, the weights, the tokenizer"):
        load_encoder(f"local:{tmp_path / 'bare'}")
    shutil.copytree(tiny_clip, tmp_path / "heavy", ignore=shutil.ignore_patterns("*.safetensors"))
    with pytest.raises(ModelError, match="cannot load"):
        load_encoder(f"local:{tmp_path / 'heavy'}")


def test_a_model_without_images_is_refused(tiny_clip, tmp_path):
    transformers = pytest.importorskip("transformers")
    shutil.copytree(tiny_clip, tmp_path / "bert", ignore=shutil.ignore_patterns("config.json", "*.safetensors"))
    config = transformers.BertConfig(
        vocab_size=300, hidden_size=32, num_hidden_layers=1, num_attention_heads=2, intermediate_size=32
    )
    transformers.BertModel(config).save_pretrained(tmp_path / "bert")
    with pytest.raises(ModelError, match="BertModel does not encode images and texts as CLIP does: it lacks get_image"):
        load_encoder(f"local:{tmp_path / 'bert'}")


def test_an_unavailable_hub_model_says_how_to_get_it(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(
        ModelError, match=r"cannot load acclimate/no-such-model.*unset HF_HUB_OFFLINE.*load it as local:DIR"
    ):
        load_encoder("hf:acclimate/no-such-model")


def test_missing_packages_are_named(monkeypatch, tiny_clip):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(MissingExtraError, match=r"install .*\[hf\]"):
        load_encoder(f"local:{tiny_clip}")
    with pytest.raises(MissingExtraError, match=r"converting needs transformers: .*\[convert\]"):
        convert(f"local:{tiny_clip}", Path("onnx"))
    monkeypatch.setitem(sys.modules, "open_clip", None)
    with pytest.raises(MissingExtraError, match=r"install .*\[open-clip\]"):
        load_encoder("open_clip:ViT-B-16/openai")


def test_open_clip_by_name_and_by_objects(monkeypatch):
    open_clip = pytest.importorskip("open_clip", reason="open_clip needs torchvision")
    from acclimate.encoders.open_clip import OpenClipEncoder

    model, _, preprocess = open_clip.create_model_and_transforms("ViT-B-32", pretrained=None)
    encoder = OpenClipEncoder(model, preprocess, open_clip.get_tokenizer("ViT-B-32"))
    assert isinstance(encoder, Encoder)
    assert encoder.encode_images([encoder.prepare(image) for image in pictures()]).shape == (5, 512)
    asked = {}

    def create(name, **options):
        """Call the real function, without the download."""
        asked.update(options)
        return real(name, **options | {"pretrained": None})

    real = open_clip.create_model_and_transforms
    monkeypatch.setattr(open_clip, "create_model_and_transforms", create)
    by_name = load_encoder("open_clip:ViT-B-32/openai", "cpu")
    assert asked["pretrained"] == "openai"
    assert any(type(module).__name__ == "QuickGELU" for module in by_name.model.modules())
    by_name = load_encoder("open_clip:ViT-B-32/laion2b_s34b_b79k", "cpu")
    assert not any(type(module).__name__ == "QuickGELU" for module in by_name.model.modules())
    with pytest.raises(ModelError, match="named NAME/TAG"):
        load_encoder("open_clip:ViT-B-32")
    with pytest.raises(ModelError, match="no weights 'nothing' for 'ViT-B-16'; its tags are openai"):
        load_encoder("open_clip:ViT-B-16/nothing")


@pytest.mark.parametrize("device", ["toaster", "cuda:99"])
def test_a_device_that_is_not_there(tiny_clip, device, monkeypatch):
    monkeypatch.setattr("transformers.AutoModel.from_pretrained", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(ModelError, match=f"cannot use device '{device}'.*; choose from auto, cpu"):
        load_encoder(f"local:{tiny_clip}", device)


@pytest.mark.parametrize("device", ["gpu", "nonsense", "cuda:x", "CPU", ""])
def test_a_device_that_onnxruntime_does_not_know(device, monkeypatch):
    monkeypatch.setattr("onnxruntime.InferenceSession", lambda *_, **__: pytest.fail("a model was loaded"))
    with pytest.raises(ModelError, match=f"cannot use device '{device}'; choose from auto, cpu"):
        load_encoder("bundled", device)
