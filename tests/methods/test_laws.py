"""Every method of the registry keeps every law, with every switch."""

import pytest

from acclimate import list_methods
from acclimate.checks import LAWS, Trial

SWITCHES = {
    "tda": [
        {"self_match": False},
        {"positive": False},
        {"negative": False},
        {"positive": False, "negative": False},
        {"negative_keep": "highest"},
        {"positive_capacity": 1, "negative_capacity": 5, "entropy_low": -0.1, "entropy_high": 0.7},
        {"mask_low": 0.0},
    ],
}
CASES = [(name, {}) for name in list_methods()] + [(name, case) for name, cases in SWITCHES.items() for case in cases]


@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.__name__)
@pytest.mark.parametrize(("name", "settings"), CASES, ids=str)
def test_law(law, name, settings):
    law(Trial(list_methods()[name], **settings))
