"""The guard: who counts as one client, what each may teach, and that honest clients go on learning."""

import shutil
import subprocess
import sys
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import httpx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from acclimate import FeatureStream, Head, list_methods, write_stream
from acclimate.methods.schedule import Queued
from acclimate.serve import guard as module
from acclimate.serve.guard import FairSlots, Guard
from acclimate.serve.limits import Limits
from acclimate.serve.schemas import GuardRules
from portal import running
from table_encoder import TableEncoder, picture

NAMES = ("cat", "dog", "fox", "owl")
LEARNING = [name for name, method in list_methods().items() if method.kind == "online" and not method.needs]
WITH_CACHES = ["tda", "dmn", "oga"]
KINDS = ["accord", "tda", "dota", "onzeta"]  # each kind of state: several, caches, sums, tensors


class SetTime:
    now = 0.0

    def __call__(self):
        return self.now


@pytest.fixture(scope="module")
def table():
    """Return features of four classes: rows 0 to 79 are sure (entropies about 0), rows 80 to 279 less so."""
    rng = np.random.default_rng(0)
    head = Head(np.eye(4, 16, dtype=np.float32), logit_scale=20.0, class_names=NAMES)
    noise = np.pad(rng.standard_normal((280, 12)), ((0, 0), (4, 0))).astype(np.float32)
    strength = np.where(np.arange(280) < 80, 1.0, 0.25)[:, None]
    mixed = (
        np.eye(4, 16)[np.arange(280) % 4] * strength
        + 0.1 * rng.random((280, 1)) * np.eye(4, 16)[(np.arange(280) + 1) % 4]
    )
    return TableEncoder(mixed + 0.2 * noise, head)


@pytest.fixture
def start(table, tmp_path):
    """Return a function that starts services on a folder; the one that uses it is stopped first, and all at the end."""
    opened = {}

    def begin(folder="state", **limits):
        if folder in opened:
            opened.pop(folder).close()
        opened[folder] = ExitStack()
        return opened[folder].enter_context(running(tmp_path / folder, table, Limits(**limits)))

    yield begin
    for each in opened.values():
        each.close()


def create(streams, method="tda", name="shop", **setup):
    return streams.create(name, NAMES, templates="{}", skip_duplicates=False, method=method, **setup)


def show(stream, rows, client, size=8):
    """Return predictions for pictures of these rows."""
    pictures = [picture(row) for row in rows]
    found = []
    for begin in range(0, len(pictures), size):
        found += stream.classify(pictures[begin : begin + size], client=client)
    return found


def holders(stream, cache="positive"):
    """Return the number of cache entries of each client, by label."""
    found = {name: Counter() for name in NAMES}
    for entry in stream.caches():
        if entry["cache"] == cache:
            found[entry["label"]][entry["client"]] += 1
    return found


def test_sixty_loopback_addresses_are_one_client_of_the_service(serve, pictures):
    """Without tokens, each address counted as a client of its own, and the guard was no limit."""
    with serve() as client:
        client.post(
            "/v1/streams", json={"name": "shared", "labels": ["cat", "dog"], "method": "tda", "skip_duplicates": False}
        )
        port = client.base_url.port
        for i in range(12):
            transport = httpx.HTTPTransport(local_address=f"127.0.{i}.{i + 2}")
            with httpx.Client(transport=transport, base_url=f"http://127.0.0.1:{port}", timeout=180) as other:
                answer = other.post("/v1/streams/shared/classify", files={"image": pictures[i]})
                assert answer.status_code == 200
        assert list(client.get("/v1/streams/shared/learnt").json()["clients"]) == ["127.0.0.1"]


def test_a_client_alone_is_not_limited():
    guard = Guard(share=0.5)
    for _ in range(1000):
        assert guard.allowed("a", 64, labels=2) == (64, "")
        guard.learnt("a", 64)
    assert guard.refusals == 0


def test_a_client_among_several_teaches_no_more_than_its_share():
    clock = SetTime()
    guard = Guard(share=0.5, window_s=10.0, clock=clock)
    guard.learnt("a", 20)
    assert guard.allowed("b", 64, labels=4) == (
        28,
        "0 of 20 samples within 10 s are from this client; the guard allows a share of 0.5 among 2 clients",
    )
    guard.learnt("b", 28)
    assert guard.allowed("b", 5, labels=4)[0] == 0
    assert guard.allowed("a", 5, labels=4) == (5, "")
    assert guard.refusals == 64 - 28 + 5
    clock.now = 10.0  # both were long ago
    assert guard.allowed("b", 64, labels=4) == (64, "")


