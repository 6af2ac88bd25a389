"""The checks catch what they are for: each broken adapter breaks the law it should."""

from importlib.util import find_spec

import numpy as np
import pytest

from acclimate import TDA, Prior, StatA, Step, Sums, Tensors, ZeroShot
from acclimate.arrays import move
from acclimate.checks import LAWS, check_adapter, why_not
from acclimate.errors import InputError
from acclimate.methods import CLASSES, DIM, State

NEEDS_TORCH = pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")


class Sound(TDA):
    name = "sound"


class SeesTheBatch(ZeroShot):
    def respond(self, evidence, ids, learn):
        return Step(evidence.logits - evidence.logits.mean(axis=0))


class Random(ZeroShot):
    def respond(self, evidence, ids, learn):
        return Step(evidence.logits + np.random.default_rng().random(evidence.logits.shape, np.float32) * 1e-5)


class WritesToItsInput(ZeroShot):
    def step(self, features, ids=None, learn=True):
        answer = super().step(features, ids, learn)
        features *= 2
        return answer


class Features(State):
    """Every feature that was added."""

    rule = "union"

    def clear(self):
        self.kept = np.zeros((0, self.head.dim), np.float32)

    def dump(self):
        return {"kept": self.kept}

    def restore(self, arrays):
        self.kept = arrays["kept"]

    def reindexed(self, arrays, position, classes):
        return arrays

    def merged(self, dumps):
        return dumps[-1]


class Hoarder(ZeroShot):
    """Keeps every feature it sees."""

    merges = None
    kind_of_state = Features

    def setup(self):
        self.features = self.declare("features", self.kind_of_state(self.head))

    def respond(self, evidence, ids, learn):
        if learn:
            self.features.kept = np.concatenate([self.features.kept, evidence.features])
        return Step(evidence.logits)


class Forgets(Features):
    def restore(self, arrays):
        pass


class Forgetful(Hoarder):
    """Does not restore what it dumped."""

    kind_of_state = Forgets


class Unpicklable(Hoarder):
    """Leaves its state out when it is pickled."""

    def __getstate__(self):
        parts = {"features": Features(self.head)}
        return self.__dict__ | {"parts": parts, "features": parts["features"]}


class StaysBehind(ZeroShot):
    """Answers by what it has seen, and forgets it when it moves."""

    merges = None

    def setup(self):
        self.sums = self.declare("sums", Sums(self.head, counts=(CLASSES,)))

    def respond(self, evidence, ids, learn):
        if learn:
            self.sums.add(counts=evidence.probs.sum(axis=0))
        return Step(evidence.logits + (self.samples_seen > 0) * self.sums.total("counts").sum())

    def to(self, like):
        super().to(like)
        self.sums.clear()


class KnowsNumPyAlone(ZeroShot):
    def respond(self, evidence, ids, learn):
        ones = np.ones(evidence.logits.shape).astype(evidence.logits.dtype)
        return Step(evidence.logits + ones)


class Unresettable(Hoarder):
    def reset(self):
        self.seen = {}
        self.frozen = False


class LearnsWhileFrozen(Hoarder):
    def respond(self, evidence, ids, learn):
        return super().respond(evidence, ids, learn=True)


class LastOneWins(Hoarder):
    """Merging takes the last state."""

    merges = "union"


class CountsWrong(Prior):
    """Sums that do not add up."""

    def setup(self):
        super().setup()
        merged = self.answers.merged
        self.answers.merged = lambda dumps: merged(dumps[:1])


class CountsTheFirstMore(Prior):
    """Learns most from the first samples, so that the first of every shard count for more than those of the stream."""

    def respond(self, evidence, ids, learn):
        step = super().respond(evidence, ids, learn)
        if learn:
            weights = 1.0 / (1.0 + self.samples_seen + np.arange(len(ids)))
            self.answers.add(counts=weights @ evidence.probs)
            self.answers.flush()
        return step


class CountsTheStartAgain(Prior):
    """Adds up what its forks have learnt in all, with what they all started from."""

    def setup(self):
        super().setup()
        merged = self.answers.merged
        self.answers.merged = lambda dumps, start=None: merged(dumps)


