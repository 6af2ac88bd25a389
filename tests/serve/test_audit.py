"""The audit log: who changed what, and whether it worked."""

import json
import stat

from acclimate.serve.audit import AuditLog
from acclimate.serve.client import Client
from acclimate.serve.security import TokenFile
from full_disk import files_end_at

CAMERA = "camera-token-0123456789"
KEEPER = "keeper-token-0123456789"


def lines(folder):
    return [json.loads(line) for line in (folder / "audit.jsonl").read_text().splitlines()]


def test_every_administrative_call_is_logged(client, pictures):
    remote = Client(str(client.base_url))
    remote.create("new", ["cat", "dog"])
    (answer,) = remote.classify("new", pictures[0])
    remote.change_labels("new", add=["fox"], remove=["cat"])
    remote.correct("new", answer["id"], "fox")
    remote.undo("new", answer["id"])
    remote.freeze("new")
    remote.freeze("new", False)
    snapshot = remote.snapshot("new")
    remote.upload_state("new", remote.state("new"))
    remote.reset("new")
    remote.rollback("new", snapshot)
    remote.delete("new")
    client.post("/v1/streams/new/reset")
    found = lines(client.folder)
    assert [(each["action"], each["outcome"]) for each in found] == [
        ("create_stream", "done"),
        ("change_labels", "done"),
        ("correct", "done"),
        ("undo_correction", "done"),
        ("freeze_stream", "done"),
        ("unfreeze_stream", "done"),
        ("take_snapshot", "done"),
        ("upload_state", "done"),
        ("reset_stream", "done"),
        ("roll_back", "done"),
        ("delete_stream", "done"),
        ("reset_stream", "not_found"),
    ]
    assert {each["stream"] for each in found} == {"new"}
    assert {each["caller"] for each in found} == {each["client"] for each in found} == {"127.0.0.1"}
    assert found[0]["labels"] == ["cat", "dog"]
    assert (found[1]["add"], found[1]["remove"]) == (["fox"], ["cat"])
    assert (found[2]["id"], found[2]["label"]) == (answer["id"], "fox")
    assert found[9]["snapshot"] == snapshot
    assert stat.S_IMODE((client.folder / "audit.jsonl").stat().st_mode) == 0o600


def test_a_stream_created_by_its_first_images_is_logged(serve, pictures):
    with serve(defaults={"labels": ("cat", "dog")}) as client:
        Client(str(client.base_url)).classify("shop-1", pictures[0])
        Client(str(client.base_url)).classify("shop-1", pictures[1])
        (entry,) = lines(client.folder)
        assert (entry["action"], entry["caller"], entry["stream"]) == ("create_stream", "127.0.0.1", "shop-1")


def test_callers_without_permissions_cannot_fill_the_log(serve, tmp_path):
    """Neither strangers, nor tokens without permission, by any kind of failure."""
    file = tmp_path / "tokens"
    file.write_text(f"camera {CAMERA} one=classify\nkeeper {KEEPER} one=manage\n")
    with serve(tokens=TokenFile(file)) as client:
        for token in (CAMERA, "wrong-token-0123456789", KEEPER):
            headers = {"Authorization": f"Bearer {token}"}
            client.post("/v1/streams/two/freeze", headers=headers)
            client.post("/v1/streams/one/freeze", headers=headers)
            client.post("/v1/streams", content=b"x", headers={**headers, "Content-Type": "application/json"})
        found = [(each["action"], each["caller"], each["outcome"]) for each in lines(client.folder)]
        assert found == [("freeze_stream", "keeper", "done"), ("create_stream", "keeper", "invalid")]
        assert KEEPER not in (client.folder / "audit.jsonl").read_text()


def test_the_log_is_bounded(tmp_path):
    log = AuditLog(tmp_path, largest=1000)
    for number in range(100):
        log.write("correct", "keeper", "done", number=number, labels=["x" * 10_000] * 1000 if number == 50 else [])
    files = sorted(tmp_path.iterdir())
    assert [path.name for path in files] == ["audit.jsonl", *(f"audit.jsonl.{i}" for i in range(1, 5))]
    numbers = [
        json.loads(line)["number"]
        for path in [*reversed(files[1:]), files[0]]
        for line in path.read_text().splitlines()
    ]
    assert numbers == list(range(numbers[0], 100))


def test_half_a_line_does_not_spoil_the_next(tmp_path):
    (tmp_path / "audit.jsonl").write_text('{"time": "20')
    AuditLog(tmp_path).write("reset_stream", "keeper", "done")
    assert json.loads((tmp_path / "audit.jsonl").read_text().splitlines()[1])["action"] == "reset_stream"


def test_a_full_disk_is_reported_in_the_request_log(tmp_path, caplog):
    with files_end_at(1):
        AuditLog(tmp_path).write("reset_stream", "keeper", "done")
    assert "audit log cannot be written" in caplog.text
