import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.serve.http_errors import StorageError
from acclimate.serve.journal import Journal, read_journal
from full_disk import files_end_at

RECORDS = [({"first_id": i, "client": "é" * i}, bytes(range(i * 7))) for i in range(6)]


def write(path):
    """Write a journal; returns where its last record begins."""
    journal = Journal.create(path, {"continues": True})
    for head, body in RECORDS:
        last = journal.append(head, body)
    journal.sync()
    return last


@pytest.fixture
def path(tmp_path):
    write(tmp_path / "1.journal")
    return tmp_path / "1.journal"


@pytest.fixture(scope="module")
def written(tmp_path_factory):
    """Return a journal's path and bytes, and where its last record begins."""
    path = tmp_path_factory.mktemp("journal") / "1.journal"
    last = write(path)
    return path, path.read_bytes(), last


def test_appended_records_are_read(path):
    found = read_journal(path)
    assert found.about == {"continues": True}
    assert found.records == RECORDS
    assert found.damage is None
    assert found.size == path.stat().st_size


@given(st.data())
def test_a_torn_end_is_cut_off(written, data):
    path, content, _ = written
    length = data.draw(st.integers(60, len(content) - 1))
    torn = path.with_name("torn")
    torn.write_bytes(content[:length] + bytes(data.draw(st.integers(0, 40))))
    found = read_journal(torn)
    assert found.damage is None
    assert found.records == RECORDS[: len(found.records)]
    assert found.size <= length
    journal = Journal(torn, found.size)
    journal.append({"more": 1})
    assert read_journal(torn).records == [*found.records, ({"more": 1}, b"")]


@given(st.data())
def test_damage_in_the_middle_is_reported_and_nothing_after_it_is_used(written, data):
    path, content, last = written
    place = data.draw(st.integers(0, len(content) - 1))
    damaged = path.with_name("damaged")
    damaged.write_bytes(
        content[:place] + bytes([content[place] ^ data.draw(st.integers(1, 255))]) + content[place + 1 :]
    )
    found = read_journal(damaged)
    assert found.records == RECORDS[: len(found.records)]
    assert found.size <= place
    assert found.damage is not None or place >= last  # the last record may look torn


def test_a_file_that_is_no_journal_is_reported(tmp_path):
    (tmp_path / "a").write_bytes(b"hello")
    assert "is not a journal" in read_journal(tmp_path / "a").damage
    (tmp_path / "b").write_bytes(b"acclimate journal 1\n")
    assert "cut off in its first record" in read_journal(tmp_path / "b").damage
    assert "No such file" in read_journal(tmp_path / "c").damage


@pytest.mark.parametrize("room", [0, 1, 13, 200])
def test_a_write_that_fails_leaves_the_journal_as_it_was(path, room):
    before = path.read_bytes()
    journal = Journal(path, len(before))
    with files_end_at(len(before) + room), pytest.raises(StorageError, match=r"cannot write 1\.journal: "):
        journal.append({"first_id": 9}, bytes(1000))
    assert path.read_bytes() == before
    journal.append({"first_id": 9}, bytes(1000))
    journal.sync()
    assert read_journal(path).records == [*RECORDS, ({"first_id": 9}, bytes(1000))]


def test_appended_records_can_be_removed(path):
    journal = Journal(path, path.stat().st_size)
    mark = journal.append({"wrong": True}, bytes(99))
    journal.cut(mark)
    journal.append({"right": True})
    assert read_journal(path).records == [*RECORDS, ({"right": True}, b"")]


def test_a_file_that_was_removed_is_noticed(path):
    journal = Journal(path, path.stat().st_size)
    path.unlink()
    with pytest.raises(StorageError, match="No such file"):
        journal.append({"lost": True})
    assert journal.failed