def test_a_share_below_that_of_equal_clients_does_not_end_all_learning():
    guard = Guard(share=0.01)
    taught = Counter()
    for turn in range(300):
        client = "abc"[turn % 3]
        allowed, _ = guard.allowed(client, 4, labels=2)
        guard.learnt(client, allowed)
        taught[client] += allowed
    assert min(taught.values()) >= 395


@given(
    st.lists(st.tuples(st.sampled_from("abcd"), st.integers(1, 64)), max_size=60),
    st.floats(0.001, 1),
    st.integers(2, 50),
)
def test_whoever_has_taught_least_is_always_allowed_and_many_at_once_are_as_one_by_one(requests, share, labels):
    clock = SetTime()
    whole, single = (Guard(share=share, clock=clock) for _ in range(2))
    taught = Counter()
    for client, samples in requests:
        allowed, reason = whole.allowed(client, samples, labels)
        assert bool(reason) == (allowed < samples)
        if taught[client] == min(taught[each] for each in {*taught, client}):
            assert allowed > 0
        whole.learnt(client, allowed) if allowed else None
        for _ in range(samples):
            if single.allowed(client, 1, labels)[0]:
                single.learnt(client, 1)
        taught[client] += allowed
        assert whole._taught == single._taught == +taught
        others = taught.total() - taught[client]
        limit = max(share, 1 / len(+taught)) if +taught else 1.0
        assert not others or taught[client] <= limit * taught.total() + labels + 1e-6 or not allowed


def test_clients_without_a_name_are_not_limited():
    guard = Guard(share=0.1, burst=1)
    for client in ("", "a", ""):
        guard.learnt(client, 100)
    assert guard.allowed("", 64, labels=2) == (64, "")
    assert guard._taught == {"a": 100}


def test_methods_with_entries_alone_refuse_nobody_for_its_share():
    guard = Guard(share=1.0, burst=1000)
    guard.learnt("a", 500)
    guard.learnt("b", 1)
    assert guard.allowed("a", 64, labels=2) == (64, "")
    guard.learnt("a", 450)
    assert guard.allowed("a", 64, labels=2) == (50, "1000 samples of this client were learnt within 60 s")


def test_a_client_does_not_come_in_a_burst():
    clock = SetTime()
    guard = Guard(share=0.5, burst=3, window_s=10.0, clock=clock)
    for clock.now in (0.0, 1.0, 2.0):
        assert guard.allowed("a", 1, 2) == (1, "")
        guard.learnt("a", 1)
    assert guard.allowed("a", 2, 2) == (0, "3 samples of this client were learnt within 10 s")
    assert guard.allowed("b", 5, 2)[0] == 3
    clock.now = 10.5
    assert guard.allowed("a", 5, 2)[0] == 1


def test_the_memory_of_the_guard_is_bounded(monkeypatch):
    clock = SetTime()
    guard = Guard(share=0.5, window_s=10.0, clock=clock)
    for clock.now in np.arange(0, 40, 0.001).tolist():
        guard.learnt("a", 1)
    assert len(guard._counts) <= module.WINDOW_PARTS + 1
    assert guard._taught["a"] == pytest.approx(10_000, rel=0.01)
    monkeypatch.setattr(module, "MAX_COUNTS", 50)
    for i in range(500):
        guard.learnt(f"client {i}", 1)
    assert len(guard._counts) == len(guard._taught) == 50
    clock.now = 100.0
    guard.allowed("a", 1, 2)
    assert not guard._counts
    assert not guard._taught


@pytest.mark.parametrize(
    "rules",
    [{"share": 0.0}, {"share": 1.1}, {"burst": 0}, {"burst": 10**30}, {"window_s": 0.0}, {"age": 0}, {"age": 10**30}],
)
def test_rules_that_make_no_sense_are_refused(rules):
    with pytest.raises(ValidationError):
        GuardRules(**rules)


def queue(*owners):
    """Return entries with ids and ranks 0, 1, ..., and their senders."""
    return [Queued(float(i), i, i) for i in range(len(owners))], dict(enumerate(owners))


