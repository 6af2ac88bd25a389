"""FastAPI dependencies: stream lookup, caller, authorisation, query parameters, timeouts."""

import asyncio
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from typing import Annotated, Any, TypeVar

from fastapi import Depends, HTTPException, Path, Request
from starlette.requests import ClientDisconnect

from acclimate.errors import InputError, nearest
from acclimate.serve import schemas
from acclimate.serve.interfaces import AnyStream
from acclimate.serve.pools import FairPool
from acclimate.serve.security import Action, Caller
from acclimate.serve.service import Service

Result = TypeVar("Result")


async def streams_of(request: Request) -> Service:
    """Dependency: the streams of the service that received this request."""
    streams: Service = request.app.state.streams
    return streams


async def caller_of(request: Request) -> Caller:
    """Dependency: the sender of this request."""
    caller: Caller = request.state.caller
    return caller


async def details_of(request: Request) -> dict[str, Any]:
    """Dependency: what a request changes, for the logs; the route fills it in."""
    details: dict[str, Any] = request.state.details
    return details


async def known_parameters(request: Request) -> None:
    """Dependency: refuses query parameters that the route does not have."""
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = [each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"]
    for name in request.query_params:
        if name not in known:
            what = nearest(name, known) if known else "this route has none."
            raise InputError(f"unknown query parameter {name[:80]!r}; {what}")


AllStreams = Annotated[Service, Depends(streams_of)]
Sender = Annotated[Caller, Depends(caller_of)]
Details = Annotated[dict[str, Any], Depends(details_of)]
StreamName = Annotated[str, Path(pattern=schemas.NAME_PATTERN, description=f"Name of the stream. {schemas.NAME_RULE}")]


class Call:
    """The work of one request: awaited until it is done, the request times out, or its sender disconnects.

    Work that is no longer awaited is cancelled, unless it has begun. The time starts with the first work.
    """

    def __init__(self, request: Request, streams: Service, client: str) -> None:
        self._request = request
        self._streams = streams
        self._client = client
        self._deadline: float | None = None

    async def run(self, work: Callable[[], Result], pool: FairPool | None = None) -> Result:
        """Run work that may block in a thread for calls; BusyError if too many are waiting."""
        return await self.wait((pool or self._streams.calls).submit(self._client, work))

    async def wait(self, work: "Future[Result]") -> Result:
        """Wait for the result of work that was begun elsewhere."""
        limit = self._streams.limits.timeout_s
        now = asyncio.get_running_loop().time
        self._deadline = self._deadline or now() + limit
        waiting = asyncio.wrap_future(work)
        waiting.add_done_callback(lambda done: done.cancelled() or done.exception())  # it may come too late
        gone = asyncio.create_task(self._gone())
        try:
            for first in ((waiting, gone), (waiting,)):
                await asyncio.wait(first, timeout=self._deadline - now(), return_when=asyncio.FIRST_COMPLETED)
                if waiting.done():
                    return waiting.result()
                if gone.done() and work.cancel():
                    raise ClientDisconnect
            begun = not work.cancel()
            what = "it has begun and may still be done: look first." if begun else "nothing was done. Try again later."
            raise TimeoutError(f"no answer within {limit:g} s; {what}")
        finally:
            gone.cancel()
            work.cancel()  # this request itself was cancelled

    async def _gone(self) -> None:
        """Return when the client has disconnected."""
        with suppress(HTTPException):  # a body that nobody reads is too large, or too slow
            while (await self._request.receive())["type"] != "http.disconnect":
                pass
            return
        await asyncio.Event().wait()


async def call_of(request: Request, streams: AllStreams, caller: Sender) -> Call:
    """Dependency: has the work of this request done."""
    return Call(request, streams, caller.name)


def authorize(caller: Caller, action: Action, stream: str) -> None:
    """Refuse a caller who may not perform this action on this stream."""
    if not caller.may(action, stream):
        raise HTTPException(403, f"the token {caller.name!r} may not {action} the stream {stream!r}.")


def stream_to(action: Action) -> Any:
    """Dependency: the stream in the path. Permission is checked first, so that names of streams are not revealed."""

    async def find(name: StreamName, streams: AllStreams, caller: Sender) -> AnyStream:
        authorize(caller, action, name)
        return streams.get(name)

    return Depends(find)


ThisCall = Annotated[Call, Depends(call_of)]
Readable = Annotated[AnyStream, stream_to("classify")]
Managed = Annotated[AnyStream, stream_to("manage")]
