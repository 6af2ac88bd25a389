"""The routes of streams: create, classify, manage; and the images in the body of a request."""

import asyncio
from base64 import b64decode, b64encode
from dataclasses import asdict
from math import isfinite
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Body, Depends, HTTPException, Path, Query, Request, Response
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.responses import JSONResponse

from acclimate.errors import ImageError, InputError
from acclimate.predict import Prediction
from acclimate.serve import schemas
from acclimate.serve.errors import NotFoundError, validation_message
from acclimate.serve.limits import Limits
from acclimate.serve.security import Action, Caller
from acclimate.serve.stream import Stream
from acclimate.serve.streams import Streams

router = APIRouter(prefix="/v1/streams", tags=["streams"])
STATE_TYPE = "application/octet-stream"
STATE = {"content": {STATE_TYPE: {"schema": {"type": "string", "format": "binary"}}}}
FILES = {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}}
IMAGES = {
    "content": {
        "multipart/form-data": {"schema": {"type": "object", "required": ["image"], "properties": FILES}},
        "application/json": {"schema": schemas.ImagesRequest.model_json_schema()},
    }
}
HOW = "send images as files in the form field `image`, or as JSON with base64 in `images`."


async def streams_of(request: Request) -> Streams:
    """Dependency: the streams of the service that received this request."""
    streams: Streams = request.app.state.streams
    return streams


async def caller_of(request: Request) -> Caller:
    """Dependency: the sender of this request."""
    caller: Caller = request.state.caller
    return caller


AllStreams = Annotated[Streams, Depends(streams_of)]
Sender = Annotated[Caller, Depends(caller_of)]
StreamName = Annotated[str, Path(pattern=schemas.NAME_PATTERN, description="Name of the stream.")]


def authorize(caller: Caller, action: Action, stream: str) -> None:
    """Refuse a caller who may not perform this action on this stream."""
    if not caller.may(action, stream):
        raise HTTPException(403, f"the token {caller.name!r} may not {action} the stream {stream!r}.")


def stream_to(action: Action) -> Any:
    """Dependency: the stream in the path. Permission is checked first, so that names of streams are not revealed."""

    async def find(name: StreamName, streams: AllStreams, caller: Sender) -> Stream:
        authorize(caller, action, name)
        return streams.get(name)

    return Depends(find)


Readable = Annotated[Stream, stream_to("classify")]
Managed = Annotated[Stream, stream_to("manage")]


@router.post("", status_code=201, response_model=schemas.Description)
def create_stream(body: schemas.StreamRequest, streams: AllStreams, caller: Sender) -> dict[str, Any]:
    """Create a stream."""
    authorize(caller, "manage", body.name)
    return streams.create(**body.model_dump()).describe()


@router.get("", response_model=schemas.Summaries)
def list_streams(streams: AllStreams, caller: Sender) -> dict[str, Any]:
    """List the streams that the caller may use."""
    allowed = [each for each in streams.describe() if caller.may("classify", each["name"])]
    return {"streams": [{key: each.get(key) for key in schemas.Summary.model_fields} for each in allowed]}


@router.get("/{name}", response_model=schemas.Description)
def describe_stream(stream: Readable) -> dict[str, Any]:
    """Describe a stream: its setup, what it has learnt, and its problems, if it has any."""
    return stream.describe()


@router.delete("/{name}", status_code=204)
def delete_stream(name: StreamName, streams: AllStreams, caller: Sender) -> None:
    """Delete a stream, its snapshots and everything it has learnt."""
    authorize(caller, "manage", name)
    streams.delete(name)


@router.post(
    "/{name}/classify", openapi_extra={"requestBody": {"required": True, **IMAGES}}, response_model=schemas.Classified
)
async def classify_images(
    request: Request,
    name: StreamName,
    streams: AllStreams,
    caller: Sender,
    adapt: Annotated[bool, Query(description="Learn from these images.")] = True,
    top_k: Annotated[int, Query(ge=1, description="Number of labels to return per image.")] = 5,
) -> Response:
    """Classify images in order and adapt to them.

    If an image cannot be read, the whole request is refused and nothing is learnt from it.
    """
    authorize(caller, "classify", name)
    images, options = await read_images(request, streams.limits)
    options = {"adapt": adapt, "top_k": top_k, **options}
    try:
        stream = streams.get(name)
    except NotFoundError:
        stream = await asyncio.to_thread(streams.get_or_create, name)
    with anyio.fail_after(streams.limits.timeout_s):
        answers = await asyncio.wrap_future(stream.classify(images, client=caller.name, **options))
    return JSONResponse({"stream": name, "results": [_result(each) for each in answers]})


@router.post("/{name}/reset", response_model=schemas.Description)
def reset_stream(stream: Managed) -> dict[str, Any]:
    """Forget everything learnt; the snapshots remain."""
    stream.reset()
    return stream.describe()


@router.post("/{name}/freeze", response_model=schemas.Description)
def freeze_stream(stream: Managed) -> dict[str, Any]:
    """Stop learning, and answer from what was learnt so far."""
    stream.set_frozen(True)
    return stream.describe()