class NeverSettles(ZeroShot):
    """Adds every sample to its sums, and does not say when they count."""

    kind = "online"
    merges = "sum"

    def setup(self):
        self.sums = self.declare("sums", Sums(self.head, counts=(CLASSES,)))

    def respond(self, evidence, ids, learn):
        if learn:
            self.sums.add(counts=evidence.probs.sum(axis=0))
        return Step(evidence.logits + move(self.sums["counts"], evidence.logits))


class SettlesLate(NeverSettles):
    def next_flush(self, seen):
        return 5000


class Says(ZeroShot):
    """Says that it learns, and does not."""

    kind = "online"


class LearnsWhatAllClassesShare(Says):
    """Adds the same to the logits of all classes."""

    def respond(self, evidence, ids, learn):
        return Step(evidence.logits + self.samples_seen)


class StepsOncePerBatch(ZeroShot):
    """Moves its class vectors after each batch."""

    kind = "online"
    merges = None

    def setup(self):
        self.tensors = self.declare("moved", Tensors(self.head, shift=(CLASSES, DIM)))

    def respond(self, evidence, ids, learn):
        logits = evidence.logits + evidence.features @ self.tensors["shift"].T
        if learn:
            self.tensors["shift"][...] += 0.1 * evidence.probs.T @ evidence.features
        return Step(logits)


class Remembers(TDA):
    """Says that it answers every sample by itself, and does not."""

    kind = "episodic"


