"""One stream, or several side by side: answers, order, learning, management."""

import random
from concurrent.futures import CancelledError
from threading import Event

import numpy as np
import pytest

from acclimate import DEFAULT_METHOD, Classifier, state_from_bytes, state_to_bytes
from acclimate.errors import InputError
from acclimate.serve.http_errors import NotFoundError
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


@pytest.fixture
def streams(start):
    return start()


@pytest.fixture
def gate(encoder, monkeypatch):
    """Return an event that images wait for before they are encoded."""
    gate = Event()
    encode = encoder.encode_images
    monkeypatch.setattr(encoder, "encode_images", lambda inputs: gate.wait(180) and encode(inputs))
    yield gate
    gate.set()


@pytest.fixture
def stream(streams):
    return streams.create("shop", LABELS, skip_duplicates=False)


@pytest.fixture
def cached(streams):
    """Return a stream whose method keeps entries."""
    return streams.create("shop", LABELS, method="tda", skip_duplicates=False)


def learnt(stream):
    """Return the adapter of a stream's downloaded state."""
    return state_from_bytes(stream.state_bytes())


def ids(adapter):
    return {name: [(entry.class_index, entry.id) for entry in entries] for name, entries in adapter.entries().items()}


def assert_same_answers(answers, predictions):
    predictions = list(predictions)
    assert [each.label for each in answers] == [each.label for each in predictions]
    assert [each.zero_shot.label for each in answers] == [each.zero_shot.label for each in predictions]
    for name in ("score", "entropy"):
        mine = [getattr(each, name) for each in answers]
        np.testing.assert_allclose(mine, [getattr(each, name) for each in predictions], atol=2e-4)


@pytest.mark.parametrize(
    ("method", "settings", "views"),
    [
        ("tda", {}, 1),
        ("tda", {"self_match": False}, 1),
        ("tda", {}, 3),
        ("dota", {"refresh": 7}, 1),
        ("prior", {}, 1),
        ("zero", {}, 3),
        ("zero-shot", {}, 1),
    ],
)
def test_answers_are_those_of_classify_whatever_the_batching(start, encoder, images, tmp_path, method, settings, views):
    rng = random.Random(f"{method} {settings} {views}")
    streams = start(batch=rng.choice([1, 3, 32]), wait_s=rng.choice([0.0, 0.02]))
    orders = {f"camera-{i}": rng.sample(images, len(images)) for i in range(4)}
    for name in orders:
        streams.create(name, LABELS, skip_duplicates=False, method=method, settings=settings, views=views)
    futures = {name: [] for name in orders}
    left = {name: list(order) for name, order in orders.items()}
    while any(left.values()):  # requests of all streams come mixed, of any size, and nobody waits for an answer
        name = rng.choice([name for name in left if left[name]])
        count = rng.randint(1, 6)
        futures[name].append(streams.get(name).soon("classify", left[name][:count], top_k=3))
        del left[name][:count]
    for name, order in orders.items():
        answers = [answer for future in futures[name] for answer in future.result(180)]
        classifier = Classifier(LABELS, encoder, method=method, views=views, cache=tmp_path / "texts", **settings)
        assert_same_answers(answers, classifier.stream(order, top_k=3))
        assert [answer.id for answer in answers] == list(range(len(order)))
        assert ids(learnt(streams.get(name))) == ids(classifier.adapter)
        for column, values in classifier.adapter.class_statistics().items():
            np.testing.assert_allclose(streams.get(name).learnt()["columns"][column], values, rtol=1e-3)


def test_results_say_exactly_which_images_entered_a_cache(cached, images):
    before = {"positive": set(), "negative": set()}
    for image in images:
        (answer,) = cached.classify([image])
        now = {kind: {each["id"] for each in cached.caches() if each["cache"] == kind} for kind in before}
        assert set(answer.admitted) == {kind for kind in before if answer.id in now[kind]}
        assert all(now[kind] - before[kind] <= {answer.id} for kind in before)
        before = now
    assert cached.describe()["entries"] == {kind: len(held) for kind, held in before.items()}
    assert sum(cached.describe()["entries"].values()) > 4


