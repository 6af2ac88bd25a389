"""The feature store: encoded once, whatever interrupts it."""

import io
import json
import os
import re
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from acclimate.arrays import unit_rows
from acclimate.bench import store as store_module
from acclimate.bench.datasets import DATASETS, read_dataset
from acclimate.bench.prequential import Variant
from acclimate.bench.store import FeatureStore
from acclimate.encoders import load_encoder
from acclimate.errors import InputError, RunError
from acclimate.images.opening import open_image
from acclimate.prompts import build_head
from acclimate.reading.walk import Preparer, encode_ahead
from acclimate.views.generated import GeneratedFolder
from drawn_images import draw
from miniatures import draw_dataset, few

EUROSAT = DATASETS["eurosat"]


@pytest.fixture(scope="module")
def encoder(tiny_onnx):
    return load_encoder(f"onnx:{tiny_onnx}")


@pytest.fixture(autouse=True)
def _texts(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "texts"))


@pytest.fixture
def listing(tmp_path):
    draw_dataset(tmp_path / "data", EUROSAT, few(classes=4, per_class=5))
    return read_dataset(EUROSAT, tmp_path / "data")


def stored(listing, encoder, store, progress=lambda images: None, **options):
    how = {name: options.pop(name) for name in ("prompts", "views", "views_kind") if name in options}
    features = FeatureStore(**{"root": store, "model": "tiny", "folder": store, **options})
    features.encoder = encoder
    return features.stream(listing, Variant("tda", **{"prompts": "single", "views": 1, **how}), progress)


def only(folder):
    (path,) = folder.iterdir()
    return path


def test_one_view_is_what_the_encoder_says(encoder, listing, tmp_path):
    done = []
    stream = stored(listing, encoder, tmp_path / "store", done.append, prompts="eurosat", batch_size=7)
    features = encoder.encode_images([encoder.prepare(open_image(path)) for path in listing.paths])
    assert stream.features.shape == (20, encoder.dim)
    assert stream.features.dtype == np.float32
    np.testing.assert_allclose(stream.features, unit_rows(features, "features"), atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(stream.features, axis=1), 1, atol=2e-6)
    assert stream.labels.tolist() == listing.labels.tolist()
    assert stream.head.fingerprint == build_head(encoder, EUROSAT.class_names, "eurosat").fingerprint
    assert (stream.encoder, stream.prompts) == ("tiny", "eurosat")
    assert stream.encode_s > 0
    assert sum(done) == 20
    manifest = json.loads((only(tmp_path / "store") / "manifest.json").read_text())
    assert (manifest["dataset"], manifest["done"], manifest["encoder"]) == ("eurosat", 20, encoder.fingerprint)


def test_many_views_stay_on_the_disk(encoder, listing, tmp_path):
    stream = stored(listing, encoder, tmp_path / "store", views=64)
    assert isinstance(stream.features, np.memmap)
    assert (stream.features.shape, stream.features.dtype) == ((20, 64, encoder.dim), np.float16)
    batches = encode_ahead(listing.paths, Preparer(encoder, 64), batch_size=192)
    expected = np.concatenate([batch.features for batch in batches])
    np.testing.assert_allclose(stream.features, unit_rows(expected, "views"), atol=2e-3)
    original = stored(listing, encoder, tmp_path / "store")
    np.testing.assert_allclose(stream.features[:, 0], original.features, atol=1e-3)
    assert len(list((tmp_path / "store").iterdir())) == 2


def test_the_second_time_no_image_is_read(encoder, listing, tmp_path):
    first = stored(listing, encoder, tmp_path / "store")
    for path in listing.paths:
        path.unlink()
    done = []
    again = stored(listing, encoder, tmp_path / "store", done.append, prompts="eurosat")
    np.testing.assert_array_equal(first.features, again.features)
    assert first.encode_s == again.encode_s
    assert first.head.fingerprint != again.head.fingerprint
    assert done == [20]


def test_other_images_labels_or_models_are_other_features(encoder, listing, tmp_path):
    other = [
        replace(listing, paths=listing.paths[::-1]),
        replace(listing, labels=listing.labels[::-1]),
        replace(listing, paths=listing.paths[:7], labels=listing.labels[:7]),
    ]
    for each in (listing, *other):
        stored(each, encoder, tmp_path / "store")
    assert len(list((tmp_path / "store").iterdir())) == 4
    # A model without a fingerprint is distinguished by its name.
    original = encoder.fingerprint
    encoder.fingerprint = ""
    try:
        stored(listing, encoder, tmp_path / "store", model="mine")
        stored(listing, encoder, tmp_path / "store", model="yours")
    finally:
        encoder.fingerprint = original
    assert len(list((tmp_path / "store").iterdir())) == 6


