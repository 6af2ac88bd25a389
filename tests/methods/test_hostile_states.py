"""State files from strangers: every array and every field of every method, changed in every way we can think of.

A file is refused with a StateError, or it is read and written again bit for bit; nothing else may happen.
"""

import copy
import json
import os
import subprocess
import sys
from time import process_time

import numpy as np
import pytest

from acclimate import Head, create, list_methods, merge_states, state_from_bytes, state_to_bytes
from acclimate.errors import StateError
from acclimate.files import parse_snapshot, read_snapshot, snapshot_bytes, to_bytes
from acclimate.methods import duplicate
from acclimate.methods.cache import Cache
from acclimate.methods.persist import MOST_ORIGINS, build_adapter

CLASSES = 4
DIM = 6
# Settings with which forty samples leave something in every array, and training takes no time.
FAST = {"dota": {"refresh": 7}, "free-tta": {"refresh": 7}, "sca": {"refresh": 7}, "oga": {"refresh": 16}}
FAST |= {"coop": {"context_tokens": 2, "epochs": 1}, "cocoop": {"epochs": 1}, "tip-adapter-f": {"epochs": 1}}


@pytest.fixture(scope="module")
def encoder(tiny_clip):
    pytest.importorskip("torch")
    from acclimate.encoders import load_encoder

    return load_encoder(f"local:{tiny_clip}", "cpu")


@pytest.fixture(scope="module", params=sorted(list_methods()))
def state(request):
    """A state with corrections, its encoder if it needs one, as content and in pieces."""
    method = list_methods()[request.param]
    text = request.getfixturevalue("encoder") if "text" in method.needs else None
    rng = np.random.default_rng(0)
    dim = text.dim if text is not None else DIM
    vectors = rng.standard_normal((CLASSES, dim)).astype(np.float32)
    head = Head(vectors, 10.0, class_names=["cat", "dog", "fox", "owl"])
    adapter = create(method.name, head, origin="yard", text=text, **FAST.get(method.name, {}))
    shape = (40, 4, dim) if "views" in method.needs else (40, dim)
    features = rng.standard_normal(shape).astype(np.float32)
    if method.kind == "few-shot":
        adapter.fit(features[:8], labels=np.arange(8) % CLASSES)
    elif text is None:
        adapter.step(features)
    adapter.correct(features[:2], [1, 2], ids=[0, 1], names=["a.jpg", "b.jpg"])
    return adapter, *parse_snapshot(state_to_bytes(adapter, {"note": 1}))


def read(state, tensors, description):
    """What reading these gives; the adapter, or None if they are refused."""
    adapter = state[0]
    content = snapshot_bytes(tensors, description)
    try:
        loaded = build_adapter(*parse_snapshot(content), "it", like=adapter, text=adapter.text)[0]
    except StateError:
        return None
    assert state_to_bytes(loaded, description["notes"]) == content
    evidence = loaded.head.observe(
        np.ones((3, 2, loaded.head.dim) if "views" in loaded.needs else (3, loaded.head.dim))
    )
    if loaded.text is None:
        assert np.isfinite(loaded.adapt(evidence).logits).all()
    return loaded


SHARED = ("class_vectors", "corrections", "positive", "negative")
NUMBERS = (-1, 100, 1e-320, 2**53 + 2, 2**62, 1e30, 3e38, np.nan)


def mutations(values):
    """Other arrays in the place of one."""
    yield from (values.astype(each) for each in ("float16", "float64", "int64", "uint8") if each != values.dtype)
    yield from (values[:0], np.concatenate([values, values]), values.reshape(-1), np.empty((0, 3000), values.dtype))
    yield from (np.ascontiguousarray(values.T), values[::-1].copy(), np.zeros_like(values))
    if values.ndim == 2:
        yield from (values[:, :0], np.pad(values, ((0, 0), (0, 3))), np.pad(values, ((0, 0), (3, 0))))
    if values.dtype.kind == "f":
        yield from (-values, 1.5 * values)
    fits = [each for each in NUMBERS if values.dtype.kind == "f" or 0 < abs(each) <= np.iinfo(values.dtype).max]
    for number in fits:
        with np.errstate(over="ignore"):
            yield np.full_like(values, np.array(number).astype(values.dtype))
        one = np.concatenate([values.reshape(-1)[:-1], [number]] if values.size else [[]])
        with np.errstate(over="ignore"):
            yield one.astype(values.dtype).reshape(values.shape)


@pytest.mark.filterwarnings("ignore:overflow|invalid value|divide by zero:RuntimeWarning")
def test_arrays(state):
    _, tensors, description = state
    assert read(state, tensors, description) is not None
    step = 4 if len(tensors) > 40 else 1  # of very many arrays, each is changed in other ways
    for place, (name, values) in enumerate(tensors.items()):
        if name.split(".")[0] in SHARED and state[0].name not in ("tda", "zero-shot"):
            continue  # the same part as that of these
        for other in list(mutations(values))[place % step :: step]:
            read(state, tensors | {name: other}, description)
        without = read(state, {key: each for key, each in tensors.items() if key != name}, description)
        assert without is None or ".waiting." in name
    for name in ("more", "corrections", "corrections.", ".", "", "exports.more", "class_vectors.", "\x1b[2J"):
        assert read(state, tensors | {name: np.zeros((2, 2), np.float32)}, description) is None


