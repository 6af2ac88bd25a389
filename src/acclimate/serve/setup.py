"""What a stream is made with."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from acclimate.errors import InputError, StateError
from acclimate.files import write_atomically
from acclimate.prompts import clean_labels, prompts_for
from acclimate.serve.guard import GuardRules
from acclimate.serve.limits import Limits

FILE = "stream.json"
VERSION = 1


@dataclass(frozen=True)
class Setup:
    """What a stream is made with and keeps for good; its labels may change and are part of its state.

    Attributes:
        model: fingerprint of the encoder.
        templates: prompts, as for `Classifier`.
        method: name of the adapter.
        settings: of the method.
        thumbnails: keep a small picture of every cached image.
        guard: rules against poisoning; None for none.
    """

    model: str
    templates: Any = "single"
    method: str = "tda"
    settings: Mapping[str, Any] = field(default_factory=dict)
    thumbnails: bool = False
    guard: GuardRules | None = None

    def write(self, folder: Path) -> None:
        """Write it to a stream's folder."""
        write_atomically(folder / FILE, json.dumps({"version": VERSION, **asdict(self)}, indent=1).encode())

    @classmethod
    def read(cls, folder: Path) -> "Setup":
        """Read it from a stream's folder."""
        try:
            fields = json.loads((folder / FILE).read_bytes())
            if fields.pop("version") != VERSION:
                raise StateError(f"{FILE} was written by another version of acclimate; use that one.")
            guard = fields.pop("guard")
            return cls(**fields, guard=None if guard is None else GuardRules(**guard))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise StateError(f"{FILE} cannot be read ({error}); put the file back, or delete the stream.") from error


def check_labels(labels: Sequence[str], templates: Any, limits: Limits) -> tuple[str, ...]:
    """The labels, stripped; InputError if they or their prompts cannot be used or are too many."""
    names = clean_labels(labels)
    if not 2 <= len(names) <= limits.labels:
        raise InputError(f"a stream has 2 to {limits.labels} labels, got {len(names)}.")
    longest = max(names, key=len)
    if len(longest) > limits.label_chars:
        raise InputError(f"the label {longest[:20]!r}... is longer than {limits.label_chars} characters; shorten it.")
    prompts = sum(map(len, prompts_for(names, templates)))
    if prompts > limits.prompts:
        raise InputError(f"labels and templates make {prompts} prompts, at most {limits.prompts} are taken; use fewer.")
    return names
