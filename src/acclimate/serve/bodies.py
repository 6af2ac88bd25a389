"""The bodies of requests: received within limits, and parsed without holding up the requests of others.

The cost of a body is bounded before it is parsed: `AccessMiddleware` bounds its size, and here the number of values in
JSON is bounded while it is received. What is left to parse takes milliseconds; large bodies are parsed in threads, in
less than 50 ms, as all other threads wait meanwhile.
"""

from collections.abc import Callable
from io import BytesIO
from string import ascii_letters, digits
from typing import Any, TypeVar

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ValidationError

from acclimate.errors import InputError
from acclimate.serve.http_errors import MAX_QUOTED_CHARS, validation_message
from acclimate.serve.limits import Limits

AnyModel = TypeVar("AnyModel", bound=BaseModel)
Parsed = TypeVar("Parsed")
JSON = "application/json"
MARKS = b',:[]{}"'  # one value of JSON has at least one of them
MAX_ESCAPED_BYTES = 24 * 2**20  # bodies with backslashes are smaller: parsing copies their texts
BASE64 = (ascii_letters + digits + "+/=").encode()
INLINE_BYTES = 64 * 2**10  # smaller bodies are parsed without a thread


async def read_body(request: Request) -> bytes:
    """Read the whole body; unlike `Request.body`, the request does not keep it."""
    body = BytesIO()  # gives what it holds without a copy
    async for part in request.stream():
        body.write(part)
    return body.getvalue()


async def read_json(model: type[AnyModel], request: Request, required: bool = True) -> AnyModel:
    """Read the body of a request as JSON of this kind; the defaults for an empty body if it is not `required`."""
    meter = JsonMeter(request.app.state.streams.limits)
    body = BytesIO()
    async for part in request.stream():
        meter.add(part)
        body.write(part)
    content = body.getvalue()

    def parse() -> AnyModel:
        return parse_json(model, content) if content or required else model()

    return await run_apart(request, parse, len(content))


class JsonMeter:
    """Counter that refuses JSON, while it is received, with more than images and what JSON without images may have."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self._size = self._others = self._marks = 0
        self._escaped = False

    def add(self, part: bytes) -> None:
        """Count a part; InputError if it is one too many."""
        rest = part.translate(None, BASE64)
        self._size += len(part)
        self._others += len(rest)
        self._marks += len(rest) - len(rest.translate(None, MARKS))
        self._escaped = self._escaped or b"\\" in rest
        if self._marks > self._limits.marks:
            most = f"{self._limits.marks} quotes, commas, colons and brackets"
            raise InputError(f"the JSON has more than {most}; send less.")
        if self._others > self._limits.json_bytes:
            most = f"{self._limits.json_bytes} characters"
            raise InputError(f"the JSON has more than {most} that are not base64; send less.")
        if self._escaped and self._size > MAX_ESCAPED_BYTES:
            raise InputError(
                f"JSON with backslashes may have at most {MAX_ESCAPED_BYTES} bytes; send less, or leave them out."
            )


def parse_json(model: type[AnyModel], content: bytes) -> AnyModel:
    """Parse JSON of this kind; InputError with the first problem."""
    try:
        return model.model_validate_json(content)
    except ValidationError as error:
        raise InputError(validation_message(error)) from None


async def run_apart(request: Request, work: Callable[[], Parsed], size: int) -> Parsed:
    """Run what parses or writes so many bytes of a request; if they are many, in threads, in turns."""
    if size <= INLINE_BYTES:
        return work()
    parsed: Parsed = await request.app.state.streams.pool.run(request.state.caller.name, work)
    return parsed


def content_type(request: Request) -> str:
    """Return the kind of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def unsupported(kind: str, how: str) -> HTTPException:
    """Return the error for a body of another content type than `how` to send it."""
    return HTTPException(415, f"the content type {kind[:MAX_QUOTED_CHARS] or 'none'!r} is not supported; {how}")


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
    """Return the body that `json_body` reads, for the `openapi_extra` of a route."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": reference(model)}}}}


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Return a reference to a kind of JSON in the API documentation."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}
