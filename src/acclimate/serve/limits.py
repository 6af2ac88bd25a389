"""Limits on what the service accepts, and how often it writes to disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.errors import InputError
from acclimate.prompts import clean_labels, prompts_for


@dataclass(frozen=True)
class Limits:
    """Limits on requests, streams, queues and files.

    Attributes:
        body_bytes: size of a request body.
        pixels: pixels per image, taken from its header before it is decoded.
        images: images per request.
        labels: labels per stream.
        label_chars: characters per label.
        capacity: cache entries per label that a setting may ask for.
        prompts: prompts that the labels and templates of a stream make together.
        streams: number of streams.
        queue: images waiting for the encoder; more are refused as busy.
        timeout_s: seconds per request.
        batch: images encoded at once.
        wait_s: seconds that an image waits for others to share its batch.
        workers: threads that open and prepare images; 0 for one more than there are cores.
        snapshot_samples: samples learnt between two snapshots.
        snapshot_s: seconds between two snapshots, if anything was learnt.
        sync_s: seconds between two syncs of the journals to disk.
        history: snapshots kept per stream.
        thumbnail: longest side of a thumbnail in pixels.
    """

    body_bytes: int = 32 * 2**20
    pixels: int = 40_000_000
    images: int = 64
    labels: int = 2000
    label_chars: int = 200
    capacity: int = 64
    prompts: int = 200_000
    streams: int = 1000
    queue: int = 512
    timeout_s: float = 30.0
    batch: int = 32
    wait_s: float = 0.005
    workers: int = 0
    snapshot_samples: int = 1000
    snapshot_s: float = 300.0
    sync_s: float = 1.0
    history: int = 24
    thumbnail: int = 96

    def __post_init__(self) -> None:
        for name, least in {"wait_s": 0, "workers": 0, "labels": 2, "history": 2}.items():
            if getattr(self, name) < least:
                raise InputError(f"the limit {name} must be at least {least}, got {getattr(self, name)}.")
        for name, value in vars(self).items():
            if name not in ("wait_s", "workers") and not value > 0:
                raise InputError(f"the limit {name} must be above 0, got {value}.")
        if self.images > self.queue:
            raise InputError(f"a queue of {self.queue} cannot hold a request of {self.images} images; raise `queue`.")

    def check_labels(self, labels: Sequence[str], templates: Any) -> tuple[str, ...]:
        """The labels, stripped; InputError if they or their prompts cannot be used or are too many."""
        names = clean_labels(labels)
        if not 2 <= len(names) <= self.labels:
            raise InputError(f"a stream needs 2 to {self.labels} labels, got {len(names)}.")
        longest = max(names, key=len)
        if len(longest) > self.label_chars:
            raise InputError(f"the label {longest[:20]!r}... is longer than {self.label_chars} characters; shorten it.")
        prompts = sum(map(len, prompts_for(names, templates)))
        if prompts > self.prompts:
            raise InputError(f"labels and templates make {prompts} prompts, more than {self.prompts}; use fewer.")
        return names
