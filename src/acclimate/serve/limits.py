"""Limits on what the service accepts, and how often it writes to disk."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from acclimate.errors import InputError
from acclimate.methods.corrections import MOST
from acclimate.prompts import clean_labels, prompts_for
from acclimate.prompts.learned import PREFIX


@dataclass(frozen=True)
class Limits:
    """Limits on requests, streams, queues and files."""

    body_bytes: int = 32 * 2**20  # of a request
    pixels: int = 40_000_000  # per image, taken from its header before it is decoded
    request_pixels: int = 320_000_000  # of all images of a request
    decoding_pixels: int = 60_000_000  # of the images that are decoded at the same time; two thirds for one client
    decode_s: float = 5.0  # of a processor that an image may take to be decoded and prepared
    images: int = 64  # per request
    labels: int = 2000  # per stream
    label_chars: int = 200  # per label
    prompts: int = 200_000  # that the labels and templates of a stream make together
    capacity: int = 64  # samples per label that a method may keep
    views: int = 64  # per image
    corrections: int = 1000  # per stream
    streams: int = 1000
    queue: int = 512  # images, counting views, of one client that wait; more are refused as busy
    timeout_s: float = 30.0  # per request
    batch: int = 32  # images, counting views, encoded at once
    wait_s: float = 0.005  # that an image waits for others to share its batch
    workers: int = 0  # processes that decode and prepare images; 0 for one more than there are cores
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

    def check_labels(self, labels: Sequence[str], templates: Any) -> tuple[str, ...]:
        """The labels, stripped; InputError if they or their prompts cannot be used or are too many."""
        names = clean_labels(labels)
        if not 2 <= len(names) <= self.labels:
            raise InputError(f"a stream needs 2 to {self.labels} labels, got {len(names)}.")
        longest = max(names, key=len)
        if len(longest) > self.label_chars:
            raise InputError(f"the label {longest[:20]!r}... is longer than {self.label_chars} characters; shorten it.")
        learned = isinstance(templates, str) and templates.startswith(PREFIX)
        prompts = len(names) if learned else sum(map(len, prompts_for(names, templates)))
        if prompts > self.prompts:
            raise InputError(f"labels and templates make {prompts} prompts, more than {self.prompts}; use fewer.")
        return names
