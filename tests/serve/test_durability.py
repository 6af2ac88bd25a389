"""Durability of streams: restarts and kills, damaged files, full disks."""

import json
import os
import re
import shutil
import threading
import time
from collections import Counter

import pytest

from acclimate import load_state, merge_states, save_state
from acclimate.errors import StateError
from acclimate.serve import journal
from acclimate.serve import snapshots as snapshots_module
from acclimate.serve import stream as stream_module
from acclimate.serve.guard import GuardRules
from acclimate.serve.http_errors import ExistsError, NotFoundError, StorageError, UnusableError
from acclimate.serve.journal import MARK
from acclimate.serve.streams import Streams
from full_disk import files_end_at
from stream_calls import change_labels, continue_with, names

LABELS = ["red circle", "green square", "blue stripes", "cat", "dog"]


def files(folder, ending):
    return sorted(folder.glob(f"streams/shop/*{ending}"))


def flip(path, place):
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


def test_closing_keeps_everything_and_leaves_no_threads(start, images, encoder, tmp_path):
    before = set(threading.enumerate())
    streams = Streams(tmp_path / "state", encoder)
    stream = streams.create("shop", LABELS, skip_duplicates=False, guard=GuardRules(burst=100), thumbnails=True)
    futures = [stream.classify(images[i : i + 4], client="camera") for i in range(0, 40, 4)]
    streams.close()
    assert set(threading.enumerate()) == before
    assert futures[-1].result(0)[-1].id == 39
    with pytest.raises(NotFoundError):
        stream.classify(images[:1])
    again = start().get("shop")
    assert again.caches() == stream.caches()
    assert again.state_bytes() == stream.state_bytes()
    assert [each["reason"] for each in again.snapshots()] == ["created", "shutdown"]


@pytest.mark.parametrize(
    ("method", "settings", "views"),
    [("tda", {}, 1), ("tda", {}, 3), ("dota", {"refresh": 7}, 1), ("prior", {}, 1), ("zero", {}, 3)],
)
def test_a_kill_loses_nothing_that_was_answered(start, after_a_kill, images, method, settings, views):
    streams = start(snapshot_samples=9 * views)
    setup = {"method": method, "settings": settings, "views": views, "thumbnails": True, "skip_duplicates": False}
    stream = streams.create("shop", LABELS, guard=GuardRules(share=1.0), **setup)

    def assert_nothing_is_lost():
        copy = after_a_kill().get("shop")
        assert copy.state_bytes() == stream.state_bytes()
        assert copy.caches() == stream.caches()
        assert copy.learnt() == stream.learnt()
        assert copy.describe()["broken"] is None
        return copy

    for start_at in range(0, 30, 3):
        stream.classify(images[start_at : start_at + 3], client=f"camera {start_at % 2}").result(60)
        if start_at % 9 == 0:
            assert_nothing_is_lost()
    for action in (
        lambda: stream.set_frozen(True),
        lambda: stream.set_frozen(False),
        stream.snapshot,
        lambda: change_labels(stream, ["fox"], ["cat"]),
        stream.rollback,
        lambda: continue_with(stream, stream.state_bytes()),
        stream.reset,
    ):
        action()
        assert_nothing_is_lost()
    stream.classify(images[30:35]).result(60)
    copy = assert_nothing_is_lost()
    assert copy.classify(images[35:]).result(60) == stream.classify(images[35:]).result(60)


def test_snapshots_are_taken_by_samples_and_by_time_and_the_oldest_go(start, images, tmp_path):
    streams = start(snapshot_samples=3, history=4)
    stream = streams.create("shop", LABELS, skip_duplicates=False)
    for image in images:
        stream.classify([image]).result(60)
    assert [each["samples_seen"] for each in stream.snapshots()] == [30, 33, 36, 39]
    assert len(files(tmp_path / "state", ".safetensors")) == len(files(tmp_path / "state", ".journal")) == 4
    timely = start("timely", snapshot_s=0.01, sync_s=0.01).create("shop", LABELS, skip_duplicates=False)
    timely.classify(images[:2]).result(60)
    while len(timely.snapshots()) < 2:
        pass
    assert (timely.snapshots()[1]["reason"], timely.snapshots()[1]["samples_seen"]) == ("time", 2)