@router.post("/{name}/unfreeze", response_model=schemas.Description)
def unfreeze_stream(stream: Managed) -> dict[str, Any]:
    """Resume learning."""
    stream.set_frozen(False)
    return stream.describe()


@router.get("/{name}/snapshots", response_model=schemas.Snapshots)
def list_snapshots(stream: Managed) -> dict[str, Any]:
    """List the snapshots, newest first."""
    return {"snapshots": stream.snapshots()[::-1]}


@router.post("/{name}/snapshot")
def take_snapshot(stream: Managed) -> dict[str, int]:
    """Write a snapshot of the current state, to roll back to; returns its id."""
    return {"snapshot": stream.snapshot()}


@router.post("/{name}/rollback")
def roll_back(stream: Managed, body: Annotated[schemas.RollbackRequest | None, Body()] = None) -> dict[str, int]:
    """Go back to a snapshot, including its labels; returns its id."""
    return {"snapshot": stream.rollback(None if body is None else body.snapshot)}


@router.patch("/{name}/labels", response_model=schemas.Description)
def change_labels(stream: Managed, body: schemas.LabelsRequest) -> dict[str, Any]:
    """Add and remove labels; what was learnt about the others is kept."""
    stream.change_labels(body.add, body.remove)
    return stream.describe()


@router.get("/{name}/state", response_class=Response, responses={200: STATE})
def download_state(stream: Managed) -> Response:
    """Download what was learnt as a state file, for `acclimate classify --state` and `acclimate state`."""
    disposition = {"Content-Disposition": f'attachment; filename="{stream.name}.safetensors"'}
    return Response(stream.state_bytes(), media_type=STATE_TYPE, headers=disposition)


@router.put(
    "/{name}/state", openapi_extra={"requestBody": {"required": True, **STATE}}, response_model=schemas.Description
)
async def upload_state(stream: Managed, request: Request) -> dict[str, Any]:
    """Continue from a state file; it must have the same model, labels, prompts, method and settings."""
    content = await request.body()
    await asyncio.to_thread(stream.load_state, content)
    return await asyncio.to_thread(stream.describe)


@router.get("/{name}/caches", response_model=schemas.Entries)
def list_entries(
    stream: Managed,
    thumbnails: Annotated[
        bool, Query(description="Include thumbnails as data URLs, if the stream keeps them.")
    ] = False,
) -> dict[str, Any]:
    """List every cache entry with its label, entropy, id and sender."""
    entries = stream.caches()
    for entry in entries:
        picture = entry["thumbnail"] if thumbnails else None
        entry["thumbnail"] = picture and f"data:image/jpeg;base64,{b64encode(picture).decode()}"
    return {"entries": entries}


@router.get("/{name}/learnt", response_model=schemas.Learnt)
def describe_learnt(stream: Managed) -> dict[str, Any]:
    """Describe what was learnt about each label, with caches or without them, and how much each client has taught."""
    return stream.learnt()


def _result(prediction: Prediction) -> dict[str, Any]:
    if not isfinite(prediction.score):
        raise InputError("this stream's settings give scores that are not numbers; create one with other settings.")
    return {
        "id": prediction.id,
        "predictions": [asdict(answer) for answer in prediction.top],
        "zero_shot": asdict(prediction.zero_shot),
        "entropy": prediction.entropy,
        "changed": prediction.changed,
        "admitted": list(prediction.admitted),
        "refused": prediction.refused,
    }


async def read_images(request: Request, limits: Limits) -> tuple[list[bytes], dict[str, Any]]:
    """The image files in a form or in JSON, and the options in JSON; a form's file names and types are ignored."""
    options: dict[str, Any] = {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        images = await _form_files(request, limits)
    elif kind == "application/json":
        try:
            body = schemas.ImagesRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise InputError(validation_message(error.errors(include_url=False))) from None
        images = [decode_image(text, position) for position, text in enumerate(body.images)]
        options = body.model_dump(exclude={"images"}, exclude_none=True)
    else:
        raise HTTPException(415, f"the content type {kind or 'none'!r} is not supported; {HOW}")
    if len(images) > limits.images:
        raise InputError(f"{len(images)} images are too many for one request; send at most {limits.images}.")
    return images, options


def decode_image(text: str, position: int) -> bytes:
    """The content of an image file that was sent as base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ImageError(f"image {position} is not base64; URLs are not fetched, send the image itself.") from None


async def _form_files(request: Request, limits: Limits) -> list[bytes]:
    parser = MultiPartParser(request.headers, request.stream(), max_files=limits.images, max_fields=limits.images)
    parser.spool_max_size = limits.body_bytes  # in memory, which the limit on bodies bounds; never on disk
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError) as error:
        raise HTTPException(400, f"the form cannot be read: {error}; {HOW}") from None
    try:
        files = [value for key, value in form.multi_items() if key == "image" and isinstance(value, UploadFile)]
        if not files or len(files) < len(form.multi_items()):
            raise InputError(HOW)
        return [await file.read() for file in files]
    finally:
        await form.close()
