"""Routes of streams: create, classify, manage."""

import asyncio
from base64 import b64encode
from dataclasses import asdict
from math import isfinite
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Body, Query, Request, Response
from starlette.responses import JSONResponse

from acclimate.errors import InputError
from acclimate.serve import schemas
from acclimate.serve.guard import GuardRules
from acclimate.serve.service import StreamName, TheCaller, TheService, forbid, may
from acclimate.serve.stream import Answered
from acclimate.serve.uploads import read_upload

router = APIRouter(prefix="/v1/streams", tags=["streams"])
classifying, managing = [may("classify")], [may("manage")]
STATE_TYPE = "application/octet-stream"
IMAGES_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["image"],
                    "properties": {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}},
                }
            },
            "application/json": {"schema": schemas.ImagesRequest.model_json_schema()},
        },
    }
}
STATE_SCHEMA = {"schema": {"type": "string", "format": "binary"}}
STATE_BODY = {"requestBody": {"required": True, "content": {STATE_TYPE: STATE_SCHEMA}}}


@router.post("", status_code=201, response_model=schemas.Description)
def create_stream(asked: schemas.StreamRequest, service: TheService, caller: TheCaller) -> dict[str, Any]:
    """Create a stream."""
    forbid(caller, "manage", asked.name)
    guard = None if asked.guard is None else GuardRules(**asked.guard.model_dump())
    fields = asked.model_dump(exclude={"guard"})
    return service.streams.create(**fields, guard=guard).describe()


@router.get("", response_model=schemas.Summaries)
def list_streams(service: TheService, caller: TheCaller) -> dict[str, Any]:
    """List the streams the caller may use."""
    mine = [each for each in service.streams.describe() if caller.may("classify", each["name"])]
    return {"streams": [{key: each.get(key) for key in schemas.Summary.model_fields} for each in mine]}


@router.get("/{name}", dependencies=classifying, response_model=schemas.Description)
def describe_stream(name: StreamName, service: TheService) -> dict[str, Any]:
    """Describe a stream: what it is, what it has learnt, and what is wrong with it, if anything is."""
    return service.streams.get(name).describe()


@router.delete("/{name}", dependencies=managing, status_code=204)
def delete_stream(name: StreamName, service: TheService) -> None:
    """Delete a stream, its snapshots and all it has learnt."""
    service.streams.delete(name)


@router.post("/{name}/classify", dependencies=classifying, openapi_extra=IMAGES_BODY, response_model=schemas.Classified)
async def classify_images(
    request: Request,
    name: StreamName,
    service: TheService,
    caller: TheCaller,
    adapt: Annotated[bool, Query(description="Learn from these images.")] = True,
    top_k: Annotated[int, Query(ge=1, description="Labels to name for each image.")] = 5,
) -> Response:
    """Classify images in order and adapt to them.

    If one of them cannot be read, the answer is an error and none of them is learnt from.
    """
    upload = await read_upload(request, service.limits)
    stream = await service.stream(name)
    with anyio.fail_after(service.limits.timeout_s), service.metrics.count_unreadable():
        asking = stream.classify(
            upload.images,
            adapt=adapt if upload.adapt is None else upload.adapt,
            top_k=upload.top_k or top_k,
            client=caller.name,
        )
        answers = await asyncio.wrap_future(asking)
    service.metrics.answered([each.prediction.entropy for each in answers], len(stream.labels))
    return JSONResponse({"stream": name, "results": [_result(each) for each in answers]})


@router.post("/{name}/reset", dependencies=managing, response_model=schemas.Description)
def reset_stream(name: StreamName, service: TheService) -> dict[str, Any]:
    """Forget everything learnt; the snapshots stay."""
    stream = service.streams.get(name)
    stream.reset()
    return stream.describe()


@router.post("/{name}/freeze", dependencies=managing, response_model=schemas.Description)
def freeze_stream(name: StreamName, service: TheService) -> dict[str, Any]:
    """Answer from what was learnt so far, and learn nothing more."""
    stream = service.streams.get(name)
    stream.freeze()
    return stream.describe()


