"""Durability of streams: restarts and kills, damaged files, full disks."""

import os
import threading
from collections import Counter
from contextlib import closing

import pytest

from acclimate import load_state, merge_states, save_state
from acclimate.serve.http_errors import StorageError
from acclimate.serve.limits import Limits
from acclimate.serve.storage import StreamFile
from full_disk import files_end_at
from portal import running
from waiting import wait_until

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


def path_of(folder, name="shop"):
    return folder / "state" / "streams" / f"{name}.sqlite"


def test_closing_keeps_everything_and_leaves_no_threads(start, images, encoder, tmp_path):
    before = set(threading.enumerate())
    with running(tmp_path / "state", encoder, Limits()) as streams:
        stream = streams.create("shop", LABELS, skip_duplicates=False, thumbnails=True)
        futures = [stream.soon("classify", images[i : i + 4], client="camera") for i in range(0, 40, 4)]
        assert futures[-1].result(180)[-1].id == 39
        caches = stream.caches()
        state = stream.state_bytes()
    wait_until(lambda: set(threading.enumerate()) <= before)
    again = start().get("shop")
    assert again.caches() == caches
    assert again.state_bytes() == state
    assert [each["reason"] for each in again.snapshots()] == ["created", "shutdown"]


def test_the_guard_of_an_earlier_version_is_ignored(encoder, images, tmp_path):
    with running(tmp_path / "state", encoder, Limits()) as streams:
        stream = streams.create("shop", LABELS, method="tda", skip_duplicates=False)
        stream.classify(images[:4])
        state = stream.state_bytes()
    with closing(StreamFile(path_of(tmp_path), Limits())) as file, file.transaction():
        about = file.about("stream")
        guard = {"share": 0.5, "burst": None, "window_s": 60.0, "age": 10_000}
        file.set_about("stream", about | {"setup": about["setup"] | {"guard": guard}})
    with running(tmp_path / "state", encoder, Limits()) as streams:
        stream = streams.get("shop")
        assert stream.describe()["broken"] is None
        assert "guard" not in stream.describe()
        assert stream.state_bytes() == state


@pytest.mark.parametrize(
    ("method", "settings", "views"),
    [("tda", {}, 1), ("tda", {}, 3), ("dota", {"refresh": 7}, 1), ("prior", {}, 1), ("zero", {}, 3)],
)
def test_a_kill_loses_nothing_that_was_answered(start, after_a_kill, images, method, settings, views):
    streams = start(snapshot_samples=9 * views)
    setup = {"method": method, "settings": settings, "views": views, "thumbnails": True, "skip_duplicates": False}
    stream = streams.create("shop", LABELS, **setup)

    def assert_nothing_is_lost():
        copy = after_a_kill().get("shop")
        assert copy.state_bytes() == stream.state_bytes()
        assert copy.caches() == stream.caches()
        assert copy.learnt() == stream.learnt()
        assert copy.describe()["broken"] is None
        for count in ("answered", "changed"):
            assert copy.describe()[count] == stream.describe()[count]
        return copy

    for start_at in range(0, 30, 3):
        stream.classify(images[start_at : start_at + 3], client=f"camera {start_at % 2}")
        if start_at % 9 == 0:
            assert_nothing_is_lost()
    stream.classify(images[:1], adapt=False)
    assert stream.describe()["answered"] == 30
    for action in (
        lambda: stream.set_frozen(True),
        lambda: stream.set_frozen(False),
        stream.snapshot,
        lambda: stream.change_labels(["fox"], ["cat"]),
        stream.rollback,
        lambda: stream.continue_from(stream.state_bytes()),
        stream.reset,
    ):
        action()
        assert_nothing_is_lost()
    stream.classify(images[30:35])
    copy = assert_nothing_is_lost()
    assert copy.classify(images[35:]) == stream.classify(images[35:])


def test_snapshots_are_taken_by_samples_and_by_time(start, images):
    stream = start(snapshot_samples=3, history=4).create("shop", LABELS, skip_duplicates=False)
    for image in images:
        stream.classify([image])
    seen = [each["samples_seen"] for each in stream.snapshots()]
    assert len(seen) == 4
    assert (seen[0], seen[-1]) == (0, 39)
    timely = start("timely", snapshot_s=0.01, sync_s=0.01).create("shop", LABELS, skip_duplicates=False)
    timely.classify(images[:2])
    wait_until(lambda: len(timely.snapshots()) > 1)
    assert (timely.snapshots()[1]["reason"], timely.snapshots()[1]["samples_seen"]) == ("time", 2)