@pytest.mark.parametrize(
    ("owners", "client", "rank", "place"),
    [
        ("aaa", "a", 1.5, 2),  # one's own worst entry gives way to a better one
        ("aaa", "a", 9.0, None),
        ("aaa", "b", 9.0, 2),  # a squatter gives way, whatever the entropy
        ("baa", "b", 9.0, None),  # two and one are as fair as one and two
        ("baa", "b", 1.5, 2),
        ("aab", "a", 0.5, 1),  # who holds more replaces its own entries, never those of others
        ("aab", "a", 1.5, None),
        ("aab", "c", 9.0, 1),
        ("abc", "d", 9.0, None),  # everybody holds one: entropy decides
        ("abc", "d", 1.5, 2),
        ("abc", "a", -1.0, 0),
        (["a", "a", ""], "b", 9.0, 1),  # the third is of nobody
    ],
)
def test_slots_move_towards_clients_that_hold_fewer(owners, client, rank, place):
    entries, senders = queue(*owners)
    assert FairSlots(senders, client, age=100)(entries, rank, 50) == place


def test_old_entries_are_evicted_for_others_but_those_of_no_client_only_for_better_ones():
    entries, senders = queue("a", "b", "c")
    assert FairSlots(senders, "d", age=100)(entries, 9.0, 100) is None
    assert FairSlots(senders, "d", age=100)(entries, 9.0, 102) == 1  # entries 0 and 1 are old; the worse one
    assert FairSlots(senders, "a", age=100)(entries, 9.0, 101) is None  # its own is old
    entries, senders = queue("", "", "")
    assert FairSlots(senders, "d", age=1)(entries, 9.0, 100) is None
    assert FairSlots(senders, "d", age=1)(entries, 1.5, 100) == 2


@pytest.mark.parametrize("method", KINDS)
def test_a_stream_of_one_client_learns_as_without_a_guard_bit_for_bit(start, method):
    streams = start()
    guarded = create(streams, method, "guarded")
    plain = create(streams, method, "plain", guard=None)
    assert guarded.describe()["guard"] == GuardRules().model_dump()
    for stream in (guarded, plain):
        answers = show(stream, range(280), "camera")
        assert not any(each.refused for each in answers)
    assert guarded.learnt() == plain.learnt()
    dumps = [stream.learner.adapter.dump() for stream in (guarded, plain)]
    assert all(np.array_equal(values, dumps[1][name]) for name, values in dumps[0].items())


@pytest.mark.parametrize("method", LEARNING)
def test_after_a_flood_an_honest_client_teaches_every_method(start, method):
    stream = create(start(), method)
    show(stream, range(80), "mallory")
    before = stream.describe()["samples_seen"]
    answers = show(stream, range(80, 120), "alice")
    assert not any(each.refused for each in answers)
    assert stream.describe()["samples_seen"] == before + 40
    assert stream.learnt()["clients"]["alice"] > 0
    flood = show(stream, [*range(80)] * 3, "mallory")
    if set(stream.learner.adapter.parts) - {"corrections", "positive", "negative", "memory", "cache"}:
        assert sum(bool(each.refused) for each in flood) == stream.describe()["refusals"] > 150
    else:
        assert not any(each.refused for each in flood)
    assert not any(each.refused for each in show(stream, range(120, 160), "alice"))


@pytest.mark.parametrize("method", WITH_CACHES)
def test_entries_of_squatters_are_evicted_and_do_not_come_back(start, method):
    cache = {"dmn": "memory", "oga": "cache"}.get(method, "positive")
    capacity = {"dmn": {"memory_capacity": 3}, "oga": {"cache_capacity": 3}}.get(method, {})
    streams = start()
    for name, rules, kept in (("open", None, 0), ("guarded", GuardRules(), 1)):
        stream = create(streams, method, name, guard=rules, settings=capacity)
        show(stream, range(28), "mallory")  # seven sure images per class
        assert all(held == {"mallory": 3} for held in holders(stream, cache).values())
        show(stream, range(80, 104), "alice")
        assert all(held["alice"] >= kept for held in holders(stream, cache).values())
        assert name == "guarded" or all(held == {"mallory": 3} for held in holders(stream, cache).values())
        for start_at in range(28, 76, 8):
            show(stream, range(start_at, start_at + 8), "mallory")
            assert all(held["alice"] >= kept for held in holders(stream, cache).values())


def test_one_s_own_entries_are_replaced_by_better_ones(start):
    stream = create(start(), guard={"share": 0.01})
    show(stream, range(80, 160), "alice")
    show(stream, range(160, 200), "bob")
    before = {entry["id"] for entry in stream.caches() if entry["client"] == "alice"}
    answers = show(stream, range(80), "alice")
    assert not any(each.refused for each in answers)
    after = {entry["id"] for entry in stream.caches() if entry["client"] == "alice" and entry["cache"] == "positive"}
    assert after.isdisjoint(before)
    assert all(held["bob"] >= 1 for held in holders(stream).values())


