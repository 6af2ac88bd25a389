"""Accuracy of the default method on real CLIP features with CLIP's own class vectors."""

import numpy as np
import pytest

from acclimate import Accord, read_stream
from acclimate.bench.prequential import Variant, compare

pytestmark = pytest.mark.slow

NAMES = ["imagenet", "caltech101", "oxford_pets", "ucf101", "eurosat", "fgvc_aircraft"]
SEEDS = 2


@pytest.fixture(scope="module", params=["project", "beside it"])
def streams(request, shared, eurosat):
    """Return the 500 samples that are part of the project, and the whole streams that may lie beside it."""
    paths = [eurosat] if request.param == "project" else [shared / "clip" / f"{name}.safetensors" for name in NAMES]
    if not all(path.is_file() for path in paths):
        pytest.skip("the features of CLIP are not on this machine")
    return {path.stem: read_stream(path) for path in paths}


def gains(stream, orders):
    """Return gains over zero-shot in points, of the first and of the second pass, by order."""
    zero_shot, outcome = compare(stream, [Variant("accord")], orders, passes=2)
    base = [100 * zero_shot.runs[order].correct.mean() for order in orders]
    passes = [[100 * runs[order].correct.mean() for order in orders] for runs in (outcome.runs, outcome.second_pass)]
    return np.array(passes) - base


@pytest.fixture(scope="module")
def whole(streams):
    """Return scores of zero-shot, of the first and of the second pass on whole streams, by name."""
    found = {}
    for name, stream in streams.items():
        zero_shot, outcome = compare(stream, [Variant("accord")], ["stored"], passes=2)
        runs = (zero_shot.runs, outcome.runs, outcome.second_pass)
        found[name] = [each["stored"].scores() for each in runs]
    return found


def test_whole_streams_gain(whole):
    zero_shot, online, refined = np.mean([[scores["acc1"] for scores in each] for each in whole.values()], axis=0)
    assert online > zero_shot + 0.0512
    assert refined > zero_shot + 0.0642


def test_no_whole_stream_loses(whole):
    for name, (zero_shot, online, refined) in whole.items():
        assert online["acc1"] > zero_shot["acc1"] - 0.003, name
        assert refined["acc1"] > zero_shot["acc1"] - 0.003, name


def test_scores_stay_calibrated(whole):
    zero_shot, online, refined = np.mean([[scores["ece"] for scores in each] for each in whole.values()], axis=0)
    assert online < zero_shot + (0.01 if len(whole) > 1 else 0.03)  # of 500 samples it is not known better
    assert refined < zero_shot + 0.01


@pytest.mark.parametrize(("shape", "mean", "worst"), [("few-classes", 3.0, -4.0), ("half-classes", 2.3, -2.0)])
def test_some_of_the_classes_gain(streams, shape, mean, worst):
    orders = [f"{shape}:{seed}" for seed in range(SEEDS)]
    refined = np.array([gains(stream, orders)[1] for stream in streams.values()])
    assert refined.mean() > mean
    assert refined.min() > worst


@pytest.mark.parametrize("shape", ["class-sequential", "correlated"])
def test_sorted_streams_and_bursts_do_not_lose_online(streams, shape):
    orders = [f"{shape}:{seed}" for seed in range(SEEDS)]
    online = np.array([gains(stream, orders)[0] for stream in streams.values()])
    assert online.mean() > 2.0
    assert online.min() > -1.5


def test_classes_are_said_to_be_missing_only_where_they_are(streams):
    for name, stream in streams.items():
        adapter = Accord(stream.head)
        adapter.step(stream.features[stream.order])
        assert adapter.advice() == "", name
