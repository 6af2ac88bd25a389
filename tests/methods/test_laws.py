"""Every method of the registry keeps every law, and with every switch those laws that its settings can break."""

import pytest

from acclimate import list_methods
from acclimate.checks import LAWS, Trial, why_not
from acclimate.checks.laws import (
    answers_do_not_depend_on_batches,
    classes_come_and_go,
    entries_follow_the_changes,
    first_sample_works,
    forks_merge_to_the_stream,
    one_class_works,
    reset_is_new,
    saved_state_continues_exactly,
    shards_merge_to_the_stream,
    sum_merge_counts_once,
    ties_are_stable,
    union_merge_is_exact,
)

# Laws of what an adapter computes and keeps; the others are of the frame, which no setting reaches.
OF_SETTINGS = (
    answers_do_not_depend_on_batches,
    classes_come_and_go,
    entries_follow_the_changes,
    first_sample_works,
    forks_merge_to_the_stream,
    one_class_works,
    reset_is_new,
    saved_state_continues_exactly,
    shards_merge_to_the_stream,
    sum_merge_counts_once,
    ties_are_stable,
    union_merge_is_exact,
)
SWITCHES = {
    "tda": [
        {"self_match": False},
        {"positive": False},
        {"negative": False},
        {"positive": False, "negative": False},
        {"negative_keep": "highest"},
        {"positive_capacity": 1, "negative_capacity": 5, "entropy_low": -0.1, "entropy_high": 0.7},
        {"mask_low": 0.0},
        {"bypass": 70},
        {"bypass": 1000},
    ],
    "dota": [{"refresh": 1}, {"refresh": 1000}, {"limit": 0.0}, {"rounds": 0}],
    "prior": [{"strength": 1.0, "smoothing": 0.1}],
    "zero": [{"voters": 1.0}],
    "onzeta": [{"balance": 1.0}, {"mix": 0.8, "horizon": 1.0}],
    "oga": [{"batch": 1}, {"batch": 1000}, {"cache_capacity": 1, "batch": 7}],
    "bca": [{"prototype_weight": 5.0, "prior_threshold": 0.2}],
    "sca": [{"batch": 7}, {"cover": 0.0}, {"cover": 1.0}, {"ridge": 1.0, "batch": 1000}],
    "dmn": [{"memory_capacity": 2}],
    "free-tta": [{"refresh": 1}, {"refresh": 1000}, {"rounds": 0}],
    "accord": [{"rounds": 0}, {"anchor_even": 1.0, "bar": 1.0, "least": 0.05, "uneven": 0.2, "doubt": 1.0}],
    "tip-adapter": [{"alpha": 0.0}, {"alpha": 3.0, "beta": 7.0}],
    "tip-adapter-f": [{"epochs": 0}, {"epochs": 3, "learning_rate": 0.05, "batch": 7, "alpha": 3.0, "beta": 5.0}],
    "boost": [
        {"extra": 0},
        {"self_match": False},
        {"positive": False},
        {"positive_capacity": 1, "extra": 3},
        {"bypass": 70},
    ],
}
CASES = [
    pytest.param(law, name, settings, id="-".join([name, law.__name__, *map(str, settings.items())]))
    for name, method in list_methods().items()
    for settings in [{}, *SWITCHES.get(name, ())]
    for law in (OF_SETTINGS if settings else LAWS)
    if why_not(law, method, batch=settings.get("batch")) is None
]


@pytest.mark.untraced  # hundreds of walks through the same lines, which the tests of each method cover
@pytest.mark.parametrize(("law", "name", "settings"), CASES)
def test_law(law, name, settings):
    law(Trial(list_methods()[name], **settings))
