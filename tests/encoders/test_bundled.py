"""The real bundled model, on pictures that the project draws and on recorded features."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import acclimate
from acclimate.cli.arguments import DEFAULT_METHOD, DEFAULT_MODEL
from acclimate.encoders import BUNDLED, load_encoder
from acclimate.encoders.onnx import FILES, PACKED
from pictures import SCENES, draw, draw_all

FOLDER = Path(acclimate.__file__).parent / "encoders" / "bundled"


@pytest.fixture(scope="module")
def encoder():
    return load_encoder()


@pytest.fixture(scope="module")
def classify(encoder, tmp_path_factory):
    """Return zero-shot answers of the bundled model."""

    def answers(labels, images):
        clf = acclimate.Classifier(labels, encoder, method="zero-shot", cache=tmp_path_factory.mktemp("cache"))
        return clf.predict(images).tolist()

    return answers


def test_it_is_small_and_says_where_it_comes_from():
    assert sum((FOLDER / name).stat().st_size for name in (*FILES, PACKED)) < 45e6
    card = (FOLDER / "README.md").read_text(encoding="utf-8")
    for word in ("MIT", "Apache-2.0", "WordNet", "not for", "zero-shot", "kitten"):
        assert word in card


def test_it_is_the_default_of_the_commands():
    assert (DEFAULT_MODEL, DEFAULT_METHOD) == (BUNDLED, acclimate.DEFAULT_METHOD)
    assert load_encoder(BUNDLED).fingerprint == load_encoder(f"onnx:{FOLDER}").fingerprint


def test_features_have_unit_length_and_texts_say_nothing_about_keys(encoder):
    images = encoder.encode_images([encoder.prepare(draw(scene)) for scene in SCENES])
    texts = encoder.encode_text(["a photo of a cat.", "dog", "a very long text " * 40])
    assert images.shape == (len(SCENES), encoder.dim)
    for features in (images, texts):
        assert np.allclose(np.linalg.norm(features, axis=1), 1, atol=1e-4)
    assert not texts[:, 512:].any()
    assert np.allclose(np.linalg.norm(images[:, 512:], axis=1) ** 2, 0.5, atol=1e-3)


def test_a_batch_says_what_single_images_say(encoder):
    prepared = [encoder.prepare(draw(scene, seed=1)) for scene in SCENES]
    whole = encoder.encode_images(prepared)
    pairs = [encoder.encode_images(prepared[i : i + 2]) for i in range(0, len(prepared) - 1, 2)]
    assert np.array_equal(np.concatenate(pairs), whole[: 2 * len(pairs)])
    alone = np.concatenate([encoder.encode_images([each]) for each in prepared])
    assert np.allclose(whole, alone, atol=1e-6)


def test_features_do_not_depend_on_the_number_of_threads(encoder):
    prepared = [encoder.prepare(draw(scene, seed=1)) for scene in SCENES]
    expected = encoder.encode_images(prepared)
    for threads in (1, 8, 16):  # machines of a cluster have different numbers of cores
        assert np.array_equal(load_encoder(BUNDLED, threads=threads).encode_images(prepared), expected)


@pytest.mark.parametrize("scene", SCENES)
def test_it_knows_what_is_drawn(classify, scene):
    assert classify(list(SCENES), [draw(scene, seed=seed) for seed in range(3)]) == [scene] * 3


def test_it_knows_colours_and_textures(classify):
    colours = {"red": (220, 20, 20), "green": (20, 160, 40), "blue": (20, 40, 210)}
    images = [np.full((64, 64, 3), shade, np.uint8) for shade in colours.values()]
    assert classify([f"{name} colour" for name in colours], images) == [f"{name} colour" for name in colours]
    board = np.kron(np.indices((8, 8)).sum(axis=0) % 2, np.ones((16, 16)))[:, :, None].repeat(3, 2)
    stripes = (np.arange(128) // 8 % 2 * np.ones((128, 1)))[:, :, None].repeat(3, 2)
    assert classify(["chequered", "striped"], [board, stripes]) == ["chequered", "striped"]


def test_words_near_each_other_mean_nearly_the_same(encoder):
    words = ["kitten", "cat", "lorry", "truck", "violin player", "playing violin"]
    vectors = encoder.encode_text([f"a photo of a {word}." for word in words])
    assert (vectors @ vectors.T - 2 * np.eye(6)).argmax(axis=1).tolist() == [1, 0, 3, 2, 5, 4]


def test_adapting_helps_on_the_recorded_stream():
    stream = acclimate.read_stream(FOLDER.parents[1] / "bench" / "data" / "pacs.safetensors")
    right = {}
    for method in ("zero-shot", "tda", "accord"):
        adapter = acclimate.create(method, stream.head)
        right[method] = (adapter.step(stream.features).argmax(axis=1) == stream.targets).mean()
    assert right["zero-shot"] > 0.72
    assert right["accord"] > right["tda"] > right["zero-shot"]


def test_classify_needs_no_flag_but_labels_and_no_network(tmp_path):
    for name, picture in draw_all({"clear": 1, "haze": 1, "snow": 1}).items():
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture.save(path)
    command = """
import socket, sys
def refuse(*arguments, **named):
    raise OSError("the network is cut")
socket.socket.connect = socket.create_connection = socket.getaddrinfo = refuse
from acclimate.cli import app
sys.argv = ["acclimate", "classify", "photos", "--labels", "house, tree, fish, clock"]
app()
"""
    ended = subprocess.run([sys.executable, "-c", command], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    rows = ended.stdout.splitlines()
    assert len(rows) == 1 + 3 * len(SCENES)
    assert next(row for row in rows if "house/clear-0.webp" in row).split(",")[1] == "house"


@pytest.mark.slow
@pytest.mark.untraced
def test_it_keeps_its_floors_on_real_images(shared):
    if not (shared / "eval" / "images.tar").is_file():
        pytest.skip("no test images in ../shared")
    pytest.importorskip("evaluate", reason="the training scripts are not here")
    from evaluate import Pack, accuracies

    pack = Pack(shared / "eval", every=8)
    floors = {"pacs": 72, "oxford_pets": 78, "caltech101": 87, "cifar10": 85, "ucf101": 64, "flowers102": 78}
    for dataset, floor in {**floors, "eurosat": 85}.items():
        zero_shot, _ = accuracies(pack.stream(dataset))
        assert zero_shot > floor, dataset
