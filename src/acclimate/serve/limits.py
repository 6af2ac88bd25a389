"""Limits on what the service accepts, and how often it writes to disk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from acclimate.errors import InputError
from acclimate.methods.corrections import MOST
from acclimate.prompts import clean_labels, prompts_for
from acclimate.prompts.learned import PREFIX
from acclimate.prompts.templates import check_prompts, resolve


@dataclass(frozen=True)
class Limits:
    """Limits on requests, streams, queues and files."""

    body_bytes: int = 32 * 2**20  # of a request
    pixels: int = 40_000_000  # per image, taken from its header before it is decoded
    images: int = 64  # per request
    labels: int = 2000  # per stream
    label_chars: int = 200  # per label
    task_labels: int = 500  # per request that brings its own labels
    prompts: int = 5000  # that labels and templates make together
    prompt_chars: int = 1000  # per prompt
    texts: int = 16  # sets of labels of one client that wait to be encoded; more are refused as busy
    calls: int = 64  # of one client, or of one stream, that wait to manage streams; more are refused as busy
    capacity: int = 64  # samples per label that a method may keep
    views: int = 64  # per image
    corrections: int = 1000  # per stream
    streams: int = 1000
    queue: int = 512  # images, counting views, that wait for the encoder; more are refused as busy
    timeout_s: float = 30.0  # per request
    batch: int = 32  # images, counting views, encoded at once
    wait_s: float = 0.005  # that an image waits for others to share its batch
    workers: int = 0  # threads that open and prepare images; 0 for one more than there are cores
    snapshot_samples: int = 1000  # learnt between two snapshots, counting views
    snapshot_s: float = 300.0  # between two snapshots, if anything was learnt
    sync_s: float = 1.0  # between two syncs of the journals to disk
    history: int = 24  # snapshots kept per stream
    thumbnail: int = 96  # longest side in pixels

    def __post_init__(self) -> None:
        for name, least in {"wait_s": 0, "workers": 0, "labels": 2, "history": 2}.items():
            if getattr(self, name) < least:
                raise InputError(f"the limit {name} must be at least {least}, got {getattr(self, name)}.")
        for name, value in vars(self).items():
            if name not in ("wait_s", "workers") and not value > 0:
                raise InputError(f"the limit {name} must be above 0, got {value}.")
        if self.corrections > MOST:
            raise InputError(f"the limit corrections must be at most {MOST}, got {self.corrections}.")
        if self.images > self.queue:
            raise InputError(f"a queue of {self.queue} cannot hold a request of {self.images} images; raise `queue`.")

    def check_labels(self, labels: Sequence[str], templates: Any, most: int | None = None) -> tuple[str, ...]:
        """The labels, stripped; InputError if they or their prompts cannot be used or are too many.

        `most` is the largest number of labels, if not that of a stream.
        """
        most = self.labels if most is None else most
        if not isinstance(labels, str) and not 2 <= len(labels) <= most:
            raise InputError(f"there must be 2 to {most} labels, got {len(labels)}.")
        names = clean_labels(labels)
        longest = max(names, key=len)
        if len(longest) > self.label_chars:
            raise InputError(f"the label {longest[:20]!r}... is longer than {self.label_chars} characters; shorten it.")
        if not (isinstance(templates, str) and templates.startswith(PREFIX)):
            self._check_prompts(names, len(longest), templates)
        return names

    def _check_prompts(self, names: Sequence[str], longest: int, templates: Any) -> None:
        """Refuse templates that make too many or too long prompts, before any is made."""
        if isinstance(templates, Mapping):
            texts: Iterable[Any] = chain.from_iterable(check_prompts(templates, "templates").values())
            per_text = 1
        else:
            texts = chain.from_iterable(map(resolve, [templates] if isinstance(templates, str) else templates))
            per_text = len(names)
        for number, text in enumerate(texts, start=1):
            if number * per_text > self.prompts:
                raise InputError(
                    f"{len(names)} labels and these templates make more than {self.prompts} prompts; use fewer "
                    "templates or labels, or start the service with a larger --max-prompts."
                )
            if len(text) + text.count("{") * longest > self.prompt_chars:
                raise InputError(
                    f"the template {text[:20]!r}... makes prompts of more than {self.prompt_chars} characters; "
                    "shorten it."
                )
        prompts_for(names, templates)  # refuses what makes no prompt
