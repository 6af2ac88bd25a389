"""Comparisons that the laws are made of; each raises AssertionError with what differs."""

import numpy as np

from acclimate.arrays import HostArray
from acclimate.methods import Adapter


def assert_finite(logits: HostArray, shape: tuple[int, int]) -> None:
    """Logits have this shape and are finite."""
    assert logits.shape == shape, f"logits of {shape[0]} samples and {shape[1]} classes have the shape {logits.shape}"
    assert np.isfinite(logits).all(), f"logits of {shape[0]} samples and {shape[1]} classes are not finite"


def assert_equal(got: HostArray, expected: HostArray, what: str) -> None:
    """Arrays are equal to the bit."""
    assert np.array_equal(got, expected), f"{what} differ by up to {np.abs(got - expected).max()}"


def assert_close(got: HostArray, expected: HostArray, what: str) -> None:
    """Arrays are equal up to rounding."""
    assert got.shape == expected.shape, f"{what}: shape {got.shape} instead of {expected.shape}"
    gap = np.abs(got - expected).max(initial=0.0)
    assert gap <= 1e-4 * max(1.0, np.abs(expected).max(initial=0.0)), f"{what} differ by up to {gap}"


def assert_same_state(one: Adapter, other: Adapter) -> None:
    """Two adapters are in the same state, to the bit."""
    assert one.seen == other.seen, f"samples seen: {one.seen} against {other.seen}"
    assert one.frozen == other.frozen, f"frozen: {one.frozen} against {other.frozen}"
    assert not (differences := one.head.differences(other.head)), f"heads: {differences}"
    assert_same_learning(one, other, "the states differ")


def assert_same_learning(one: Adapter, other: Adapter, what: str) -> None:
    """Two adapters have learnt the same, to the bit."""
    ours = one.dump()
    theirs = other.dump()
    assert ours.keys() == theirs.keys(), f"{what}: tensors {sorted(ours)} against {sorted(theirs)}"
    for name, values in ours.items():
        assert np.array_equal(values, theirs[name]), f"{what}: tensor {name!r}"


def assert_similar_state(one: Adapter, other: Adapter, what: str) -> None:
    """Two adapters have learnt the same, up to rounding."""
    ours = one.dump()
    theirs = other.dump()
    assert ours.keys() == theirs.keys(), f"{what} leaves other tensors"
    for name, values in ours.items():
        # Equal samples may have swapped places in a tie decided by rounding; ids alone would tell.
        if not name.endswith("ids"):
            assert_close(values, theirs[name], f"{name} after {what}")
