"""Corrections: people say what an image shows; that is kept through kills, snapshots, rollbacks and uploads."""

import pytest
from pydantic import ValidationError

from acclimate import merge_states, state_from_bytes, state_to_bytes
from acclimate.errors import InputError, StateError
from acclimate.serve.client import Client, ServiceError
from acclimate.serve.http_errors import NotFoundError
from acclimate.serve.limits import Limits

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


@pytest.fixture
def stream(start):
    return start().create("shop", LABELS, method="tda", skip_duplicates=False, thumbnails=True)


def listed(stream):
    return [(each["id"], each["label"]) for each in stream.corrections()]


def other(label):
    return next(each for each in LABELS if each != label)


def test_an_image_has_the_label_that_it_was_given(stream, images):
    answers = stream.classify(images[:8])
    for answer in answers[:3]:
        assert stream.correct(other(answer.label), answer.id) == answer.id
    again = stream.classify(images[:3], adapt=False)
    assert [each.label for each in again] == [other(each.label) for each in answers[:3]]
    assert listed(stream) == [(each.id, other(each.label)) for each in answers[:3]]
    assert all(each["thumbnail"].startswith("data:image/jpeg;base64,/9j/") for each in stream.corrections())
    assert stream.classify(images[:1])[0].refused == "its label was corrected"
    stream.correct("dog", answers[0].id)  # the last word counts
    assert listed(stream)[0] == (answers[0].id, "dog")


def test_an_image_that_was_not_learnt_is_corrected_by_sending_it(stream, images):
    stream.classify(images[:5])
    correction = stream.correct("dog", image=images[9])
    assert stream.classify(images[9:10], adapt=False)[0].label == "dog"
    assert stream.classify(images[10:11])[0].id == 5  # the ids of images go on
    assert listed(stream) == [(correction, "dog")]
    assert stream.correct("cat", image=images[9]) == correction


def test_undoing_restores_what_was_learnt(stream, images):
    answers = stream.classify(images[:12], client="camera")
    state = stream.state_bytes()
    caches = stream.caches()
    learnt = stream.learnt()
    for answer in answers:
        stream.correct(other(answer.label), answer.id)
    assert stream.caches() == caches  # corrections count beside them
    assert sum(stream.describe()["entries"].values()) == len(stream.caches())
    for answer in answers:
        stream.undo(answer.id)
    assert (stream.state_bytes(), stream.caches(), stream.learnt()) == (state, caches, learnt)
    with pytest.raises(NotFoundError, match="there is no correction 3"):
        stream.undo(3)


@pytest.mark.parametrize(("method", "views"), [("tda", 1), ("tda", 3), ("prior", 1), ("zero-shot", 1)])
def test_a_kill_loses_no_correction(start, after_a_kill, images, method, views):
    setup = {"method": method, "views": views, "thumbnails": True, "skip_duplicates": False}
    stream = start().create("shop", LABELS, **setup)

    def assert_nothing_is_lost():
        copy = after_a_kill().get("shop")
        assert copy.state_bytes() == stream.state_bytes()
        assert copy.corrections() == stream.corrections()
        assert (copy.caches(), copy.learnt()) == (stream.caches(), stream.learnt())
        assert copy.describe()["broken"] is None
        return copy

    stream.classify(images[:6], client="camera")
    stream.correct("dog", 2)
    assert_nothing_is_lost()
    stream.correct("cat", image=images[7])
    stream.classify(images[8:12])
    assert_nothing_is_lost()
    stream.snapshot()
    stream.correct("red circle", 9)
    stream.undo(2)
    assert_nothing_is_lost()
    stream.snapshot()
    copy = assert_nothing_is_lost()
    assert copy.classify(images[12:15]) == stream.classify(images[12:15])


