"""Every method of the registry keeps every law, with every switch."""

import pytest

from acclimate import list_methods
from acclimate.checks import LAWS, Trial, why_not
from acclimate.checks.laws import (
    answers_do_not_depend_on_batches,
    corrections_do_not_depend_on_batches,
    ties_are_stable,
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
    "accord": [{"rounds": 0}],
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
NOTHING_LEARNT = [("tda", {"positive": False, "negative": False}), ("dota", {"limit": 0.0})]
CASES = [(name, {}) for name in list_methods()] + [(name, case) for name, cases in SWITCHES.items() for case in cases]


@pytest.mark.untraced  # over a thousand walks through the same lines, which the tests of each method cover
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_law(law, name, settings):
    method = list_methods()[name]
    if reason := why_not(law, method):
        pytest.skip(reason)
    if law.__name__ == "learning_changes_answers" and (name, settings) in NOTHING_LEARNT:
        pytest.skip("these settings switch learning off")
    law(Trial(method, **settings))


@pytest.mark.parametrize(
    "law",
    [answers_do_not_depend_on_batches, corrections_do_not_depend_on_batches, ties_are_stable],
    ids=lambda law: law.__name__,
)
@pytest.mark.parametrize("name", [name for name, method in list_methods().items() if method.answers_batches])
def test_a_method_that_learns_batches_first_keeps_the_laws_of_any_cut_with_batches_of_one(law, name):
    law(Trial(list_methods()[name], batch=1))
