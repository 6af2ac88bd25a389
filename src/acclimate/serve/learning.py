"""Learning of a stream: from the samples that its guard and its gates accept."""

import numpy as np

from acclimate.arrays import HostArray
from acclimate.evidence import Evidence
from acclimate.methods import Step
from acclimate.methods.cache import Cache
from acclimate.methods.gates import Gate, NearDuplicates, Rejector
from acclimate.predict import Predictions, choose_samples, none_scores
from acclimate.serve.guard import Guard
from acclimate.serve.history import History
from acclimate.serve.http_errors import StorageError
from acclimate.serve.problems import Problems
from acclimate.serve.schemas import StreamSetup
from acclimate.serve.texts import Texts


class Learning:
    """The learning half of a stream: answers samples, and learns from those it may; for one thread at a time.

    Attributes:
        guard: limits what one client can teach; None if the setup has none, or nothing is learnt.
    """

    def __init__(self, setup: StreamSetup, history: History, texts: Texts, problems: Problems) -> None:
        self._setup = setup
        self._history = history
        self._texts = texts
        self._problems = problems
        self._duplicates: NearDuplicates | None = None  # made when they are first needed, as is the rejector
        self._rejector: Rejector | None = None
        parts = [part for part in history.adapter.parts.values() if part is not history.adapter.corrections]
        rules = setup.guard if parts else None  # a method without state cannot be poisoned
        self.guard: Guard | None = None
        if rules is not None:
            self.guard = Guard(rules, entries_only=all(isinstance(part, Cache) for part in parts))
            for client, samples, ago in history.files.taught_within(rules.window_s):
                self.guard.learnt(client, samples, ago)

    @property
    def needs_negatives(self) -> bool:
        """True if the next sample needs the negatives of "none of these". For any thread."""
        return self._setup.reject and self._rejector is None

    def forget(self) -> None:
        """Make the gates anew for the next sample, as the stream has another adapter."""
        self._duplicates = self._rejector = None

    def answer(self, evidence: Evidence, top_k: int, unsure: float) -> tuple[Predictions, Step]:
        """Answer samples without learning from them."""
        adapter = self._history.adapter
        step = adapter.adapt(evidence, learn=False)
        none = none_scores(adapter, evidence, self._gates())
        return Predictions.of(adapter.head, evidence, step, top_k, unsure, none=none), step

    def learn(
        self,
        evidence: Evidence,
        features: HostArray,
        client: str,
        thumbnails: tuple[bytes, ...],
        top_k: int,
        unsure: float,
    ) -> tuple[Predictions, Step]:
        """Answer samples and learn from those that may be learnt from; none if they cannot be written."""
        history = self._history
        head = history.adapter.head
        guard = self.guard
        count = len(features)
        gates = self._gates()
        none = none_scores(history.adapter, evidence, gates)
        allowed, why = (count, "") if guard is None else guard.allowed(client, count, len(head))
        learnt, refused = choose_samples(history.adapter, evidence, np.arange(count) < allowed, gates)
        refused[allowed:] = [why] * (count - allowed)
        age = guard.rules.age if guard is not None and guard.rules.fair else None
        try:
            step, ids = history.learn(evidence, features, learnt, client, thumbnails, age)
        except Exception as error:
            self._duplicates = None  # it remembers samples that were not learnt
            if not isinstance(error, StorageError):
                raise
            self._problems.report("journal", str(error))
            step = history.adapter.adapt(evidence, learn=False)
            refused = [str(error)] * count
            return Predictions.of(head, evidence, step, top_k, unsure, refused=refused, none=none), step
        if learnt.any():
            self._problems.report("journal", None)
            if guard is not None:
                guard.learnt(client, int(learnt.sum()))
        return Predictions.of(head, evidence, step, top_k, unsure, ids=ids, refused=refused, none=none), step

    def _gates(self) -> list[Gate]:
        """Return the gates that samples have to pass to be learnt from."""
        gates: list[Gate] = []
        if self._setup.reject:
            if self._rejector is None:
                self._rejector = Rejector(self._history.adapter.head, self._texts.negatives().result())
            gates.append(self._rejector)
        if not self._setup.skip_duplicates:
            return gates
        if self._duplicates is None:  # a start or a reset; the samples to remember are in the journals
            self._duplicates = NearDuplicates()
            for batch in self._history.files.last_features(self._duplicates.remembered):
                self._duplicates(self._history.adapter.head.observe(batch), np.full(len(batch), True))
        return [*gates, self._duplicates]