@router.post("/{name}/unfreeze", dependencies=managing, response_model=schemas.Description)
def unfreeze_stream(name: StreamName, service: TheService) -> dict[str, Any]:
    """Learn again."""
    stream = service.streams.get(name)
    stream.unfreeze()
    return stream.describe()


@router.get("/{name}/snapshots", dependencies=managing, response_model=schemas.Snapshots)
def list_snapshots(name: StreamName, service: TheService) -> dict[str, Any]:
    """List the snapshots to roll back to, newest first."""
    return {"snapshots": service.streams.get(name).snapshots()[::-1]}


@router.post("/{name}/snapshot", dependencies=managing, response_model=schemas.SnapshotId)
def take_snapshot(name: StreamName, service: TheService) -> dict[str, int]:
    """Keep the state as it is now, to roll back to."""
    return {"snapshot": service.streams.get(name).snapshot()}


@router.post("/{name}/rollback", dependencies=managing, response_model=schemas.SnapshotId)
def roll_back(
    name: StreamName, service: TheService, asked: Annotated[schemas.RollbackRequest | None, Body()] = None
) -> dict[str, int]:
    """Go back to a snapshot, labels included."""
    return {"snapshot": service.streams.get(name).rollback(None if asked is None else asked.snapshot)}


@router.patch("/{name}/labels", dependencies=managing, response_model=schemas.Description)
def change_labels(name: StreamName, asked: schemas.LabelsRequest, service: TheService) -> dict[str, Any]:
    """Add and remove labels; what was learnt of the others stays."""
    stream = service.streams.get(name)
    stream.change_labels(asked.add, asked.remove)
    return stream.describe()


@router.get(
    "/{name}/state",
    dependencies=managing,
    response_class=Response,
    responses={200: {"content": {STATE_TYPE: STATE_SCHEMA}}},
)
def download_state(name: StreamName, service: TheService) -> Response:
    """Download what was learnt as a state file, which `acclimate classify --state` and `acclimate state` read."""
    content = service.streams.get(name).state_bytes()
    return Response(
        content, media_type=STATE_TYPE, headers={"Content-Disposition": f'attachment; filename="{name}.safetensors"'}
    )


@router.put("/{name}/state", dependencies=managing, openapi_extra=STATE_BODY, response_model=schemas.Description)
async def upload_state(request: Request, name: StreamName, service: TheService) -> dict[str, Any]:
    """Go on from a state file; one of other labels, prompts, settings or another model is refused."""
    stream = service.streams.get(name)
    content = await request.body()
    await asyncio.to_thread(stream.load_state, content)
    return stream.describe()


@router.get("/{name}/caches", dependencies=managing, response_model=schemas.Entries)
def list_entries(
    name: StreamName,
    service: TheService,
    thumbnails: Annotated[bool, Query(description="With pictures as data: addresses, where they are kept.")] = False,
) -> dict[str, Any]:
    """List what was learnt: every cache entry with its label, entropy, id, and who sent it."""
    entries = service.streams.get(name).caches()
    for entry in entries:
        entry["thumbnail"] = _address(entry["thumbnail"]) if thumbnails else None
    return {"entries": entries}


def _address(picture: bytes | None) -> str | None:
    return None if picture is None else f"data:image/jpeg;base64,{b64encode(picture).decode()}"


def _result(answered: Answered) -> dict[str, Any]:
    prediction = answered.prediction
    if not isfinite(prediction.score):
        raise InputError("the settings of this stream lead to answers that are no numbers; make one with others.")
    return {
        "id": answered.id,
        "predictions": [asdict(answer) for answer in prediction.top],
        "zero_shot": asdict(prediction.zero_shot),
        "entropy": prediction.entropy,
        "changed": prediction.changed,
        "admitted": list(answered.admitted),
        "refused": answered.refused,
    }