def test_nothing_is_learnt_unless_asked_and_while_frozen(stream, images):
    stream.classify(images[:10])
    state = stream.state_bytes()
    answers = stream.classify(images[10:20], adapt=False)
    assert {(each.id, each.admitted, each.refused) for each in answers} == {(None, (), None)}
    assert stream.state_bytes() == state
    stream.set_frozen(True)
    frozen = stream.classify(images[10:20])
    assert frozen == answers
    assert stream.describe()["frozen"]
    stream.set_frozen(False)
    assert stream.state_bytes() == state
    assert stream.classify(images[10:11])[0].id == 10


def test_a_request_that_is_taken_back_is_not_learnt(streams, stream, images, gate):
    futures = [stream.soon("classify", [image]) for image in images[:6]]
    for i in (1, 4):
        futures[i].cancel()
    gate.set()
    assert [futures[i].result(180)[0].id for i in (0, 2, 3, 5)] == [0, 1, 2, 3]
    with pytest.raises(CancelledError):
        futures[1].result(180)
    wait_until(lambda: streams.batcher.waiting == 0)


def test_management_takes_its_place_in_the_queue(stream, images, gate):
    before = stream.soon("classify", images[:8])
    resetting = stream.soon("reset")
    after = stream.soon("classify", images[8:10])
    gate.set()
    resetting.result(180)
    assert [each.id for each in before.result(180)] == list(range(8))
    assert [each.id for each in after.result(180)] == [0, 1]
    assert stream.describe()["samples_seen"] == 2


def test_a_change_that_has_begun_ends_before_the_next_although_nobody_waits(stream, images, monkeypatch):
    stream.classify(images[:4])
    began = Event()
    gate = Event()
    change = stream.learner._change
    monkeypatch.setattr(stream.learner, "_change", lambda *each: began.set() or (gate.wait(180) and change(*each)))
    freezing = stream.soon("set_frozen", True)
    assert began.wait(180)
    freezing.cancel()
    after = stream.soon("classify", images[4:5])
    with pytest.raises(CancelledError):
        freezing.result(180)
    gate.set()
    assert after.result(180)[0].id is None
    assert stream.describe()["frozen"]


def test_the_description_of_a_stream(streams, images):
    stream = streams.create("lab", LABELS[:3], skip_duplicates=False, templates="the large {}", settings={"rounds": 1})
    stream.classify(images[:4])
    about = stream.describe()
    assert (about["name"], about["labels"], about["templates"]) == ("lab", LABELS[:3], "the large {}")
    assert (about["method"], about["settings"]["rounds"], about["advice"]) == (DEFAULT_METHOD, 1, "")
    assert (about["samples_seen"], about["answered"], about["frozen"], about["snapshots"]) == (4, 4, False, 1)
    assert about["changed_share"] == about["changed"] / 4
    assert (about["degraded"], about["broken"]) == (None, None)
    assert stream.describe()["labels"] == LABELS[:3]


def test_rollback_goes_back_further_and_further(stream, images):
    states = [stream.state_bytes()]
    for i in range(3):
        stream.classify(images[i * 5 : i * 5 + 5])
        states.append(stream.state_bytes())
        assert stream.snapshot() == i + 2
    stream.classify(images[15:18])
    stream.set_frozen(True)
    latest = stream.state_bytes()
    for number in (4, 3, 2, 1):
        assert stream.rollback() == number
        assert stream.describe()["frozen"]  # a stream that was stopped is not started by going back
    with pytest.raises(InputError, match="no older snapshot"):
        stream.rollback()
    stream.set_frozen(False)
    assert stream.state_bytes() == states[0]
    assert stream.rollback(3) == 3
    assert stream.state_bytes() == states[2]
    stream.classify(images[20:21])
    assert [each["reason"] for each in stream.snapshots()][4:6] == ["before rollback", "rollback"]
    stream.rollback(5)  # what the first rollback took away
    stream.set_frozen(True)
    assert stream.state_bytes() == latest
    with pytest.raises(NotFoundError, match="no snapshot 99"):
        stream.rollback(99)


def test_reset_forgets_and_can_be_undone(stream, images):
    fresh = stream.state_bytes()
    stream.classify(images[:10])
    state = stream.state_bytes()
    stream.reset()
    assert stream.state_bytes() == fresh
    assert stream.caches() == []
    stream.rollback()
    assert stream.state_bytes() == state


