"""The JSON of requests and responses.

Whatever a request has is bounded: texts, lists and dicts in length, numbers in size. These bounds are the most that any
service allows; the limits of a service are lower. Lists and dicts fail at their first wrong item.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator
from pydantic_core import PydanticCustomError

from acclimate.errors import nearest
from acclimate.methods import DEFAULT_METHOD
from acclimate.methods.state import LARGEST_ID
from acclimate.predict import Answer

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
NAME_RULE = "Use small letters, digits, . _ -; for instance pets-2024."
MAX_SETTING = 1_000_000  # largest absolute value of a number in the settings
MAX_LABELS = 100_000  # labels per request
MAX_IMAGES = 10_000  # images per request
LABEL_CHARS = 200  # longest label
PROMPT_CHARS = 1000  # longest prompt
Base64 = Annotated[
    str,
    Field(max_length=2**30, json_schema_extra={"contentEncoding": "base64"}, examples=["/9j/4AAQSkZJRg=="]),
]
Number = Annotated[float, Field(ge=-MAX_SETTING, le=MAX_SETTING, allow_inf_nan=False)]
Integer = Annotated[int, Field(ge=-MAX_SETTING, le=MAX_SETTING)]
Id = Annotated[int, Field(strict=True, ge=0, le=LARGEST_ID)]
Threshold = Annotated[float | None, Field(ge=0, le=1, description="Answers with a lower score are marked as `unsure`.")]
Count = Annotated[int, Field(strict=True, ge=1, le=MAX_SETTING)]
Word = Annotated[str, Field(max_length=200)]  # the name of a method, of a setting or of its value
Label = Annotated[str, Field(max_length=LABEL_CHARS, examples=["cat"])]
Labels = Annotated[list[Label], Field(max_length=MAX_LABELS, fail_fast=True)]
Prompt = Annotated[str, Field(max_length=PROMPT_CHARS)]
Prompts = Annotated[list[Prompt], Field(max_length=MAX_LABELS, fail_fast=True)]
Name = Annotated[str, Field(max_length=64, pattern=NAME_PATTERN, examples=["shop-1"])]


class RequestBody(BaseModel):
    """A request body; unknown fields are errors."""

    model_config = ConfigDict(extra="forbid")

    @model_validator(mode="before")
    @classmethod
    def _known_fields(cls, data: Any) -> Any:
        """Name what an unknown field may have been meant to be, which Pydantic's own message does not."""
        for name in data if isinstance(data, dict) else ():
            if name not in cls.model_fields:
                quoted = {"name": repr(str(name)[:80]), "known": nearest(str(name), cls.model_fields)}
                raise PydanticCustomError("unknown_field", "unknown field {name}; {known}", quoted)
        return data


class StreamSetup(RequestBody):
    """The settings that a stream is created with. Its labels are not part of it: they can change."""

    templates: Prompt | Prompts | Annotated[dict[Label, Prompts], Field(max_length=MAX_LABELS, fail_fast=True)] = Field(
        "single", description="A prompt with {}, the name of a set, a list of these, or all prompts of each label."
    )
    method: Word = Field(DEFAULT_METHOD, description="Name of the adaptation method.")
    settings: dict[Word, bool | Integer | Number | Word] = Field(
        {}, max_length=100, fail_fast=True, description="Settings of the method."
    )
    views: Count = Field(1, description="Views per image: itself and augmented versions of it.")
    views_kind: Literal["augmix", "crop", "large-crop"] | None = Field(
        None, description="Crops with or without AugMix; what the method's authors use by default."
    )
    thumbnails: bool = Field(False, description="Keep thumbnails of the images in the caches.")
    skip_duplicates: bool = Field(
        True, description="Do not learn from images that are nearly the same as one of the last hundred learnt."
    )
    reject: bool = Field(
        False, description="Answer `none of these` for images that belong to no label, and do not learn from them."
    )
    expand: bool = Field(True, description="Answer broad labels, such as `mammal`, through everyday nouns below them.")
    unsure: Threshold = None

    @classmethod
    def stored(cls, values: Mapping[str, Any]) -> "StreamSetup":
        """Read the setup in the file of a stream; the `guard` of files of earlier versions is ignored."""
        return cls(**{name: value for name, value in values.items() if name != "guard"})


class NamelessStreamRequest(StreamSetup):
    """A new stream whose name is in the path."""

    labels: Labels | None = Field(
        None,
        min_length=2,
        description="The labels; without them the stream has those, and all other settings that are not given, of the "
        "streams that first images create, if the service was started with --labels.",
        examples=[["cat", "dog", "bird"]],
    )


class StreamRequest(NamelessStreamRequest):
    """A new stream."""

    name: Name


class ImagesRequest(RequestBody):
    """Images to classify; the options override the query parameters of the same name."""

    images: list[Base64] = Field(min_length=1, max_length=MAX_IMAGES, fail_fast=True)
    adapt: bool | None = Field(None, description="Learn from these images.")
    top_k: Count | None = Field(None, description="Number of labels to return per image.")
    unsure: Threshold = None


class CorrectionRequest(RequestBody):
    """The right label of an image: of one that was learnt, by its id, or of one that is sent."""

    id: Id | None = Field(None, description="Of an image that was learnt, as `classify` has answered it.")
    image: Base64 | None = Field(None, description="The image itself, if it was not learnt or that was long ago.")
    label: Label

    @model_validator(mode="after")
    def _one_image(self) -> "CorrectionRequest":
        if (self.id is None) == (self.image is None):
            raise PydanticCustomError("one_image", "give either the `id` of an image that was learnt, or the `image`")
        return self


