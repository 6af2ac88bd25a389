"""The file of a stream: what is kept of its history, what led to its state, and damage to its rows."""

import shutil
import sqlite3
import sys
from contextlib import closing

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate import Head, create
from acclimate.predict import NONE
from acclimate.serve import storage
from acclimate.serve.http_errors import NotFoundError, UnusableError
from acclimate.serve.limits import Limits
from acclimate.serve.storage import ANSWERED, StreamFile, write_file

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]
HOUR = 3600.0
DAY = 24 * HOUR
WEEK = 7 * DAY


class Clock:
    """A clock that a test sets, and the snapshots that are kept of a file by it."""

    def __init__(self, folder, history):
        limits = Limits(history=history)
        head = Head(np.eye(2, 4, dtype=np.float32), logit_scale=1.0, class_names=("cat", "dog"))
        self.now = 1e9
        self._adapter = create("tda", head)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(storage, "time", lambda: self.now)
            write_file(folder / "shop.sqlite", {"client": ""}, self._adapter, limits)
            self.file = StreamFile(folder / "shop.sqlite", limits)

    def take(self, *waits):
        """Take a snapshot after each wait."""
        with pytest.MonkeyPatch.context() as patch, self.file.transaction():
            patch.setattr(storage, "time", lambda: self.now)
            for seconds in waits:
                self.now += seconds
                self.file.add_snapshot(self._adapter, {}, "requested")

    def ages(self):
        return [self.now - each["time"] for each in self.file.snapshots()]


def test_snapshots_of_all_ages_are_kept_however_many_are_taken_quickly(tmp_path):
    clock = Clock(tmp_path, history=24)
    with closing(clock.file):
        clock.take(*[HOUR / 2] * (3 * 7 * 48))
        for flood in (0, 26, 200, 2000):
            clock.take(*[0.05] * flood)
            found = clock.ages()
            assert len(found) == 24
            for age in (HOUR, DAY, WEEK, 3 * WEEK):
                assert any(age / 2 <= each <= 2 * age for each in found), (flood, age)


@settings(max_examples=20)
@given(st.lists(st.floats(-2.0, 6.0), min_size=9, max_size=60))
def test_the_oldest_and_the_newest_snapshot_are_always_kept(tmp_path_factory, powers):
    clock = Clock(tmp_path_factory.mktemp("file"), history=8)
    with closing(clock.file):
        first = clock.file.snapshots()[0]["id"]
        clock.take(*(10**power for power in powers))
        kept = [each["id"] for each in clock.file.snapshots()]
        assert len(kept) == 8
        assert (kept[0], kept[-1]) == (first, first + len(powers))


def test_history_is_bounded_in_bytes(start, images):
    streams = start(history_bytes=8000, snapshot_bytes=30_000, snapshot_samples=4)
    stream = streams.create("shop", LABELS, method="tda", skip_duplicates=False)
    for image in images * 2:
        stream.classify([image])
    ids = [each["id"] for each in stream.answers()]
    assert 4 <= len(ids) < 40
    assert ids == list(range(80 - len(ids), 80))
    with pytest.raises(NotFoundError, match="too long ago"):
        stream.correct("dog", ids[0] - 1)
    assert stream.correct("dog", ids[0]) == ids[0]
    assert 2 <= len(stream.snapshots()) < 10


def test_answers_are_those_that_led_to_the_state(start, after_a_kill, images):
    stream = start().create("shop", LABELS, method="tda", skip_duplicates=False)
    expected = [*stream.classify(images[:3], client="camera")]
    kept = stream.snapshot()
    stream.classify(images[3:6])
    stream.rollback(kept)
    expected += stream.classify(images[6:8])
    found = stream.answers()
    assert [(each["id"], each["label"], each["client"]) for each in found] == [
        (each.id, each.label, "camera" if each.id < 3 else "") for each in expected
    ]
    assert [each["changed"] for each in found] == [each.changed for each in expected]
    assert found[0]["zero_shot"] == {"label": expected[0].zero_shot.label, "score": expected[0].zero_shot.score}
    assert [each["id"] for each in stream.answers(0, 3)] == [1, 2, 3]
    assert after_a_kill().get("shop").answers() == found
    stream.change_labels(add=["fox"])
    assert stream.answers() == found
    stream.reset()
    assert stream.answers() == []


