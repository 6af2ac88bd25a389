"""The bodies of requests: received within limits, and parsed without holding up the requests of others.

What a body may cost is bounded before it is paid: `Gate` bounds its size, and here the number of values in JSON is
bounded while it is received. What is left to parse takes milliseconds, and what is large is parsed in threads.
"""

import asyncio
from collections.abc import Callable
from string import ascii_letters, digits
from typing import Any, TypeVar

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ValidationError

from acclimate.errors import InputError
from acclimate.serve.errors import QUOTED, validation_message

AnyModel = TypeVar("AnyModel", bound=BaseModel)
Parsed = TypeVar("Parsed")
JSON = "application/json"
MARKS = b',:[]{}"'  # one value of JSON has at least one of them
MOST_MARKS = 200_000  # far more than labels and settings have
BASE64 = (ascii_letters + digits + "+/=").encode()
SMALL = 64 * 2**10  # bytes that are parsed at once


async def read_body(request: Request) -> bytes:
    """The whole body; unlike `Request.body`, the request does not keep it."""
    return b"".join([part async for part in request.stream()])


async def read_json(model: type[AnyModel], request: Request, required: bool = True) -> AnyModel:
    """The body of a request as JSON of this kind; the defaults for an empty body if it is not `required`."""
    content = await _receive_json(request)

    def parse() -> AnyModel:
        try:
            return model.model_validate_json(content) if content or required else model()
        except ValidationError as error:
            raise InputError(validation_message(error)) from None

    return await run_apart(request, parse, len(content))


async def _receive_json(request: Request) -> bytes:
    """The whole body; InputError as soon as it has more than images and what JSON without images may have."""
    most = request.app.state.streams.limits.json_bytes
    parts, others, marks = [], 0, 0
    async for part in request.stream():
        rest = part.translate(None, BASE64)
        others += len(rest)
        marks += len(rest) - len(rest.translate(None, MARKS))
        if marks > MOST_MARKS:
            raise InputError(f"the JSON has more than {MOST_MARKS} quotes, commas, colons and brackets; send less.")
        if others > most:
            raise InputError(f"the JSON has more than {most} characters that are not base64; send less.")
        parts.append(part)
    return b"".join(parts)


async def run_apart(request: Request, work: Callable[[], Parsed], size: int) -> Parsed:
    """The result of parsing or writing so many bytes of a request; if they are many, in threads, in turns."""
    if size <= SMALL:
        return work()
    return await asyncio.wrap_future(request.app.state.streams.bodies.submit(request.state.caller.name, work))


def content_type(request: Request) -> str:
    """The kind of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def unsupported(kind: str, how: str) -> HTTPException:
    """The error for a body of another content type than `how` to send it."""
    return HTTPException(415, f"the content type {kind[:QUOTED] or 'none'!r} is not supported; {how}")


def json_body(model: type[AnyModel], required: bool = True) -> Any:
    """Dependency: the body as JSON of this kind; the defaults for no body if it is not `required`.

    FastAPI's own parser has no limits, and runs in the event loop.
    """

    async def read(request: Request) -> AnyModel:
        kind = content_type(request)
        if kind != JSON and (kind or required):
            raise unsupported(kind, f"send JSON with the header `Content-Type: {JSON}`.")
        return await read_json(model, request, required)

    return Depends(read)


def described(model: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """The body that `json_body` reads, for the `openapi_extra` of a route."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": reference(model)}}}}


def reference(model: type[BaseModel]) -> dict[str, str]:
    """A reference to a kind of JSON in the API documentation."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}
