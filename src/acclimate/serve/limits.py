"""Limits on what the service accepts, and how often it writes to disk."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

from acclimate.errors import InputError
from acclimate.methods.corrections import MAX_CORRECTIONS
from acclimate.prompts import clean_labels, prompts_for
from acclimate.prompts.templates import LEARNED_PREFIX, check_prompts, resolve
from acclimate.serve.schemas import LABEL_CHARS, MAX_IMAGES, MAX_LABELS, PROMPT_CHARS

# field of Limits -> option of `acclimate serve`
OPTIONS = {
    "body_bytes": "max_body",
    "json_bytes": "max_json",
    "pixels": "max_pixels",
    "decode_s": "decode_seconds",
    "workers": "workers",
    "images": "max_images",
    "labels": "max_labels",
    "task_labels": "max_task_labels",
    "prompts": "max_prompts",
    "corrections": "max_corrections",
    "streams": "max_streams",
    "client_streams": "max_client_streams",
    "queue": "max_queue",
    "timeout_s": "timeout",
    "header_s": "header_timeout",
    "log_lines": "max_log_lines",
    "batch": "batch_size",
    "wait_s": "max_wait",
    "snapshot_samples": "snapshot_every",
    "snapshot_s": "snapshot_seconds",
    "history": "history",
}


@dataclass(frozen=True)
class Limits:
    """Limits on requests, streams, queues and files."""

    body_bytes: int = 32 * 2**20  # largest request with images or a state
    json_bytes: int = 2 * 2**20  # largest other request
    pixels: int = 40_000_000  # largest image, by its header before it is decoded
    decode_s: float = 5.0  # processor time to decode and prepare an image
    images: int = 64  # images per request
    labels: int = 2000  # labels per stream
    task_labels: int = 500  # labels of a request that brings its own
    prompts: int = 5000  # prompts of all labels and templates together
    texts: int = 16  # sets of labels of one client that wait to be encoded; more are refused as busy
    calls: int = 64  # waiting calls of one client, or of one stream, to manage streams; more are refused as busy
    capacity: int = 64  # samples per label that a method may keep
    views: int = 64  # views per image
    corrections: int = 1000  # corrections per stream
    streams: int = 1000
    client_streams: int = 100  # streams made by one client
    queue: int = 512  # images, counting views, of one client that wait; more are refused as busy
    timeout_s: float = 30.0  # time limit of a request
    header_s: float = 10.0  # time limit for a header, from connecting or from the previous response
    log_lines: int = 200  # lines of one kind per second
    batch: int = 32  # images, counting views, encoded at once
    wait_s: float = 0.005  # time that an image waits for others to share its batch
    workers: int = 0  # processes that decode and prepare images; 0 for one more than there are cores
    snapshot_samples: int = 1000  # learnt between two snapshots, counting views
    snapshot_s: float = 300.0  # between two snapshots, if anything was learnt
    sync_s: float = 1.0  # between two syncs of the journals to disk
    history: int = 24  # snapshots kept per stream
    thumbnail: int = 96  # longest side in pixels

    @classmethod
    def from_options(cls, options: Mapping[str, Any]) -> "Limits":
        """Return the limits that the options of `acclimate serve` give by name; the default of an absent one."""
        return cls(**{field: options[option] for field, option in OPTIONS.items() if option in options})

    @property
    def request_pixels(self) -> int:
        """Pixels of all images of a request."""
        return 8 * self.pixels

    @property
    def decoding_pixels(self) -> int:
        """Pixels of the images that are decoded at the same time; two thirds, the largest image, for one client."""
        return self.pixels * 3 // 2

    def __post_init__(self) -> None:
        for name, least in {"wait_s": 0, "workers": 0, "labels": 2, "history": 2}.items():
            if getattr(self, name) < least:
                raise InputError(f"the limit {name} must be at least {least}, got {getattr(self, name)}.")
        for name, value in vars(self).items():
            if name not in ("wait_s", "workers") and not value > 0:
                raise InputError(f"the limit {name} must be above 0, got {value}.")
        for name, most in {"corrections": MAX_CORRECTIONS, "labels": MAX_LABELS, "images": MAX_IMAGES}.items():
            if getattr(self, name) > most:
                raise InputError(f"the limit {name} must be at most {most}, got {getattr(self, name)}.")
        if self.images > self.queue:
            raise InputError(f"a queue of {self.queue} cannot hold a request of {self.images} images; raise `queue`.")

    @property
    def marks(self) -> int:
        """Quotes, commas, colons and brackets in the JSON of a request: some for each item that it may have."""
        return 1000 + 10 * (self.labels + self.prompts + self.images)

    def check_images(self, count: int, views: int) -> None:
        """Refuse a number of images, each with so many views, that no request may have."""
        most = min(self.images, self.queue // views)
        if not 1 <= count <= most:
            raise InputError(f"a request must have 1 to {most} images, got {count}.")

    def check_labels(self, labels: Sequence[str], templates: Any, most: int | None = None) -> tuple[str, ...]:
        """Return the labels, stripped; InputError if they or their prompts cannot be used or are too many.

        `most` is the largest number of labels, if not that of a stream.
        """
        most = self.labels if most is None else most
        if not isinstance(labels, str) and not 2 <= len(labels) <= most:
            raise InputError(f"there must be 2 to {most} labels, got {len(labels)}.")
        names = clean_labels(labels)
        longest = max(names, key=len)
        if len(longest) > LABEL_CHARS:
            raise InputError(f"the label {longest[:20]!r}... is longer than {LABEL_CHARS} characters; shorten it.")
        if not (isinstance(templates, str) and templates.startswith(LEARNED_PREFIX)):
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
            if len(text) + text.count("{") * longest > PROMPT_CHARS:
                raise InputError(
                    f"the template {text[:20]!r}... makes prompts of more than {PROMPT_CHARS} characters; shorten it."
                )
        prompts_for(names, templates)  # refuses what makes no prompt