def test_a_damaged_snapshot_costs_nothing_where_older_files_lead_to_it(start, after_a_kill, images, tmp_path):
    stream = start().create("shop", LABELS, skip_duplicates=False)
    for part in range(0, 40, 10):
        stream.classify(images[part : part + 10]).result(60)
        stream.snapshot()
    stream.classify(images[:3]).result(60)
    for damaged in files(tmp_path / "state", ".safetensors")[2:]:
        flip(damaged, -5)
    before = {path: path.read_bytes() for path in files(tmp_path / "state", "") if path.name != MARK}
    copy = after_a_kill()
    found = copy.get("shop")
    assert found.state_bytes() == stream.state_bytes()
    assert "its checksum does not match" in found.describe()["broken"]
    assert [each["id"] for each in found.snapshots()] == [1, 2, 6]  # those that can be read, and a new one
    after = {path.name: path.read_bytes() for path in copy._folder.glob("shop/*")}
    assert all(after[path.name] == content for path, content in before.items())  # nothing was written over
    assert found.rollback() == 2


def test_a_lost_reset_is_reported(start, after_a_kill, images, tmp_path):
    stream = start().create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:10]).result(60)
    stream.reset()
    stream.classify(images[10:12]).result(60)
    flip(files(tmp_path / "state", ".safetensors")[-1], -5)
    found = after_a_kill().get("shop").describe()
    assert found["samples_seen"] == 10
    assert "snapshot 3 cannot be read, and what was learnt after it depends on it" in found["broken"]


def test_a_damaged_journal_is_used_up_to_the_damage(start, after_a_kill, images, tmp_path):
    stream = start().create("shop", LABELS, skip_duplicates=False)
    states = []
    for image in images[:10]:
        states.append(stream.state_bytes())
        stream.classify([image]).result(60)
    (path,) = files(tmp_path / "state", ".journal")
    flip(path, path.stat().st_size // 2)
    damaged = path.read_bytes()
    found = after_a_kill()
    stream = found.get("shop")
    assert "00000001.journal is damaged at byte" in stream.describe()["broken"]
    assert 3 <= stream.describe()["samples_seen"] <= 6
    assert stream.state_bytes() in states
    assert (found._folder / "shop" / path.name).read_bytes() == damaged
    stream.classify(images[:1]).result(60)


def test_a_crash_while_a_snapshot_is_taken_is_no_damage(start, after_a_kill, images, tmp_path):
    stream = start().create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:10]).result(60)
    state = stream.state_bytes()
    stream.reset()
    for snapshot in files(tmp_path / "state", ".safetensors")[1:]:
        snapshot.unlink()
    found = after_a_kill().get("shop")
    assert found.describe()["broken"] is None
    assert found.state_bytes() == state


def test_streams_that_cannot_be_read_at_all_are_listed_and_can_be_deleted(start, after_a_kill, images, tmp_path):
    streams = start()
    for name in ("shop", "lab", "site"):
        streams.create(name, LABELS, skip_duplicates=False).classify(images[:3]).result(60)
    for path in files(tmp_path / "state", ".safetensors"):
        path.write_bytes(b"junk")
    (tmp_path / "state" / "streams" / "lab" / "stream.json").write_text("{}")
    setup = tmp_path / "state" / "streams" / "site" / "stream.json"
    setup.write_text(json.dumps({**json.loads(setup.read_text()), "version": 2}))
    (tmp_path / "state" / "streams" / ".new-1234").mkdir()
    found = after_a_kill()
    assert names(found) == ["lab", "shop", "site"]
    assert [sorted(each) for each in found.describe()] == [["broken", "name"]] * 3
    for name, message in (("lab", "cannot be read"), ("shop", "truncated, damaged"), ("site", "another version")):
        with pytest.raises(UnusableError, match=message):
            found.get(name)
        with pytest.raises(ExistsError):
            found.create(name, LABELS, skip_duplicates=False)
        found.delete(name).result(60)
    assert list(found._folder.iterdir()) == []
    found.create("shop", LABELS, skip_duplicates=False)


def test_the_message_about_a_broken_stream_names_no_folder(start, after_a_kill, tmp_path):
    start().create("shop", LABELS)
    (tmp_path / "state" / "streams" / "shop" / "stream.json").unlink()
    (described,) = after_a_kill().describe()
    assert "stream.json cannot be read (No such file" in described["broken"]
    assert str(tmp_path) not in described["broken"]


