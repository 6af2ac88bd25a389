"""The service as an ASGI application: middleware, errors, and the routes that belong to no stream."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import anyio
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse

from acclimate import __version__
from acclimate.serve import routes, schemas
from acclimate.serve.auth import Tokens
from acclimate.serve.errors import CODES, handle_errors
from acclimate.serve.logs import RequestLog
from acclimate.serve.routes import AllStreams
from acclimate.serve.security import Gate, SecurityHeaders
from acclimate.serve.streams import Streams
from acclimate.serve.uploads import decode_image

ABOUT = "Image classification that adapts to the images it sees. Each stream adapts on its own."
PAGE = Path(__file__).parent / "page"
SWAGGER_UI = ("fastapi_swagger", "resources")  # package and folder with the files of Swagger UI
TEMPLATE = "This is a photo of {}."  # the task's prompt if a request has none
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"

router = APIRouter()


def create_app(streams: Streams, tokens: Tokens | None = None, hosts: Collection[str] | None = None) -> FastAPI:
    """Make the application; the streams are closed when it shuts down.

    Args:
        streams: what to serve.
        tokens: the tokens of the service; None to accept everybody.
        hosts: host names that requests may be sent to; None for any.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(streams.close)

    app = FastAPI(
        title="acclimate",
        version=__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load scripts from other hosts
        redoc_url=None,
        responses={status: {"model": schemas.Failed} for status in CODES if status != 405},
        # The gate checks tokens before a body is read; this only tells the API documentation to ask for one.
        dependencies=[] if tokens is None else [Depends(HTTPBearer(auto_error=False))],
    )
    app.state.streams = streams
    handle_errors(app, streams.limits.timeout_s)
    app.include_router(routes.router)
    app.include_router(router)
    app.mount("/page", StaticFiles(directory=PAGE, packages=[SWAGGER_UI]))
    # The middleware that is added last sees a request first.
    app.add_middleware(Gate, tokens=tokens, hosts=hosts, limits=streams.limits)
    app.add_middleware(RequestLog, finished=streams.metrics.requested)
    app.add_middleware(SecurityHeaders)
    return app


@router.post("/classify", response_model=list[schemas.Answer])
async def run_task(body: schemas.TaskRequest, streams: AllStreams) -> list[dict[str, Any]]:
    """Run the Hugging Face zero-shot-image-classification task; nothing is learnt."""
    labels, template = body.parameters.candidate_labels, body.parameters.hypothesis_template
    image = decode_image(body.inputs, 0)
    with anyio.fail_after(streams.limits.timeout_s):
        asking = await asyncio.to_thread(streams.zero_shot, [image], labels, template or TEMPLATE, len(labels))
        (prediction,) = await asyncio.wrap_future(asking)
    return [asdict(answer) for answer in prediction.top]


@router.get("/health/live")
async def live() -> dict[str, bool]:
    """Report that the process responds."""
    return {"live": True}


@router.get("/health/ready")
async def ready(streams: AllStreams) -> dict[str, bool]:
    """Report that images are accepted. Before the model and the streams are loaded, the service does not respond."""
    if streams.batcher.waiting >= streams.limits.queue:
        raise HTTPException(503, "the queue is full; try again in a moment.")
    return {"ready": True}


@router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
def metrics(streams: AllStreams) -> Response:
    """Get the metrics in Prometheus' text format."""
    return Response(streams.metrics.text(streams.entries()), media_type=METRICS_TYPE)


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """The page."""
    return FileResponse(PAGE / "index.html")


@router.get("/docs", include_in_schema=False)
async def documentation() -> FileResponse:
    """The API documentation: Swagger UI."""
    return FileResponse(PAGE / "docs.html")
