"""One tenant does not stop the others: what a request costs is bounded before it is paid, and counts for its sender."""

import json

import httpx
import numpy as np
import pytest

from acclimate.errors import InputError, StateError, nearest
from acclimate.files import snapshot_bytes
from acclimate.serve import learner, storage
from acclimate.serve.queues import FairPool
from acclimate.serve.security import TokenFile

LABELS = ["red circle", "green square", "blue stripes"]
KEEPER = "keeper-token-0123456789"


def test_more_labels_to_remove_than_there_are_is_refused_before_they_are_looked_at(start):
    stream = start().create("shop", LABELS)
    with pytest.raises(InputError, match="has 3 labels, and 71000 cannot be removed"):
        stream.change_labels(remove=list(map(str, range(71_000))))
    assert stream.describe()["labels"] == LABELS


def test_a_wrong_name_among_many_is_not_compared_with_all_of_them():
    names = [f"{i:04} {'x' * 90}" for i in range(2000)]
    assert nearest(names[7] + "y", names[:200]).startswith("did you mean")
    assert nearest(names[7] + "y", names).startswith("there are: ")


def test_every_call_counts_for_its_sender(serve, pictures, tmp_path, monkeypatch):
    """A token with many streams is one client of the pool of threads, whatever it asks of them."""
    senders = set()
    run = FairPool.run

    def noting(pool, client, *arguments):
        senders.add(client)
        return run(pool, client, *arguments)

    (tmp_path / "tokens").write_text(f"keeper {KEEPER} *=manage\n")
    with serve(tokens=TokenFile(tmp_path / "tokens"), sync_s=3600) as client:
        client.headers["Authorization"] = f"Bearer {KEEPER}"
        monkeypatch.setattr(FairPool, "run", noting)
        one = "/v1/streams/one"
        for method, path, options in (
            ("PUT", "/v1/streams/new", {"json": {"labels": LABELS}}),
            ("GET", "/v1/streams", {}),
            ("GET", one, {}),
            ("POST", f"{one}/classify", {"files": {"image": pictures[0]}}),
            *(
                ("GET", f"{one}/{each}", {})
                for each in ("answers", "caches", "learnt", "snapshots", "corrections", "state")
            ),
            *(("POST", f"{one}/{each}", {}) for each in ("freeze", "unfreeze", "snapshot", "rollback")),
            ("POST", f"{one}/corrections", {"json": {"id": 0, "label": LABELS[0]}}),
            ("DELETE", f"{one}/corrections/0", {}),
            ("PATCH", f"{one}/labels", {"json": {"add": ["fox"]}}),
            ("PUT", f"{one}/state", {"content": client.get(f"{one}/state").content}),
            ("POST", f"{one}/reset", {}),
            ("DELETE", one, {}),
        ):
            answer = client.request(method, path, **options)
            assert answer.status_code in (200, 201, 204, 404, 422), (path, answer.text)
        monkeypatch.undo()
    assert senders == {"keeper"}


def test_the_newest_answers_are_read_from_the_end(start, images, monkeypatch):
    stream = start().create("shop", LABELS, method="tda", skip_duplicates=False)
    for image in images[:12]:
        stream.classify([image])
    stream.classify(images[12:14])
    stream.set_frozen(True)
    stream.classify(images[14:15])  # not learnt
    every = stream.answers()
    assert [each["id"] for each in every] == [*range(14), None]
    read = []
    unpack = storage._unpack
    monkeypatch.setattr(storage, "_unpack", lambda row: read.append(1) or unpack(row))
    for limit in (1, 2, 3, 4, 15, 100):
        read.clear()
        assert stream.answers(limit=limit, newest=True) == every[-limit:]
        assert len(read) <= limit
    assert stream.answers(after=10, newest=True) == every[11:]


def test_a_second_pass_of_answers_is_bounded(start, images, monkeypatch):
    monkeypatch.setattr(learner, "MAX_ANSWERED_AGAIN", 5)
    stream = start().create("shop", LABELS, method="tda", skip_duplicates=False)
    stream.classify(images[:12])
    assert [each["id"] for each in stream.answers(again=True, newest=True)] == [7, 8, 9, 10, 11]
    assert [each["id"] for each in stream.answers(again=True)] == [0, 1, 2, 3, 4]
    assert len(stream.answers()) == 12


@pytest.mark.parametrize("kind", ["lists", "tensors"])
def test_a_large_header_of_a_state_is_refused_before_it_is_parsed(start, images, kind, monkeypatch):
    """JSON takes far more memory than it has bytes."""
    stream = start().create("shop", LABELS, method="tda")
    stream.classify(images[:5])
    content = stream.state_bytes()
    if kind == "lists":
        header = b'{"x":[' + b"[]," * 1_000_000 + b"[]]}"
        hostile = len(header).to_bytes(8, "little") + header
    else:
        hostile = snapshot_bytes({f"empty {i}": np.empty(0, np.float32) for i in range(40_000)}, {})

    loads = json.loads

    def parse(text, **options):
        assert len(text) < 2**20, "the header was parsed"
        return loads(text, **options)

    with monkeypatch.context() as patched:
        patched.setattr(json, "loads", parse)
        with pytest.raises(StateError, match="header of the state is far larger than that of a state of this stream"):
            stream.continue_from(hostile)
    stream.continue_from(content)
    assert stream.state_bytes() == content


def test_sixty_loopback_addresses_are_one_client_of_the_service(serve, pictures):
    """Without tokens, each address counted as a client of its own."""
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