def test_a_full_disk_stops_learning_and_nothing_else(start, after_a_kill, images, monkeypatch):
    monkeypatch.setattr(stream_module, "RETRY_S", 0.0)
    stream = start(snapshot_samples=15).create("shop", LABELS, skip_duplicates=False)
    expected = stream.classify(images[:10]).result(60)
    state = stream.state_bytes()
    with files_end_at(1):
        answers = stream.classify(images[10:12]).result(60)
        assert all("free some disk space" in each.refused and each.id is None for each in answers)
        assert [bool(each.label) for each in answers] == [True, True]
        assert "free some disk space" in stream.describe()["degraded"]
        for action in (
            lambda: stream.set_frozen(True),
            stream.snapshot,
            stream.reset,
            stream.rollback,
            lambda: change_labels(stream, add=["fox"]),
            lambda: continue_with(stream, state),
        ):
            with pytest.raises(StorageError):
                action()
        assert stream.state_bytes() == state
    assert after_a_kill().get("shop").state_bytes() == state
    assert stream.classify(images[10:12]).result(60)[0].id == len(expected)
    assert stream.describe()["degraded"] is None
    assert after_a_kill().get("shop").state_bytes() == stream.state_bytes()


def test_a_snapshot_that_cannot_be_written_is_tried_again(start, after_a_kill, images, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_module, "RETRY_S", 0.0)
    stream = start(snapshot_samples=5).create("shop", LABELS, skip_duplicates=False)
    journals = files(tmp_path / "state", ".journal")
    with files_end_at(2000):  # enough for a journal of these few, not for a snapshot
        for image in images[:7]:
            assert stream.classify([image]).result(60)[0].refused is None
        assert "cannot write 00000002.safetensors" in stream.describe()["degraded"]
    assert files(tmp_path / "state", ".journal") == journals
    assert after_a_kill().get("shop").state_bytes() == stream.state_bytes()
    stream.classify(images[7:8]).result(60)
    assert stream.describe()["degraded"] is None
    assert [each["samples_seen"] for each in stream.snapshots()] == [0, 8]


def test_a_full_disk_at_the_start_serves_what_can_be_read(start, images, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_module, "RETRY_S", 0.0)
    stream = start().create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:10]).result(60)
    stream.snapshot()
    flip(files(tmp_path / "state", ".safetensors")[-1], -5)
    shutil.copytree(tmp_path / "state", tmp_path / "full")
    with files_end_at(1):
        found = start("full", sync_s=0.01).get("shop")
        assert found.state_bytes() == stream.state_bytes()
        assert "could not be written" in found.classify(images[10:11]).result(60)[0].refused
    while found.describe()["snapshots"] < 2:
        pass
    assert found.classify(images[10:11]).result(60)[0].id == 10


def test_a_disk_that_is_full_at_creation_leaves_nothing(start, tmp_path):
    streams = start()
    with files_end_at(1), pytest.raises(StorageError):
        streams.create("shop", LABELS, skip_duplicates=False)
    assert names(streams) == list((tmp_path / "state" / "streams").iterdir()) == []
    streams.create("shop", LABELS, skip_duplicates=False)


def test_a_batch_that_fails_to_be_learnt_is_not_in_the_journal(start, after_a_kill, images, monkeypatch):
    stream = start().create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:5]).result(60)
    state = stream.state_bytes()

    def fail(*arguments, **options):
        raise MemoryError("no room")

    monkeypatch.setattr(stream.history.adapter, "respond", fail)
    with pytest.raises(MemoryError):
        stream.classify(images[5:7]).result(60)
    monkeypatch.undo()
    assert after_a_kill().get("shop").state_bytes() == stream.state_bytes() == state
    assert stream.classify(images[5:7]).result(60)[0].id == 5
    assert after_a_kill().get("shop").state_bytes() == stream.state_bytes()


def test_a_batch_that_fails_half_way_is_not_learnt_at_all(start, after_a_kill, images, monkeypatch):
    """A method that settles every few samples learns a request in pieces; if one fails, none counts."""
    stream = start().create("shop", LABELS, skip_duplicates=False, method="dota", settings={"refresh": 4})
    stream.classify(images[:6]).result(60)
    state = stream.state_bytes()
    adapter = stream.history.adapter
    settle = adapter.settle

    def settle_once():
        settle()
        raise MemoryError("no room")

    monkeypatch.setattr(adapter, "settle", settle_once)
    with pytest.raises(MemoryError):
        stream.classify(images[6:12]).result(60)
    assert stream.state_bytes() == after_a_kill().get("shop").state_bytes() == state
    assert stream.classify(images[6:12]).result(60)[0].id == 6
    assert after_a_kill().get("shop").state_bytes() == stream.state_bytes()


