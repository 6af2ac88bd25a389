"""Routes beside the streams: the Hugging Face task, health, metrics, Open Inference Protocol, page, API documents."""

import asyncio
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from fastapi import APIRouter, HTTPException, Request, Response
from starlette.responses import FileResponse, HTMLResponse

from acclimate import __version__
from acclimate.serve import schemas
from acclimate.serve.reference import render
from acclimate.serve.service import StreamName, TheService, may
from acclimate.serve.uploads import decode_image

router = APIRouter()
PAGE = Path(__file__).parent / "page"
TEMPLATE = "This is a photo of {}."  # what the task says when a request does not
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"


@router.post("/classify", response_model=list[schemas.Answer])
async def run_task(asked: schemas.TaskRequest, service: TheService) -> list[dict[str, Any]]:
    """Answer the Hugging Face zero-shot-image-classification task; nothing is learnt."""
    labels, template = asked.parameters.candidate_labels, asked.parameters.hypothesis_template
    image = decode_image(asked.inputs, 0)
    with anyio.fail_after(service.limits.timeout_s), service.metrics.count_unreadable():
        asking = await asyncio.to_thread(service.streams.zero_shot, [image], labels, template or TEMPLATE, len(labels))
        (prediction,) = await asyncio.wrap_future(asking)
    service.metrics.answered([prediction.entropy], len(labels))
    return [asdict(answer) for answer in prediction.top]


@router.get("/health/live")
@router.get("/v2/health/live", include_in_schema=False)
async def live() -> dict[str, bool]:
    """Say that the process answers."""
    return {"live": True}


@router.get("/health/ready")
@router.get("/v2/health/ready", include_in_schema=False)
async def ready(service: TheService) -> dict[str, bool]:
    """Say that images are taken; before the model and the streams are loaded, nothing answers here."""
    if service.streams.batcher.waiting >= service.limits.queue:
        raise HTTPException(503, "as many images are waiting as can wait; try again in a moment.")
    return {"ready": True}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(service: TheService) -> Response:
    """Give Prometheus what was counted."""
    return Response(service.metrics.text(), media_type=METRICS_TYPE)


@router.get("/v2")
async def server_metadata() -> dict[str, Any]:
    """Describe the server, as the Open Inference Protocol asks."""
    return {"name": "acclimate", "version": __version__, "extensions": []}


@router.get("/v2/models/{name}", dependencies=[may("classify")])
def model_metadata(name: StreamName, service: TheService) -> dict[str, Any]:
    """Describe a stream as a model of the Open Inference Protocol."""
    method = service.streams.get(name).describe()["method"]
    return {
        "name": name,
        "versions": [],
        "platform": f"acclimate_{method}",
        "inputs": [{"name": "image", "datatype": "BYTES", "shape": [-1]}],
        "outputs": [
            {"name": "label", "datatype": "BYTES", "shape": [-1]},
            {"name": "score", "datatype": "FP32", "shape": [-1]},
        ],
    }


@router.get("/v2/models/{name}/ready", dependencies=[may("classify")])
def model_ready(name: StreamName, service: TheService) -> dict[str, Any]:
    """Say that a stream answers."""
    service.streams.get(name)
    return {"name": name, "ready": True}


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Show the page."""
    return FileResponse(PAGE / "index.html")


@router.get("/docs", include_in_schema=False)
async def api_documents(request: Request) -> HTMLResponse:
    """Show the API documents."""
    return HTMLResponse(render(request.app.openapi()))
