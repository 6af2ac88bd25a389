"""What comes in and what goes out, as JSON."""

from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field

NAME_PATTERN = r"^[a-z0-9][a-z0-9._-]{0,63}$"
Base64 = Annotated[str, Field(json_schema_extra={"contentEncoding": "base64"}, examples=["/9j/4AAQSkZJRg=="])]
LARGEST = 1_000_000  # of a number among the settings; beyond it, nothing is meant and much can go wrong
Number = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
WholeNumber = Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
Label = Annotated[str, Field(examples=["cat"])]


class Request(BaseModel):
    """A body; a field that is not known is an error."""

    model_config = ConfigDict(extra="forbid")


class GuardRequest(Request):
    """Against poisoning: what one client may contribute."""

    share: float | None = Field(None, gt=0, le=1, description="Largest share of the cache entries of one client.")
    burst: int | None = Field(None, ge=1, description="Most entries of one client within the window.")
    window_s: float = Field(60.0, gt=0, description="Length of the window in seconds.")


class StreamRequest(Request):
    """A new stream."""

    name: str = Field(pattern=NAME_PATTERN, examples=["shop-1"])
    labels: list[Label] = Field(min_length=2, examples=[["cat", "dog", "bird"]])
    templates: str | list[str] | dict[str, list[str]] = Field(
        "single", description="A prompt with {}, a set's name, several of them, or the full prompts of each label."
    )
    method: str = Field("tda", description="How to adapt.")
    settings: dict[str, bool | WholeNumber | Number | str] = Field({}, description="Settings of the method.")
    thumbnails: bool = Field(False, description="Keep small pictures of the images in the caches.")
    guard: GuardRequest | None = None


class ImagesRequest(Request):
    """Images to classify."""

    images: list[Base64] = Field(min_length=1)
    adapt: bool | None = Field(None, description="Learn from these images; as the query parameter.")
    top_k: int | None = Field(None, ge=1, description="Labels to name for each image; as the query parameter.")


class LabelsRequest(Request):
    """Labels to add and to remove; what was learnt of the others stays."""

    add: list[Label] = []
    remove: list[Label] = []


class RollbackRequest(Request):
    """Where to go back to."""

    snapshot: int | None = Field(None, description="A snapshot's id; the last one when not given.")


class TaskParameters(BaseModel):
    """Parameters of the Hugging Face zero-shot-image-classification task."""

    candidate_labels: list[Label] = Field(min_length=1)
    hypothesis_template: str | None = Field(None, examples=["This is a photo of {}."])


class TaskRequest(BaseModel):
    """The Hugging Face zero-shot-image-classification task."""

    inputs: Base64
    parameters: TaskParameters


class Answer(BaseModel):
    """A label and its probability."""

    label: Label
    score: float


class Result(BaseModel):
    """What is said of one image."""

    id: int | None = Field(description="Names the image in the caches; null if it was not learnt from.")
    predictions: list[Answer] = Field(description="The adapted answer, best first.")
    zero_shot: Answer = Field(description="The model's own answer.")
    entropy: float = Field(description="Of the model's own answer, in nats.")
    changed: bool = Field(description="Whether adapting changed the answer.")
    admitted: list[str] = Field(description="The caches it entered.")
    refused: str | None = Field(description="Why a guard or the disk kept it from being learnt.")


class Classified(BaseModel):
    """Answers in the order of the images."""

    stream: str
    results: list[Result]


class Summary(BaseModel):
    """A stream in a list."""

    name: str = Field(examples=["shop-1"])
    method: str | None = Field(description="How it adapts; null, as what follows, if the stream cannot be used.")
    samples_seen: int | None = Field(description="Images it has learnt from.")
    frozen: bool | None = Field(description="Whether it answers without learning.")
    degraded: str | None = Field(description="What cannot be written to the disk at the moment.")
    broken: str | None = Field(description="What was damaged on the disk, and what was done about it.")


class Summaries(BaseModel):
    """Streams by name."""

    streams: list[Summary]


class Description(BaseModel):
    """A stream."""

    name: str = Field(examples=["shop-1"])
    labels: list[Label]
    templates: Any = Field(description="Prompts.")
    method: str = Field(description="How it adapts.", examples=["tda"])
    settings: dict[str, Any] = Field(description="Of the method.")
    thumbnails: bool = Field(description="Whether small pictures of what is in the caches are kept.")
    guard: GuardRequest | None
    refusals: int = Field(description="Images that the guard has kept from being learnt from since the start.")
    samples_seen: int = Field(description="Images it has learnt from.")
    frozen: bool = Field(description="Whether it answers without learning.")
    entries: dict[str, int] = Field(description="Entries in each cache.", examples=[{"positive": 9, "negative": 4}])
    snapshots: int = Field(description="Snapshots to roll back to.")
    answered: int = Field(description="Images classified since the start.")
    changed: int = Field(description="Answers that adapting changed since the start.")
    changed_share: float
    degraded: str | None = Field(description="What cannot be written to the disk at the moment.")
    broken: str | None = Field(description="What was damaged on the disk, and what was done about it.")


class Snapshot(BaseModel):
    """A state to roll back to."""

    id: int
    time: float = Field(description="When it was taken, in seconds since 1970.")
    reason: str = Field(description="Why it was taken.", examples=["time"])
    samples_seen: int


class Snapshots(BaseModel):
    """States to roll back to, newest first."""

    snapshots: list[Snapshot]


class SnapshotId(BaseModel):
    """Which snapshot was taken, or is now the state."""

    snapshot: int


class Entry(BaseModel):
    """Something learnt."""

    cache: str
    label: Label
    entropy: float
    id: int
    client: str = Field(description="Who sent it: the name of a token, or an address.")
    thumbnail: str | None = Field(description="A picture as a data: address, where it is kept and asked for.")


class Entries(BaseModel):
    """What was learnt."""

    entries: list[Entry]


class Failure(BaseModel):
    """What went wrong."""

    code: str
    message: str
    request_id: str


class Failed(BaseModel):
    """The answer to a request that failed."""

    error: Failure
