"""What a job says of each image."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Row:
    """One image's answer, or the reason why there is none.

    Attributes:
        index: position in the run, from 0.
        file: the image's name.
        label: the adapted answer; None if the image could not be read.
        score: its probability.
        top: the best labels with their scores, best first; the first is (label, score).
        zero_shot_label: the model's own answer.
        zero_shot_score: its probability.
        changed: whether adapting changed the answer.
        entropy: of the zero-shot answer, in nats.
        error: why the image could not be read; None if it could.
    """

    index: int
    file: str
    label: str | None = None
    score: float | None = None
    top: tuple[tuple[str, float], ...] = ()
    zero_shot_label: str | None = None
    zero_shot_score: float | None = None
    changed: bool | None = None
    entropy: float | None = None
    error: str | None = None
