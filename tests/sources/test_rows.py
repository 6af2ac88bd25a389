"""Rows, tuples and batches that one already has: of `datasets`, of a `DataLoader`, of webdataset, of a processor."""

import io

import numpy as np
import pytest

from acclimate import Classifier
from acclimate.encoders import load_encoder
from acclimate.errors import ImageError, InputError
from drawn_images import draw

LABELS = ["red circle", "green square", "blue stripes"]


@pytest.fixture(scope="module")
def classifier(tiny_clip):
    return Classifier(LABELS, load_encoder(f"local:{tiny_clip}", "cpu"), method="zero-shot", cache=False)


@pytest.fixture(scope="module")
def pictures():
    return [draw(("red", "green", "blue")[i % 3], i) for i in range(6)]


@pytest.fixture(scope="module")
def expected(classifier, pictures):
    """Return the scores of the pictures, by label."""
    return scores(classifier.stream(pictures))


def scores(predictions):
    return [[{each.label: each.score for each in found.top}[label] for label in LABELS] for found in predictions]


def png(picture):
    buffer = io.BytesIO()
    picture.save(buffer, "PNG")
    return buffer.getvalue()


def check(classifier, images, expected):
    np.testing.assert_allclose(scores(classifier.stream(images)), expected, atol=1e-5)


@pytest.fixture(scope="module")
def dataset(pictures):
    datasets = pytest.importorskip("datasets")
    kinds = {"img": datasets.Image(), "path": datasets.Value("string"), "fine": datasets.Value("int8")}
    rows = {"img": pictures, "path": [f"{i}.jpg" for i in range(6)], "fine": [i % 3 for i in range(6)]}
    return datasets.Dataset.from_dict(rows, features=datasets.Features(kinds))


def test_rows_of_datasets(classifier, dataset, expected):
    datasets = pytest.importorskip("datasets")
    check(classifier, dataset, expected)
    check(classifier, dataset.to_iterable_dataset(), expected)
    check(classifier, [dataset[i] for i in range(6)], expected)
    check(classifier, dataset[:6], expected)  # columns
    check(classifier, dataset.iter(batch_size=4), expected)
    check(classifier, dataset.with_format("torch"), expected)
    check(classifier, dataset.rename_column("img", "image").add_column("mask", [None] * 6), expected)
    check(classifier, dataset.cast_column("img", datasets.Image(decode=False)), expected)
    check(classifier, dataset["img"], expected)
    one = classifier(dataset[0])
    assert [each["label"] for each in one] == [each["label"] for each in classifier(dataset[0]["img"])]


def test_undecoded_images_are_read_from_their_path(classifier, pictures, expected, tmp_path):
    pictures[0].save(tmp_path / "a.png")
    check(classifier, [{"image": {"bytes": None, "path": str(tmp_path / "a.png")}}], expected[:1])


def test_batches_of_a_data_loader(classifier, pictures, expected):
    data = pytest.importorskip("torch.utils.data")
    torch = pytest.importorskip("torch")
    pixels = torch.stack([torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in pictures])
    labels = torch.arange(6)
    for images in (pixels, pixels / 255):
        check(classifier, data.DataLoader(data.TensorDataset(images, labels), batch_size=4), expected)
        check(classifier, data.DataLoader(images, batch_size=4), expected)
        rows = [{"image": image, "label": i} for i, image in enumerate(images)]
        check(classifier, data.DataLoader(rows, batch_size=4), expected)


def test_samples_of_webdataset(classifier, pictures, expected):
    encoded = [png(each) for each in pictures]
    check(classifier, [(each, {"width": 3}) for each in pictures], expected)
    check(classifier, [(each, b"2") for each in encoded], expected)
    check(classifier, [("0001", each, 2) for each in encoded], expected)
    rows = [{"__key__": "0001", "__url__": "x.tar", "png": each, "cls": b"2", "json": b"{}"} for each in encoded]
    check(classifier, iter(rows), expected)
    check(classifier, [row | {"png": each} for row, each in zip(rows, pictures, strict=True)], expected)


def test_paths_with_labels(classifier, photos):
    paths = sorted(map(str, photos.rglob("*.png")))[:3]
    check(classifier, [(path, i) for i, path in enumerate(paths)], scores(classifier.stream(paths)))


def test_what_a_processor_has_prepared(classifier, pictures, tiny_clip):
    """The pixels of the model's own processor are taken as they are: features are those of transformers."""
    transformers = pytest.importorskip("transformers")
    torch = pytest.importorskip("torch")
    processor = transformers.AutoImageProcessor.from_pretrained(tiny_clip)
    model = transformers.AutoModel.from_pretrained(tiny_clip).eval()
    batch = processor(pictures, return_tensors="pt")
    with torch.inference_mode():
        features = model.get_image_features(**batch)
    features = getattr(features, "pooler_output", features)
    expected = classifier.adapter.head.observe(features.numpy()).logits
    expected = np.exp(expected) / np.exp(expected).sum(axis=1, keepdims=True)
    for given in (batch, processor(pictures, return_tensors="np"), processor(pictures), [batch], [dict(batch)]):
        check(classifier, given, expected)
    check(classifier, ({"pixel_values": each, "labels": 1} for each in batch["pixel_values"]), expected)
    assert len(classifier({"pixel_values": batch["pixel_values"][0]})) == len(LABELS)
    with pytest.raises(ImageError, match=r"image 0 .* pixel_values have the shape \(3, 9, 9\), and the model takes"):
        classifier({"pixel_values": np.zeros((2, 3, 9, 9), np.float32)})
    with pytest.raises(ImageError, match=r'before normalising, got .*passed as {"pixel_values": pixels}'):
        classifier(batch["pixel_values"] - 1)


def test_prepared_pixels_have_one_view(tiny_clip):
    encoder = load_encoder(f"local:{tiny_clip}", "cpu")
    pixels = encoder.prepare(draw("red", 0))
    with pytest.raises(ImageError, match="other views cannot be made of pixel_values"):
        Classifier(LABELS, encoder, method="zero", views=4, cache=False)({"pixel_values": pixels})


@pytest.mark.parametrize(
    ("item", "message"),
    [
        (
            {"text": "a caption", "label": 3},
            r"none of 'text', 'label' in a dict is an image; .* row\['image'\]",
        ),
        ({"left": draw("red", 0), "right": draw("red", 1)}, r"several of 'left', 'right' .* such as row\['left'\]"),
        ((draw("red", 0), draw("red", 1)), r"several of 0, 1 in a tuple .* such as item\[0\]"),
        ((3, 4), r"none of 0, 1 in a tuple is an image"),
        (("a.jpg", "cat"), r"several of 0, 1 in a tuple .* such as item\[0\]"),
        ([["a.jpg", "b.jpg"]], "several of 0, 1 in a list"),
    ],
)
def test_what_holds_no_image_or_several_is_refused_with_the_line_that_helps(classifier, item, message):
    with pytest.raises(InputError, match=message):
        classifier(item if isinstance(item, list) else [item])


def test_a_dataset_of_several_splits_is_refused(classifier, dataset):
    datasets = pytest.importorskip("datasets")
    with pytest.raises(InputError, match=r"none of 'train', 'test' in a DatasetDict is an image"):
        classifier(datasets.DatasetDict(train=dataset, test=dataset))
