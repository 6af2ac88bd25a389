"""The routes of corrections: people say what an image shows, and the stream takes their word for it."""

import asyncio
from typing import Annotated, Any

import anyio
from fastapi import APIRouter, Depends, Path

from acclimate.serve import schemas
from acclimate.serve.bodies import described, json_body
from acclimate.serve.dependencies import Details, Managed, known_parameters
from acclimate.serve.routes import data_url

router = APIRouter(prefix="/v1/streams", tags=["corrections"], dependencies=[Depends(known_parameters)])


@router.post(
    "/{name}/corrections", openapi_extra=described(schemas.CorrectionRequest), response_model=schemas.Corrected
)
async def correct(
    stream: Managed,
    body: Annotated[schemas.CorrectionRequest, json_body(schemas.CorrectionRequest)],
    details: Details,
) -> dict[str, Any]:
    """Say what an image shows: one that was learnt, by its id, or one that is sent. A second correction replaces it."""
    details |= {"id": body.id, "label": body.label}
    with anyio.fail_after(stream.limits.timeout_s):
        details["id"] = await asyncio.wrap_future(stream.correct(body.label, body.id, body.image))
    return {"id": details["id"], "label": body.label}


@router.get("/{name}/corrections", response_model=schemas.Corrections)
def list_corrections(stream: Managed) -> dict[str, Any]:
    """List the corrections."""
    listed = [{**each, "thumbnail": data_url(each["thumbnail"])} for each in stream.corrections()]
    return {"corrections": listed}


@router.delete("/{name}/corrections/{correction}", status_code=204)
def undo_correction(
    stream: Managed, correction: Annotated[int, Path(ge=0, le=schemas.LARGEST_ID)], details: Details
) -> None:
    """Undo a correction: its image does not count for any label any more."""
    details["id"] = correction
    stream.undo(correction)
