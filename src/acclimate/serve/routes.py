"""The routes of streams: create, classify, manage, correct."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Depends, HTTPException, Path, Query, Request, Response
from starlette.responses import JSONResponse

from acclimate.errors import InputError, nearest
from acclimate.methods.state import LARGEST_ID
from acclimate.serve import schemas
from acclimate.serve.http_errors import ExistsError, NotFoundError
from acclimate.serve.security import Action, Caller
from acclimate.serve.storage import REQUESTED
from acclimate.serve.stream import Stream
from acclimate.serve.streams import Streams
from acclimate.serve.uploads import BINARY, BODY, JSON, RAW, described, json_body, read_images

STATE = {"content": {RAW: BINARY}}


async def known_parameters(request: Request) -> None:
    """Dependency: refuses query parameters that the route does not have."""
    known = [each.alias for each in request.scope["route"].dependant.query_params]
    for name in request.query_params:
        if name not in known:
            raise InputError(f"unknown query parameter {name[:80]!r}; {nearest(name, known)}")


def of_request(get: Callable[[Request], Any]) -> Any:
    """Dependency: something that every request has."""

    async def find(request: Request) -> Any:
        return get(request)

    return Depends(find)


router = APIRouter(prefix="/v1/streams", tags=["streams"], dependencies=[Depends(known_parameters)])
AllStreams = Annotated[Streams, of_request(lambda request: request.app.state.streams)]
Sender = Annotated[Caller, of_request(lambda request: request.state.caller)]
# What a request changes, for the logs; the route fills it in.
Details = Annotated[dict[str, Any], of_request(lambda request: request.state.details)]
StreamName = Annotated[schemas.Name, Path(description=f"Name of the stream. {schemas.NAME_RULE}")]


def authorize(caller: Caller, action: Action, stream: str) -> None:
    """Refuse a caller who may not perform this action on this stream."""
    if not caller.may(action, stream):
        raise HTTPException(403, f"the token {caller.name!r} may not {action} the stream {stream!r}.")


def stream_to(action: Action) -> Any:
    """Dependency: the stream in the path. Permission is checked first, so that names of streams are not revealed."""

    async def find(name: StreamName, streams: AllStreams, caller: Sender) -> Stream:
        authorize(caller, action, name)
        return await streams.get(name, caller.name)

    return Depends(find)


Managed = Annotated[Stream, stream_to("manage")]


async def long_answer(streams: Streams, caller: Caller, **content: Any) -> Response:
    """Return an answer as JSON, which is made in a thread as there can be much of it."""
    return await streams.pool.run(caller.name, lambda: JSONResponse(content))


@router.post(
    "", status_code=201, openapi_extra=described(schemas.StreamRequest), response_model=schemas.DescriptionResponse
)
async def create_stream(
    body: Annotated[schemas.StreamRequest, json_body(schemas.StreamRequest)],
    streams: AllStreams,
    caller: Sender,
    details: Details,
) -> dict[str, Any]:
    """Create a stream. Needs `manage`."""
    return await create_named_stream(body.name, body, streams, caller, details)


@router.put(
    "/{name}",
    name="create_stream",  # the same action in the audit log
    status_code=201,
    openapi_extra=described(schemas.NamelessStreamRequest),
    response_model=schemas.DescriptionResponse,
)
async def create_named_stream(
    name: StreamName,
    body: Annotated[schemas.NamelessStreamRequest, json_body(schemas.NamelessStreamRequest)],
    streams: AllStreams,
    caller: Sender,
    details: Details,
) -> dict[str, Any]:
    """Create a stream whose name is in the path, where a proxy in front of several services can see it.

    Needs `manage`.
    """
    details |= {"stream": name, "method": body.method, "labels": body.labels}
    authorize(caller, "manage", name)
    given = body.model_dump(exclude={"name"}, exclude_unset=True)
    if not body.labels:
        if streams.defaults is None:
            raise InputError("give the `labels` of the stream; this service was started without --labels.")
        given = {**streams.defaults, **given, "labels": streams.defaults["labels"]}
    return (await streams.create(name, client=caller.name, **given)).describe()


@router.get("", response_model=schemas.SummariesResponse)
async def list_streams(streams: AllStreams, caller: Sender) -> Response:
    """List the streams that the caller may use."""

    def answer() -> Response:
        allowed = [each for each in streams.describe() if caller.may("classify", each["name"])]
        listed = [{key: each.get(key) for key in schemas.SummaryResponse.model_fields} for each in allowed]
        defaults = streams.defaults or {"labels": []}
        setup = {key: value for key, value in defaults.items() if key in schemas.StreamSetup.model_fields}
        return JSONResponse({"streams": listed, "labels": defaults["labels"], "setup": setup})

    return await streams.pool.run(caller.name, answer)


@router.get("/{name}", response_model=schemas.DescriptionResponse)
async def describe_stream(stream: Annotated[Stream, stream_to("classify")]) -> dict[str, Any]:
    """Describe a stream: its setup, what it has learnt, and its problems, if it has any.

    Needs `classify` or `manage`.
    """
    return stream.describe()


@router.delete("/{name}", status_code=204)
async def delete_stream(name: StreamName, streams: AllStreams, caller: Sender) -> None:
    """Delete a stream, its snapshots and everything it has learnt. Needs `manage`."""
    authorize(caller, "manage", name)
    await streams.delete(name, caller.name)


@router.post("/{name}/classify", openapi_extra={"requestBody": BODY}, response_model=schemas.ClassifiedResponse)
async def classify_images(
    request: Request,
    name: StreamName,
    streams: AllStreams,
    caller: Sender,
    adapt: Annotated[bool, Query(description="Learn from these images.")] = True,
    top_k: Annotated[int, Query(ge=1, le=schemas.MAX_SETTING, description="Number of labels to return per image.")] = 5,
    unsure: Annotated[schemas.Threshold, Query()] = None,
) -> Response:
    """Classify images in order and adapt to them.

    If an image cannot be read, the whole request is refused and nothing is learnt from it.
    Needs `classify` or `manage`.
    """
    authorize(caller, "classify", name)
    images, names, options = await read_images(request, streams.limits)
    try:
        stream = await streams.get(name, caller.name)
    except NotFoundError:
        stream = await create_by_images(streams, name, images, names, caller.name)
    options = {"adapt": adapt, "top_k": top_k, "unsure": unsure} | options
    answers = await stream.classify(images, names=names, client=caller.name, **options)

    def answer() -> Response:
        found = {"stream": name, "results": [each.to_json() for each in answers]}
        return Response(schemas.ClassifiedResponse.model_validate(found).model_dump_json(), media_type=JSON)

    return await streams.pool.run(caller.name, answer)


async def create_by_images(
    streams: Streams, name: str, images: Sequence[bytes | str], names: Sequence[str], client: str
) -> Stream:
    """Create a stream with the defaults once its first images could be read; NotFoundError without defaults.

    That is found out by encoding them, without views; the stream encodes them again, as any others.
    """
    if streams.defaults is None:
        return await streams.get(name, client)
    streams.limits.check_images(len(images), streams.defaults.get("views", 1))
    try:
        streams.check_room(name, client)
        await asyncio.wrap_future(streams.batcher.submit(images, names=names, client=client))
        return await streams.create_default(name, client)
    except ExistsError:  # another request was first
        return await streams.get(name, client)


@router.post("/{name}/reset", response_model=schemas.DescriptionResponse)
async def reset_stream(stream: Managed, caller: Sender) -> dict[str, Any]:
    """Forget everything learnt; the snapshots remain. Needs `manage`."""
    await stream.reset(client=caller.name)
    return stream.describe()


@router.post(
    "/{name}/unfreeze",
    name="unfreeze_stream",
    description="Resume learning. Needs `manage`.",
    response_model=schemas.DescriptionResponse,
)
@router.post("/{name}/freeze", response_model=schemas.DescriptionResponse)
async def freeze_stream(stream: Managed, request: Request, caller: Sender, details: Details) -> dict[str, Any]:
    """Stop learning, and answer from what was learnt so far. Needs `manage`."""
    details["changed"] = await stream.set_frozen(request.scope["route"].name == "freeze_stream", client=caller.name)
    return stream.describe()


@router.get("/{name}/snapshots", response_model=dict[Literal["snapshots"], list[schemas.SnapshotResponse]])
async def list_snapshots(stream: Managed, caller: Sender) -> dict[str, Any]:
    """List the snapshots, newest first. Needs `manage`."""
    return {"snapshots": (await stream.snapshots(client=caller.name))[::-1]}


@router.post("/{name}/snapshot")
async def take_snapshot(stream: Managed, caller: Sender) -> dict[str, int]:
    """Write a snapshot of the current state, to roll back to; returns its id. Needs `manage`."""
    return {"snapshot": await stream.snapshot(f"{REQUESTED} by {caller.name}", client=caller.name)}


@router.post("/{name}/rollback", openapi_extra=described(schemas.RollbackRequest, required=False))
async def roll_back(
    stream: Managed,
    caller: Sender,
    details: Details,
    body: Annotated[schemas.RollbackRequest, json_body(schemas.RollbackRequest, required=False)],
) -> dict[str, int]:
    """Go back to a snapshot, including its labels; returns its id. Needs `manage`."""
    details["snapshot"] = await stream.rollback(body.snapshot, client=caller.name)
    return {"snapshot": details["snapshot"]}


@router.patch(
    "/{name}/labels", openapi_extra=described(schemas.LabelsRequest), response_model=schemas.DescriptionResponse
)
async def change_labels(
    stream: Managed,
    body: Annotated[schemas.LabelsRequest, json_body(schemas.LabelsRequest)],
    caller: Sender,
    details: Details,
) -> dict[str, Any]:
    """Add and remove labels; what was learnt about the others is kept. Needs `manage`."""
    details |= body.model_dump() | {"changed": bool(body.add or body.remove)}
    await stream.change_labels(body.add, body.remove, caller.name)
    return stream.describe()


@router.get("/{name}/state", response_class=Response, responses={200: STATE})
async def download_state(stream: Managed, caller: Sender) -> Response:
    """Download what was learnt as a state file, for `acclimate classify --state` and `acclimate state`.

    Needs `manage`.
    """
    return Response(
        await stream.state_bytes(client=caller.name),
        media_type=RAW,
        headers={"Content-Disposition": f'attachment; filename="{stream.name}.safetensors"'},
    )


@router.put(
    "/{name}/state",
    openapi_extra={"requestBody": {"required": True, **STATE}},
    response_model=schemas.DescriptionResponse,
)
async def upload_state(stream: Managed, request: Request, caller: Sender, details: Details) -> dict[str, Any]:
    """Continue from a state file; it must have the same model, labels, prompts, method and settings. Needs `manage`."""
    content = await request.body()
    details["bytes"] = len(content)
    await stream.continue_from(content, client=caller.name)
    return stream.describe()


@router.get("/{name}/caches", response_model=dict[Literal["entries"], list[schemas.EntryResponse]])
async def list_entries(
    stream: Managed,
    streams: AllStreams,
    caller: Sender,
    thumbnails: Annotated[
        bool, Query(description="Include thumbnails as data URLs, if the stream keeps them.")
    ] = False,
) -> Response:
    """List every cache entry with its label, entropy, id and sender. Needs `manage`."""
    return await long_answer(streams, caller, entries=await stream.caches(thumbnails, client=caller.name))


@router.get("/{name}/learnt", response_model=schemas.LearntResponse)
async def describe_learnt(stream: Managed, streams: AllStreams, caller: Sender) -> Response:
    """Describe what was learnt about each label, with caches or without them, and how much each client has taught.

    Needs `manage`.
    """
    return await long_answer(streams, caller, **await stream.learnt(client=caller.name))


@router.get("/{name}/answers", response_model=dict[Literal["answers"], list[schemas.ListedAnswerResponse]])
async def list_answers(
    stream: Managed,
    streams: AllStreams,
    caller: Sender,
    after: Annotated[int, Query(ge=-1, le=LARGEST_ID, description="Only images with a larger id.")] = -1,
    limit: Annotated[int, Query(ge=1, le=10_000, description="Largest number of answers.")] = 1000,
    newest: Annotated[bool, Query(description="The newest answers, not the first ones after the id.")] = False,
    again: Annotated[
        bool, Query(description="Answer them again from everything learnt, at most 2000 of them: a second pass.")
    ] = False,
    thumbnails: Annotated[
        bool, Query(description="Include thumbnails as data URLs, if the stream keeps them.")
    ] = False,
) -> Response:
    """List the answers that led to the current state in their order, as far back as they are kept. Needs `manage`.

    Images that were classified with `adapt=false` are not among them.
    """
    return await long_answer(
        streams, caller, answers=await stream.answers(after, limit, newest, again, thumbnails, client=caller.name)
    )


@router.post(
    "/{name}/corrections",
    openapi_extra=described(schemas.CorrectionRequest),
    response_model=schemas.CorrectionResponse,
    response_model_exclude_unset=True,
)
async def correct(
    stream: Managed,
    body: Annotated[schemas.CorrectionRequest, json_body(schemas.CorrectionRequest)],
    details: Details,
    caller: Sender,
) -> dict[str, Any]:
    """Correct the label of an image: one that was learnt, by its id, or one that is sent. The last one counts.

    Needs `manage`.
    """
    details |= {"id": body.id, "label": body.label}
    details["id"] = await stream.correct(body.label, body.id, body.image, caller.name)
    return {"id": details["id"], "label": body.label}


@router.get("/{name}/corrections", response_model=dict[Literal["corrections"], list[schemas.CorrectionResponse]])
async def list_corrections(stream: Managed, streams: AllStreams, caller: Sender) -> Response:
    """List the corrections. Needs `manage`."""
    return await long_answer(streams, caller, corrections=await stream.corrections(client=caller.name))


@router.delete("/{name}/corrections/{correction}", status_code=204)
async def undo_correction(
    stream: Managed, correction: Annotated[int, Path(ge=0, le=LARGEST_ID)], caller: Sender, details: Details
) -> None:
    """Undo a correction: its image does not count for any label any more. Needs `manage`."""
    details["id"] = correction
    await stream.undo(correction, client=caller.name)