class LabelsRequest(RequestBody):
    """Labels to add and to remove; what was learnt about the others is kept."""

    add: Labels = []
    remove: Labels = []


class RollbackRequest(RequestBody):
    """The snapshot to go back to."""

    snapshot: Id | None = Field(None, description="Id of a snapshot; the last one by default.")


class TaskParameters(BaseModel):
    """Parameters of the Hugging Face zero-shot-image-classification task."""

    candidate_labels: Labels = Field(min_length=1)
    hypothesis_template: Prompt | None = Field(None, examples=["This is a photo of {}."])
    expand: bool = Field(True, description="Answer broad labels, such as `mammal`, through everyday nouns below them.")


class TaskRequest(BaseModel):
    """The Hugging Face zero-shot-image-classification task."""

    inputs: Base64
    parameters: TaskParameters


class ResultResponse(BaseModel):
    """The prediction for one image."""

    id: int | None = Field(description="Identifies the image in the caches; null if it was not learnt.")
    predictions: list[Answer] = Field(description="The adapted prediction, best label first.")
    zero_shot: Answer = Field(description="The prediction of the model without adaptation.")
    entropy: float = Field(description="Entropy of the zero-shot prediction in nats.")
    changed: bool = Field(description="Whether adaptation changed the predicted label.")
    admitted: list[str] = Field(description="The caches that the image entered.")
    refused: str | None = Field(
        description="Why the image was not learnt: it is nearly the same as one before, it belongs to no label, its "
        "label was corrected, or the disk prevented it."
    )
    unsure: bool = Field(description="Whether the score is below the threshold of the request or of the stream.")
    none: float | None = Field(
        description="Score of `none of these`, from 0 to 1; null if the stream does not recognise foreign images."
    )


class ClassifiedResponse(BaseModel):
    """Predictions in the order of the images."""

    stream: Name
    results: list[ResultResponse]


class ConditionResponse(BaseModel):
    """The condition of a stream; one that cannot be used has only a name and `broken`."""

    name: Name
    samples_seen: int | None = Field(description="Number of images it has learnt from.")
    frozen: bool | None = Field(description="Whether it answers without learning.")
    degraded: str | None = Field(description="What cannot be written to the disk at the moment.")
    broken: str | None = Field(description="Why its file cannot be used.")


class SummaryResponse(ConditionResponse):
    """A stream in a list."""

    method: str | None


class SummariesResponse(BaseModel):
    """Streams, sorted by name, and what a stream gets that is created by its first image."""

    streams: list[SummaryResponse]
    labels: list[Label] = Field(description="The labels that the service was started with; empty if there are none.")
    setup: StreamSetup = Field(description="The settings of streams with these labels.")


class DescriptionResponse(StreamSetup, ConditionResponse):
    """A stream."""

    labels: list[Label]
    advice: str = Field(description="What to know of the images, as far as the method can tell; empty if nothing.")
    corrections: int = Field(description="Number of corrections.")
    state_bytes: int = Field(description="Size of the newest snapshot in bytes.")
    entries: dict[str, int] = Field(description="Entries per cache.", examples=[{"positive": 9, "negative": 4}])
    capacity: dict[str, int] = Field(description="Entries per label that each cache can hold.")
    snapshots: int = Field(description="Number of snapshots to roll back to.")
    answered: int = Field(description="Images classified since the stream was created, except with `adapt=false`.")
    changed: int = Field(description="Of these, the number whose predicted label adaptation has changed.")
    changed_share: float


class SnapshotResponse(BaseModel):
    """A state to roll back to."""

    id: int
    time: float = Field(description="When it was taken, in seconds since 1970.")
    reason: str = Field(description="Why it was taken.", examples=["time"])
    samples_seen: int


class EntryResponse(BaseModel):
    """A cache entry."""

    cache: str
    label: Label
    entropy: float
    id: int
    client: str = Field(description="Who sent the image: the name of a token, or a network.")
    thumbnail: str | None = Field(description="A small picture as a data URL, if it is kept and requested.")


class ListedAnswerResponse(ResultResponse):
    """The answer to an image of a stream, as it was given when the image came; at most its five best labels."""

    file: str = Field(description="The end of the file's name, if it was sent in a form.")
    time: float = Field(description="When it was answered, in seconds since 1970.")
    client: str = Field(description="Who sent the image: the name of a token, or a network.")
    label: Label
    score: float
    thumbnail: str | None = Field(description="A small picture as a data URL, if it is kept and requested.")
    now: Answer | None = Field(None, description="The answer of a second pass, if it is requested.")


class CorrectionResponse(BaseModel):
    """A correction: an image and the label that it was given."""

    id: int = Field(description="Identifies the correction, to undo it.")
    label: Label
    thumbnail: str | None = Field(
        None, description="A small picture as a data URL, in the list of corrections if the stream keeps thumbnails."
    )


class LearntResponse(BaseModel):
    """The learnt values of each label."""

    labels: list[Label]
    columns: dict[str, list[float]] = Field(description="What the method has learnt, with one value per label.")
    clients: dict[str, int] = Field(description="Cache entries, or for methods without caches samples, per client.")


class FailedResponse(BaseModel):
    """The response to a request that failed."""

    error: dict[Literal["code", "message", "request_id"], str]
