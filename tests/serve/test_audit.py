"""The audit log: who changed what, and whether it worked."""

import json
import stat

from hypothesis import given
from hypothesis import strategies as st

from acclimate.serve.client import Client
from acclimate.serve.logs import OLD_FILES, AuditLog
from acclimate.serve.security import TokenFile
from full_disk import files_end_at

CAMERA = "camera-token-0123456789"
KEEPER = "keeper-token-0123456789"
TENANT = "tenant-token-0123456789"


def lines(folder, name="service"):
    path = folder / "audit" / f"{name}.jsonl"
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def bearer(token):
    return {"Authorization": f"Bearer {token}"}


def test_every_administrative_call_is_logged(client, pictures):
    remote = Client(str(client.base_url))
    remote.create("new", ["cat", "dog"])
    (answer,) = remote.classify("new", pictures[0])
    remote.change_labels("new", add=["fox"], remove=["cat"])
    remote.correct("new", answer["id"], "fox")
    remote.undo("new", answer["id"])
    remote.freeze("new")
    remote.freeze("new")  # changes nothing, and leaves no line
    remote.freeze("new", False)
    remote.change_labels("new")
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
    ]
    (refused,) = lines(client.folder, "service.refused")
    assert (refused["action"], refused["outcome"]) == ("reset_stream", "not_found")
    assert {each["stream"] for each in found} == {"new"}
    assert {each["caller"] for each in found} == {each["client"] for each in found} == {"127.0.0.1"}
    assert found[0]["labels"] == ["cat", "dog"]
    assert (found[1]["add"], found[1]["remove"]) == (["fox"], ["cat"])
    assert (found[2]["id"], found[2]["label"]) == (answer["id"], "fox")
    assert found[9]["snapshot"] == snapshot
    for path in (client.folder / "audit").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_callers_without_permissions_cannot_fill_the_log(serve, tmp_path):
    """Neither strangers, nor tokens without permission, by any kind of failure."""
    file = tmp_path / "tokens"
    file.write_text(f"camera {CAMERA} one=classify\nkeeper {KEEPER} one=manage\n")
    with serve(tokens=TokenFile(file)) as client:
        for token in (CAMERA, "wrong-token-0123456789", KEEPER):
            headers = bearer(token)
            client.post("/v1/streams/two/freeze", headers=headers)
            client.post("/v1/streams/one/freeze", headers=headers)
            client.post("/v1/streams", content=b"x", headers={**headers, "Content-Type": "application/json"})
        assert [(each["action"], each["caller"]) for each in lines(client.folder, "keeper")] == [
            ("freeze_stream", "keeper")
        ]
        assert [each["outcome"] for each in lines(client.folder, "keeper.refused")] == ["invalid"]
        files = list((client.folder / "audit").iterdir())
        assert {path.name for path in files} == {"keeper.jsonl", "keeper.refused.jsonl"}
        assert not any(KEEPER in path.read_text() for path in files)


def test_a_tenant_cannot_push_out_what_others_did(serve, tmp_path):
    """Send refused requests whose bodies were once copied into one log for all: 180 of them removed every entry."""
    file = tmp_path / "tokens"
    file.write_text(f"keeper {KEEPER} one=manage\ntenant {TENANT} two=manage\n")
    with serve(tokens=TokenFile(file)) as client:
        client.post("/v1/streams/one/freeze", headers=bearer(KEEPER))
        client.post("/v1/streams/two/freeze", headers=bearer(TENANT))
        before = lines(client.folder, "keeper"), lines(client.folder, "tenant")
        assert [len(each) for each in before] == [1, 1]
        wrong = {"add": ["x" * 150 + str(i) for i in range(1500)], "remove": ["nothing"]}
        for _ in range(60):
            refused = client.patch("/v1/streams/two/labels", json=wrong, headers=bearer(TENANT))
            assert refused.status_code == 422
        assert before == (lines(client.folder, "keeper"), lines(client.folder, "tenant"))
        content = (client.folder / "audit" / "tenant.refused.jsonl").read_text()
        assert len(content.splitlines()) == 60
        assert max(map(len, content.splitlines())) <= 1000


@given(
    st.text(max_size=300),
    st.dictionaries(st.sampled_from(["labels", "method", "id"]), st.lists(st.text(), max_size=100) | st.text()),
)
def test_a_line_is_bounded(tmp_path_factory, caller, details):
    folder = tmp_path_factory.mktemp("audit")
    ids = {"stream": "s" * 64, "client": "2001:db8:1:2:3:4:5:6", "status": 200, "request_id": "r" * 64}
    AuditLog(folder).write("unfreeze_stream", caller, "not_found", **ids, **details)
    (path,) = (folder / "audit").iterdir()
    content = path.read_text()
    assert content.count("\n") == 1
    assert len(content) <= 1024
    assert json.loads(content)["action"] == "unfreeze_stream"


def test_names_of_tokens_are_no_paths(tmp_path):
    log = AuditLog(tmp_path)
    log.shared = False
    for share in ("../../x", "/etc/x", "..", ".", "a.refused", "CON", "é" * 300):
        log.write("reset_stream", share, "done")
    assert len(list((tmp_path / "audit").iterdir())) == 7
    assert {path.suffix for path in (tmp_path / "audit").iterdir()} == {".jsonl"}
    assert list(tmp_path.iterdir()) == [tmp_path / "audit"]
    log.write("reset_stream", "a", "not_found", refused=True)
    assert len(list((tmp_path / "audit").iterdir())) == 8  # not in the file of the token `a.refused`


def test_the_log_is_bounded(tmp_path):
    log = AuditLog(tmp_path, largest=1000)
    for number in range(100):
        log.write("correct", "keeper", "done", number=number, labels=["x" * 10_000] * 1000 if number == 50 else [])
    files = sorted((tmp_path / "audit").iterdir())
    assert [path.name for path in files] == ["service.jsonl", *(f"service.jsonl.{i + 1}" for i in range(OLD_FILES))]
    content = "".join(path.read_text() for path in [*reversed(files[1:]), files[0]])
    numbers = [json.loads(line)["number"] for line in content.splitlines()]
    assert numbers == list(range(numbers[0], 100))
    assert {stat.S_IMODE(path.stat().st_mode) for path in files} == {0o600}


def test_half_a_line_does_not_spoil_the_next(tmp_path):
    (tmp_path / "audit").mkdir()
    (tmp_path / "audit" / "service.jsonl").write_text('{"time": "20')
    AuditLog(tmp_path).write("reset_stream", "keeper", "done")
    content = (tmp_path / "audit" / "service.jsonl").read_text()
    assert json.loads(content.splitlines()[1])["action"] == "reset_stream"


def test_a_full_disk_is_reported_in_the_request_log(tmp_path, caplog):
    log = AuditLog(tmp_path)
    with files_end_at(1):
        log.write("reset_stream", "keeper", "done")
    assert "audit log cannot be written" in caplog.text
    log.write("freeze_stream", "keeper", "done")
    assert json.loads((tmp_path / "audit" / "service.jsonl").read_text().splitlines()[-1])["action"] == "freeze_stream"
