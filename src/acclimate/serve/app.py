"""The service as an ASGI application with its HTTP server, and the routes that belong to no stream."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict
from ipaddress import ip_address
from pathlib import Path
from typing import Any

import anyio
import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse

from acclimate import __version__
from acclimate.errors import InputError, reason
from acclimate.serve import routes, schemas
from acclimate.serve.errors import CODES, handle_errors
from acclimate.serve.logs import RequestLog, log_to_stderr, logger
from acclimate.serve.routes import AllStreams, decode_image
from acclimate.serve.security import Gate, Tokens
from acclimate.serve.streams import Streams

ABOUT = "Image classification that adapts to the images it sees. Each stream adapts on its own."
PAGE = Path(__file__).parent / "page"
SWAGGER_UI = ("fastapi_swagger", "resources")  # package and folder with the files of Swagger UI
TEMPLATE = "This is a photo of {}."  # the task's prompt if a request has none
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
CONNECTIONS = 512  # at the same time; leaves file handles for writing states

router = APIRouter()


def create_app(streams: Streams, tokens: Tokens | None = None, hosts: Collection[str] | None = None) -> FastAPI:
    """Make the application, with tokens and host names as for `Gate`; the streams are closed when it shuts down."""

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
    return app


@router.post("/classify", response_model=list[schemas.Answer])
async def run_task(body: schemas.TaskRequest, streams: AllStreams) -> list[dict[str, Any]]:
    """Run the Hugging Face zero-shot-image-classification task; nothing is learnt."""
    labels, template = body.parameters.candidate_labels, body.parameters.hypothesis_template
    image = decode_image(body.inputs, 0)
    with anyio.fail_after(streams.limits.timeout_s):
        prediction = await streams.zero_shot(image, labels, template or TEMPLATE)
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


def is_loopback(host: str) -> bool:
    """Whether an address can only be reached from this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Reserve a port of this machine, any free one for port 0; connections are refused until `serve` is called."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        reserved = socket.socket(family, kind, protocol)
    except OSError as error:
        raise InputError(f"{host} is not an address of this machine: {reason(error)}.") from error
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        raise InputError(f"cannot listen on {host}, port {port}: {reason(error)}; choose another.") from error
    return reserved


def make_server(app: FastAPI) -> uvicorn.Server:
    """A server that has not started yet."""
    config = uvicorn.Config(
        app,
        access_log=False,
        limit_concurrency=CONNECTIONS,
        log_config=None,
        proxy_headers=False,  # a client could claim another address and evade a guard
        server_header=False,
        timeout_graceful_shutdown=round(app.state.streams.limits.timeout_s) + 1,
        ws="none",
    )
    return uvicorn.Server(config)


def serve(app: FastAPI, listening: socket.socket) -> None:
    """Serve until SIGINT or SIGTERM; then finish the running requests and write the state of every stream."""
    log_to_stderr()
    for each in app.state.streams.describe():
        if each["broken"]:
            logger.error("stream damaged", extra={"fields": {"stream": each["name"], "reason": each["broken"]}})
    for number in (signal.SIGINT, signal.SIGTERM):  # uvicorn raises a signal again after it has handled it
        signal.signal(number, lambda *_: None)
    make_server(app).run([listening])
    logger.info("stopped; all states are saved")
