"""The routes of corrections: a user gives an image its right label, and the stream uses it from then on."""

from typing import Annotated, Any

from fastapi import APIRouter, Depends, Path
from starlette.responses import JSONResponse, Response

from acclimate.methods.state import LARGEST_ID
from acclimate.serve import schemas
from acclimate.serve.bodies import described, json_body
from acclimate.serve.dependencies import Details, Managed, Sender, ThisCall, known_parameters
from acclimate.serve.routes import data_url
from acclimate.serve.stream import Stream

router = APIRouter(prefix="/v1/streams", tags=["corrections"], dependencies=[Depends(known_parameters)])


@router.post(
    "/{name}/corrections", openapi_extra=described(schemas.CorrectionRequest), response_model=schemas.CorrectedResponse
)
async def correct(
    stream: Managed,
    body: Annotated[schemas.CorrectionRequest, json_body(schemas.CorrectionRequest)],
    details: Details,
    caller: Sender,
    call: ThisCall,
) -> dict[str, Any]:
    """Correct the label of an image: one that was learnt, by its id, or one that is sent. The last one counts."""
    details |= {"id": body.id, "label": body.label}
    details["id"] = await call.wait(stream.correct(body.label, body.id, body.image, caller.name))
    return {"id": details["id"], "label": body.label}


@router.get("/{name}/corrections", response_model=schemas.CorrectionsResponse)
async def list_corrections(stream: Managed, call: ThisCall) -> Response:
    """List the corrections."""
    corrections = await call.wait(stream.enqueue_read(Stream.corrections))

    def answer() -> Response:
        listed = [{**each, "thumbnail": data_url(each["thumbnail"])} for each in corrections]
        return JSONResponse({"corrections": listed})

    return await call.run(answer)


@router.delete("/{name}/corrections/{correction}", status_code=204)
async def undo_correction(
    stream: Managed,
    correction: Annotated[int, Path(ge=0, le=LARGEST_ID)],
    details: Details,
    call: ThisCall,
) -> None:
    """Undo a correction: its image does not count for any label any more."""
    details["id"] = correction
    await call.wait(stream.enqueue(Stream.undo, correction))
