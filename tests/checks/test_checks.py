"""The checks catch what they are for: each broken adapter breaks the law it should."""

import numpy as np
import pytest

from acclimate import TDA, ZeroShot
from acclimate.checks import LAWS, check_adapter


class Sound(TDA):
    name = "sound"


class SeesTheBatch(ZeroShot):
    def respond(self, evidence, ids, learn):
        return evidence.logits - evidence.logits.mean(axis=0)


class Random(ZeroShot):
    def respond(self, evidence, ids, learn):
        return evidence.logits + np.random.default_rng().random(evidence.logits.shape, np.float32) * 1e-5


class WritesToItsInput(ZeroShot):
    def step(self, features, ids=None):
        answer = super().step(features, ids)
        features *= 2
        return answer


class Hoarder(ZeroShot):
    """Keeps every feature it sees."""

    def __init__(self, class_vectors, **arguments):
        super().__init__(class_vectors, **arguments)
        self.clear()

    def respond(self, evidence, ids, learn):
        if learn:
            self.kept = np.concatenate([self.kept, evidence.features])
        return evidence.logits

    def clear(self):
        self.kept = np.zeros((0, self.dim), np.float32)

    def dump(self):
        return {"kept": self.kept}

    def restore(self, tensors):
        self.kept = tensors["kept"]

    mergeable = False


class Forgetful(Hoarder):
    """Does not restore what it dumped."""

    def restore(self, tensors):
        pass


class Unresettable(Hoarder):
    def reset(self):
        self.seen = {}
        self.frozen = False


class LearnsWhileFrozen(Hoarder):
    def respond(self, evidence, ids, learn):
        return super().respond(evidence, ids, learn=True)


class LastOneWins(Hoarder):
    """Merging takes the last state."""

    mergeable = True

    def absorb(self, others):
        if others:
            self.kept = others[-1].kept


class LearnsBeforeItLooks(TDA):
    """Adapts the first half of a batch before it refuses the second."""

    def step(self, features, ids=None):
        middle = max(1, len(features) // 2)
        first = super().step(features[:middle])
        return np.concatenate([first, super().step(features[middle:])]) if len(features) > middle else first


class Wide(ZeroShot):
    def step(self, features, ids=None):
        return super().step(features, ids).astype(np.float64)


class BreaksOnOneClass(ZeroShot):
    def respond(self, evidence, ids, learn):
        return (
            evidence.logits / (evidence.logits.shape[1] - 1.0)
            if evidence.logits.shape[1] > 1
            else np.nan * evidence.logits
        )


class NotFiniteAtFirst(ZeroShot):
    def respond(self, evidence, ids, learn):
        return evidence.logits if self.samples_seen or len(ids) > 1 else np.nan * evidence.logits


class KeepsOldClasses(TDA):
    def reindex(self, position):
        self.clear()


class Silent(TDA):
    """Does not say what entered its caches."""

    def respond(self, evidence, ids, learn):
        logits = super().respond(evidence, ids, learn)
        self.changes = {}
        return logits


def test_a_sound_adapter_passes():
    check_adapter(Sound)
    check_adapter(Sound, positive_capacity=1)


@pytest.mark.parametrize(
    ("method", "law"),
    [
        (SeesTheBatch, "answers_do_not_depend_on_batches"),
        (SeesTheBatch, "ties_are_stable"),
        (Random, "same_stream_same_answers"),
        (WritesToItsInput, "inputs_stay_untouched"),
        (Hoarder, "memory_is_bounded"),
        (Forgetful, "saved_state_goes_on_exactly"),
        (Unresettable, "reset_is_new"),
        (LearnsWhileFrozen, "frozen_never_changes"),
        (LastOneWins, "merge_is_a_union"),
        (LearnsBeforeItLooks, "bad_input_changes_nothing"),
        (Wide, "answers_keep_the_callers_type"),
        (BreaksOnOneClass, "one_class_works"),
        (NotFiniteAtFirst, "first_sample_works"),
        (KeepsOldClasses, "classes_come_and_go"),
        (Silent, "caches_say_what_changed"),
    ],
)
def test_a_broken_adapter_breaks_its_law(method, law, monkeypatch):
    class Broken(method):
        name = "broken"

    monkeypatch.setattr("acclimate.checks.laws.LAWS", tuple(each for each in LAWS if each.__name__ == law))
    with pytest.raises(AssertionError, match=f"Broken breaks the law '{law}'"):
        check_adapter(Broken)