def test_a_disk_that_is_full_at_creation_leaves_nothing(start, tmp_path):
    streams = start()
    with files_end_at(1), pytest.raises(StorageError):
        streams.create("shop", LABELS, skip_duplicates=False)
    assert streams.describe() == list((tmp_path / "state" / "streams").iterdir()) == []
    streams.create("shop", LABELS, skip_duplicates=False)


def test_a_batch_that_fails_half_way_is_not_learnt_at_all(start, after_a_kill, images, monkeypatch):
    """A method that is flushed every few samples learns a request in pieces; if one fails, none counts."""
    stream = start().create("shop", LABELS, skip_duplicates=False, method="dota", settings={"refresh": 4})
    stream.classify(images[:6])
    state = stream.state_bytes()
    adapter = stream.learner.adapter
    settle = adapter.flush

    def settle_once():
        settle()
        raise MemoryError("no room")

    monkeypatch.setattr(adapter, "flush", settle_once)
    with pytest.raises(MemoryError):
        stream.classify(images[6:12])
    assert stream.state_bytes() == after_a_kill().get("shop").state_bytes() == state
    assert stream.classify(images[6:12])[0].id == 6
    assert after_a_kill().get("shop").state_bytes() == stream.state_bytes()


@pytest.mark.parametrize("method", ["tda", "prior"])
def test_the_senders_of_entries_survive_a_kill(start, after_a_kill, images, method):
    stream = start(snapshot_samples=3).create("shop", LABELS, method=method, skip_duplicates=False)
    stream.classify(images, client="mallory")
    copy = after_a_kill().get("shop")
    clients = copy.learnt()["clients"]
    assert clients == stream.learnt()["clients"]
    assert set(clients) == {"mallory"}
    copy.continue_from(copy.state_bytes())  # nobody knows who taught an uploaded state
    assert copy.learnt()["clients"] == {"": clients["mallory"]}
    copy.reset()
    assert copy.learnt()["clients"] == {}


def test_a_state_merged_from_several_streams_goes_on(start, after_a_kill, images, tmp_path):
    streams = start()
    for name, part in (("shop", images[:20]), ("lab", images[20:])):
        made = streams.create(name, LABELS, method="tda", skip_duplicates=False, thumbnails=True)
        made.classify(part)
        (tmp_path / name).write_bytes(streams.get(name).state_bytes())
    both = merge_states([load_state(tmp_path / name) for name in ("shop", "lab")])  # both know a sample 0, 1, ...
    save_state(both, tmp_path / "both")
    stream = streams.get("shop")
    stream.continue_from((tmp_path / "both").read_bytes())
    ids = [(each["cache"], each["id"]) for each in stream.caches()]
    assert len(ids) > len(set(ids))
    for image in images[::-1]:
        entries = Counter(each["cache"] for each in stream.caches())
        assert stream.describe()["entries"] == entries
        assert stream.classify([image], client="camera")[0].id >= 20
    copy = after_a_kill().get("shop")
    assert copy.state_bytes() == stream.state_bytes()
    assert [{**each, "client": ""} for each in copy.caches()] == [{**each, "client": ""} for each in stream.caches()]


def test_leftovers_of_a_crash_are_removed_at_the_start(start, after_a_kill, tmp_path):
    start().create("shop", LABELS)
    folder = tmp_path / "state" / "streams"
    kept = [folder / "notes.txt", folder / ".zfs" / "mine"]
    gone = [folder / ".new-12.sqlite", folder / ".new-12.sqlite-wal", folder / "gone.sqlite-wal"]
    gone.append(tmp_path / "state" / "texts" / ".class.12.tmp")
    for path in (*kept, *gone):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = after_a_kill()
    copy = found._folder.parent
    assert [each["name"] for each in found.describe()] == ["shop"]
    assert all((copy / path.relative_to(tmp_path / "state")).exists() for path in kept)
    assert not any((copy / path.relative_to(tmp_path / "state")).exists() for path in gone)


def test_creating_and_deleting_is_on_disk_before_it_is_answered(start, monkeypatch, tmp_path):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), real(handle)))
    streams = start()
    folder = (tmp_path / "state" / "streams").stat().st_ino
    for action in (lambda: streams.create("shop", LABELS), lambda: streams.delete("shop")):
        synced.clear()
        action()
        assert synced[-1] == folder


def test_a_file_that_somebody_removed_is_reported(start, images, tmp_path):
    streams = start(sync_s=600)
    stream = streams.create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:2])
    path_of(tmp_path).unlink()
    answer = stream.classify(images[2:3])[0]
    assert answer.id is None
    assert "it was removed" in answer.refused
    assert "it was removed" in stream.describe()["degraded"]
    assert "it was removed" in streams.readiness()