@pytest.mark.parametrize("method", ["tda", "prior"])
def test_the_senders_of_entries_survive_a_kill(start, after_a_kill, images, method):
    stream = start(snapshot_samples=3).create("shop", LABELS, method=method, skip_duplicates=False)
    stream.classify(images, client="mallory").result(60)
    copy = after_a_kill().get("shop")
    clients = copy.learnt()["clients"]
    assert clients == stream.learnt()["clients"]
    assert set(clients) == {"mallory"}
    continue_with(copy, copy.state_bytes())  # nobody knows who taught an uploaded state
    assert copy.learnt()["clients"] == {"": clients["mallory"]}
    copy.reset()
    assert copy.learnt()["clients"] == {}


def test_a_journal_that_does_not_reach_the_disk_is_replaced_by_a_snapshot(start, images, monkeypatch):
    stream = start(sync_s=0.01).create("shop", LABELS, skip_duplicates=False)

    def fail(descriptor):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(journal, "_sync", fail)
    stream.classify(images[:5]).result(60)
    while len(stream.snapshots()) < 2:
        pass
    monkeypatch.undo()
    assert stream.snapshots()[1]["samples_seen"] == 5


def test_a_journal_that_somebody_removed_is_replaced(start, after_a_kill, images, tmp_path, monkeypatch):
    monkeypatch.setattr(stream_module, "RETRY_S", 0.0)
    stream = start(sync_s=0.01).create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:5]).result(60)
    files(tmp_path / "state", ".journal")[0].unlink()
    refused = stream.classify(images[5:6]).result(60)[0].refused
    assert refused is None or "No such file" in refused  # it may have been noticed already
    while len(stream.snapshots()) < 2:
        pass
    stream.classify(images[6:7]).result(60)
    assert after_a_kill().get("shop").state_bytes() == stream.state_bytes()


def test_a_state_merged_from_several_streams_goes_on(start, after_a_kill, images, tmp_path):
    streams = start()
    for name, part in (("shop", images[:20]), ("lab", images[20:])):
        made = streams.create(name, LABELS, method="tda", skip_duplicates=False, thumbnails=True)
        made.classify(part).result(60)
        (tmp_path / name).write_bytes(streams.get(name).state_bytes())
    both = merge_states([load_state(tmp_path / name) for name in ("shop", "lab")])  # both know a sample 0, 1, ...
    save_state(both, tmp_path / "both")
    stream = streams.get("shop")
    continue_with(stream, (tmp_path / "both").read_bytes())
    ids = [(each["cache"], each["id"]) for each in stream.caches()]
    assert len(ids) > len(set(ids))
    for image in images[::-1]:
        entries = Counter(each["cache"] for each in stream.caches())
        assert stream.describe()["entries"] == entries
        assert stream.classify([image], client="camera").result(60)[0].id >= 20
    copy = after_a_kill().get("shop")
    assert copy.state_bytes() == stream.state_bytes()
    assert [{**each, "client": ""} for each in copy.caches()] == [{**each, "client": ""} for each in stream.caches()]


def cut_off(path):
    path.write_bytes(path.read_bytes()[:-40])


def zero(path):
    path.write_bytes(path.read_bytes()[:-40] + bytes(40))


@pytest.mark.parametrize("damage", [cut_off, zero, lambda path: flip(path, -5)], ids=["cut off", "zeros", "flipped"])
def test_damage_at_the_end_of_a_journal_is_reported_if_it_was_synced(start, after_a_kill, images, damage, tmp_path):
    stream = start(sync_s=600).create("shop", LABELS, skip_duplicates=False)
    for image in images[:2]:
        stream.classify([image]).result(60)
    stream.history.sync()
    (path,) = files(tmp_path / "state", ".journal")
    whole = path.read_bytes()
    damage(path)
    found = after_a_kill().get("shop").describe()
    assert found["samples_seen"] == 1
    assert re.search(r"00000001.journal ends at byte \d+, and had \d+; what was learnt after", found["broken"])
    path.write_bytes(whole)
    stream.classify(images[2:3]).result(60)
    damage(path)  # a power cut may have this effect
    found = after_a_kill().get("shop").describe()
    assert (found["samples_seen"], found["broken"]) == (2, None)


def test_missing_newest_files_are_reported(start, after_a_kill, images, tmp_path):
    stream = start().create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:2]).result(60)
    stream.snapshot()
    for ending in (".journal", ".safetensors"):
        files(tmp_path / "state", ending)[-1].unlink()
    found = after_a_kill().get("shop")
    assert "snapshot 2 and its journal are missing" in found.describe()["broken"]
    assert found.snapshots()[-1]["id"] == 2


