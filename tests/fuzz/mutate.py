"""Damage to bytes and to JSON, the same for the same seed."""

import copy
import json

NUMBERS = (0, 1, -1, 2, 127, 255, 256, 65535, 2**31 - 1, 2**31, 2**32 - 1, 2**63 - 1)
WORDS = [
    0,
    1,
    1.5,
    -1,
    True,
    None,
    "",
    "a",
    "\ud800",
    "{}",
    [],
    {},
    [[]],
    2**70,
    1e300,
    float("nan"),
    "x" * 9999,
    [1] * 999,
]


def damage_bytes(content, rng, others=()):
    """Make between one and eight small changes: bits, numbers, cuts, repeats, pieces of other files."""
    content = bytearray(content)
    for _ in range(rng.randint(1, 8)):
        place = rng.randrange(len(content) + 1)
        kind = rng.randrange(7)
        length = 1 << rng.randrange(12)
        if kind == 0 and place < len(content):
            content[place] ^= 1 << rng.randrange(8)
        elif kind == 1:
            size = rng.choice((1, 2, 4, 8))
            order = rng.choice(("big", "little"))
            number = rng.choice(NUMBERS) % 256**size
            content[place : place + size] = number.to_bytes(size, order)
        elif kind == 2:
            del content[place : place + length]
        elif kind == 3:
            content[place:place] = content[place : place + length] * rng.choice((1, 2, 50))
        elif kind == 4:
            content[place:place] = rng.randbytes(min(length, 64))
        elif kind == 5 and others:
            other = rng.choice(others)
            start = rng.randrange(len(other) + 1)
            content[place:place] = other[start : start + length]
        elif kind == 6 and rng.random() < 0.3:
            del content[place:]
    return bytes(content[: 2**20])


def damage_json(value, rng):
    """Return the same value with one thing in it replaced, removed, added or repeated."""
    places = list(_places(value))
    parent, key = rng.choice(places) if places else (None, None)
    word = copy.deepcopy(rng.choice(WORDS))  # it may be changed itself later
    if parent is None:
        return word
    kind = rng.randrange(4)
    if kind == 0:
        parent[key] = word
    elif kind == 1:
        del parent[key]
    elif kind == 2 and isinstance(parent, dict):
        parent[rng.choice(("", "x", "\ud800", str(key) + "s", "x" * 5000))] = word
    elif isinstance(parent, list) and not isinstance(parent[key], (list, dict)):  # repeats of repeats have no bound
        parent.extend([parent[key]] * (rng.choice((1, 10, 3000)) if len(str(parent[key])) < 100 else 2))
    else:
        parent[key] = [parent[key]]
    return value


def _places(value):
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in list(pairs):
        yield value, key
        yield from _places(inner)


def to_json(value):
    """Return JSON of anything that `damage_json` makes; lone surrogates are escaped."""
    return json.dumps(value, ensure_ascii=True).encode()
