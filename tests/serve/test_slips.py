"""What an operator does to the files by mistake, or the clock, loses nothing that was acknowledged."""

import os
import sqlite3
from contextlib import ExitStack, closing, suppress

import pytest

from acclimate.errors import InputError
from acclimate.serve import learner, storage
from acclimate.serve import streams as streams_module
from acclimate.serve.http_errors import StorageError
from acclimate.serve.limits import Limits

LABELS = ["red circle", "green square", "blue stripes"]
SETUP = {"method": "tda", "skip_duplicates": False}
YEAR_S = 365 * 86_400


def back_up(path, to):
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as target:
        source.backup(target)


def test_a_file_that_was_replaced_is_noticed_and_both_files_stay_whole(start, after_a_kill, images, tmp_path):
    streams = start()
    stream = streams.create("shop", LABELS, **SETUP)
    stream.classify(images[:5])
    path = tmp_path / "state" / "streams" / "shop.sqlite"
    back_up(path, tmp_path / "backup.sqlite")
    assert [each.id for each in stream.classify(images[5:8])] == [5, 6, 7]
    os.replace(tmp_path / "backup.sqlite", path)
    for answer in stream.classify(images[8:10]):
        assert answer.id is None
        assert "it was replaced" in answer.refused
    with pytest.raises(StorageError, match="it was replaced"):
        stream.correct(LABELS[0], 1)
    assert "it was replaced" in stream.describe()["degraded"]
    assert "it was replaced" in streams.readiness()
    for again in (after_a_kill(), None):
        if again is None:
            streams.close()
            assert "shop" in streams.unsaved
            again = start()
        restored = again.get("shop")
        assert restored.describe()["samples_seen"] == 5
        assert [each.id for each in restored.classify(images[:1])] == [5]


def test_a_second_writer_gets_a_conflict_and_overwrites_nothing(start, images, monkeypatch):
    """Two services on one folder, as if there was no lock: what either of them acknowledges is there at the end."""
    first = start()
    monkeypatch.setattr(streams_module, "claim_folder", lambda folder: ExitStack())
    shop = first.create("shop", LABELS, **SETUP)
    second = start().get("shop")
    learnt = 0
    for i, image in enumerate(images[:24]):
        (answer,) = (shop, second)[i % 2 if i % 5 else 0].classify([image])
        assert (answer.id is None) == (answer.refused is not None)
        learnt += answer.id is not None
    corrected = set()
    for i in range(6):
        with suppress(StorageError):
            corrected.add((shop, second)[i % 2].correct(LABELS[0], i))
    assert learnt > 12
    assert corrected
    again = start().get("shop")
    assert again.describe()["samples_seen"] == learnt
    assert {each["id"] for each in again.corrections()} == corrected


def test_no_file_of_the_folder_is_the_lock(start, tmp_path):
    start()
    for path in (tmp_path / "state").iterdir():
        assert path.is_dir(), "a cleaner of old files could remove it"
    with pytest.raises(InputError, match="another service uses"):
        start()


class Clock:
    """The clock of the service."""

    def __init__(self):
        self.now = 1_700_000_000.0

    def __call__(self):
        return self.now


@pytest.fixture
def clock(monkeypatch):
    clock = Clock()
    for module in (storage, learner):
        monkeypatch.setattr(module, "time", clock)
    return clock


def test_rollback_points_survive_a_clock_that_goes_back(start, images, clock):
    stream = start(history=6).create("shop", LABELS, **SETUP)
    good = []
    for image in images[:4]:
        clock.now += 3600
        stream.classify([image])
        good.append(stream.snapshot())
    clock.now -= YEAR_S
    for i in range(20):
        clock.now += 1
        stream.classify([images[4 + i]])
        stream.snapshot("samples")
    kept = [each["id"] for each in stream.snapshots()]
    assert len(kept) == 6
    assert len(set(good) & set(kept)) >= 3
    times = [each["time"] for each in stream.snapshots()]
    assert times == sorted(times)


def test_the_newest_snapshot_of_each_who_asked_and_the_newest_that_is_a_day_old_stay(start, images, clock):
    """However many snapshots another client makes, and however fast."""
    stream = start(history=6).create("shop", LABELS, **SETUP)
    stream.classify([images[0]])
    yesterday = stream.snapshot("time")
    clock.now += storage.DAY_S
    stream.classify([images[1]])
    asked = stream.snapshot("requested by lab")
    for i in range(60):
        clock.now += 0.1
        stream.classify([images[2 + i % 30]])
        stream.snapshot("requested by intruder")
    kept = {each["id"]: each["reason"] for each in stream.snapshots()}
    assert {yesterday, asked} <= set(kept)
    assert len(kept) == 6
    assert stream.rollback(asked) == asked


def test_snapshots_thin_instead_of_growing_past_what_a_client_may_take(start, images):
    streams = start(client_bytes=600_000)
    made = [streams.create(f"shop-{i}", LABELS, client="intruder", **SETUP) for i in range(4)]
    other = streams.create("lab", LABELS, client="lab", **SETUP)
    for i in range(30):
        for stream in (*made, other):
            stream.classify([images[i]], client="intruder")
            stream.snapshot()
            if i % 10 == 9:
                stream.reset()
    sizes = [stream.target.file_bytes for stream in made]
    assert sum(sizes) <= 1.02 * 600_000  # what is learnt after a snapshot comes on top
    assert len(other.snapshots()) == Limits().history
    for stream in made:
        assert stream.snapshots()
        assert stream.describe()["broken"] is None