class LearnsBeforeItLooks(TDA):
    """Adapts the first half of a batch before it refuses the second."""

    def step(self, features, ids=None, learn=True):
        middle = max(1, len(features) // 2)
        first = super().step(features[:middle])
        return np.concatenate([first, super().step(features[middle:])]) if len(features) > middle else first


class AddsThePosition(StatA):
    """Prefers the first class the later a sample comes."""

    def second_pass_blocks(self, features):
        for logits in super().second_pass_blocks(features):
            logits[:, 0] += np.arange(len(logits))
            yield logits


class Wide(ZeroShot):
    def step(self, features, ids=None, learn=True):
        return super().step(features, ids, learn).astype(np.float64)


class BreaksOnOneClass(ZeroShot):
    def respond(self, evidence, ids, learn):
        return Step(evidence.logits if evidence.logits.shape[1] > 1 else np.nan * evidence.logits)


class NotFiniteAtFirst(ZeroShot):
    def respond(self, evidence, ids, learn):
        return Step(evidence.logits if self.samples_seen or len(ids) > 1 else np.nan * evidence.logits)


class KeepsOldClasses(TDA):
    """Forgets everything when the classes change."""

    def remove_classes(self, class_names):
        super().remove_classes(class_names)
        self.positive_cache.clear()


class Silent(TDA):
    """Does not say what entered its caches."""

    def respond(self, evidence, ids, learn):
        return Step(super().respond(evidence, ids, learn).logits)


class Deaf(ZeroShot):
    """Answers as if nothing had been corrected."""

    def setup(self):
        self.corrections.vote = lambda logits, evidence: logits


class Amnesiac(ZeroShot):
    """Does not save its corrections."""

    def dump(self):
        return {}


class ComparesTheBatch(ZeroShot):
    """Sees the batch, but only once it was corrected."""

    def adapt(self, evidence, ids=None, learn=True):
        step = super().adapt(evidence, ids, learn)
        return Step(step.logits - step.logits.mean(axis=0)) if self.corrections else step


class HasTheLastWord(ZeroShot):
    """Merging takes the corrections of the last state."""

    def setup(self):
        self.corrections.merged = lambda dumps: dumps[-1]


def test_a_sound_adapter_passes():
    check_adapter(Sound)
    check_adapter(Sound, positive_capacity=1)


@pytest.mark.parametrize(
    ("method", "law"),
    [
        (SeesTheBatch, "answers_do_not_depend_on_batches"),
        (StepsOncePerBatch, "answers_do_not_depend_on_batches"),
        (SeesTheBatch, "ties_are_stable"),
        (Random, "same_stream_same_answers"),
        (WritesToItsInput, "inputs_stay_untouched"),
        (Hoarder, "memory_is_bounded"),
        (Forgetful, "saved_state_continues_exactly"),
        (Unpicklable, "pickled_adapter_continues_exactly"),
        (StaysBehind, "a_move_keeps_what_was_learnt"),
        pytest.param(KnowsNumPyAlone, "tensors_give_the_same_answers", marks=NEEDS_TORCH),
        (Unresettable, "reset_is_new"),
        (LearnsWhileFrozen, "frozen_never_changes"),
        (LastOneWins, "union_merge_is_exact"),
        (CountsWrong, "sum_merge_counts_once"),
        (CountsTheFirstMore, "shards_merge_to_the_stream"),
        (CountsTheStartAgain, "forks_merge_to_the_stream"),
        (NeverSettles, "learning_changes_answers"),
        (Says, "learning_changes_answers"),
        (LearnsWhatAllClassesShare, "learning_changes_answers"),
        (Remembers, "answers_stand_alone"),
        (AddsThePosition, "a_set_has_no_order"),
        (LearnsBeforeItLooks, "bad_input_changes_nothing"),
        (Wide, "answers_keep_the_callers_type"),
        (BreaksOnOneClass, "one_class_works"),
        (NotFiniteAtFirst, "first_sample_works"),
        (KeepsOldClasses, "classes_come_and_go"),
        (Silent, "entries_follow_the_changes"),
        (Deaf, "corrections_can_be_taken_back"),
        (Amnesiac, "corrections_are_saved"),
        (ComparesTheBatch, "corrections_do_not_depend_on_batches"),
        (HasTheLastWord, "corrections_unite"),
    ],
)
def test_a_broken_adapter_breaks_its_law(method, law, monkeypatch):
    monkeypatch.setattr("acclimate.checks.laws.LAWS", tuple(each for each in LAWS if each.__name__ == law))
    monkeypatch.setattr(method, "name", "broken")
    with pytest.raises(AssertionError, match=f"{method.__name__} breaks the law '{law}'"):
        check_adapter(method)


@pytest.mark.parametrize(
    ("method", "advice"),
    [
        pytest.param(
            KnowsNumPyAlone, "works on NumPy arrays and fails on PyTorch's tensors.*namespace", marks=NEEDS_TORCH
        ),
        (NeverSettles, r"what was added to the Sums in 'sums' is still pending. Define next_flush\(\)"),
        (SettlesLate, "the Sums in 'sums' count only after 5000 samples. Check it with a shorter period."),
        (Says, r"respond\(\) must change the state"),
        (StepsOncePerBatch, r"The Tensors in 'moved' must change after every sample.*add what is learnt to Sums"),
    ],
)
def test_a_broken_law_says_what_to_do(method, advice, monkeypatch):
    monkeypatch.setattr(method, "name", "broken")
    with pytest.raises(AssertionError, match=advice):
        check_adapter(method)


def test_every_law_is_proven_by_a_broken_adapter():
    broken = test_a_broken_adapter_breaks_its_law.pytestmark[0].args[1]
    assert {getattr(each, "values", each)[1] for each in broken} == {law.__name__ for law in LAWS}


def test_laws_are_chosen_by_what_a_method_is_and_skips_are_printed(capsys):
    check_adapter(Prior, skip={"ties_are_stable": "no ties in sums"})
    assert capsys.readouterr().out.splitlines() == [
        "skipped 'ties_are_stable': no ties in sums",
        "skipped 'union_merge_is_exact': its merge rule is sum",
        "skipped 'answers_stand_alone': it learns from the stream",
        "skipped 'a_set_has_no_order': it does not answer sets",
    ]

    class Local(TDA):
        name = "local"

    check_adapter(Local)
    assert "pickle finds only classes at the top of a module" in capsys.readouterr().out


def test_a_method_that_learns_from_its_answers_need_not_merge_to_the_stream(monkeypatch):
    (law,) = (each for each in LAWS if each.__name__ == "shards_merge_to_the_stream")
    assert why_not(law, Prior) is None
    monkeypatch.setattr(Prior, "self_taught", True)
    assert why_not(law, Prior) == "it learns from its own answers, which are those of a shard"


@pytest.mark.parametrize("skip", [{"no_such_law": "because"}, {"ties_are_stable": ""}])
def test_a_skip_names_a_law_and_a_reason(skip):
    with pytest.raises(InputError, match="name a law of LAWS and say why"):
        check_adapter(Sound, skip=skip)
