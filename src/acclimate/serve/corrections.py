"""The routes of corrections: people say what an image shows, and the stream takes their word for it."""

from typing import Any

from fastapi import APIRouter, Depends
from starlette.responses import JSONResponse, Response

from acclimate.serve import schemas
from acclimate.serve.dependencies import Details, Managed, Sender, ThisCall, known_parameters
from acclimate.serve.routes import data_url
from acclimate.serve.stream import Stream
from acclimate.serve.uploads import decode_image

router = APIRouter(prefix="/v1/streams", tags=["corrections"], dependencies=[Depends(known_parameters)])


@router.post("/{name}/corrections", response_model=schemas.Corrected)
async def correct(
    stream: Managed, body: schemas.CorrectionRequest, details: Details, caller: Sender, call: ThisCall
) -> dict[str, Any]:
    """Say what an image shows: one that was learnt, by its id, or one that is sent. A second correction replaces it."""
    details |= {"id": body.id, "label": body.label}
    image = None if body.image is None else decode_image(body.image, 0)
    details["id"] = await call.wait(stream.correct(body.label, body.id, image, caller.name))
    return {"id": details["id"], "label": body.label}


@router.get("/{name}/corrections", response_model=schemas.Corrections)
async def list_corrections(stream: Managed, call: ThisCall) -> Response:
    """List the corrections."""

    def answer() -> Response:
        listed = [{**each, "thumbnail": data_url(each["thumbnail"])} for each in stream.corrections()]
        return JSONResponse({"corrections": listed})

    return await call.run(answer)


@router.delete("/{name}/corrections/{correction}", status_code=204)
async def undo_correction(stream: Managed, correction: int, details: Details, call: ThisCall) -> None:
    """Undo a correction: its image does not count for any label any more."""
    details["id"] = correction
    await call.wait(stream.later(Stream.undo, correction))
