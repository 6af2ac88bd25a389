"""The learnt state of a stream in memory: an adapter, and who taught it. Events change it, and replay to the same."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import accumulate, pairwise
from typing import Any, NamedTuple

import numpy as np

from acclimate.arrays import HostArray
from acclimate.evidence import Evidence
from acclimate.methods import Adapter, Step
from acclimate.methods.cache import Cache
from acclimate.serve.guard import FairSlots


class Event(NamedTuple):
    """A change of a stream: a batch of samples, a correction, the undoing of one, or a freeze.

    Samples that were not learnt from are part of their batch, as the same batch gives the same rounding.

    Attributes:
        kind: "samples", "correction", "undo" or "frozen".
        time: when it was, in seconds since 1970.
        client: the client that sent it.
        record: what it says, as JSON values.
        body: the features of its samples, float32, and then their thumbnails.
        first_id: the id of its first sample that was learnt from; the others follow.
        samples: the number of samples that were learnt from.
        answers: label and score, adapted and zero-shot, of each of these.
    """

    kind: str
    time: float
    client: str
    record: dict[str, Any]
    body: bytes = b""
    first_id: int = 0
    samples: int = 0
    answers: Sequence[Sequence[Any]] = ()

    @property
    def features(self) -> HostArray:
        """Features (n, d) or (n, V, d)."""
        shape = self.record["shape"]
        features: HostArray = np.frombuffer(self.body, np.float32, np.prod(shape)).reshape(shape)
        return features

    @property
    def thumbnails(self) -> list[bytes]:
        """The thumbnails of the n samples; empty where there are none."""
        lengths = self.record.get("thumbnails") or [0] * self.record["shape"][0]
        start = len(self.body) - sum(lengths)
        return [self.body[begin:end] for begin, end in pairwise(accumulate(lengths, initial=start))]

    @property
    def learnt(self) -> HostArray:
        """True for the samples (n,) that were learnt from."""
        return np.asarray(self.record["learnt"], bool)

    @property
    def ids(self) -> HostArray:
        """The ids (n,) of the samples; those that were not learnt from have the id of the next."""
        ids: HostArray = self.first_id + np.cumsum(self.learnt) - self.learnt
        return ids


class Memory:
    """The adapter of a stream, with the senders and thumbnails of its samples.

    Attributes:
        adapter: the learnt state.
        clients: the client that sent each sample in a cache, by id; "" for those of an uploaded state.
        taught: samples learnt from each client.
        thumbnails: small JPEG files of samples in caches and of corrections, by id.
        next_id: the id of the next sample.
    """

    def __init__(self, adapter: Adapter, notes: Mapping[str, Any] | None = None) -> None:
        notes = notes or {}
        self.adapter = adapter
        self.caches = {name: part for name, part in adapter.parts.items() if isinstance(part, Cache)}
        self.clients = dict.fromkeys(self._cached(), "") | {
            int(i): name for i, name in notes.get("clients", {}).items()
        }
        self.thumbnails = {int(i): b64decode(picture) for i, picture in notes.get("thumbnails", {}).items()}
        self.taught = Counter(notes.get("taught", {}))
        self.taught[""] += adapter.samples_seen - self.taught.total()  # samples of an uploaded state
        self.next_id: int = max(adapter.next_id, notes.get("next_id", 0))

    def notes(self) -> dict[str, Any]:
        """Return all but the adapter as JSON values; what belongs to samples that have left the caches is dropped."""
        cached = self._cached()
        shown = cached | {each.id for each in self.adapter.corrections}
        self.clients = {i: client for i, client in self.clients.items() if i in cached}
        self.thumbnails = {i: picture for i, picture in self.thumbnails.items() if i in shown}
        thumbnails = {i: b64encode(picture).decode() for i, picture in self.thumbnails.items()}
        return {"clients": self.clients, "thumbnails": thumbnails, "taught": self.taught, "next_id": self.next_id}

    def summary(self) -> dict[str, Any]:
        """Return the fields of the stream's description that the state decides."""
        adapter = self.adapter
        return {
            "labels": list(adapter.head.class_names),
            "settings": adapter.settings,
            "capacity": {name: part.capacity for name, part in adapter.parts.items() if part.capacity},
            "samples_seen": adapter.samples_seen,
            "frozen": adapter.frozen,
            "advice": adapter.advice(),
            "entries": {name: cache.size for name, cache in self.caches.items()},
            "corrections": len(adapter.corrections),
        }

    def shares(self) -> dict[str, int]:
        """Return how much each client has taught: its cache entries, or for methods without caches its samples."""
        if not self.caches:
            return dict(+self.taught)
        entries = [entry for each in self.adapter.entries().values() for entry in each]
        return Counter(self.clients.get(entry.id, "") for entry in entries)

    def shared(self, client: str) -> bool:
        """Return True if other clients than this one have entries in the caches."""
        return not set(self.clients.values()) <= {"", client}

    def apply(self, event: Event, evidence: Evidence | None = None) -> Any:
        """Carry out an event; returns the step of samples, or the id of a correction.

        The evidence is that of the samples, if it is known.
        """
        head = self.adapter.head
        if event.kind == "samples":
            return self._learn(event, head.observe(event.features) if evidence is None else evidence)
        if event.kind == "frozen":
            self.adapter.frozen = event.record["frozen"]
            return None
        if event.kind == "undo":
            return self.adapter.corrections.undo([event.record["id"]])
        label = head.class_names.index(event.record["label"])
        ids = None if event.record["id"] is None else [event.record["id"]]
        (correction,) = self.adapter.corrections.correct(event.features, [label], ids)
        if event.thumbnails[0]:
            self.thumbnails[correction] = event.thumbnails[0]
        return correction

    def _learn(self, event: Event, evidence: Evidence) -> Step:
        ids = event.ids
        pictures = event.thumbnails
        rule = FairSlots(self.clients, event.client, event.record["age"]) if "age" in event.record else None
        try:
            for cache in self.caches.values():
                cache.eviction_rule = rule
            step = self.adapter.adapt(evidence, ids, event.learnt)
        finally:
            for cache in self.caches.values():
                cache.eviction_rule = None
        self.next_id = event.first_id + event.samples
        self.taught[event.client] += event.samples
        for row in {row for change in step.changes.values() for row in change.admitted}:
            self.clients[int(ids[row])] = event.client
            if pictures[row]:
                self.thumbnails[int(ids[row])] = pictures[row]
        return step

    def _cached(self) -> set[int]:
        """Return the ids of all samples in the caches, with those that a correction has set apart."""
        return {int(i) for cache in self.caches.values() for i in cache.dump()["ids"]}
