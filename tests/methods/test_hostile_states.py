"""State files that were damaged or made by strangers: they are refused with a StateError, or read as they are."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acclimate import Head, create, files, list_methods, merge_states, state_from_bytes, state_to_bytes
from acclimate.errors import StateError
from acclimate.files import parse_snapshot, read_snapshot, snapshot_bytes, to_bytes
from acclimate.methods import duplicate
from acclimate.methods.persist import MAX_ORIGINS, build_adapter

CLASSES = 4
DIM = 6
# Settings with which forty samples leave something in every array, and training takes no time.
FAST = {"dota": {"refresh": 7}, "free-tta": {"refresh": 7}, "oga": {"batch": 16}}
FAST |= {"coop": {"context_tokens": 2, "epochs": 1}, "cocoop": {"epochs": 1}, "tip-adapter-f": {"epochs": 1}}


def small_state():
    """Return the content of a file with entries in both caches and a correction."""
    rng = np.random.default_rng(0)
    adapter = create("tda", Head(rng.standard_normal((3, 4)).astype(np.float32), 10.0, class_names=["cat", "Öl", "x"]))
    adapter.step(rng.standard_normal((20, 4)).astype(np.float32))
    adapter.corrections.correct(np.eye(1, 4), [1], ids=[3], names=["a.jpg"])
    return state_to_bytes(adapter, {"note": 1})


STATE = small_state()


@pytest.mark.parametrize("flipped", [1, 0x20, 0x2A, 0x80, 0xFF])
def test_damage_of_any_byte_is_refused(flipped):
    """0x2A turns a space into a line feed, which JSON allows."""
    for position in range(len(STATE)):
        damaged = bytearray(STATE)
        damaged[position] ^= flipped
        with pytest.raises(StateError):
            state_from_bytes(bytes(damaged))


@given(st.data())
def test_damage_of_several_bytes_is_refused(data):
    start = data.draw(st.integers(0, len(STATE) - 1))
    old = STATE[start : start + data.draw(st.integers(1, 4))]
    new = data.draw(st.binary(min_size=len(old), max_size=len(old)).filter(lambda each: each != old))
    with pytest.raises(StateError):
        state_from_bytes(STATE[:start] + new + STATE[start + len(old) :])


def test_a_truncated_or_longer_file_is_refused():
    for length in range(len(STATE)):
        with pytest.raises(StateError):
            state_from_bytes(STATE[:length])
    with pytest.raises(StateError):
        state_from_bytes(STATE + b"\0")


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    pytest.importorskip("torch")
    from acclimate.encoders import load_encoder

    return load_encoder(f"local:{tiny_clip}", "cpu")


@pytest.fixture(scope="module", params=sorted(list_methods()))
def state(request):
    """Make an adapter with corrections, and its state in pieces."""
    method = list_methods()[request.param]
    text = request.getfixturevalue("encoder") if "text" in method.needs else None
    rng = np.random.default_rng(0)
    dim = text.dim if text is not None else DIM
    vectors = rng.standard_normal((CLASSES, dim)).astype(np.float32)
    head = Head(vectors, 10.0, class_names=["cat", "dog", "fox", "owl"])
    adapter = create(method.name, head, origin="yard", encoder=text, **FAST.get(method.name, {}))
    shape = (40, 4, dim) if "views" in method.needs else (40, dim)
    features = rng.standard_normal(shape).astype(np.float32)
    if method.kind == "few-shot":
        adapter.fit(features[:8], labels=np.arange(8) % CLASSES)
    elif text is None:
        adapter.step(features)
    adapter.corrections.correct(features[:2], [1, 2], ids=[0, 1], names=["a.jpg", "b.jpg"])
    return adapter, *parse_snapshot(state_to_bytes(adapter, {"note": 1}))


def read(state, tensors, description):
    """Read a file with these contents and a checksum that matches; return None if it is refused."""
    adapter = state[0]
    try:
        content = snapshot_bytes(tensors, description)
        return build_adapter(*parse_snapshot(content), "it", like=adapter, encoder=adapter.given.get("encoder"))[0]
    except StateError:
        return None


def test_arrays_must_have_their_names_kinds_and_shapes_and_be_finite(state):
    _, tensors, description = state
    loaded = read(state, tensors, description)
    assert state_to_bytes(loaded, description["notes"]) == snapshot_bytes(tensors, description)
    for name, values in tensors.items():
        wrong = [values.astype(np.complex64), values[None], np.empty((0, 3000), values.dtype), values[..., :0]]
        if values.dtype.kind == "f":
            wrong += [values.astype(np.int64), np.full_like(values, np.nan), np.full_like(values, np.inf)]
        for other in wrong:
            if other.shape != values.shape or other.dtype != values.dtype or not np.isfinite(other).all():
                assert read(state, tensors | {name: other}, description) is None, (name, other.shape, other.dtype)
        without = read(state, {key: each for key, each in tensors.items() if key != name}, description)
        assert without is None or ".waiting." in name
        if name.endswith((".classes", ".targets")):
            for number in (CLASSES, -2):
                assert read(state, tensors | {name: np.full_like(values, number)}, description) is None
    for name in ("more", "corrections", "corrections.", ".", "", "exports.more", "class_vectors.", "\x1b[2J"):
        assert read(state, tensors | {name: np.zeros((2, 2), np.float32)}, description) is None


STRANGE = [
    None,
    True,
    -1,
    0.5,
    10**400,
    "\ud800",
    "x" * 10**5,
    [],
    {},
    [[]],
    {"a": {}},
    {"yard": 2**60},
    {"yard": True},
]


def test_descriptions_of_another_form_are_refused(state):
    """A value that is accepted is one that would be written again."""
    adapter, tensors, description = state
    for field, old in description.items():
        for value in STRANGE:
            changed = description | {field: value}
            if value != old and (loaded := read(state, tensors, changed)) is not None:
                again = parse_snapshot(state_to_bytes(loaded, changed["notes"]))[1]
                own = {"settings": 0, "encoder": 0}  # missing settings have their defaults
                assert again | own == changed | own
        if field != "encoder":
            assert read(state, tensors, {key: each for key, each in description.items() if key != field}) is None
    assert read(state, tensors, description | {"more": 1}) is None
    for key in ("class_names", "logit_scale", "logit_bias"):
        for value in STRANGE:
            assert read(state, tensors, description | {"head": description["head"] | {key: value}}) is None
    for key in adapter.settings:
        settings = description["settings"] | {key: [None]}
        assert read(state, tensors, description | {"settings": settings}) is None


def header_and_data(content):
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header, data):
    text = header if isinstance(header, bytes) else files._header_bytes(header)
    return len(text).to_bytes(8, "little") + text + data


def test_headers():
    adapter = create("tda", Head(np.eye(3), 10.0))
    adapter.step(np.eye(3))
    content = state_to_bytes(adapter)
    header, data = header_and_data(content)
    keys = header["positive.keys"]
    text = json.dumps(header, separators=(",", ":")).encode()
    for hostile in (
        b"",
        b"\xff" * 8,
        (2**63).to_bytes(8, "little") + content[8:],
        with_header(b"[" * 10**6, data),
        with_header(b'{"a":' * 10**5, data),
        with_header(b"[" + b"1," * 3 * 2**20 + b"1]", data),
        with_header(b"\xff\xfe", data),
        with_header([], data),
        with_header({"__metadata__": []}, data),
        with_header(text[:-1] + b',"positive.keys":' + json.dumps(keys).encode() + b"}", data),  # there twice
        *(
            with_header(header | {"positive.keys": keys | change}, data)
            for change in (
                {"shape": [0, 2**40]},
                {"shape": [2**62, 2**62]},
                {"shape": [-1]},
                {"shape": [1.5]},
                {"dtype": "BF16"},
                {"dtype": "F128"},
                {"data_offsets": [0, 2**60]},
                {"data_offsets": [8, 0]},
                {"data_offsets": header["class_vectors"]["data_offsets"]},
            )
        ),
        with_header(header | {"__metadata__": header["__metadata__"] | {"description": "[" * 10**5}}, data),
        with_header(header | {"__metadata__": header["__metadata__"] | {"description": 7}}, data),
    ):
        with pytest.raises(StateError):
            state_from_bytes(hostile)
    description = header["__metadata__"]["description"]
    for changed in (
        description.replace('"logit_scale": 10.0', '"logit_scale": Infinity'),
        description.replace('"logit_scale": 10.0', '"logit_scale": 1e999'),
        description.replace('"logit_scale": 10.0', f'"logit_scale": {"9" * 4000}'),
    ):
        assert changed != description
        with pytest.raises(StateError):
            state_from_bytes(forged(adapter, changed))


def forged(adapter, description):
    """Return a file with this text as its description, and a checksum that matches."""
    tensors = parse_snapshot(state_to_bytes(adapter))[0]
    metadata = {"format": files.FORMATS["state"], "version": str(files.VERSION), "description": description}
    return to_bytes(tensors, metadata | {"checksum": files._checksum(tensors, description)})


def test_merged_states_may_share_ids():
    """Streams that both count from 0: every entry stays, whatever its id, and the merged state goes on."""
    rng = np.random.default_rng(0)
    head = Head(rng.standard_normal((3, 5)), 10.0)
    yard = create("tda", head, origin="yard")
    road = create("tda", head, origin="road")
    for adapter in (yard, road):
        adapter.step(rng.standard_normal((4, 5)))
    merged = merge_states([yard, road])
    ids = [entry.id for entry in merged.entries()["positive"]]
    assert len(ids) > len(set(ids))
    assert merged.next_id == 8
    loaded = state_from_bytes(state_to_bytes(merged), like=merged)
    assert state_to_bytes(loaded) == state_to_bytes(merged)
    assert state_to_bytes(merge_states([loaded, merged, yard])) == state_to_bytes(merged)
    features = rng.standard_normal((200, 5))
    assert np.array_equal(loaded.step(features), duplicate(merged).step(features))
    assert min(entry.id for entry in loaded.entries()["positive"] if entry.id > 3) >= 8


def test_unreadable_states_are_not_written(tmp_path):
    head = Head(np.eye(2), 10.0)
    adapter = create("tda", head)
    adapter.seen = {str(i): 1 for i in range(MAX_ORIGINS + 1)}
    with pytest.raises(StateError, match="was merged of 10001 streams"):
        state_to_bytes(adapter)
    with pytest.raises(StateError, match="bytes at most"):
        state_to_bytes(create("tda", head), {"more": "x" * files.MAX_HEADER})


def test_files_that_are_none(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", "/dev/zero", "a\0b"):
        with pytest.raises(StateError):
            read_snapshot(path)
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(5 * 2**30)  # a sparse file
    with pytest.raises(StateError, match="more than the"):
        read_snapshot(large)


def test_a_change_of_classes_keeps_a_state_that_can_be_read():
    rng = np.random.default_rng(0)
    for method in ("tda", "dota", "bca", "onzeta", "accord"):
        adapter = create(method, Head(rng.standard_normal((20, 5)), 2.0))
        adapter.step(rng.standard_normal((200, 5)))
        adapter.remove_classes([str(i) for i in range(2, 20)])
        assert state_to_bytes(state_from_bytes(state_to_bytes(adapter))) == state_to_bytes(adapter)
        adapter.add_classes(rng.standard_normal((3, 5)), ["a", "b", "c"])
        adapter.step(rng.standard_normal((20, 5)))
        assert state_to_bytes(state_from_bytes(state_to_bytes(adapter))) == state_to_bytes(adapter)
