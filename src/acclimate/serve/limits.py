"""Limits on what the service accepts, and how often it writes to disk."""

from collections.abc import Sequence
from typing import Any

from pydantic import ConfigDict, Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from acclimate.errors import InputError
from acclimate.methods.corrections import MAX_CORRECTIONS
from acclimate.prompts import clean_labels
from acclimate.prompts.templates import LEARNED_PREFIX, check_size
from acclimate.serve.schemas import LABEL_CHARS, MAX_IMAGES, MAX_LABELS, PROMPT_CHARS, RequestBody


class Limits(RequestBody):
    """Limits on requests, streams, queues and files.

    Examples:
        >>> Limits(images=8).images
        8
        >>> Limits(image=8)
        Traceback (most recent call last):
        pydantic_core._pydantic_core.ValidationError: 1 validation error for Limits
          unknown field 'image'; did you mean 'images'...
    """

    model_config = ConfigDict(frozen=True, allow_inf_nan=False)

    body_bytes: PositiveInt = Field(default=32 * 2**20, description="Largest request with images or a state, in bytes.")
    json_bytes: PositiveInt = Field(default=2 * 2**20, description="Largest other request, in bytes.")
    pixels: PositiveInt = Field(default=40_000_000, description="Largest image, by its header before it is decoded.")
    decode_s: PositiveFloat = Field(
        default=5.0, description="Processor time to decode and prepare an image, in seconds."
    )
    images: PositiveInt = Field(default=64, le=MAX_IMAGES, description="Images per request.")
    labels: int = Field(default=2000, ge=2, le=MAX_LABELS, description="Labels per stream.")
    task_labels: PositiveInt = Field(default=500, description="Labels of a request that brings its own.")
    prompts: PositiveInt = Field(default=5000, description="Prompts that labels and templates make together.")
    texts: PositiveInt = Field(default=16, description="Sets of labels of one client that may wait to be encoded.")
    calls: PositiveInt = Field(default=64, description="Calls of one client, or of one stream, that may wait.")
    capacity: PositiveInt = Field(default=64, description="Samples per label that a method may keep.")
    views: PositiveInt = Field(default=64, description="Views per image.")
    corrections: PositiveInt = Field(default=1000, le=MAX_CORRECTIONS, description="Corrections per stream.")
    streams: PositiveInt = Field(default=1000, description="Streams of the service.")
    client_streams: PositiveInt = Field(default=100, description="Streams made by one client.")
    queue: PositiveInt = Field(default=512, description="Images of one client that may wait, counting views.")
    timeout_s: PositiveFloat = Field(default=30.0, description="Time limit of a request, in seconds.")
    requests: PositiveInt = Field(default=512, description="Requests at a time; one client may have half of them.")
    keep_alive_s: PositiveFloat = Field(default=10.0, description="Time that an idle connection is kept, in seconds.")
    batch: PositiveInt = Field(default=32, description="Images encoded at once, counting views.")
    wait_s: NonNegativeFloat = Field(
        default=0.005, description="Time that an image waits for others to share its batch."
    )
    workers: NonNegativeInt = Field(
        default=0, description="Processes that decode images; 0 for one more than there are cores."
    )
    snapshot_samples: PositiveInt = Field(
        default=1000, description="Images learnt between two snapshots, counting views."
    )
    snapshot_s: PositiveFloat = Field(
        default=300.0, description="Seconds between two snapshots, if anything was learnt."
    )
    sync_s: PositiveFloat = Field(default=1.0, description="Seconds between two rounds of periodic work.")
    history: int = Field(default=24, ge=2, description="Snapshots kept per stream.")
    snapshot_bytes: PositiveInt = Field(default=256 * 2**20, description="Bytes of the snapshots kept per stream.")
    history_bytes: PositiveInt = Field(default=32 * 2**20, description="Bytes of learnt samples kept per stream.")
    client_bytes: PositiveInt = Field(default=2**30, description="Bytes of all streams made by one client.")
    loaded_bytes: PositiveInt = Field(
        default=2**30, description="Bytes of all streams in memory; the others wait on disk."
    )
    idle_s: PositiveFloat = Field(
        default=600.0, description="Seconds after which an unused stream is taken out of memory."
    )
    thumbnail: PositiveInt = Field(default=96, description="Longest side of a thumbnail, in pixels.")

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
            check_size(names, templates, self.prompts, PROMPT_CHARS)
        return names
