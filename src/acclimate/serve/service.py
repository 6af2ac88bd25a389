"""What the routes share: the streams, the limits, the metrics, and how a stream that is not there comes to be."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from fastapi import Depends, HTTPException, Path, Request

from acclimate.errors import ExistsError, NotFoundError
from acclimate.serve.auth import Action, Caller, Tokens
from acclimate.serve.limits import Limits
from acclimate.serve.metrics import Metrics
from acclimate.serve.schemas import NAME_PATTERN
from acclimate.serve.stream import Stream
from acclimate.serve.streams import Streams


@dataclass
class Service:
    """A running service.

    Attributes:
        streams: all of them; closed with the service.
        metrics: what is counted.
        tokens: who may come in; None for everybody.
        hosts: names the service may be called by; None for any.
        defaults: with what a stream is created when images come for one that does not exist (arguments of
            `Streams.create`); None to refuse them.
    """

    streams: Streams
    metrics: Metrics = field(default_factory=Metrics)
    tokens: Tokens | None = None
    hosts: frozenset[str] | None = None
    defaults: Mapping[str, Any] | None = None

    @property
    def limits(self) -> Limits:
        """Bounds on what is taken."""
        return self.streams.limits

    async def stream(self, name: str) -> Stream:
        """The stream of that name, created if need be."""
        try:
            return self.streams.get(name)
        except NotFoundError:
            if self.defaults is None:
                raise
        try:
            return await asyncio.to_thread(self.streams.create, name, **self.defaults)
        except ExistsError:  # another request was first
            return self.streams.get(name)


async def service_of(request: Request) -> Service:
    """Dependency: the service that got this request."""
    service: Service = request.app.state.service
    return service


async def caller_of(request: Request) -> Caller:
    """Dependency: who sent this request."""
    caller: Caller = request.state.caller
    return caller


TheService = Annotated[Service, Depends(service_of)]
TheCaller = Annotated[Caller, Depends(caller_of)]
StreamName = Annotated[str, Path(pattern=NAME_PATTERN, description="Name of the stream.")]


def forbid(caller: Caller, action: Action, stream: str) -> None:
    """Refuse a caller who may not do that to that stream."""
    if not caller.may(action, stream):
        raise HTTPException(403, f"the token {caller.name!r} may not {action} the stream {stream!r}.")


def may(action: Action) -> Any:
    """Dependency: the caller may do that to the stream in the path. It is asked before whether there is one."""

    async def check(name: StreamName, caller: TheCaller) -> None:
        forbid(caller, action, name)

    return Depends(check)