STRANGE = [None, True, 0, -1, 0.5, 1e308, 2**70, 10**400, "x", "\ud800", "x" * 10**5, [], {}, [None], "", 5]
STRANGE += [
    "\x1b[2J",
    [[]],
    {"a": {}},
    {"a": 1},
    ["cat"] * CLASSES,
    ["cat", "dog", "fox", 7],
    {"yard": 2**60},
    {"yard": True},
]


def test_descriptions(state):
    _, tensors, description = state

    messages = []

    def attempt(change):
        changed = copy.deepcopy(description)
        change(changed)
        try:
            content = snapshot_bytes(tensors, changed)
        except StateError:
            return
        adapter = state[0]
        try:
            loaded, notes = build_adapter(*parse_snapshot(content), "it", text=adapter.text)
        except StateError as error:
            messages.append(str(error))
        else:  # settings that are missing have their defaults
            again = parse_snapshot(state_to_bytes(loaded, notes))[1]
            assert again["settings"].items() >= changed["settings"].items()
            own = {"settings": 0, "encoder": 0}  # most methods have no use for the latter
            assert again | own == changed | own

    for field in (*description, "more") if state[0].name in ("tda", "coop") else ():
        for value in STRANGE:
            attempt(lambda it, field=field, value=value: it.update({field: value}))
        attempt(lambda it, field=field: it.pop(field, None))
    for field in ("settings", "head", "seen") if state[0].name == "tda" else ("settings",):
        for key in (*description[field], "more"):
            for value in STRANGE[:16]:
                attempt(lambda it, field=field, key=key, value=value: it[field].update({key: value}))
            attempt(lambda it, field=field, key=key: it[field].pop(key, None))
    assert max(map(len, messages)) < 2000


def test_a_refused_state_says_which_rule_it_breaks():
    head = Head(np.eye(3, 4), 10.0)
    adapter = create("tda", head)
    adapter.step(np.eye(3, 4))
    tensors, description = parse_snapshot(state_to_bytes(adapter))
    for name, values, rule in (
        ("positive.keys", tensors["positive.keys"].astype(np.float32), "positive.keys must be float64, not float32"),
        ("positive.entropies", -1 - tensors["positive.entropies"], "entropies must be from 0 to 64"),
        ("positive.ids", tensors["positive.ids"] - 1, "ids must be from 0 to 9.0072e"),
        ("positive.targets", np.zeros((3, 3), np.int32), "the targets of an entry must be sorted, each once"),
        (
            "positive.targets",
            np.pad(tensors["positive.targets"], ((0, 0), (0, 2)), constant_values=-1),
            "must have the shape",
        ),
        ("class_vectors", 2 * tensors["class_vectors"], "class_vectors must be rows of unit length"),
    ):
        with pytest.raises(StateError, match=rule):
            state_from_bytes(snapshot_bytes(tensors | {name: values}, description))
    twice = {key: np.concatenate([each, each]) for key, each in tensors.items() if key.startswith("positive")}
    with pytest.raises(StateError, match="entries must differ"):
        state_from_bytes(snapshot_bytes(tensors | twice, description))


def header_and_data(content):
    length = int.from_bytes(content[:8], "little")
    return json.loads(content[8 : 8 + length]), content[8 + length :]


def with_header(header, data):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def test_headers():
    adapter = create("tda", Head(np.eye(3), 10.0))
    adapter.step(np.eye(3))
    content = state_to_bytes(adapter)
    header, data = header_and_data(content)
    assert state_from_bytes(with_header(header, data)).samples_seen == 3
    keys = header["positive.keys"]
    text = json.dumps(header).encode()
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
        description.replace('"frozen": false', '"frozen": false, "frozen": false'),
        description.replace('"logit_scale": 10.0', '"logit_scale": Infinity'),
        description.replace('"logit_scale": 10.0', '"logit_scale": 1e999'),
        description.replace('"logit_scale": 10.0', f'"logit_scale": {"9" * 4000}'),
        description.replace('"notes": {}', '"notes": {"a": NaN}'),
    ):
        assert changed != description
        with pytest.raises(StateError):
            state_from_bytes(forged(adapter, changed))


def forged(adapter, description):
    """A file with this text as its description, and a checksum that matches."""
    from acclimate import files

    tensors = parse_snapshot(state_to_bytes(adapter))[0]
    metadata = {"format": files.FORMAT, "version": str(files.VERSION), "description": description}
    return to_bytes(tensors, metadata | {"checksum": f"{files._checksum(tensors, description):08x}"})


