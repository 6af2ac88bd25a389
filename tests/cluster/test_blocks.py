"""The work of Ray's workers on a block, done in this process: encode, adapt, write, answer again."""

import sys
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pytest
from acclimate.cluster.adapting import ClusterJob, LearntState, adapt, on_device
from acclimate.cluster.cluster_options import ClusterOptions
from acclimate.cluster.encoding import EncodeBlocks, EncoderSetup, block_rows, encoded_batches
from acclimate.cluster.output_folder import COMPLETE, FEATURES, ROWS, OutputFolder

from acclimate.arrays import is_tensor
from acclimate.errors import MissingExtraError, ModelError, StateError

EVERY = 40


def encoded(bench, setup=None, first=0):
    """Yield the blocks of a stream, as they come out of the pipeline."""
    setup = setup or EncoderSetup.of(bench.classifier("tda"), ClusterOptions(source=[]))
    actor = EncodeBlocks(setup)
    for row in block_rows(bench.samples, EVERY, first):
        yield pa.table(actor({name: [value] for name, value in row.items()}))


def job_of(bench, classifier):
    out = OutputFolder(bench.folder / "out")
    return ClusterJob(classifier.head, classifier.gates, 0, True, 3, 0.0, keep=True, out=out, about={"acclimate": "{}"})


def test_adapters_adapt_on_the_chosen_device(bench):
    pytest.importorskip("torch")
    classifier = bench.classifier("tda")
    block = next(encoded(bench))
    job = job_of(bench, classifier)
    start = LearntState(classifier.adapter, [])
    host, answered = adapt(job, start, 0, block)
    moved, others = adapt(replace(job, device="cpu"), start, 0, block)
    assert not is_tensor(moved.adapter.head.class_vectors)
    assert moved.adapter.entries().keys() == host.adapter.entries().keys()
    for one, other in zip(answered[0], others[0], strict=True):
        assert np.array_equal(one.classes, other.classes)
        np.testing.assert_allclose(one.scores, other.scores, rtol=1e-4)
    assert all(isinstance(features, np.ndarray) for features in others[1])
    with pytest.raises(ModelError, match="cannot use device 'cuda:99'"):
        on_device("cuda:99")


def test_a_gpu_needs_pytorch(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(MissingExtraError, match="--adapter-gpus"):
        on_device("cuda")


def test_a_frozen_classifier_has_no_new_state(bench):
    classifier = bench.classifier("tda")
    classifier.freeze()
    job = replace(job_of(bench, classifier), learns=False, keep=False)
    after, answered = adapt(job, LearntState(classifier.adapter, []), 0, next(encoded(bench)))
    assert after is None
    assert answered[1] == []


def test_blocks_that_cannot_be_encoded_say_why(bench):
    options = ClusterOptions(source=[], cpus=2.0)
    setup = EncoderSetup.of(bench.classifier("tda"), options)
    assert setup.loading == {"device": "cpu", "precision": "auto", "compile": False, "threads": 2}
    assert setup.workers == 3
    assert EncoderSetup.of(bench.classifier("tda"), options, remote=True).workers > 3
    for changes, error, match in (
        ({"fingerprint": "other"}, ModelError, "not that of the driver"),
        ({"model": "onnx:/nowhere"}, ModelError, "no ONNX model"),
        ({"preparing": {"no": 1}}, RuntimeError, "TypeError: "),
    ):
        with pytest.raises(error, match=match):
            encoded_batches(next(encoded(bench, replace(setup, **changes))), 0)
    with pytest.raises(RuntimeError, match="in the place of 3"):
        encoded_batches(next(encoded(bench, setup)), 3)


def test_models_are_found_from_other_folders(bench, monkeypatch, tmp_path):
    classifier = bench.classifier("tda")
    monkeypatch.chdir(tmp_path)
    for name, found in (
        ("onnx:clip", f"onnx:{tmp_path / 'clip'}"),
        ("bundled", "bundled"),
        ("hf:openai/clip-vit-base-patch16", "hf:openai/clip-vit-base-patch16"),
    ):
        classifier.model = name
        assert EncoderSetup.of(classifier, ClusterOptions(source=[])).model == found


def test_files_that_were_edited_are_refused(bench):
    out = OutputFolder(bench.folder / "out")
    out.write(ROWS.format(0), b"PAR1")
    out.write(FEATURES.format(0), b"123")
    out.write(COMPLETE, b"{}")
    for read in (
        lambda: out.read_rows(0),
        lambda: out.read_rows(1),
        lambda: out.read_features(0, (16,)),
        lambda: out.read_complete({}),
    ):
        with pytest.raises(StateError, match="--overwrite"):
            read()
