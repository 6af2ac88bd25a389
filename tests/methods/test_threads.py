"""Threads that share an adapter: no sample is lost, and nothing that is read or copied meanwhile is half changed."""

import copy
import io
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from acclimate import create, state_from_bytes, state_to_bytes
from acclimate.checks.synthetic import shifted_stream

THREADS = 6
STEPS = 200


@pytest.fixture(scope="module")
def stream():
    return shifted_stream(samples=THREADS * STEPS, classes=10, dim=16, seed=2)


@pytest.fixture
def many_switches():
    """Make threads take turns a thousand times as often as usual."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(5e-6)
    yield
    sys.setswitchinterval(before)


def in_threads(work):
    with ThreadPoolExecutor(THREADS) as pool:
        return list(pool.map(work, range(THREADS)))


@pytest.mark.parametrize("name", ["tda", "accord", "dota", "oga"])
def test_no_sample_is_lost(name, stream, many_switches):
    adapter = create(name, stream.head)

    def step(thread):
        for row in range(thread, len(stream), THREADS):
            assert np.isfinite(adapter.step(stream.features[row : row + 1])).all()

    in_threads(step)
    assert adapter.samples_seen == THREADS * STEPS
    ids = [entry.id for entries in adapter.entries().values() for entry in entries]
    assert all(id < THREADS * STEPS for id in ids)
    again = state_from_bytes(state_to_bytes(adapter), like=adapter)
    np.testing.assert_array_equal(again.step(stream.features), adapter.step(stream.features))


@pytest.mark.parametrize("name", ["tda", "accord"])
def test_what_is_read_while_others_learn_is_whole(name, stream, many_switches):
    adapter = create(name, stream.head)
    adapter.step(stream.features[:50])

    def work(thread):
        for turn in range(40):
            row = THREADS * turn + thread
            adapter.step(stream.features[row : row + 1])
            if thread == 0:
                copies = [copy.deepcopy(adapter), pickle.loads(pickle.dumps(adapter))]
                copies.append(state_from_bytes(state_to_bytes(adapter)))
                for each in copies:
                    one = pickle.loads(pickle.dumps(each))
                    assert np.array_equal(each.step(stream.features[:20]), one.step(stream.features[:20]))
            elif thread == 1:
                assert np.isfinite(adapter.second_pass(stream.features[:64])).all()
            elif thread == 2:
                assert all(map(len, adapter.class_statistics().values()))
                assert isinstance(adapter.advice(), str)
            elif thread == 3:
                (id,) = adapter.corrections.correct(stream.features[row : row + 1], [turn % 10])
                assert id in [each.id for each in adapter.corrections]
                adapter.corrections.undo([id])
            elif thread == 4 and turn % 10 == 9:
                adapter.add_classes(stream.head.class_vectors[:1], ["another"])
                adapter.remove_classes(["another"])

    in_threads(work)
    assert adapter.samples_seen == 50 + 40 * THREADS
    assert len(adapter.corrections) == 0


def test_a_copy_and_a_pickle_have_locks_of_their_own_and_share_the_head(stream):
    torch = pytest.importorskip("torch")
    for like in (stream.features, torch.asarray(stream.features)):
        adapter = create("tda", stream.head.to(like))
        adapter.step(stream.features[:100])
        content = io.BytesIO()
        torch.save(adapter, content)
        content.seek(0)
        twin = copy.deepcopy(adapter)
        assert twin.head is adapter.head
        copies = [twin, pickle.loads(pickle.dumps(adapter)), torch.load(content, weights_only=False)]
        assert state_to_bytes(adapter) == state_to_bytes(twin)
        expected = adapter.step(stream.features[100:])
        with adapter.turn, ThreadPoolExecutor(1) as pool:  # another thread can use a copy all the same
            for each in copies:
                found = pool.submit(each.step, stream.features[100:]).result(60)
                assert np.array_equal(found, expected)
