"""What happens in the engine, for those who count it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from acclimate.serve.learner import Answered


class Events:
    """Called by the engine from its threads; does nothing. Metrics inherit from it."""

    def encoded(self, images: int, seconds: float) -> None:
        """A batch of images of any streams went through the encoder."""

    def adapted(self, answers: Sequence["Answered"], replaced: int, seconds: float) -> None:
        """A request was answered; its samples replaced so many cache entries."""
