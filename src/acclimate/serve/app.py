"""The service as an ASGI application."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fastapi import FastAPI
from fastapi.staticfiles import StaticFiles

from acclimate import __version__
from acclimate.serve import routes_service, routes_streams
from acclimate.serve.failures import answer_failures
from acclimate.serve.logs import RequestLog
from acclimate.serve.schemas import Failed
from acclimate.serve.security import Gate, SecurityHeaders
from acclimate.serve.service import Service

ABOUT = "Image classification that adapts itself to the images it is shown, each stream for itself."
FAILURES = (400, 401, 403, 404, 408, 409, 413, 415, 422, 429, 500, 503, 504)


def create_app(service: Service) -> FastAPI:
    """Put routes, errors and what stands before them together; streams are closed when the app shuts down."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.streams.close)

    app = FastAPI(
        title="acclimate",
        version=__version__,
        description=ABOUT,
        lifespan=lifespan,
        docs_url=None,  # both would load scripts from elsewhere
        redoc_url=None,
        responses={status: {"model": Failed} for status in FAILURES},
    )
    app.state.service = service
    service.metrics.count_entries(service.streams.entries)
    answer_failures(app, service.limits.timeout_s)
    app.include_router(routes_streams.router)
    app.include_router(routes_service.router)
    app.mount("/page", StaticFiles(directory=routes_service.PAGE))
    # The last one added is the first to see a request.
    app.add_middleware(Gate, tokens=service.tokens, hosts=service.hosts, limits=service.limits)
    app.add_middleware(RequestLog, finished=service.metrics.requested)
    app.add_middleware(SecurityHeaders)
    return app
