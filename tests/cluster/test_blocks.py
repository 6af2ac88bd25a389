"""The work of an encoder on a block, done in this process."""

import json
from dataclasses import replace

import pytest
from ray import cloudpickle

from acclimate.classify.task import Encoding, open_classifier
from acclimate.cluster.encoding import PAUSE_S, Encoder
from acclimate.cluster.machines import Pool
from acclimate.cluster.run_folder import Block, RunFolder
from acclimate.run import Part
from cluster_bench import quiet


@pytest.fixture
def encoder(bench, monkeypatch):
    """Return an encoder that writes to the folder of a run of this process."""
    monkeypatch.setattr("acclimate.cluster.encoding.PAUSE_S", PAUSE_S / 100)
    folder = RunFolder.of(str(bench.folder / "out"))
    folder.claim()
    classifier = open_classifier(bench.task(method="tda"), bench.encoding, None, None, quiet)
    return Encoder(folder, "a run", **Encoder.options(classifier, bench.encoding, Pool()))


def encode(encoder, block):
    [done] = encoder({"block": [cloudpickle.dumps(block)]})["done"]
    return json.loads(done)


def test_a_block_becomes_a_part_once(encoder, bench):
    block = Block(2, 80, bench.samples[80:120])
    done = encode(encoder, block)
    assert (done["number"], done["error"], done["features"]["precision"]) == (2, "", "float32")
    path = bench.folder / "out.run" / "000002.safetensors"
    part = Part.read(path, "a run")
    assert (part.start, part.lengths, part.names) == (80, (8,) * 5, [f"image {row}" for row in range(80, 120)])
    before = path.stat().st_mtime_ns
    assert encode(encoder, block) == {"number": 2, "error": "", "features": {}}
    assert path.stat().st_mtime_ns == before
    for other in (Block(2, 80, bench.samples[80:119]), Block(2, 79, block.samples)):  # other images, another place
        assert encode(encoder, other)["features"]
    path.write_bytes(b"half a part")
    encode(encoder, block)
    assert Part.read(path, "a run").names == part.names


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"fingerprint": "other"}, "not that of the driver"),
        ({"model": "onnx:/nowhere"}, "no ONNX model"),
        ({"preparing": {"no": 1}}, "TypeError: "),
    ],
)
def test_blocks_that_cannot_be_encoded_say_why(encoder, bench, changes, why):
    done = encode(replace(encoder, **changes), Block(0, 0, bench.samples[:8]))
    assert why in done["error"]
    assert not (bench.folder / "out.run" / "000000.safetensors").exists()


def test_an_encoder_of_a_command_that_was_replaced_writes_nothing(encoder, bench):
    RunFolder.of(str(bench.folder / "out")).claim()
    assert "another command writes" in encode(encoder, Block(0, 0, bench.samples[:8]))["error"]
    assert not (bench.folder / "out.run" / "000000.safetensors").exists()


def test_encoders_get_what_was_asked_for(bench):
    classifier = open_classifier(bench.task(method="tda"), bench.encoding, None, None, quiet)
    options = Encoder.options(classifier, bench.encoding, Pool(cpus=2.0))
    assert options["loading"] == {"device": "cpu", "precision": "auto", "compile": False, "threads": 2}
    assert options["reading"]["workers"] == 3
    assert Encoder.options(classifier, bench.encoding, Pool(gpus=0.5))["loading"]["device"] == "auto"
    assert Encoder.options(classifier, bench.encoding, Pool(), remote=True)["reading"]["workers"] > 3


def test_models_are_found_from_other_folders(bench, monkeypatch, tmp_path):
    classifier = open_classifier(bench.task(method="tda"), bench.encoding, None, None, quiet)
    monkeypatch.chdir(tmp_path)
    for name, found in (("onnx:clip", f"onnx:{tmp_path / 'clip'}"), ("bundled", "bundled"), ("hf:a/b", "hf:a/b")):
        assert Encoder.options(classifier, Encoding(model=name), Pool())["model"] == found


def test_parts_are_whole_batches():
    assert Pool().block_images(32, 1) == 1024
    assert Pool(gpus=1.0).block_images(256, 1) == 4096
    assert Pool().block_images(100, 1) == 1100
    assert Pool().block_images(64, 64) == 16  # a batch counts views


def test_encoders_that_no_machine_has_room_for_are_refused():
    nodes = [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 8.0, "GPU": 2.0}}]
    assert Pool(cpus=0, gpus=0).room(nodes) == 12
    assert Pool(cpus=0.1).room(nodes) == 120
    assert Pool().fit_to(nodes, "bundled") == Pool(encoders=12, cpus=1.0, gpus=0.0)
    assert Pool().fit_to(nodes, "hf:model") == Pool(encoders=2, cpus=1.0, gpus=1.0)
    assert Pool().fit_to(nodes[:1], "hf:model") == Pool(encoders=4, cpus=1.0, gpus=0.0)
    with pytest.raises(ValueError, match="no machine of the cluster has the 10 CPUs that an encoder asks for"):
        Pool(cpus=10).fit_to(nodes, "bundled")
    assert Pool(cpus=100, gpus=100).fit_to(nodes, "hf:model", grows=True).encoders == 1  # a node may be added