def test_images_that_were_not_learnt_are_listed_in_their_order_within_a_bound(start, after_a_kill, images):
    stream = start(history_bytes=8000).create("shop", LABELS, method="tda", skip_duplicates=False)
    stream.classify(images[:2], names=["a/1.png", "2.png"])
    stream.set_frozen(True)
    stream.classify(images[2:3], names=["frozen.png"])
    stream.classify(images[3:4], adapt=False)  # nothing is kept of it
    stream.classify(images[4:5])
    stream.set_frozen(False)
    stream.classify(images[5:6])
    found = stream.answers()
    listed = [(0, "a/1.png"), (1, "2.png"), (None, "frozen.png"), (None, ""), (2, "")]
    assert [(each["id"], each["file"]) for each in found] == listed
    assert stream.answers(0, 2) == found[1:3]
    assert stream.answers(-1, 2, newest=True) == found[-2:]
    stream = after_a_kill(history_bytes=8000).get("shop")
    assert stream.answers() == found
    stream.set_frozen(True)
    for _ in range(40):
        stream.classify(images[:1])
    assert 4 <= len(stream.answers()) - 3 < 20
    assert [each["id"] for each in stream.answers()][:3] == [0, 1, 2]


@pytest.mark.parametrize("reject", [False, True])
def test_a_second_pass_has_all_that_was_learnt_and_the_corrections(start, images, reject):
    stream = start().create("shop", LABELS, skip_duplicates=False, reject=reject)
    for image in images[:20]:
        stream.classify([image])
    again = [each["now"]["label"] for each in stream.answers(again=True)]
    seen = np.concatenate([event.features for event in stream.learner.file.samples(ANSWERED)])
    expected = [LABELS[row] for row in stream.learner.adapter.second_pass(seen).argmax(axis=1)]
    assert again == [
        NONE if answer["none"] and answer["none"] >= 0.5 else label
        for answer, label in zip(stream.answers(), expected, strict=True)
    ]
    wrong = next(label for label in LABELS if label != again[3])
    stream.correct(wrong, image=images[3])
    assert stream.answers(again=True)[3]["now"]["label"] == wrong
    state = stream.state_bytes()
    assert stream.answers(again=True) == stream.answers(again=True)
    assert stream.state_bytes() == state  # nothing was learnt by asking


def test_answers_over_http(client, pictures):
    sent = client.post("/v1/streams/one/classify", files=[("image", each) for each in pictures]).json()["results"]
    found = client.get("/v1/streams/one/answers", params={"after": 2, "limit": 4}).json()["answers"]
    assert [(each["id"], each["label"], each["score"]) for each in found] == [
        (each["id"], each["predictions"][0]["label"], each["predictions"][0]["score"]) for each in sent[3:7]
    ]
    names = ["x" * 300 + "/pets/cat é.png", '../"<b>.png']
    client.post("/v1/streams/two/classify", files=[("image", (each, pictures[0])) for each in names])
    kept = [each["file"] for each in client.get("/v1/streams/two/answers").json()["answers"]]
    assert len(kept[0].encode()) == 255
    assert kept[0].endswith("xx/pets/cat é.png")
    for wrong in ({"limit": 0}, {"limit": 10**6}, {"after": "x"}, {"before": 1}):
        assert client.get("/v1/streams/one/answers", params=wrong).status_code == 422


@pytest.mark.parametrize(
    "damage",
    [
        "UPDATE events SET body = zeroblob(length(body)) WHERE id = (SELECT max(id) FROM events)",
        "UPDATE events SET body = (SELECT body FROM events ORDER BY id LIMIT 1)",
        "DELETE FROM events WHERE id = (SELECT max(id) - 1 FROM events)",
        "UPDATE snapshots SET state = zeroblob(length(state))",
        "DELETE FROM snapshots",
        "DELETE FROM about",
        "PRAGMA user_version = 2",
        pytest.param(
            "ALTER TABLE events RENAME COLUMN samples TO sampler",
            marks=pytest.mark.skipif(
                sys.version_info < (3, 11), reason="Python 3.10 does not tell what SQLite failed at"
            ),
        ),
    ],
)
def test_changed_and_missing_rows_are_noticed(start, images, tmp_path, damage):
    streams = start(sync_s=600)
    for name in ("shop", "lab"):
        stream = streams.create(name, LABELS, skip_duplicates=False)
        for image in images[:4]:
            stream.classify([image])
    state = streams.get("lab").state_bytes()
    shutil.copytree(tmp_path / "state", tmp_path / "copy")
    with closing(sqlite3.connect(tmp_path / "copy" / "streams" / "shop.sqlite")) as database:
        database.execute(damage)
        database.commit()
    again = start("copy")
    with pytest.raises(UnusableError, match="restore a backup, or delete the stream") as raised:
        again.get("shop")
    assert str(tmp_path) not in str(raised.value)
    assert again.get("lab").state_bytes() == state
    assert [bool(each["broken"]) for each in again.describe()] == [False, True]