def test_labels_come_and_go_together_or_not_at_all(stream, images):
    stream.classify(images[:20])
    before = stream.caches()
    stream.change_labels(add=["fox", " wolf "], remove=["cat"])
    labels = stream.describe()["labels"]
    assert labels == ["red circle", "green square", "blue stripes", "dog", "fox", "wolf"]
    assert stream.caches() == [each for each in before if each["label"] != "cat"]
    state = stream.state_bytes()
    for change in (
        {"add": ["fox"]},
        {"remove": ["unicorn"]},
        {"add": ["owl", "  "]},
        {"remove": labels[1:]},
        {"add": ["x" * 201]},
        {"add": [f"thing {i}" for i in range(2000)]},
    ):
        with pytest.raises(InputError):
            stream.change_labels(**change)
    assert stream.state_bytes() == state
    stream.change_labels(add=["owl"])
    stream.change_labels(remove=["owl"])
    assert stream.state_bytes() == state
    assert len(stream.classify(images[:1], top_k=9)[0].top) == 6


def test_a_state_can_be_taken_elsewhere(streams, stream, images, encoder, tmp_path):
    stream.classify(images[:20])
    other = streams.create("other", LABELS, skip_duplicates=False)
    other.set_frozen(True)
    other.continue_from(stream.state_bytes())
    assert other.describe()["frozen"]
    other.set_frozen(False)
    moved = learnt(stream)
    moved.origin = "other"  # what it learns from now on is its own
    assert other.state_bytes() == state_to_bytes(moved)
    (tmp_path / "site").write_bytes(stream.state_bytes())
    classifier = Classifier(LABELS, encoder, cache=tmp_path)
    classifier.continue_from(tmp_path / "site")
    answers = other.classify(images[20:])
    assert_same_answers(answers, classifier.stream(images[20:]))
    assert answers[0].id == 20


def test_thumbnails_are_kept_of_cached_entries_if_asked_for(streams, cached, images):
    cached.classify(images[:5])
    assert {each["thumbnail"] for each in cached.caches()} == {None}
    kept = streams.create("kept", LABELS, method="tda", skip_duplicates=False, thumbnails=True)
    kept.classify(images, client="camera")
    assert all(
        each["thumbnail"].startswith("data:image/jpeg;base64,/9j/") and each["client"] == "camera"
        for each in kept.caches()
    )
    kept.reset()
    assert kept.learner.thumbnails == {}


def test_learnt_statistics_per_label(streams, images):
    for method, columns in (("tda", ["positive", "negative"]), ("prior", ["samples", "share"]), ("zero-shot", [])):
        stream = streams.create(method, LABELS, skip_duplicates=False, method=method)
        stream.classify(images, client="camera")
        found = stream.learnt()
        assert found["labels"] == LABELS
        assert list(found["columns"]) == columns
        assert all(len(values) == len(LABELS) for values in found["columns"].values())
        taught = sum(stream.describe()["entries"].values()) or 40
        assert found["clients"] == {"camera": taught}


def test_views_count_as_images(start, images):
    stream = start(queue=100, snapshot_samples=150).create("views", LABELS, skip_duplicates=False, views=40)
    with pytest.raises(InputError, match="1 to 2 images, got 3"):
        stream.classify(images[:3])
    assert [each.id for each in stream.classify(images[:2])] == [0, 1]
    assert stream.describe()["snapshots"] == 1
    stream.classify(images[2:4])
    assert stream.describe()["snapshots"] == 2  # 160 views were learnt


def test_kinds_of_views(streams, encoder, images, tmp_path):
    """The kind is the method's unless it is chosen."""
    for name, method, options, kind in (
        ("own", "zero", {}, "crop"),
        ("other", "tda", {}, "augmix"),
        ("chosen", "tda", {"views_kind": "crop"}, "crop"),
    ):
        stream = streams.create(name, LABELS, skip_duplicates=False, method=method, views=4, **options)
        assert stream.describe()["views_kind"] == kind
        classifier = Classifier(LABELS, encoder, method=method, views=4, views_kind=kind, cache=tmp_path / "texts")
        assert_same_answers(stream.classify(images[:4]), classifier.stream(images[:4]))
    with pytest.raises(InputError, match="views_kind"):
        streams.create("new", LABELS, views=4, views_kind="diffusion")
