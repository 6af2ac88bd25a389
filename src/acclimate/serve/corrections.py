"""The routes of corrections: people say what an image shows, and the stream takes their word for it."""

import asyncio
from typing import Any

import anyio
from fastapi import APIRouter, Depends

from acclimate.serve import schemas
from acclimate.serve.dependencies import Details, Managed, Sender, known_parameters
from acclimate.serve.routes import data_url
from acclimate.serve.uploads import decode_image

router = APIRouter(prefix="/v1/streams", tags=["corrections"], dependencies=[Depends(known_parameters)])


@router.post("/{name}/corrections", response_model=schemas.Corrected)
async def correct(stream: Managed, body: schemas.CorrectionRequest, details: Details, caller: Sender) -> dict[str, Any]:
    """Say what an image shows: one that was learnt, by its id, or one that is sent. A second correction replaces it."""
    details |= {"id": body.id, "label": body.label}
    image = None if body.image is None else decode_image(body.image, 0)
    with anyio.fail_after(stream.limits.timeout_s):
        details["id"] = await asyncio.wrap_future(stream.correct(body.label, body.id, image, caller.name))
    return {"id": details["id"], "label": body.label}


@router.get("/{name}/corrections", response_model=schemas.Corrections)
def list_corrections(stream: Managed) -> dict[str, Any]:
    """List the corrections."""
    listed = [{**each, "thumbnail": data_url(each["thumbnail"])} for each in stream.corrections()]
    return {"corrections": listed}


@router.delete("/{name}/corrections/{correction}", status_code=204)
def undo_correction(stream: Managed, correction: int, details: Details) -> None:
    """Undo a correction: its image does not count for any label any more."""
    details["id"] = correction
    stream.undo(correction)
