"""Copies of a classifier: files, pickles, deep copies; and threads that share one."""

import copy
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from threading import Lock

import numpy as np
import pytest

from acclimate import Classifier, load_encoder, load_state, save_state
from acclimate.checks.synthetic import shifted_stream
from acclimate.errors import InputError, ModelError, StateError
from drawn_images import COLOURS, draw
from table_encoder import TableEncoder, picture

LABELS = ["red", "green", "blue"]
IMAGES = [draw(list(COLOURS)[i % len(COLOURS)], i) for i in range(12)]


@pytest.fixture(params=["onnx", "local", "object", "bundled"])
def made(request):
    """Return how to make a classifier, and whether its model is known by a name."""
    if request.param == "onnx":
        return f"onnx:{request.getfixturevalue('tiny_onnx')}", True
    if request.param == "local":
        return f"local:{request.getfixturevalue('tiny_clip')}", True
    if request.param == "bundled":
        return "bundled", True
    stream = shifted_stream(samples=12, classes=3, dim=8)
    table = TableEncoder(stream.features, stream.head)
    table.vectors = {name: table.vectors[f"class {i}"] for i, name in enumerate(LABELS)}
    return table, False


def show(classifier, images):
    return [(each.label, each.score, each.id, each.refused) for each in classifier.stream(images)]


def images_for(model):
    return [picture(row) for row in range(12)] if isinstance(model, TableEncoder) else IMAGES


def test_pickles_copies_and_files_answer_alike(made, tmp_path):
    model, named = made
    images = images_for(model)
    classifier = Classifier(LABELS, model, templates="{}", cache=tmp_path, skip_duplicates=True, unsure=0.3)
    show(classifier, images[:6])
    classifier.correct(images[7], "green")
    classifier.save(tmp_path / "state.safetensors")
    copies = [
        pickle.loads(pickle.dumps(classifier)),
        copy.deepcopy(classifier),
        Classifier.load(tmp_path / "state.safetensors", **({} if named else {"encoder": model}), cache=tmp_path),
    ]
    assert copies[1].encoder is classifier.encoder
    expected = show(classifier, images)  # those that were seen are refused as duplicates
    assert [refused is not None for *_, refused in expected[:6]] == [True] * 6
    for each in copies:
        assert each.labels == classifier.labels
        assert show(each, images) == expected
        assert repr(each) == repr(classifier)
        if named:
            each.add_labels(["red circle"])
            assert len(each(images[0], adapt=False)) == 4


@pytest.mark.parametrize("method", ["tda", "tip-adapter", "zero-shot"])
def test_load_makes_a_classifier_of_any_method(method, tiny_onnx, tmp_path):
    settings = {"alpha": 3.0} if method == "tip-adapter" else {}
    classifier = Classifier(
        LABELS, f"onnx:{tiny_onnx}", method=method, templates="the {}", views=3, cache=tmp_path, **settings
    )
    if method == "tip-adapter":
        classifier.fit(IMAGES[:6], [LABELS[i % 3] for i in range(6)])
    classifier(IMAGES[:6])
    classifier.freeze()
    classifier.save(tmp_path / "state.safetensors")
    loaded = Classifier.load(tmp_path / "state.safetensors", cache=tmp_path)
    assert (loaded.views, loaded.views_kind, loaded.templates) == (3, classifier.views_kind, "the {}")
    assert loaded.adapter.settings == classifier.adapter.settings
    assert repr(loaded) == repr(classifier)
    assert loaded(IMAGES[6:]) == classifier(IMAGES[6:])


def test_one_label_is_loaded_with_the_rejector(tmp_path, remembering):
    classifier = Classifier(["cat"], reject=True)
    classifier(IMAGES[:3])
    classifier.save(tmp_path / "state.safetensors")
    loaded = Classifier.load(tmp_path / "state.safetensors")
    assert loaded.rejects
    assert loaded(IMAGES[3:5]) == classifier(IMAGES[3:5])


def test_what_cannot_be_loaded_says_what_to_do(tiny_onnx, tmp_path):
    encoder = load_encoder(f"onnx:{tiny_onnx}")
    path = tmp_path / "state.safetensors"
    classifier = Classifier(LABELS, encoder, templates=[lambda label: f"a {label}"], cache=tmp_path)
    classifier.save(path)
    with pytest.raises(InputError, match="the prompts of the labels are not in the file, so no label can be added"):
        Classifier.load(path, cache=tmp_path).add_labels(["fox"])
    loaded = Classifier.load(path, templates="a {}", cache=tmp_path)
    loaded.add_labels(["fox"])
    assert loaded(IMAGES[0], top_k=1, adapt=False)[0]["label"] in (*LABELS, "fox")
    with pytest.raises(StateError, match=r"was made with another model than 'bundled'|dim"):
        Classifier.load(path, "bundled", cache=tmp_path)
    encoder.loaded_from = ()
    classifier.save(path)
    with pytest.raises(InputError, match=r"the model of .* was not loaded by name; pass it as encoder="):
        Classifier.load(path)
    save_state(classifier.adapter, path)
    with pytest.raises(StateError, match=r"was not saved by a Classifier; make one of its labels, and `continue_from`"):
        Classifier.load(path)


@pytest.mark.parametrize("damage", [7, "text", {"NearDuplicates": "text"}, {"NearDuplicates": 7}])
def test_a_damaged_memory_of_images_is_refused(damage, tiny_onnx, tmp_path):
    classifier = Classifier(LABELS, f"onnx:{tiny_onnx}", cache=tmp_path, skip_duplicates=True)
    classifier(IMAGES[:3])
    save_state(classifier.adapter, tmp_path / "state", classifier.notes | {"gates": damage})
    assert load_state(tmp_path / "state").samples_seen == 3
    with pytest.raises(StateError, match=r"holds a memory of images that cannot be used|cannot be read as a state"):
        classifier.continue_from(tmp_path / "state")


def test_a_model_that_cannot_be_pickled_is_named(tmp_path):
    stream = shifted_stream(samples=12, classes=3, dim=8)
    table = TableEncoder(stream.features, stream.head)
    table.lock = Lock()
    classifier = Classifier(stream.head.class_names, table, templates="{}", cache=tmp_path)
    with pytest.raises(ModelError, match=r"as its TableEncoder cannot: .* Load the model by its name"):
        pickle.dumps(classifier)
    twin = copy.deepcopy(classifier)  # which shares the model
    assert show(twin, [picture(0)]) == show(classifier, [picture(0)])


def test_threads_lose_no_image(tmp_path):
    stream = shifted_stream(samples=600, classes=5, dim=16)
    table = TableEncoder(stream.features, stream.head)
    classifier = Classifier(
        stream.head.class_names, table, templates="{}", cache=tmp_path, skip_duplicates=True, batch_size=5
    )
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)

    def work(thread):
        ids = [each.id for each in classifier.stream([picture(row) for row in range(thread, 600, 6)])]
        known = [id for id in ids if id is not None]
        if known:
            classifier.correct(known[-1], "class 0")
            classifier.undo(known[-1])
        classifier.save(tmp_path / f"{thread}.safetensors")
        assert pickle.loads(pickle.dumps(classifier)).labels == classifier.labels
        return ids

    try:
        with ThreadPoolExecutor(6) as pool:
            ids = [id for found in pool.map(work, range(6)) for id in found]
    finally:
        sys.setswitchinterval(before)
    learnt = [id for id in ids if id is not None]
    assert len(ids) == 600
    assert sorted(learnt) == list(range(classifier.adapter.samples_seen))
    assert np.isfinite(classifier.predict_proba([picture(0)])).all()
