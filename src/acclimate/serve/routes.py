"""The routes of streams: create, classify, manage."""

from base64 import b64encode
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Depends, Query, Request, Response
from starlette.responses import JSONResponse

from acclimate.predict import Prediction
from acclimate.serve import schemas
from acclimate.serve.bodies import described, json_body, read_body, run_apart
from acclimate.serve.dependencies import (
    AllStreams,
    Call,
    Details,
    Managed,
    Readable,
    Sender,
    StreamName,
    ThisCall,
    authorize,
    known_parameters,
)
from acclimate.serve.http_errors import ExistsError, NotFoundError
from acclimate.serve.interfaces import AnyStream
from acclimate.serve.service import Service
from acclimate.serve.stream import Stream
from acclimate.serve.uploads import BINARY, BODY, RAW, read_images

router = APIRouter(prefix="/v1/streams", tags=["streams"], dependencies=[Depends(known_parameters)])
STATE = {"content": {RAW: BINARY}}
ANSWER_BYTES = 50  # approximate size of a label and its score as JSON


@router.post(
    "", status_code=201, openapi_extra=described(schemas.StreamRequest), response_model=schemas.DescriptionResponse
)
async def create_stream(
    body: Annotated[schemas.StreamRequest, json_body(schemas.StreamRequest)],
    streams: AllStreams,
    caller: Sender,
    details: Details,
    call: ThisCall,
) -> dict[str, Any]:
    """Create a stream."""
    details |= {"stream": body.name, "method": body.method, "labels": body.labels}
    authorize(caller, "manage", body.name)
    options = body.model_dump(exclude={"name", "labels"})
    labels, setup = await call.run(lambda: streams.check_new(body.name, body.labels, options, client=caller.name))
    if setup.reject:
        await call.wait(streams.texts.negatives())
    head = await call.wait(streams.texts.head(labels, setup.templates, caller.name))
    stream = await call.run(lambda: streams.create(body.name, labels, client=caller.name, head=head, **options))
    return await call.wait(stream.described())


@router.get("", response_model=schemas.SummariesResponse)
async def list_streams(streams: AllStreams, caller: Sender, call: ThisCall) -> Response:
    """List the streams that the caller may use."""

    def answer() -> Response:
        allowed = [each for each in streams.describe() if caller.may("classify", each["name"])]
        listed = [{key: each.get(key) for key in schemas.SummaryResponse.model_fields} for each in allowed]
        return JSONResponse({"streams": listed, "labels": streams.defaults["labels"] if streams.defaults else []})

    return await call.run(answer, streams.reports)


@router.get("/{name}", response_model=schemas.DescriptionResponse)
async def describe_stream(stream: Readable, call: ThisCall) -> dict[str, Any]:
    """Describe a stream: its setup, what it has learnt, and its problems, if it has any."""
    return await call.wait(stream.described())


@router.delete("/{name}", status_code=204)
async def delete_stream(name: StreamName, streams: AllStreams, caller: Sender, call: ThisCall) -> None:
    """Delete a stream, its snapshots and everything it has learnt."""
    authorize(caller, "manage", name)
    await call.wait(streams.delete(name))


@router.post("/{name}/classify", openapi_extra={"requestBody": BODY}, response_model=schemas.ClassifiedResponse)
async def classify_images(
    request: Request,
    name: StreamName,
    streams: AllStreams,
    caller: Sender,
    call: ThisCall,
    adapt: Annotated[bool, Query(description="Learn from these images.")] = True,
    top_k: Annotated[int, Query(ge=1, le=schemas.MAX_SETTING, description="Number of labels to return per image.")] = 5,
    unsure: Annotated[schemas.Share | None, Query(description=schemas.UNSURE)] = None,
) -> Response:
    """Classify images in order and adapt to them.

    If an image cannot be read, the whole request is refused and nothing is learnt from it.
    """
    authorize(caller, "classify", name)
    images, names, options = await read_images(request, streams.limits)
    options = {"adapt": adapt, "top_k": top_k, "unsure": unsure, **options}
    try:
        stream = streams.get(name)
    except NotFoundError:
        stream = await create_by_images(streams, name, images, names, caller.name, call)
    answers = await call.wait(stream.classify(images, names=names, client=caller.name, **options))
    size = sum(len(each.top) for each in answers) * ANSWER_BYTES

    def answer() -> Response:
        return JSONResponse({"stream": name, "results": list(map(_result, answers))})

    return await run_apart(request, answer, size)


async def create_by_images(
    streams: Service, name: str, images: Sequence[bytes | str], names: Sequence[str], client: str, call: Call
) -> AnyStream:
    """Create a stream with the defaults once its first images could be read; NotFoundError without defaults.

    That is found out by encoding them, without views; the stream encodes them again, as any others.
    """
    if streams.defaults is None:
        return streams.get(name)
    streams.limits.check_images(len(images), streams.defaults.get("views", 1))
    try:
        await call.run(lambda: streams.check_room(name, client))
        await call.wait(streams.batcher.submit(images, names=names, client=client))
        return await call.run(lambda: streams.create_default(name, client))
    except ExistsError:  # another request was first
        return streams.get(name)


