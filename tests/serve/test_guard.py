import pytest
from pydantic import ValidationError

from acclimate.serve import guard as module
from acclimate.serve.guard import Guard, GuardRules


class Clock:
    now = 0.0

    def __call__(self):
        return self.now


def test_a_client_holds_no_more_than_its_share():
    guard = Guard(GuardRules(share=0.25))
    assert guard.refusal("a", taught=9, total=9, labels=10) is None  # a stream must begin somehow
    assert "this client has contributed 10 of 20, and the guard allows a share of 0.25" in guard.refusal(
        "a", 10, 20, 10
    )
    assert guard.refusal("a", 10, 43, 10) is None
    assert guard.refusal("a", 11, 43, 10) is not None
    assert guard.refusals == 2


def test_a_client_does_not_come_in_a_burst():
    clock = Clock()
    guard = Guard(GuardRules(burst=3, window_s=10.0), clock)
    for clock.now in (0.0, 1.0, 2.0):
        assert guard.refusal("a", 0, 0, 2) is None
        guard.learnt("a")
    assert "3 samples of this client were learnt within 10 s" in guard.refusal("a", 0, 0, 2)
    assert guard.refusal("b", 0, 0, 2) is None
    clock.now = 10.5
    assert guard.refusal("a", 0, 0, 2) is None
    guard.learnt("a")
    assert guard.refusal("a", 0, 0, 2) is not None
    assert guard.refusals == 2


def test_clients_that_stay_away_are_forgotten(monkeypatch):
    monkeypatch.setattr(module, "FORGET_ABOVE", 5)
    clock = Clock()
    guard = Guard(GuardRules(burst=1, window_s=10.0), clock)
    for client in "abcde":
        guard.learnt(client)
    clock.now = 11.0
    guard.learnt("f")
    assert list(guard._recent) == ["f"]


@pytest.mark.parametrize("rules", [{"share": 0.0}, {"share": 1.1}, {"burst": 0}, {"burst": 1, "window_s": 0.0}])
def test_rules_that_make_no_sense_are_refused(rules):
    with pytest.raises(ValidationError):
        GuardRules(**rules)
