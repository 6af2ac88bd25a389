"""Text encoding: the same vectors as `build_head`, in turns, bounded, and only as long as somebody waits."""

from concurrent.futures import CancelledError
from threading import Event, get_ident

import numpy as np
import pytest
from anyio.from_thread import start_blocking_portal

from acclimate.errors import BusyError, InputError
from acclimate.prompts import build_head, negative_vectors
from acclimate.serve.limits import Limits
from acclimate.serve.texts import Texts
from portal import Blocking
from waiting import wait_until

MANY = tuple(f"thing {i}" for i in range(80))  # three batches
FEW = ("cat", "dog", "fox")


class Watched:
    """An encoder that notes its batches of prompts, and waits for the gate before each."""

    def __init__(self, encoder):
        self.encoder = encoder
        self.batches = []
        self.threads = set()
        self.gate = Event()
        self.began = Event()

    def __getattr__(self, name):
        return getattr(self.encoder, name)

    def encode_text(self, texts):
        self.batches.append((len(texts), texts[0]))
        self.threads.add(get_ident())
        self.began.set()
        assert self.gate.wait(180)
        return self.encoder.encode_text(texts)


@pytest.fixture
def watched(encoder):
    return Watched(encoder)


@pytest.fixture
def start(watched, tmp_path):
    started = []
    with start_blocking_portal() as portal:

        def begin(**limits):
            started.append(Texts(watched, Limits(**limits), tmp_path / "texts"))
            return Blocking(portal, started[-1])

        yield begin
        watched.gate.set()
        for texts in started:
            portal.call(texts.pool.close)


def test_vectors_are_those_of_build_head_to_the_bit(start, watched):
    texts = start()
    templates = ["a {}", "the {}", "a photo of a {}."]
    watched.gate.set()
    for head, expected in (
        (texts.head(MANY, templates, "a"), build_head(watched.encoder, MANY, templates, False)),
        (texts.head_for_request(MANY[:40], "my {}", "b"), build_head(watched.encoder, MANY[:40], "my {}", False)),
    ):
        assert head.fingerprint == expected.fingerprint
        assert np.array_equal(head.class_vectors, expected.class_vectors)
    assert len(watched.threads) == 1
    assert [count for count, first in watched.batches if first.startswith("my")] == [32, 8]


def test_few_labels_do_not_wait_for_many(start, watched):
    texts = start()
    many = [texts.soon("head_for_request", MANY, template, "attacker") for template in ("a {}", "b {}")]
    assert watched.began.wait(180)
    few = [texts.soon("head_for_request", FEW, "{}", client) for client in ("victim", "attacker")]
    wait_until(lambda: texts.pool._unfinished.total() == 4)
    watched.gate.set()
    assert [each.result(180).class_names for each in few] == [FEW, FEW]
    assert all(each.result(180) for each in many)
    order = [first for _, first in watched.batches]
    assert order.index("cat") <= 2  # the other client's comes after the batch that was running and one more at most
    assert order[:6].count("cat") == 2  # the same client's comes after one batch of each job before it


def test_encoding_stops_when_its_request_is_cancelled(start, watched):
    texts = start()
    gone = texts.soon("head_for_request", MANY, "a {}", "a")
    assert watched.began.wait(180)
    gone.cancel()
    with pytest.raises(CancelledError):
        gone.result(180)
    after = texts.soon("head_for_request", FEW, "a {}", "a")
    watched.gate.set()
    assert after.result(180).class_names == FEW
    assert [count for count, _ in watched.batches] == [32, 3]


def test_waiting_jobs_are_bounded(start, watched):
    texts = start(texts=2)
    waiting = [texts.soon("head_for_request", FEW, template, "a") for template in ("{}", "a {}")]
    wait_until(lambda: texts.pool._unfinished["a"] == 2)
    with pytest.raises(BusyError, match="try again"):
        texts.head_for_request(FEW, "the {}", "a")
    waiting.append(texts.soon("head_for_request", FEW, "the {}", "b"))
    watched.gate.set()
    assert all(each.result(180) for each in waiting)


def test_recent_heads_are_kept_in_memory_and_those_of_streams_on_disk(start, watched, tmp_path):
    watched.gate.set()
    texts = start()
    kept = [texts.head_for_request(FEW, "a {}") for _ in range(2)]
    assert kept[0] is kept[1]
    for i in range(40):
        texts.head_for_request((f"cat {i}", "dog"), "a {}")
    assert len(texts._recent) == 32
    assert not (tmp_path / "texts").exists()
    expected = texts.head(FEW, "a {}")
    watched.batches.clear()
    assert start().head(FEW, "a {}").fingerprint == expected.fingerprint == kept[0].fingerprint
    assert not watched.batches


def test_nouns_are_encoded_once_whoever_gives_up(start, watched, tmp_path):
    texts = start()
    gone, waiting = (texts.soon("negatives") for _ in range(2))
    assert watched.began.wait(180)
    gone.cancel()
    few = texts.soon("head_for_request", FEW, "{}", "a")
    watched.gate.set()
    assert few.result(180)
    found = waiting.result(180)
    assert np.array_equal(found, negative_vectors(watched.encoder, tmp_path / "other"))
    count = len(watched.batches)
    assert len({first for _, first in watched.batches}) == count  # no batch was encoded twice
    assert texts.negatives() is found
    assert len(watched.batches) == count


def test_stopping_does_not_wait_for_all_labels(start, watched):
    texts = start()
    running = texts.soon("head_for_request", MANY, "{}", "a")
    waiting = texts.soon("head_for_request", FEW, "{}", "b")
    assert watched.began.wait(180)
    wait_until(lambda: texts.pool._unfinished.total() == 2)
    texts._portal.call(texts.pool.stop)
    with pytest.raises(BusyError, match="shutting down"):
        waiting.result(180)
    watched.gate.set()
    with pytest.raises(BusyError, match="shutting down"):
        running.result(180)
    assert len(watched.batches) == 1


@pytest.mark.parametrize(
    ("labels", "templates", "message"),
    [
        (["cat"] * 100_000, "{}", "2 to 2000 labels, got 100000"),
        ([f"l{i}" for i in range(2000)], ["a {}"] * 3, "more than 5000 prompts; use fewer templates"),
        ([f"l{i}" for i in range(2000)], ["imagenet"] * 50_000, "more than 5000 prompts"),
        (["x" * 200, "dog"], "{}" * 5, "more than 1000 characters"),
        (["cat", "dog"], "{}" * 10**6, "more than 1000 characters"),
        (["cat", "dog"], {"cat": ["a"] * 20_000, "dog": ["b"]}, "more than 5000 prompts"),
        (["x" * 200, "dog"], {"x" * 200: ["{}" * 10], "dog": ["b"]}, "more than 1000 characters"),
        (["cat", "dog"], {"cat": ["a"]}, "no prompts for 'dog'"),
        (["cat", "dog"], [], "there are no templates"),
    ],
    ids=range(9),
)
def test_the_cost_of_labels_and_templates_is_known_before_a_prompt_is_made(labels, templates, message):
    with pytest.raises(InputError, match=message):
        Limits().check_labels(labels, templates)
