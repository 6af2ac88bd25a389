"""What a stream remembers: its adapter, who sent each cached entry, and its thumbnail where those are kept."""

from base64 import b64decode, b64encode
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np

from acclimate.arrays import Array, HostArray
from acclimate.classify.run import next_id
from acclimate.evidence import Evidence, observe
from acclimate.methods import Adapter
from acclimate.methods.persist import cached_entries, duplicate


class Memory:
    """An adapter and what is known of its entries. Learning is a record: replaying records gives the same memory.

    Args:
        adapter: what has been learnt so far.
        notes: of an earlier memory with the same entries (see `notes`).

    Attributes:
        entries: of each cache, who sent which sample (id -> client).
        thumbnails: of entries, by id; small JPEG files.
        held: entries of all caches that came from each client.
    """

    def __init__(self, adapter: Adapter, notes: Mapping[str, Any] | None = None) -> None:
        notes = notes or {}
        clients, thumbnails = notes.get("clients", {}), notes.get("thumbnails", {})
        self.adapter = adapter
        self.entries = {
            kind: {entry_id: clients.get(str(entry_id), "") for *_, entry_id in listed}
            for kind, listed in cached_entries(adapter).items()
        }
        self.thumbnails = {
            entry_id: b64decode(thumbnails[str(entry_id)]) for entry_id in self._ids() if str(entry_id) in thumbnails
        }
        self.held = Counter(client for entries in self.entries.values() for client in entries.values())
        self._next_id = next_id(adapter)

    def observe(self, features: HostArray) -> Evidence:
        """Zero-shot evidence for features (n, d)."""
        adapter = self.adapter
        return observe(features, adapter.class_vectors, adapter.logit_scale, adapter.logit_bias)

    def answer(self, evidence: Evidence) -> Array:
        """Adapted logits (n, K); nothing is learnt."""
        return self.adapter.respond(evidence, np.arange(evidence.logits.shape[0]), learn=False)

    def record(self, features: HostArray, client: str, thumbnails: tuple[bytes, ...]) -> tuple[dict[str, Any], bytes]:
        """Head and body of the journal's record that says: these float32 features (n, d) were learnt."""
        head: dict[str, Any] = {"first_id": self._next_id, "samples": len(features)}
        if client:
            head["client"] = client
        if thumbnails:
            head["thumbnails"] = [len(each) for each in thumbnails]
        return head, features.tobytes() + b"".join(thumbnails)

    def learn(self, evidence: Evidence, head: Mapping[str, Any], body: bytes) -> Array:
        """Adapted logits (n, K) of samples, learning from each; `adapter.changes` says what entered the caches.

        Args:
            evidence: of the record's features.
            head: of the record.
            body: of the record.
        """
        first, count = head["first_id"], head["samples"]
        logits = self.adapter.adapt(evidence, np.arange(first, first + count))
        self._next_id = first + count
        client = head.get("client", "")
        ends = len(body) - np.cumsum([0, *reversed(head.get("thumbnails", ()))])[::-1]
        for kind, change in self.adapter.changes.items():
            for place in change.admitted:
                self.entries[kind][first + place] = client
                self.held[client] += 1
                if "thumbnails" in head:
                    self.thumbnails[first + place] = body[ends[place] : ends[place + 1]]
        for kind, change in self.adapter.changes.items():
            for entry_id in change.dropped:
                self._drop(kind, entry_id)
        return logits

    def replay(self, head: Mapping[str, Any], body: bytes) -> None:
        """Learn again what a journal's record says."""
        if "frozen" in head:
            self.adapter.frozen = head["frozen"]
            return
        count, dim = head["samples"], self.adapter.dim
        features = np.frombuffer(body, np.float32, count * dim).reshape(count, dim)
        self.learn(self.observe(features), head, body)

    def notes(self) -> dict[str, Any]:
        """What to keep with the adapter's state."""
        clients = {str(i): client for entries in self.entries.values() for i, client in entries.items() if client}
        thumbnails = {str(i): b64encode(content).decode() for i, content in self.thumbnails.items()}
        return {"clients": clients, "thumbnails": thumbnails}

    def copy(self) -> "Memory":
        """A memory that goes its own way."""
        return Memory(duplicate(self.adapter), self.notes())

    def _drop(self, kind: str, entry_id: int) -> None:
        client = self.entries[kind].pop(entry_id, None)
        if client is None:  # entries of merged states may share an id
            return
        self.held[client] -= 1
        if not self.held[client]:
            del self.held[client]
        if not any(entry_id in entries for entries in self.entries.values()):
            self.thumbnails.pop(entry_id, None)

    def _ids(self) -> set[int]:
        return {entry_id for entries in self.entries.values() for entry_id in entries}