def test_images_that_can_be_corrected_by_id(stream, images):
    stream.classify(images[:4])
    kept = stream.snapshot()
    stream.classify(images[4:8])
    stream.change_labels(add=["fox"])
    stream.classify(images[8:10])
    for known in (0, 5, 9):  # ids on both sides of a snapshot and of a change of labels
        assert stream.correct("fox", known) == known
    with pytest.raises(NotFoundError, match="send the image itself"):
        stream.correct("fox", 10)
    stream.rollback(kept)
    assert listed(stream) == []
    assert stream.correct("dog", 3) == 3
    with pytest.raises(NotFoundError):
        stream.correct("dog", 4)  # the rollback has undone it
    stream.reset()
    assert listed(stream) == []
    with pytest.raises(NotFoundError):
        stream.correct("dog", 0)


def test_labels_that_go_take_their_corrections_with_them(stream, images):
    stream.classify(images[:4])
    stream.correct("dog", 1)
    stream.correct("cat", 2)
    stream.change_labels(remove=["dog"])
    assert listed(stream) == [(2, "cat")]
    with pytest.raises(InputError, match="no label 'dgo'"):
        stream.correct("dgo", 3)


def test_a_rollback_restores_the_corrections_of_its_snapshot(stream, images):
    stream.classify(images[:4])
    stream.correct("dog", 1)
    kept = stream.snapshot()
    stream.undo(1)
    stream.rollback(kept)
    assert listed(stream) == [(1, "dog")]
    assert stream.corrections()[0]["thumbnail"]
    stream.correct("cat", 2)
    stream.reset()
    stream.rollback()  # restores the state before the reset
    assert listed(stream) == [(1, "dog"), (2, "cat")]


def test_states_with_corrections_go_out_and_in(start, images):
    streams = start(corrections=3)
    shop, lab = (streams.create(name, LABELS, skip_duplicates=False) for name in ("shop", "lab"))
    for stream, part in ((shop, images[:5]), (lab, images[5:10])):
        stream.classify(part)
        stream.correct("dog", 1)
        stream.correct("cat", image=part[3])
    fresh = streams.create("both", LABELS, skip_duplicates=False)
    fresh.continue_from(shop.state_bytes())
    assert listed(fresh) == listed(shop)
    both = merge_states([state_from_bytes(each.state_bytes()) for each in (shop, lab)])
    with pytest.raises(StateError, match="more than 3 corrections"):
        fresh.continue_from(state_to_bytes(both))
    assert listed(fresh) == listed(shop)
    fresh.correct("dog", image=images[20])
    with pytest.raises(InputError, match="the maximum of 3 corrections is reached; undo one"):
        fresh.correct("dog", image=images[21])


def test_the_limit_of_corrections_is_itself_limited():
    with pytest.raises(ValidationError, match=r"corrections\n.* less than or equal to 2000"):
        Limits(corrections=2001)


def test_corrections_over_http(client, pictures):
    remote = Client(str(client.base_url))
    (answer, _) = remote.classify("one", *pictures[:2])
    assert remote.correct("one", answer["id"], "green square") == answer["id"]
    assert remote.corrections("one") == [{"id": answer["id"], "label": "green square", "thumbnail": None}]
    remote.correct("one", pictures[5], "red circle")
    assert "acclimate_corrections 2.0" in remote.metrics()
    remote.undo("one", answer["id"])
    assert len(remote.corrections("one")) == 1
    for given, status, message in (
        ({"id": 0, "label": "grean square"}, 422, "did you mean 'green square'?"),
        ({"id": 99, "label": "red circle"}, 404, "send the image itself"),
        ({"label": "red circle"}, 422, "give either the `id` of an image that was learnt, or the `image`"),
        ({"id": 0, "image": "AA==", "label": "red circle"}, 422, "give either"),
        ({"image": "AA==", "label": "red circle"}, 422, "image 0 cannot be read"),
        ({"id": 0, "lable": "red circle"}, 422, "did you mean 'label'?"),
    ):
        refused = client.post("/v1/streams/one/corrections", json=given)
        assert refused.status_code == status
        assert message in refused.json()["error"]["message"]
    with pytest.raises(ServiceError, match="there is no correction 77"):
        remote.undo("one", 77)
