"""A tiny image tower."""

import numpy as np
import pytest

WIDTH = 384
HIDDEN = 128
GROUP = 64
DIM = 16
SIZE = 32


@pytest.fixture(scope="module")
def packed():
    """Return a tower of two layers with random 4-bit weights, in the layout of a packed file."""
    rng = np.random.default_rng(0)

    def floats(*shape, scale=0.05):
        return (scale * rng.standard_normal(shape)).astype(np.float16)

    arrays = {"meta": np.array([SIZE, 2, 4, GROUP]), "cls": floats(1, 1, WIDTH), "pos": floats(5, WIDTH)}
    arrays["mu"] = floats(DIM).astype(np.float32)
    for key, rows in (("patch", WIDTH), ("proj", DIM)):
        inputs = 768 if key == "patch" else WIDTH
        arrays[f"{key}.q"] = rng.integers(-127, 128, (rows, inputs), dtype=np.int8)
        arrays[f"{key}.s"] = np.full((rows, 1), 4e-4, np.float32)
    for key in ("pre", "post", "blocks.0.n1", "blocks.0.n2", "blocks.1.n1", "blocks.1.n2"):
        arrays[f"{key}.w"] = 1 + floats(WIDTH)
        arrays[f"{key}.b"] = floats(WIDTH)
    shapes = {"qkv": (3 * WIDTH, WIDTH), "o": (WIDTH, WIDTH), "f1": (HIDDEN, WIDTH), "f2": (WIDTH, HIDDEN)}
    for i in range(2):
        for name, (rows, inputs) in shapes.items():
            key = f"blocks.{i}.{name}"
            groups = inputs // GROUP
            arrays[f"{key}.shape"] = np.array([rows, inputs])
            arrays[f"{key}.q"] = rng.integers(0, 256, rows * inputs // 2, dtype=np.uint8)
            arrays[f"{key}.z"] = rng.integers(0, 256, rows * groups // 2, dtype=np.uint8)
            arrays[f"{key}.s"] = np.abs(floats(rows, groups, scale=0.01)) + np.float16(0.005)
            arrays[f"{key}.b"] = floats(rows)
    return arrays