def test_slots_of_many_names_are_free_again_when_they_are_old(start):
    stream = create(start(), guard={"age": 100}, settings={"negative": False})
    for i in range(20):
        show(stream, range(4 * i, 4 * i + 4), f"name {i}")
    show(stream, range(80, 96), "alice")
    assert not any(held["alice"] for held in holders(stream).values())  # a guard cannot know who is who
    show(stream, range(96, 280), "alice")
    assert all(held["alice"] > 0 for held in holders(stream).values())


@pytest.mark.parametrize("method", KINDS)
def test_a_batch_learns_as_its_images_one_by_one(start, method):
    streams = start()
    together, single = (create(streams, method, name) for name in ("together", "single"))
    plan = [("mallory", range(28)), ("alice", range(80, 110)), ("mallory", range(8, 36)), ("bob", range(90, 120))]
    shown = {}  # row by id
    for client, rows in plan:
        answers = [show(stream, rows, client, size) for stream, size in ((together, 40), (single, 1))]
        assert [each.id for each in answers[0]] == [each.id for each in answers[1]]
        shown.update(zip((each.id for each in answers[0]), rows, strict=True))

    def held(stream):
        """Return the images that are held. Each was shown twice, and rounding decides which of the two is held."""
        entries = [(each["cache"], each["label"], each["client"], shown[each["id"]]) for each in stream.caches()]
        return sorted(entries)

    assert held(together) == held(single)
    assert together.learnt()["clients"] == single.learnt()["clients"]


@pytest.mark.parametrize("method", KINDS)
def test_replay_after_a_kill_gives_the_same_state_and_the_same_guard(start, tmp_path, method):
    stream = create(start(snapshot_samples=150), method, guard={"share": 0.4, "age": 60})
    plan = [("mallory", range(28)), ("alice", range(80, 140)), ("mallory", range(28, 80)), ("bob", range(140, 200))]
    for turn, (client, rows) in enumerate(plan * 2):
        show(stream, rows, client)
        shutil.copytree(tmp_path / "state", tmp_path / f"copy{turn}")
        copy = start(f"copy{turn}").get("shop")
        assert copy.state_bytes() == stream.state_bytes()
        assert (copy.caches(), copy.learnt()) == (stream.caches(), stream.learnt())
        assert copy.learner.guard._taught == stream.learner.guard._taught
    for client in ("mallory", "alice", "carol"):
        rows = range(200, 240)
        assert [each.refused is None for each in show(copy, rows, client)] == [
            each.refused is None for each in show(stream, rows, client)
        ]
    assert copy.caches() == stream.caches()


def test_a_burst_is_remembered_after_a_restart(start):
    streams = start()
    stream = create(streams, "prior", guard={"burst": 10, "window_s": 3600.0})
    show(stream, range(20), "mallory")
    stream.reset()
    again = start().get("shop")
    assert all("10 samples of this client" in each.refused for each in show(again, range(20, 30), "mallory"))
    assert again.describe()["refusals"] == 10
    assert not any(each.refused for each in show(again, range(10), "alice"))


def test_entries_of_an_uploaded_state_are_evicted_for_better_ones_only(start):
    stream = create(start())
    show(stream, range(28), "keeper")
    stream.continue_from(stream.state_bytes())
    show(stream, range(80, 160), "alice")
    assert all(held == {"": 3} for held in holders(stream).values())


@pytest.mark.slow
def test_the_table_of_attacks_can_be_made(table, tmp_path):
    head = Head(np.stack(list(table.vectors.values())), logit_scale=table.logit_scale, class_names=NAMES)
    write_stream(FeatureStream(table.features, head, np.arange(280) % 4), tmp_path / "drawn.safetensors")
    script = Path(__file__).parents[2] / "benchmarks" / "poisoning.py"
    command = [sys.executable, script, tmp_path / "drawn.safetensors", "--quick", "--methods", "tda", "--out", tmp_path]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    page = (tmp_path / "poisoning.md").read_text()
    assert "| tda, 16 entries | " in page
    assert (tmp_path / "poisoning.csv").read_text().count("squatting, worst class") == 2 * 3
    assert (tmp_path / "poisoning.png").stat().st_size > 1000
