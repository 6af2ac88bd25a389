"""A run in a folder: whole batches come back as they were written, and nothing else is believed."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate.errors import RunError
from acclimate.run import Batch, Run, RunWriter, is_run

ABOUT = {"model": "bundled", "views": 1, "dim": 4}


def drawn_batches(seed, lengths, views=0):
    """Return batches of these lengths, some images of which could not be read."""
    rng = np.random.default_rng(seed)
    start = 0
    for length in lengths:
        errors = ["no image" if rng.random() < 0.2 else None for _ in range(length)]
        shape = (errors.count(None), *((views, 4) if views else (4,)))
        features = rng.standard_normal(shape).astype(np.float32)
        names = [f"{start + i}\udc80.jpg" for i in range(length)]  # not valid Unicode, as names of files may be
        yield Batch(start, names, errors, features, ["cat"] * length, [None] * length)
        start += length


def write(path, batches, **options):
    run = Run.create(path, ABOUT)
    run.save()
    writer = RunWriter(run, **options)
    for batch in batches:
        writer.append(batch)
    return writer


def assert_same(found, batches):
    for ours, theirs in zip(found, batches, strict=True):
        assert ours[:3] == theirs[:3]
        assert ours.truths == theirs.truths
        np.testing.assert_array_equal(ours.features, theirs.features)


@given(
    st.lists(st.integers(1, 7), min_size=1, max_size=20),
    st.integers(1, 12),
    st.sampled_from([0, 3]),
    st.integers(0, 20),
    st.integers(1, 9),
)
def test_batches_come_back_and_slices_are_those_of_an_array(tmp_path_factory, lengths, images, views, stop, step):
    batches = list(drawn_batches(len(lengths), lengths, views))
    path = tmp_path_factory.mktemp("runs") / "a.run"
    writer = write(path, batches[:stop], images=images, seconds=0.0)
    if stop < len(batches):  # another process goes on
        writer.flush()
        writer = RunWriter(Run.open(path), images=images, seconds=0.0)
        for batch in batches[stop:]:
            writer.append(batch)
    writer.close(complete=True)
    run = Run.open(path)
    assert_same(run.batches(), batches)
    whole = np.concatenate([batch.features for batch in batches])
    assert run.stored_features.shape == whole.shape
    assert run.complete
    np.testing.assert_array_equal(run.stored_features, whole)
    np.testing.assert_array_equal(run.stored_features[1:-1:step], whole[1:-1:step])
    assert all(len(part.names) >= images for part in run.parts[:-1])


def test_a_part_that_is_not_full_is_replaced_by_a_longer_one(tmp_path):
    batches = list(drawn_batches(0, [4] * 6))
    writer = write(tmp_path / "a.run", batches[:3], images=100, seconds=0.0)
    assert_same(Run.open(tmp_path / "a.run").batches(), batches[:3])
    for batch in batches[3:]:
        writer.append(batch)
    writer.close(complete=False)
    assert_same(Run.open(tmp_path / "a.run").batches(), batches)
    assert [path.name for path in (tmp_path / "a.run").glob("0*")] == ["000000.safetensors"]


def test_a_second_writer_stops_the_first(tmp_path):
    batches = list(drawn_batches(0, [4] * 3))
    first = write(tmp_path / "a.run", batches[:1], images=1)
    second = RunWriter(Run.open(tmp_path / "a.run"), images=1)
    with pytest.raises(RunError, match="another process writes"):
        first.append(batches[1])
    second.append(batches[1])
    second.close(complete=True)
    assert_same(Run.open(tmp_path / "a.run").batches(), batches[:2])


@pytest.mark.parametrize("where", [10, 200, -10])
def test_damage_of_a_part_is_named(tmp_path, where):
    write(tmp_path / "a.run", drawn_batches(0, [8])).close(complete=True)
    path = tmp_path / "a.run" / "000000.safetensors"
    content = bytearray(path.read_bytes())
    content[where] ^= 1
    path.write_bytes(content)
    with pytest.raises(RunError, match=r"000000.safetensors.*put another copy"):
        list(Run.open(tmp_path / "a.run").batches())


def test_a_part_of_another_run_is_refused(tmp_path):
    for name in ("a.run", "b.run"):
        write(tmp_path / name, drawn_batches(0, [8])).close(complete=True)
    (tmp_path / "a.run" / "000000.safetensors").replace(tmp_path / "b.run" / "000000.safetensors")
    with pytest.raises(RunError, match="part of another run"):
        Run.open(tmp_path / "b.run")
    assert Run.open(tmp_path / "a.run").images == 0


def test_answers_of_their_own_name_the_features(tmp_path):
    batches = list(drawn_batches(0, [8, 3]))
    write(tmp_path / "a.run", batches).close(complete=True)
    other = Run.open(tmp_path / "a.run").derive(tmp_path / "b.run")
    other.save()
    assert_same(Run.open(tmp_path / "b.run").batches(), batches)
    about = json.loads((tmp_path / "a.run" / "run.json").read_text())
    (tmp_path / "a.run" / "run.json").write_text(json.dumps(about | {"id": "another"}))
    with pytest.raises(RunError):
        Run.open(tmp_path / "b.run")
    (tmp_path / "a.run" / "run.json").unlink()
    with pytest.raises(RunError, match="which are gone"):
        Run.open(tmp_path / "b.run")
    assert not is_run(tmp_path / "a.run")
    assert is_run(tmp_path / "b.run")


@pytest.mark.parametrize(
    "about", ["[]", "{", '{"format": "acclimate-run"}', '{"format": "acclimate-run", "version": 9}']
)
def test_what_is_not_the_description_of_a_run_is_refused(tmp_path, about):
    (tmp_path / "run.json").write_text(about)
    with pytest.raises(RunError, match=r"run\.json|another version"):
        Run.open(tmp_path)


def test_a_missing_part_is_named_and_nothing_is_written_over(tmp_path):
    batches = list(drawn_batches(0, [4] * 4))
    write(tmp_path / "a.run", batches, images=4).close(complete=True)
    first, *_, last = sorted((tmp_path / "a.run").glob("0*"))
    lost = last.read_bytes()
    last.unlink()
    run = Run.open(tmp_path / "a.run")
    assert run.images == 12
    with pytest.raises(RunError, match=r"000003.safetensors is missing; put it back, or encode .* --resume"):
        run.check_whole()
    last.write_bytes(lost)
    first.unlink()
    run = Run.open(tmp_path / "a.run")
    with pytest.raises(RunError, match=r"000000.safetensors is missing; put it back"):
        run.check_whole()
    with pytest.raises(RunError, match="is missing, and parts after it are there"):
        RunWriter(run, images=4)
    assert last.read_bytes() == lost