def test_a_correction_that_fails_after_it_was_synced_leaves_no_wrong_mark(start, after_a_kill, images, monkeypatch):
    stream = start().create("shop", LABELS, skip_duplicates=False)
    stream.classify(images[:3]).result(60)

    def fail(*arguments, **options):
        raise MemoryError("no room")

    monkeypatch.setattr(stream.history.adapter.corrections, "correct", fail)
    with pytest.raises(MemoryError):
        stream.correct("cat", 1).result(60)
    found = after_a_kill().get("shop").describe()
    assert (found["samples_seen"], found["broken"]) == (3, None)


def test_leftovers_of_a_crash_are_removed_at_the_start(start, after_a_kill, tmp_path):
    start().create("shop", LABELS, skip_duplicates=False)
    state = tmp_path / "state"
    kept = [state / "streams" / ".zfs" / "mine", state / "streams" / "shop" / ".notes"]
    gone = [state / "streams" / f"{name}-12" / "x" for name in (".new", ".deleted")]
    gone += [state / "streams" / "shop" / ".00000011.safetensors.1234.tmp", state / "texts" / ".class.12.tmp"]
    for path in (*kept, *gone):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    found = after_a_kill()._folder.parent
    assert all((found / path.relative_to(state)).exists() for path in kept)
    assert not any((found / path.relative_to(state)).exists() for path in gone)


def test_creating_and_deleting_is_on_disk_before_it_is_answered(start, monkeypatch, tmp_path):
    synced = []
    real = os.fsync
    monkeypatch.setattr(os, "fsync", lambda handle: (synced.append(os.fstat(handle).st_ino), real(handle)))
    streams = start()
    folder = (tmp_path / "state" / "streams").stat().st_ino
    assert folder not in synced
    for action in (lambda: streams.create("shop", LABELS), lambda: streams.delete("shop").result(60)):
        synced.clear()
        action()
        assert synced[-1] == folder


def test_a_snapshot_that_could_not_be_read_again_is_reported_and_stops_nothing(start, images, monkeypatch):
    streams = start(snapshot_samples=3, snapshot_s=0.001, sync_s=60)
    stream = streams.create("shop", LABELS, skip_duplicates=False)

    def fail(*_):
        raise StateError("it has too many items.")

    with monkeypatch.context() as failing:
        failing.setattr(snapshots_module, "state_to_bytes", fail)
        assert [each.id for each in stream.classify(images[:5]).result(60)] == [0, 1, 2, 3, 4]
        assert stream.degraded == "it has too many items."
        stream._retry_at = 0.0
        stream._problems.report("snapshot", None)
        stream.tick()
        stream.set_frozen(False)  # behind it
        assert stream.describe()["degraded"] == "it has too many items."
    stream._retry_at = 0.0
    stream.tick()
    stream.set_frozen(False)
    assert stream.degraded is None


def test_a_full_disk_is_in_the_log_in_readiness_and_in_the_metrics(serve, images, monkeypatch, caplog):
    caplog.set_level("INFO", "acclimate.serve")
    monkeypatch.setattr(stream_module, "RETRY_S", 0.01)

    def said():
        return [each.getMessage() for each in caplog.records if each.getMessage().startswith("what is learnt")]

    with serve(sync_s=0.05) as client:
        assert client.get("/health/ready").status_code == 200
        with files_end_at(1):
            for image in images[:3]:
                answer = client.post("/v1/streams/one/classify", content=image, headers={"content-type": "image/png"})
                assert "free some disk space" in answer.json()["results"][0]["refused"]
            answer = client.get("/health/ready")
            assert answer.status_code == 503
            message = answer.json()["error"]["message"]
            assert re.match(r"degraded streams: 1; .*cannot write 0.*free some disk space", message)
            assert "acclimate_degraded_streams 1.0" in client.get("/metrics").text
            assert set(said()) == {"what is learnt cannot be written"}
            assert len(said()) <= 2  # one line for the journal, one for the snapshot
        until = time.monotonic() + 30
        while client.get("/health/ready").status_code != 200:  # although nobody sends it images any more
            assert time.monotonic() < until
        assert "acclimate_degraded_streams 0.0" in client.get("/metrics").text
        assert said().count("what is learnt can be written again") == said().count("what is learnt cannot be written")
