"""Descriptions of a stream: a summary that is always available, and lists of what it has learnt."""

from collections.abc import Sequence
from typing import Any

from acclimate.methods import Adapter
from acclimate.predict import Prediction
from acclimate.serve.history import History
from acclimate.serve.learning import Learning
from acclimate.serve.problems import Problems
from acclimate.serve.schemas import StreamSetup


class StreamSummary:
    """The answer of `Stream.describe`, which can be read without waiting.

    Attributes:
        fields: JSON values, as of the last `update`, which replaces them by one assignment.
    """

    def __init__(self, name: str, setup: StreamSetup, history: History, learning: Learning, problems: Problems) -> None:
        self._name = name
        self._setup = setup
        self._history = history
        self._learning = learning
        self._problems = problems
        self._answered = self._changed = 0
        self._described: Adapter | None = None
        self.update()

    def count(self, found: Sequence[Prediction]) -> None:
        """Count images that were answered."""
        self._answered += len(found)
        self._changed += sum(prediction.changed for prediction in found)

    def update(self) -> None:
        """Describe the stream as it is now."""
        adapter = self._history.adapter
        guard = self._learning.guard
        if adapter is not self._described:
            self._described = adapter
            self._fixed = {
                **self._setup.model_dump(),
                "name": self._name,
                "labels": list(adapter.head.class_names),
                "settings": adapter.settings,
                "capacity": {name: part.capacity for name, part in adapter.parts.items() if part.capacity},
            }
        self.fields = {
            **self._fixed,
            "refusals": 0 if guard is None else guard.refusals,
            "samples_seen": adapter.samples_seen,
            "frozen": adapter.frozen,
            "advice": adapter.advice(),
            "entries": self._history.entries(),
            "snapshots": len(self._history.files.about),
            "answered": self._answered,
            "changed": self._changed,
            "changed_share": self._changed / self._answered if self._answered else 0.0,
            "degraded": self._problems.text,
            "broken": self._history.problem,
        }


def list_caches(history: History) -> list[dict[str, Any]]:
    """Return every cache entry: cache, label, entropy, id, client, and thumbnail (JPEG bytes, or None)."""
    names = history.adapter.head.class_names
    return [
        {
            "cache": cache,
            "label": names[entry.class_index],
            "entropy": entry.entropy,
            "id": entry.id,
            "client": history.senders[cache].get(entry.id, ""),
            "thumbnail": history.thumbnails.get(entry.id),
        }
        for cache, entries in history.adapter.entries().items()
        for entry in entries
    ]


def list_corrections(history: History) -> list[dict[str, Any]]:
    """Return every correction: id, label, and thumbnail (JPEG bytes, or None)."""
    names = history.adapter.head.class_names
    return [
        {"id": each.id, "label": names[each.class_index], "thumbnail": history.thumbnails.get(each.id)}
        for each in history.adapter.corrections
    ]


def list_learnt(history: History) -> dict[str, Any]:
    """Return what was learnt about each label, as named columns, and how much each client has taught."""
    columns = {name: values.tolist() for name, values in history.adapter.learnt().items()}
    return {
        "labels": list(history.adapter.head.class_names),
        "columns": columns,
        "clients": dict(+history.taught),
    }
