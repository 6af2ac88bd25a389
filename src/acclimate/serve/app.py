"""The service as an ASGI application, and the routes that belong to no stream."""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Annotated

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from pydantic.json_schema import models_json_schema
from starlette.responses import FileResponse

from acclimate import __version__
from acclimate.predict import Answer
from acclimate.serve import routes, schemas
from acclimate.serve.http_errors import CODES, HANDLERS
from acclimate.serve.logs import RequestLog
from acclimate.serve.routes import AllStreams, Sender, known_parameters
from acclimate.serve.security import AccessMiddleware, TokenFile
from acclimate.serve.streams import Streams
from acclimate.serve.uploads import TASK, read_task

ABOUT = """Image classification that adapts to the images it sees. Each stream adapts on its own.

In a service with tokens, operations on a stream say what its token must allow. The others need any token, and health
checks none.
"""
BODIES = (
    schemas.StreamRequest,
    schemas.NamelessStreamRequest,
    schemas.ImagesRequest,
    schemas.CorrectionRequest,
    schemas.LabelsRequest,
    schemas.RollbackRequest,
    schemas.TaskRequest,
)
PAGE = Path(__file__).parent / "page"

router = APIRouter(tags=["service"])


def create_app(streams: Streams, tokens: TokenFile | None = None, hosts: Collection[str] | None = None) -> FastAPI:
    """Make the application; tokens and host names are those of `AccessMiddleware`. Closes the streams at shutdown.

    An application that mounts it has to run its lifespan, `app.router.lifespan_context(app)`, which Starlette does not.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        periodic = asyncio.create_task(streams.run())
        yield
        periodic.cancel()
        await streams.close()

    app = FastAPI(
        title="acclimate",
        version=__version__,
        description=ABOUT,
        lifespan=lifespan,
        exception_handlers=HANDLERS,
        docs_url=None,  # FastAPI's own pages load scripts from other hosts
        redoc_url=None,
        responses={status: {"model": schemas.FailedResponse} for status in CODES if status not in (405, 499)},
        # The gate checks tokens before a body is read; this only tells the API documentation to ask for one.
        dependencies=[] if tokens is None else [Depends(HTTPBearer(auto_error=False))],
    )
    app.state.streams = streams
    app.state.tokens = tokens
    streams.audit.shared = tokens is None
    app.include_router(routes.router)
    app.include_router(router)
    _, bodies = models_json_schema(
        [(each, "validation") for each in BODIES], ref_template="#/components/schemas/{model}"
    )
    for model in (schemas.StreamRequest, schemas.NamelessStreamRequest):
        bodies["$defs"][model.__name__]["properties"]["method"]["enum"] = streams.methods()
    app.openapi()["components"]["schemas"] |= bodies["$defs"]  # routes read them from requests themselves
    app.mount("/page", StaticFiles(directory=PAGE, packages=[("fastapi_swagger", "resources")]))
    # The middleware that is added last sees a request first.
    app.add_middleware(AccessMiddleware, tokens=tokens, hosts=hosts, limits=streams.limits)
    app.add_middleware(RequestLog, audit=streams.audit, finished=streams.metrics.requested)
    return app


@router.post(
    "/classify",
    openapi_extra={"requestBody": TASK},
    response_model=list[Answer],
    dependencies=[Depends(known_parameters)],
)
async def run_task(
    request: Request,
    streams: AllStreams,
    caller: Sender,
    candidate_labels: Annotated[list[str] | None, Query(description="If the image is the whole body.")] = None,
    hypothesis_template: Annotated[str | None, Query(description="If the image is the whole body.")] = None,
    expand: Annotated[bool, Query(description="If the image is the whole body.")] = True,
) -> tuple[Answer, ...]:
    """Run the Hugging Face zero-shot-image-classification task; nothing is learnt."""
    given = {"candidate_labels": candidate_labels, "hypothesis_template": hypothesis_template, "expand": expand}
    image, task = await read_task(request, given)
    template = task.hypothesis_template or "This is a photo of {}."
    prediction = await streams.zero_shot(image, task.candidate_labels, template, caller.name, expand=task.expand)
    return prediction.top


@router.get("/health/live")
async def live() -> dict[str, bool]:
    """Report that the process responds."""
    return {"live": True}


@router.get("/health/ready")
async def ready(streams: AllStreams) -> dict[str, bool]:
    """Report that images are accepted, and that what is learnt can be written to the disk.

    Before the model and the streams are loaded, the service does not respond.
    """
    if why := streams.readiness():
        raise HTTPException(503, why)
    return {"ready": True}


@router.get(
    "/metrics",
    response_class=Response,
    responses={200: {"content": {"text/plain": {}}}},
    dependencies=[Depends(known_parameters)],
)
async def metrics(streams: AllStreams) -> Response:
    """Get the metrics in Prometheus' text format."""
    return Response(await streams.metrics_text(), media_type="text/plain; version=0.0.4; charset=utf-8")


@router.get("/", include_in_schema=False)
@router.get("/docs", include_in_schema=False)
async def page(request: Request) -> FileResponse:
    """Return the page, or the API documentation: Swagger UI."""
    return FileResponse(PAGE / ("docs.html" if request.scope["route"].path == "/docs" else "index.html"))
