"""The service as an ASGI application with its HTTP server, and the routes that belong to no stream."""

import asyncio
import signal
import socket
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from threading import Thread
from typing import Annotated, Any, cast

import uvicorn
from fastapi import APIRouter, Depends, FastAPI, HTTPException, Query, Request, Response
from fastapi.security import HTTPBearer
from fastapi.staticfiles import StaticFiles
from starlette.responses import FileResponse
from starlette.types import Scope

from acclimate import __version__
from acclimate.errors import InputError, reason
from acclimate.serve import routes, schemas
from acclimate.serve.connections import SEND_BUFFER_BYTES, Connection, Connections, ConnectionServer, Listening
from acclimate.serve.documentation import document
from acclimate.serve.http_errors import CODES, handle_errors
from acclimate.serve.logs import RequestLog, caller_fields, logger, stream_of
from acclimate.serve.routes import AllStreams, Sender, known_parameters
from acclimate.serve.security import SAFE_METHODS, AccessMiddleware, TokenFile
from acclimate.serve.stderr import log_to_stderr
from acclimate.serve.streams import Streams
from acclimate.serve.uploads import TASK, read_task

ABOUT = "Image classification that adapts to the images it sees. Each stream adapts on its own."
PAGE = Path(__file__).parent / "page"
SWAGGER_UI = ("fastapi_swagger", "resources")  # package and folder with the files of Swagger UI
TEMPLATE = "This is a photo of {}."  # the task's prompt if a request has none
METRICS_TYPE = "text/plain; version=0.0.4; charset=utf-8"
MAX_LOGGED_NAMES = 20  # names of streams in a line of the log

router = APIRouter(tags=["service"])


def create_app(streams: Streams, tokens: TokenFile | None = None, hosts: Collection[str] | None = None) -> FastAPI:
    """Make the application; tokens and host names are those of `AccessMiddleware`. Closes the streams at shutdown."""

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
        openapi_url=None,  # `document` serves it; FastAPI's own pages load scripts from other hosts
        responses={status: {"model": schemas.FailedResponse} for status in CODES if status != 405},
        # The gate checks tokens before a body is read; this only tells the API documentation to ask for one.
        dependencies=[] if tokens is None else [Depends(HTTPBearer(auto_error=False))],
    )
    app.state.streams = streams
    app.state.tokens = tokens
    app.state.connections = Connections(streams.limits)
    handle_errors(app, streams.limits.timeout_s)
    app.include_router(routes.router)
    app.include_router(router)
    document(app)
    app.mount("/page", StaticFiles(directory=PAGE, packages=[SWAGGER_UI]))
    # The middleware that is added last sees a request first.
    app.add_middleware(
        AccessMiddleware, tokens=tokens, hosts=hosts, limits=streams.limits, connections=app.state.connections
    )
    app.add_middleware(RequestLog, answering=partial(audit_request, streams), finished=streams.metrics.requested)
    return app


async def audit_request(streams: Streams, scope: Scope, status: int) -> None:
    """Write an administrative call to the audit log before it is answered: every one that may change something.

    Calls without permission are in the request log only: who may do nothing must not push anything out of this one.
    """
    caller = scope["state"]["caller"]
    route = cast(Any, scope.get("route"))
    changes = scope["method"] in getattr(route, "methods", ()) and scope["method"] not in SAFE_METHODS
    if caller is None or not changes or route.path.endswith("/classify") or status == 403 or not caller.manages:
        return
    outcome = "done" if status < 400 else scope["state"]["error"]
    fields = {"stream": stream_of(scope), **caller_fields(scope), **scope["state"]["details"]}
    fields |= {"status": status, "request_id": scope["state"]["request_id"]}
    await asyncio.to_thread(partial(streams.audit.write, route.name, caller.name, outcome, **fields))


@router.post(
    "/classify",
    openapi_extra={"requestBody": TASK},
    response_model=list[schemas.AnswerResponse],
    dependencies=[Depends(known_parameters)],
)
async def run_task(
    request: Request,
    streams: AllStreams,
    caller: Sender,
    candidate_labels: Annotated[list[str] | None, Query(description="If the image is the whole body.")] = None,
    hypothesis_template: Annotated[str | None, Query(description="If the image is the whole body.")] = None,
) -> list[dict[str, Any]]:
    """Run the Hugging Face zero-shot-image-classification task; nothing is learnt."""
    image, labels, template = await read_task(request, candidate_labels, hypothesis_template)
    prediction = await streams.zero_shot(image, labels, template or TEMPLATE, caller.name)
    return [asdict(answer) for answer in prediction.top]


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
    return Response(await streams.metrics_text(), media_type=METRICS_TYPE)