@router.post("/{name}/reset", response_model=schemas.DescriptionResponse)
async def reset_stream(stream: Managed, call: ThisCall) -> dict[str, Any]:
    """Forget everything learnt; the snapshots remain."""
    await call.wait(stream.enqueue(Stream.reset))
    return await call.wait(stream.described())


@router.post("/{name}/freeze", response_model=schemas.DescriptionResponse)
async def freeze_stream(stream: Managed, call: ThisCall) -> dict[str, Any]:
    """Stop learning, and answer from what was learnt so far."""
    await call.wait(stream.enqueue(Stream.set_frozen, True))
    return await call.wait(stream.described())


@router.post("/{name}/unfreeze", response_model=schemas.DescriptionResponse)
async def unfreeze_stream(stream: Managed, call: ThisCall) -> dict[str, Any]:
    """Resume learning."""
    await call.wait(stream.enqueue(Stream.set_frozen, False))
    return await call.wait(stream.described())


@router.get("/{name}/snapshots", response_model=schemas.SnapshotsResponse)
async def list_snapshots(stream: Managed, call: ThisCall) -> dict[str, Any]:
    """List the snapshots, newest first."""
    return {"snapshots": (await call.wait(stream.enqueue_read(Stream.snapshots)))[::-1]}


@router.post("/{name}/snapshot")
async def take_snapshot(stream: Managed, call: ThisCall) -> dict[str, int]:
    """Write a snapshot of the current state, to roll back to; returns its id."""
    return {"snapshot": await call.wait(stream.enqueue(Stream.snapshot))}


@router.post("/{name}/rollback", openapi_extra=described(schemas.RollbackRequest, required=False))
async def roll_back(
    stream: Managed,
    details: Details,
    body: Annotated[schemas.RollbackRequest, json_body(schemas.RollbackRequest, required=False)],
    call: ThisCall,
) -> dict[str, int]:
    """Go back to a snapshot, including its labels; returns its id."""
    details["snapshot"] = await call.wait(stream.enqueue(Stream.rollback, body.snapshot))
    return {"snapshot": details["snapshot"]}


@router.patch(
    "/{name}/labels", openapi_extra=described(schemas.LabelsRequest), response_model=schemas.DescriptionResponse
)
async def change_labels(
    stream: Managed,
    body: Annotated[schemas.LabelsRequest, json_body(schemas.LabelsRequest)],
    caller: Sender,
    details: Details,
    call: ThisCall,
) -> dict[str, Any]:
    """Add and remove labels; what was learnt about the others is kept."""
    details |= body.model_dump()
    head = await call.wait(await call.run(lambda: stream.head_of(body.add, body.remove, caller.name)))
    await call.wait(stream.enqueue(Stream.put_labels, body.add, body.remove, head))
    return await call.wait(stream.described())


@router.get("/{name}/state", response_class=Response, responses={200: STATE})
async def download_state(stream: Managed, call: ThisCall) -> Response:
    """Download what was learnt as a state file, for `acclimate classify --state` and `acclimate state`."""
    disposition = {"Content-Disposition": f'attachment; filename="{stream.name}.safetensors"'}
    return Response(await call.wait(stream.enqueue_read(Stream.state_bytes)), media_type=RAW, headers=disposition)


@router.put(
    "/{name}/state",
    openapi_extra={"requestBody": {"required": True, **STATE}},
    response_model=schemas.DescriptionResponse,
)
async def upload_state(stream: Managed, request: Request, details: Details, call: ThisCall) -> dict[str, Any]:
    """Continue from a state file; it must have the same model, labels, prompts, method and settings."""
    content = await read_body(request)
    details["bytes"] = len(content)
    adapter = await call.run(lambda: stream.read_state(content))
    await call.wait(stream.enqueue(Stream.continue_from, adapter))
    return await call.wait(stream.described())


@router.get("/{name}/caches", response_model=schemas.EntriesResponse)
async def list_entries(
    stream: Managed,
    call: ThisCall,
    thumbnails: Annotated[
        bool, Query(description="Include thumbnails as data URLs, if the stream keeps them.")
    ] = False,
) -> Response:
    """List every cache entry with its label, entropy, id and sender."""
    entries = await call.wait(stream.enqueue_read(Stream.caches))

    def answer() -> Response:
        for entry in entries:
            entry["thumbnail"] = data_url(entry["thumbnail"]) if thumbnails else None
        return JSONResponse({"entries": entries})

    return await call.run(answer)


@router.get("/{name}/learnt", response_model=schemas.LearntResponse)
async def describe_learnt(stream: Managed, call: ThisCall) -> Response:
    """Describe what was learnt about each label, with caches or without them, and how much each client has taught."""
    learnt = await call.wait(stream.enqueue_read(Stream.learnt))
    return await call.run(lambda: JSONResponse(learnt))


def data_url(picture: bytes | None) -> str | None:
    """Return a JPEG file as a data URL; None if there is none."""
    return f"data:image/jpeg;base64,{b64encode(picture).decode()}" if picture else None


def _result(prediction: Prediction) -> dict[str, Any]:
    fields = prediction.to_json()
    return {name: fields[name] for name in schemas.ResultResponse.model_fields}
