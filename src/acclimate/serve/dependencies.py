"""What the routes ask of a request: its streams, its sender and what that may do, its parameters."""

from typing import Annotated, Any

from fastapi import Depends, HTTPException, Path, Request

from acclimate.errors import InputError, nearest
from acclimate.serve import schemas
from acclimate.serve.security import Action, Caller
from acclimate.serve.stream import Stream
from acclimate.serve.streams import Streams


async def streams_of(request: Request) -> Streams:
    """Dependency: the streams of the service that received this request."""
    streams: Streams = request.app.state.streams
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


AllStreams = Annotated[Streams, Depends(streams_of)]
Sender = Annotated[Caller, Depends(caller_of)]
Details = Annotated[dict[str, Any], Depends(details_of)]
StreamName = Annotated[str, Path(pattern=schemas.NAME_PATTERN, description=f"Name of the stream. {schemas.NAME_RULE}")]


def authorize(caller: Caller, action: Action, stream: str) -> None:
    """Refuse a caller who may not perform this action on this stream."""
    if not caller.may(action, stream):
        raise HTTPException(403, f"the token {caller.name!r} may not {action} the stream {stream!r}.")


def stream_to(action: Action) -> Any:
    """Dependency: the stream in the path. Permission is checked first, so that names of streams are not revealed."""

    async def find(name: StreamName, streams: AllStreams, caller: Sender) -> Stream:
        authorize(caller, action, name)
        return streams.get(name)

    return Depends(find)


Readable = Annotated[Stream, stream_to("classify")]
Managed = Annotated[Stream, stream_to("manage")]