HUNGRY = """
import resource, sys
import numpy as np
import acclimate
from acclimate import Head, create, state_from_bytes, state_to_bytes
from acclimate.errors import StateError
from acclimate.files import parse_snapshot, snapshot_bytes

limit = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize() + 300 * 2**20
names = "tda", "dota", "bca", "sca", "free-tta", "oga", "accord"
small = {name: create(name, Head(np.eye(2), 10.0)) for name in names}
files = {name: parse_snapshot(state_to_bytes(adapter)) for name, adapter in small.items()}
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))

def refused(tensors, description, like=None):
    content = snapshot_bytes(tensors, description)
    try:
        state_from_bytes(content, like=like)
    except StateError:
        return
    sys.exit(f"{description['method']} was accepted with {[(key, each.shape) for key, each in tensors.items()]}")

for name, (tensors, description) in files.items():
    for like in (None, small[name]):
        wide = np.zeros((2, 200_000), np.float32)  # as (dim, dim): 160 GB
        wide[:, 0] = 1.0
        refused(tensors | {"class_vectors": wide}, description, like)
        many = np.tile(np.eye(1, 2), (200_000, 1))  # as (classes, classes): 160 GB
        names = {"head": description["head"] | {"class_names": [str(i) for i in range(200_000)]}}
        if name != "tda" or like:  # it has nothing that is as wide as there are classes
            refused(tensors | {"class_vectors": many}, description | names, like)
        for array in tensors:
            for shape in ((0, 10**8), (0, 2**31), (0, 2**40), (10**8, 0), (0, 0)):
                refused(tensors | {array: np.empty(shape, tensors[array].dtype)}, description, like)
        refused(tensors, description | {"settings": description["settings"] | {"refresh": 2**70}}, like)
print("alive")
"""


@pytest.mark.skipif(sys.platform != "linux", reason="needs a limit on memory")
def test_nothing_large_is_allocated_for_a_small_file():
    environment = os.environ | {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    child = subprocess.run(
        [sys.executable, "-c", HUNGRY], capture_output=True, text=True, env=environment, timeout=120, check=False
    )
    assert (child.returncode, child.stdout) == (0, "alive\n"), child.stderr[-2000:] + child.stdout


@pytest.mark.parametrize("hostile", ["equal names", "origins", "entries", "corrections"])
def test_time_is_proportional_to_the_file(hostile):
    """Four times the file takes far less than sixteen times as long."""

    def attempt(size):
        adapter = create("tda", Head(np.eye(2), 10.0))
        tensors, description = parse_snapshot(state_to_bytes(adapter))
        if hostile == "equal names":
            names = [f"class {i}" for i in range(size - 1)] + [f"class {size - 2}"]
            tensors["class_vectors"] = np.tile(np.eye(1, 2), (size, 1))
            description["head"]["class_names"] = names
        elif hostile == "origins":
            description["seen"] = {f"origin {i}": 0 for i in range(size)}
        elif hostile == "entries":
            entries = {"keys": np.tile(np.eye(1, 2), (size, 1)), "classes": np.zeros(size, np.int32)}
            entries |= {"entropies": np.zeros(size), "ids": np.zeros(size, np.int64)}
            entries |= {"targets": np.zeros((size, 1), np.int32)}
            description["settings"]["positive_capacity"] = 10**9
            tensors |= {f"positive.{name}": values for name, values in entries.items()}
        else:
            told = {"keys": np.tile(np.eye(1, 2), (size, 1)), "classes": np.zeros(size, np.int64)}
            told |= {"ids": np.zeros(size, np.int64), "names": np.zeros((size, 1), np.uint8)}
            tensors |= {f"corrections.{name}": values for name, values in told.items()}
        content = snapshot_bytes(tensors, description)
        times = []
        for _ in range(3):
            start = process_time()
            with pytest.raises(StateError):
                state_from_bytes(content)
            times.append(process_time() - start)
        return min(times)

    assert attempt(80_000) < 10 * max(attempt(20_000), 0.005)


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


def test_what_cannot_be_read_is_not_written(tmp_path):
    head = Head(np.eye(2), 10.0)
    adapter = create("tda", head, origin="x" * 5000)
    with pytest.raises(StateError, match="4096 characters"):
        state_to_bytes(adapter)
    adapter = create("tda", head)
    adapter.seen = {str(i): 1 for i in range(MOST_ORIGINS + 1)}
    with pytest.raises(StateError, match="was merged of 10001 streams"):
        state_to_bytes(adapter)
    with pytest.raises(StateError, match="items at most"):
        state_to_bytes(create("tda", head), {"more": list(range(2**20))})


def test_files_that_are_none(tmp_path):
    for path in (tmp_path, tmp_path / "nowhere", "/dev/zero", "a\0b"):
        with pytest.raises(StateError):
            read_snapshot(path)
    large = tmp_path / "large"
    with open(large, "wb") as file:
        file.truncate(5 * 2**30)  # of nothing
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


def test_ids_of_entries_that_corrections_contradict_are_not_given_again():
    cache = Cache(Head(np.eye(3), 10.0), 2)
    cache.restore(
        {
            "keys": np.eye(3),
            "classes": np.arange(3, dtype=np.int32),
            "entropies": np.zeros(3),
            "ids": np.array([5, 6, 7]),
            "targets": np.arange(3, dtype=np.int32)[:, None],
        }
    )
    assert cache.next_id == 8
    cache.contradicted = lambda keys, classes, ids: ids == 7
    cache.review()
    assert len(cache.entries()) == 2
    assert cache.next_id == 8
