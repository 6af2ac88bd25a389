"""Protocols of streams and of their encoder, wherever these run: in this process or in others."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec, Protocol, TypeVar

from acclimate.evidence import Head
from acclimate.methods import Adapter
from acclimate.predict import Predictions
from acclimate.prompts.head import TextEncoder
from acclimate.views import Kind

if TYPE_CHECKING:
    from acclimate.serve.batcher import Encoded
    from acclimate.serve.limits import Limits
    from acclimate.serve.stream import Stream

Options = ParamSpec("Options")
Result = TypeVar("Result")


class TextModel(TextEncoder, Protocol):
    """The text side of the model, and the length of its features."""

    dim: int


class AnyBatcher(Protocol):
    """An encoder of images; see `Batcher`."""

    limits: "Limits"

    @property
    def encoder(self) -> TextModel:
        """The model."""

    def preparer(self, views: int, kind: Any) -> object:
        """Refuse a model that cannot make views of this kind."""

    def submit(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        thumbnails: bool = False,
        views: int = 1,
        kind: Kind = "augmix",
        start: int = 0,
        client: str = "",
    ) -> "Future[Encoded]":
        """Queue images to be encoded."""


class AnyStream(Protocol):
    """The interface of a stream for the routes; see `Stream`."""

    name: str

    def classify(
        self,
        images: Sequence[bytes | str],
        *,
        names: Sequence[str] = (),
        adapt: bool = True,
        top_k: int = 5,
        unsure: float | None = None,
        client: str = "",
    ) -> "Future[Predictions]":
        """Classify images in order."""

    def correct(
        self, label: str, sample_id: int | None = None, image: bytes | str | None = None, client: str = ""
    ) -> "Future[int]":
        """Correct the label of an image."""

    def described(self) -> "Future[dict[str, Any]]":
        """Describe the stream without blocking."""

    def head_of(self, add: Sequence[str], remove: Sequence[str], client: str = "") -> "Future[Head | None]":
        """Encode labels that are to be added."""

    def read_state(self, content: bytes) -> Adapter:
        """Return the adapter in a state file; may block."""

    def enqueue(
        self, method: "Callable[Concatenate[Stream, Options], Result]", *args: Options.args, **kwargs: Options.kwargs
    ) -> "Future[Result]":
        """Queue a call of a method that is `queued`."""

    def enqueue_read(self, method: "Callable[[Stream], Result]") -> "Future[Result]":
        """Queue a call of a method that is a `queued_read`."""
