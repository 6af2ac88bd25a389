"""What the service takes at most, and how often it writes."""

from dataclasses import dataclass

from acclimate.errors import InputError


@dataclass(frozen=True)
class Limits:
    """Bounds on requests, streams, queues and files.

    Attributes:
        body_bytes: of a request.
        pixels: of an image, told by its header before it is decoded.
        images: of a request.
        labels: of a stream.
        label_chars: of a label.
        capacity: entries a label that a setting may ask for.
        prompts: that a stream's labels and templates make together.
        streams: kept at once.
        queue: images that wait for the encoder; more are refused as busy.
        timeout_s: for a request.
        batch: images encoded at once.
        wait_s: how long an image waits for others to share its batch.
        workers: threads that open and prepare images; one more than there are cores when 0.
        snapshot_samples: learnt since the last snapshot until the next.
        snapshot_s: seconds from the last snapshot to the next, if anything was learnt.
        sync_s: seconds between two calls that bring journals to the disk.
        history: snapshots kept of a stream.
        thumbnail: longest side of a kept thumbnail, in pixels.
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
            raise InputError(f"a queue of {self.queue} cannot take a request of {self.images} images; raise `queue`.")