def test_moved_data_are_the_same_data(encoder, listing, tmp_path):
    stored(listing, encoder, tmp_path / "store")
    (tmp_path / "data").rename(tmp_path / "elsewhere")
    stored(read_dataset(EUROSAT, tmp_path / "elsewhere"), encoder, tmp_path / "store")
    assert len(list((tmp_path / "store").iterdir())) == 1


def test_an_unreadable_image_stops_and_the_next_call_goes_on(encoder, listing, tmp_path):
    whole = stored(listing, encoder, tmp_path / "whole", batch_size=4)
    content = listing.paths[13].read_bytes()
    listing.paths[13].unlink()
    listing.paths[13].write_bytes(content[:200])
    with pytest.raises(RunError, match=rf"{listing.paths[13].name} cannot be read: .* the next run continues here"):
        stored(listing, encoder, tmp_path / "store", batch_size=4)
    listing.paths[13].write_bytes(content)
    done = []
    stream = stored(listing, encoder, tmp_path / "store", done.append, batch_size=4)
    assert done == [12, 4, 4]
    np.testing.assert_array_equal(stream.features, whole.features)


def test_a_killed_process_loses_little(encoder, tiny_onnx, listing, tmp_path):
    """No `finally` runs in it; what was noted is kept."""
    stored(listing, encoder, tmp_path / "whole", views=4, batch_size=8)
    code = f"""
import os
from pathlib import Path
from acclimate.bench import store
from acclimate.bench.datasets import DATASETS, read_dataset
from acclimate.bench.prequential import Variant
store.CHECKPOINT_IMAGES = 16
done = []
def progress(images):
    done.append(images)
    if sum(done) >= 14:
        os._exit(9)
root, folder = Path({str(tmp_path / "data")!r}), Path({str(tmp_path / "store")!r})
listing = read_dataset(DATASETS["eurosat"], root)
features = store.FeatureStore(root, "onnx:" + {str(tiny_onnx)!r}, folder, batch_size=8)
features.stream(listing, Variant("tda", prompts="single", views=4), progress)
"""
    killed = subprocess.run([sys.executable, "-c", code], check=False, env=os.environ)
    assert killed.returncode == 9
    done = []
    stored(listing, encoder, tmp_path / "store", done.append, views=4, batch_size=8)
    assert done[0] == 12
    same = [(only(tmp_path / name) / "features.npy").read_bytes() for name in ("whole", "store")]
    assert same[0] == same[1]


def test_checkpoints_are_noted_on_the_way(encoder, listing, tmp_path, monkeypatch):
    monkeypatch.setattr(store_module, "CHECKPOINT_IMAGES", 8)
    noted = []

    def look(images):
        path = next((tmp_path / "store").glob("*/manifest.json"), None)
        noted.append(None if path is None else json.loads(path.read_text())["done"])

    stored(listing, encoder, tmp_path / "store", look, batch_size=4)
    assert noted == [None, None, None, 8, 8, 16]


@pytest.mark.parametrize("damage", ["manifest", "features", "shape", "gone"])
def test_a_damaged_store_is_made_again(encoder, listing, tmp_path, damage):
    first = stored(listing, encoder, tmp_path / "store")
    folder = only(tmp_path / "store")
    if damage == "manifest":
        (folder / "manifest.json").write_text("{")
    elif damage == "features":
        (folder / "features.npy").write_bytes(b"nothing")
    elif damage == "shape":
        np.save(folder / "features.npy", np.zeros((2, 1, 3), np.float16))
    else:
        (folder / "features.npy").unlink()
    done = []
    again = stored(listing, encoder, tmp_path / "store", done.append)
    assert done[0] == 0
    np.testing.assert_array_equal(first.features, again.features)


def test_a_store_that_cannot_be_written(encoder, listing, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match=r"cannot write to .*\. Free some space or choose a different store\."):
        stored(listing, encoder, tmp_path / "file")


