"""The advice of accord about a stream, and the places where users see it."""

import numpy as np
import pytest

from acclimate import Accord, Head, create, list_methods, load_state, save_state
from acclimate.bench.orders import stream_order
from acclimate.checks.synthetic import shifted_stream


@pytest.fixture
def head():
    return Head(np.eye(10), logit_scale=20.0)


@pytest.fixture
def rng():
    return np.random.default_rng(0)


def samples(classes, rng):
    """Return a noisy sample of each of these classes."""
    return np.eye(10)[classes] + 0.1 * rng.standard_normal((len(classes), 10))


def test_it_says_that_few_classes_occur(head, rng, tmp_path):
    few = samples(rng.integers(0, 3, 300), rng)
    adapter = Accord(head)
    assert adapter.advice() == ""
    adapter.step(few)
    assert "labels seem to be rare or absent (the answers are spread as if over about 3)" in adapter.advice()
    save_state(adapter, tmp_path / "few")
    assert load_state(tmp_path / "few").advice() == adapter.advice()


@pytest.mark.parametrize("order", ["shuffled:0", "long-tail:0", "class-sequential:0", "correlated:0"])
def test_it_does_not_say_so_where_all_classes_occur(order):
    stream = shifted_stream(samples=2000, classes=12, dim=32, seed=1)
    adapter = Accord(stream.head)
    adapter.step(stream.features[stream_order(stream, order)])
    assert adapter.advice() == ""


@pytest.mark.parametrize("name", [name for name, each in list_methods().items() if not each.needs])
def test_no_method_warns_of_an_even_stream(name):
    stream = shifted_stream()
    adapter = create(name, stream.head)
    adapter.step(stream.features)
    assert adapter.advice() == ""