@router.get("/", include_in_schema=False)
async def page() -> FileResponse:
    """Return the page."""
    return FileResponse(PAGE / "index.html")


@router.get("/docs", include_in_schema=False)
async def documentation() -> FileResponse:
    """Return the API documentation: Swagger UI."""
    return FileResponse(PAGE / "docs.html")


def is_loopback(host: str) -> bool:
    """Return True if an address can only be reached from this machine."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


def bind(host: str, port: int) -> socket.socket:
    """Reserve a port of this machine, any free one for port 0; connections are refused until `serve` is called."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        reserved = Listening(family, kind, protocol)
    except OSError as error:
        raise InputError(f"{host} is not an address of this machine: {reason(error)}.") from error
    try:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)  # every connection inherits it
        reserved.bind(address)
    except OSError as error:
        reserved.close()
        raise InputError(f"cannot listen on {host}, port {port}: {reason(error)}; choose another.") from error
    return reserved


class Server(ConnectionServer):
    """An HTTP server that stops encoding labels as soon as it shuts down, as their number is unknown."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Finish the running requests; those that wait for their labels are refused."""
        cast(FastAPI, self.config.app).state.streams.texts.pool.stop()
        await super().shutdown(sockets)


def make_server(app: FastAPI) -> Server:
    """Make a server that has not started yet."""
    connections = app.state.connections
    config = uvicorn.Config(
        app,
        access_log=False,
        http=cast(Any, partial(Connection, connections)),
        log_config=None,
        loop="asyncio",  # others do not accept connections by `Listening`
        proxy_headers=False,  # a client could claim another address and evade a guard
        server_header=False,
        timeout_graceful_shutdown=round(app.state.streams.limits.timeout_s) + 1,
        ws="none",
    )
    return Server(config, connections)


def log_start(streams: Streams, model: str) -> None:
    """Log what the service starts with, and what an operator should know about its streams."""
    described = streams.describe()
    fields = {"version": __version__, "model": model, "streams": len(described)}
    logger.info("started", extra={"fields": fields})
    for each in described:
        if each["broken"]:
            logger.error("stream damaged", extra={"fields": {"stream": each["name"], "reason": each["broken"]}})
    if streams.defaults is not None:
        default = list(streams.defaults["labels"])
        other = [each["name"] for each in described if each.get("labels", default) != default]
        if other:
            fields = {"streams": len(other), "names": other[:MAX_LOGGED_NAMES]}
            logger.warning("streams keep labels that differ from --labels", extra={"fields": fields})


def log_stop(streams: Streams) -> None:
    """Log whether everything that was learnt is on the disk."""
    if streams.unsaved:
        problems = dict(list(streams.unsaved.items())[:MAX_LOGGED_NAMES])
        fields = {"streams": len(streams.unsaved), "reasons": problems}
        logger.error("stopped; not all states could be saved", extra={"fields": fields})
    else:
        logger.info("stopped; all states are saved")


def reload_tokens(streams: Streams, tokens: TokenFile) -> None:
    """Read the token file again; one that cannot be used changes nothing, and the log says why."""
    try:
        tokens.reload()
    except InputError as error:
        logger.error("token file not reloaded", extra={"fields": {"reason": str(error)}})
        streams.audit.write("reload_tokens", "SIGHUP", "invalid", reason=str(error))
        return
    logger.info("token file reloaded", extra={"fields": {"tokens": len(tokens.tokens)}})
    names = [caller.name for caller in tokens.tokens.values()]
    streams.audit.write("reload_tokens", "SIGHUP", "done", names=names)


def serve(app: FastAPI, listening: socket.socket, model: str) -> None:
    """Serve until SIGINT or SIGTERM; then finish the running requests and write the state of every stream.

    SIGHUP reads the token file again. `model` is the name of the model, for the log.
    """
    streams = app.state.streams
    tokens = app.state.tokens
    server = make_server(app)
    for number in (signal.SIGINT, signal.SIGTERM):  # needed until uvicorn sets handlers of its own
        signal.signal(number, lambda *_: setattr(server, "should_exit", True))
    with log_to_stderr(streams.limits.log_lines):
        log_start(streams, model)
        streams.batcher.warm_up()
        if tokens is not None and hasattr(signal, "SIGHUP"):
            # In a thread: a handler must not wait for a lock that the interrupted code holds.
            signal.signal(signal.SIGHUP, lambda *_: Thread(target=reload_tokens, args=(streams, tokens)).start())
        server.run([listening])
        asyncio.run(streams.close())  # once more: uvicorn does not shut down what it has not quite started
        log_stop(streams)
