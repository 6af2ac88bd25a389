"""Models given as objects, with what prepares their inputs."""

from types import SimpleNamespace

import numpy as np
import pytest

from acclimate import Classifier
from acclimate.encoders import Encoder, as_encoder, load_encoder
from acclimate.errors import InputError, ModelError
from drawn_images import draw

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
LABELS = ["cat", "dog", "large red square"]


@pytest.fixture
def parts(tiny_model):
    model = transformers.AutoModel.from_pretrained(tiny_model).eval()
    image_processor = transformers.AutoImageProcessor.from_pretrained(tiny_model)
    return model, image_processor, transformers.AutoTokenizer.from_pretrained(tiny_model)


def test_a_model_with_its_processor_answers_as_the_folder_does(tiny_model, parts):
    model, image_processor, tokenizer = parts
    processor = SimpleNamespace(image_processor=image_processor, tokenizer=tokenizer)
    if type(model).__name__ == "CLIPModel":
        processor = transformers.VisionTextDualEncoderProcessor(image_processor, tokenizer)
    images = [draw(colour, i) for i, colour in enumerate(["red", "green", "blue"])]
    expected = Classifier(LABELS, encoder=f"local:{tiny_model}", device="cpu")(images)
    for given in ((model, processor), (model, image_processor, tokenizer)):
        classifier = Classifier(LABELS, encoder=given)
        assert isinstance(classifier.encoder, Encoder)
        for ours, theirs in zip(classifier(images), expected, strict=True):
            assert [each["label"] for each in ours] == [each["label"] for each in theirs]
            np.testing.assert_allclose([each["score"] for each in ours], [each["score"] for each in theirs], atol=1e-5)


def test_a_pipeline_is_an_encoder_that_gives_its_scores(parts):
    model, image_processor, tokenizer = parts
    if type(model).__name__ == "SiglipModel":
        pytest.skip("pipelines pad the texts of SigLIP to 64 tokens, which the tiny one cannot read")
    pipeline = transformers.pipeline(
        "zero-shot-image-classification", model=model, image_processor=image_processor, tokenizer=tokenizer
    )
    encoder = as_encoder(pipeline, "auto")
    image = draw("red", 0)
    told = {each["label"]: each["score"] for each in pipeline(image, candidate_labels=LABELS, hypothesis_template="{}")}
    rows = [encoder.encode_images([encoder.prepare(image)]), encoder.encode_text(LABELS)]
    features, vectors = (each / np.linalg.norm(each, axis=1, keepdims=True) for each in rows)
    logits = encoder.logit_scale * features @ vectors.T
    scores = np.exp(logits - logits.max())
    np.testing.assert_allclose((scores / scores.sum())[0], [told[label] for label in LABELS], atol=1e-4)


def test_a_model_alone_is_refused_with_what_to_pass(parts):
    model, image_processor, tokenizer = parts
    for incomplete in (model, (model,), (model, tokenizer), (torch.nn.Linear(1, 1), image_processor, tokenizer)):
        with pytest.raises(InputError, match=r"is not an encoder: .*; pass a model of transformers as \(model, proc"):
            Classifier(LABELS, encoder=incomplete)


def test_a_tokenizer_without_padding_is_refused_with_a_reason(parts):
    model, image_processor, tokenizer = parts
    tokenizer.pad_token = None
    with pytest.raises(ModelError, match=r"the tokenizer has no padding token; set tokenizer\.pad_token"):
        as_encoder((model, image_processor, tokenizer), "auto")


@pytest.mark.parametrize(
    ("settings", "scale", "mean", "std"),
    [
        ({"do_normalize": False, "image_mean": None, "image_std": None}, 1 / 255, 0.0, 1.0),
        ({"do_rescale": False}, 1.0, 0.5, 0.25),
        ({"do_rescale": False, "do_normalize": False}, 1.0, 0.0, 1.0),
        ({"rescale_factor": 2 / 255}, 2 / 255, 0.5, 0.25),
    ],
)
def test_pixels_are_scaled_and_normalised_as_the_processor_asks(parts, settings, scale, mean, std):
    model, image_processor, tokenizer = parts
    changed = type(image_processor)(
        **image_processor.to_dict() | {"image_mean": [0.5] * 3, "image_std": [0.25] * 3} | settings
    )
    encoder = as_encoder((model, changed, tokenizer), "auto")
    image = draw("green", 2, (64, 32))
    expected = np.asarray(changed(images=image, return_tensors="np")["pixel_values"][0])
    np.testing.assert_allclose(encoder.prepare(image), expected, rtol=1e-5, atol=1e-5)
    np.testing.assert_allclose(expected.max(), (np.asarray(image).max() * scale - mean) / std, rtol=0.2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"do_resize": False}, "the image processor asks for do_resize: false, which acclimate does not support"),
        ({"do_pad": True, "do_flip_channel_order": True}, "asks for do_pad, do_flip_channel_order, which"),
    ],
)
def test_an_image_processor_that_asks_for_more_is_refused_by_name(parts, settings, message):
    model, image_processor, tokenizer = parts
    changed = type(image_processor)(**image_processor.to_dict() | settings)
    with pytest.raises(ModelError, match=message):
        as_encoder((model, changed, tokenizer), "auto")


def test_an_image_processor_that_does_more_than_its_settings_say_is_refused(parts):
    model, image_processor, tokenizer = parts

    class Mirrored(type(image_processor)):
        def preprocess(self, images, **options):
            return super().preprocess(images.transpose(0), **options)

    changed = Mirrored(**image_processor.to_dict())
    with pytest.raises(ModelError, match="Mirrored prepares images otherwise than by resizing, cropping and norm"):
        as_encoder((model, changed, tokenizer), "auto")


def test_a_crop_of_both_sides_resized_is_refused(tiny_clip):
    loaders = (transformers.AutoModel, transformers.AutoImageProcessor, transformers.AutoTokenizer)
    model, image_processor, tokenizer = (loader.from_pretrained(tiny_clip) for loader in loaders)
    changed = type(image_processor)(**image_processor.to_dict() | {"size": {"height": 48, "width": 48}})
    with pytest.raises(ModelError, match="prepares images otherwise than by resizing, cropping and normalising"):
        as_encoder((model, changed, tokenizer), "auto")
    with pytest.raises(InputError, match=r"as \(model, image_processor, tokenizer\), in this order"):
        as_encoder((model, tokenizer, image_processor), "auto")


def test_text_features_of_other_pixels_are_not_reused(tiny_clip, tmp_path):
    import json
    import shutil

    from acclimate.encoders.loading import fingerprint_files

    shutil.copytree(tiny_clip, tmp_path / "model")
    path = tmp_path / "model" / "preprocessor_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"do_normalize": False}))
    earlier = fingerprint_files([each for each in path.parent.iterdir() if each.suffix in (".json", ".safetensors")])
    assert load_encoder(f"local:{path.parent}", "cpu").fingerprint != earlier