def test_a_disk_without_room(encoder, listing, tmp_path):
    resource = pytest.importorskip("resource")
    whole = stored(listing, encoder, tmp_path / "store", batch_size=4)
    (only(tmp_path / "store") / "manifest.json").unlink()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (600, hard))  # the header, and less than half of the features
    try:
        with pytest.raises(RunError, match=r"cannot write to .*: File too large\. Free some space"):
            stored(listing, encoder, tmp_path / "store", batch_size=4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    again = stored(listing, encoder, tmp_path / "store", batch_size=4)
    np.testing.assert_array_equal(again.features, whole.features)


def test_two_classes_of_one_name(encoder, tmp_path):
    dataset = DATASETS["imagenet"]
    draw_dataset(tmp_path, dataset, few(classes=1, per_class=2))
    stream = stored(read_dataset(dataset, tmp_path), encoder, tmp_path / "store")
    assert len(set(stream.head.class_names)) == 1000
    assert (stream.head.class_names[657], stream.head.class_names[744]) == ("missile", "missile (2)")
    np.testing.assert_allclose(stream.head.class_vectors[657], stream.head.class_vectors[744], atol=1e-6)


def test_features_made_on_a_gpu(tiny_clip, listing, tmp_path):
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device here")
    streams = {}
    for device in ("cpu", "cuda"):
        model = load_encoder(f"local:{tiny_clip}", device, "float32")
        streams[device] = stored(listing, model, tmp_path / "store", views=64)
    assert len(list((tmp_path / "store").iterdir())) == 2  # pixels are rounded differently, so they are kept apart
    cpu, cuda = (stream.features.astype(np.float32) for stream in streams.values())
    np.testing.assert_allclose(cpu[:, 0], cuda[:, 0], atol=2e-3)
    assert np.mean(np.sum(cpu * cuda, axis=-1)) > 0.99


def test_renditions_know_their_domains(encoder, tmp_path):
    dataset = DATASETS["imagenet-r"]
    folder = draw_dataset(tmp_path, dataset, few(classes=2, per_class=2)) / "imagenet-r"
    (folder / dataset.wnids[0] / "art_1.jpg").rename(folder / dataset.wnids[0] / "toy_0.jpg")
    listing = read_dataset(dataset, tmp_path)
    stream = stored(listing, encoder, tmp_path / "store")
    assert stream.domains == ("art", "toy", "art", "art")


def test_kinds_of_views_are_kept_apart(encoder, listing, tmp_path):
    augmix = stored(listing, encoder, tmp_path / "store", views=4)
    crop = stored(listing, encoder, tmp_path / "store", views=4, views_kind="crop")
    assert (augmix.views_kind, crop.views_kind, crop.views) == ("augmix", "crop", 4)
    np.testing.assert_array_equal(augmix.features[:, 0], crop.features[:, 0])
    assert not np.allclose(augmix.features[:, 1:], crop.features[:, 1:], atol=1e-2)
    again = stored(listing, encoder, tmp_path / "store", views=4, views_kind="crop")
    np.testing.assert_array_equal(again.features, crop.features)
    assert len(list((tmp_path / "store").iterdir())) == 2
    one = stored(listing, encoder, tmp_path / "store", views_kind="crop")
    assert (one.views, one.views_kind) == (1, "")


def test_diffusion_views_need_every_generated_image(encoder, listing, tmp_path):
    how = {"views": 5, "views_kind": "diffusion"}
    made = str(tmp_path / "made")
    folder = GeneratedFolder(tmp_path / "made")
    for path in listing.paths[:-1]:
        folder.store(str(path), [draw("red", 1), draw("blue", 2)])
    name = re.escape(str(folder.folder_of(str(listing.paths[-1]))))
    with pytest.raises(RunError, match=rf"cannot be read: {name} has 0 generated images, 2 are needed; make them"):
        stored(listing, encoder, tmp_path / "store", generated=made, **how)
    folder.store(str(listing.paths[-1]), [draw("red", 1), draw("blue", 2)])
    stream = stored(listing, encoder, tmp_path / "store", generated=made, **how)
    assert (stream.features.shape[:2], stream.views_kind) == ((20, 5), "diffusion")
    np.testing.assert_array_equal(stream.features[:, 3:], np.stack([stream.features[0, 3:]] * 20))
    with pytest.raises(InputError, match="diffusion views need generated images"):
        stored(listing, encoder, tmp_path / "store", **how)


def test_images_are_read_as_they_are_stored(encoder, listing, tmp_path):
    original = stored(listing, encoder, tmp_path / "original")
    exif = Image.Exif()
    exif[0x0112] = 6
    with Image.open(listing.paths[3]) as image:
        tagged = io.BytesIO()
        image.save(tagged, "PNG", exif=exif)
        pixels = np.asarray(image.convert("RGB"))
    listing.paths[3].unlink()
    listing.paths[3].write_bytes(tagged.getvalue())
    turned = stored(listing, encoder, tmp_path / "tagged")
    assert open_image(listing.paths[3]).size == pixels.shape[:2]
    np.testing.assert_array_equal(turned.features, original.features)
