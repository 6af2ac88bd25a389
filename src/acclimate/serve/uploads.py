"""The bodies of requests: received within limits, and read as JSON, as images in a form, or as one file."""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Sequence
from io import BytesIO
from typing import Any, NamedTuple, TypeVar

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ValidationError
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.types import Message, Receive, Scope

from acclimate.errors import InputError
from acclimate.serve import schemas
from acclimate.serve.http_errors import MAX_QUOTED_CHARS, validation_message
from acclimate.serve.limits import Limits
from acclimate.serve.queues import leaves_enough

AnyModel = TypeVar("AnyModel", bound=BaseModel)
Parsed = TypeVar("Parsed")
LARGE_BODIES = ("/classify", "/corrections", "/state")  # ends of the paths that take images and states
BODIES_HELD = 4  # full-sized bodies that all requests together may hold in memory
MIN_SHARE_DIVISOR = 32  # a caller may always hold a full-sized body divided by this
INLINE_BYTES = 64 * 2**10  # smaller bodies are parsed in the event loop
JSON = "application/json"
RAW = "application/octet-stream"


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Return a reference to a kind of JSON in the API documentation."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


BINARY = {"schema": {"type": "string", "format": "binary"}}
FILES = {"image": {"type": "array", "items": BINARY["schema"]}}
TASK = {
    "required": True,
    "content": {JSON: {"schema": reference(schemas.TaskRequest)}, "image/*": BINARY, RAW: BINARY},
}
BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {"schema": {"type": "object", "required": ["image"], "properties": FILES}},
        JSON: {"schema": reference(schemas.ImagesRequest)},
        "image/*": BINARY,
        RAW: BINARY,
    },
}
HOW = (
    "Send images as files in the form field `image`, as JSON with base64 in `images`, or one image as the body itself."
)


class Body:
    """The body of one request, counted while it is received, and the end of its connection.

    Routes that take images or states get bodies of `limits.body_bytes`, all others of `limits.json_bytes`. Together the
    bodies occupy `BODIES_HELD` of the largest; `held` has the bytes in memory by caller. Each caller may hold as much
    as it leaves to the others, and in any case a little.
    """

    def __init__(self, scope: Scope, receive: Receive, limits: Limits, held: Counter[str]) -> None:
        self._receive = receive
        self._largest = limits.body_bytes
        self._held = held
        large = scope["path"].endswith(LARGE_BODIES)
        self.most = limits.body_bytes if large else min(limits.json_bytes, limits.body_bytes)
        self.caller = ""
        self.size = 0
        self.complete = asyncio.Event()
        headers = dict(scope["headers"])
        self._empty = b"transfer-encoding" not in headers and headers.get(b"content-length", b"0") == b"0"
        if self._empty:
            self.complete.set()

    async def receive(self) -> Message:
        """Return the next part; once the body is complete, `disconnected` alone listens to the connection."""
        if self._empty:
            self._empty = False
            return {"type": "http.request", "body": b"", "more_body": False}
        if self.complete.is_set():
            await asyncio.Event().wait()
        message = await self._receive()
        part = len(message.get("body", b""))
        self.size += part
        self._held[self.caller] += part
        if not message.get("more_body", False):
            self.complete.set()
        if self.size > self.most:
            raise HTTPException(413, self.too_large())
        room = BODIES_HELD * self._largest
        if not leaves_enough(self._held[self.caller], self._held.total(), room, self._largest // MIN_SHARE_DIVISOR):
            raise HTTPException(429, "too many large requests at once; try again in a moment.")
        return message

    async def disconnected(self) -> None:
        """Wait until the client has disconnected, after the whole body was received."""
        await self.complete.wait()
        while (await self._receive())["type"] != "http.disconnect":
            pass

    def too_large(self) -> str:
        """Return the reason why a larger body is refused."""
        return f"the body of this request may have at most {self.most} bytes; send smaller or fewer images or labels."


async def read_body(request: Request) -> bytes:
    """Read the whole body; unlike `Request.body`, the request does not keep it."""
    body = BytesIO()  # gives what it holds without a copy
    async for part in request.stream():
        body.write(part)
    return body.getvalue()


async def read_json(model: type[AnyModel], request: Request, required: bool = True) -> AnyModel:
    """Read the body of a request as JSON of this kind; the defaults for an empty body if it is not `required`.

    FastAPI's own parser runs in the event loop, and a list of many small values takes seconds and a gigabyte: the
    number of values is bounded before anything is parsed.
    """
    content = await read_body(request)
    most = request.app.state.streams.limits.commas

    def parse() -> AnyModel:
        if content.count(b",") > most:
            raise InputError(f"the JSON has more than {most} commas; send less.")
        try:
            return model.model_validate_json(content) if content or required else model()
        except ValidationError as error:
            raise InputError(validation_message(error)) from None

    return await run_apart(request, parse, len(content))


async def run_apart(request: Request, work: Callable[[], Parsed], size: int) -> Parsed:
    """Run what parses or writes so many bytes of a request; if they are many, in a thread."""
    if size <= INLINE_BYTES:
        return work()
    parsed: Parsed = await request.app.state.streams.pool.run(request.state.caller.name, work)
    return parsed


def content_type(request: Request) -> str:
    """Return the kind of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def unsupported(kind: str, how: str) -> HTTPException:
    """Return the error for a body of another content type than `how` to send it."""
    return HTTPException(415, f"the content type {kind[:MAX_QUOTED_CHARS] or 'none'!r} is not supported. {how}")


def json_body(model: type[AnyModel], required: bool = True) -> Any:
    """Dependency: the body as JSON of this kind; the defaults for no body if it is not `required`."""

    async def read(request: Request) -> AnyModel:
        kind = content_type(request)
        if kind != JSON and (kind or required):
            raise unsupported(kind, f"Send JSON with the header `Content-Type: {JSON}`.")
        return await read_json(model, request, required)

    return Depends(read)


def described(model: type[BaseModel], required: bool = True) -> dict[str, Any]:
    """Return the body that `json_body` reads, for the `openapi_extra` of a route."""
    return {"requestBody": {"required": required, "content": {JSON: {"schema": reference(model)}}}}


class Uploads(NamedTuple):
    """The images of a request, their file names ("" where none was sent), and the options that came with them.

    An image is the content of a file, or that as base64.
    """

    images: Sequence[bytes | str]
    names: list[str]
    options: dict[str, Any]


async def read_images(request: Request, limits: Limits) -> Uploads:
    """Read the image files of a request. A form's file names are used in messages only, their types not at all."""
    kind = content_type(request)
    if kind == "multipart/form-data":
        return await read_form(request, limits)
    if is_raw_image(kind):
        return Uploads([await read_body(request)], [""], {})
    if kind != JSON:
        raise unsupported(kind, HOW)
    body = await read_json(schemas.ImagesRequest, request)
    if len(body.images) > limits.images:
        raise InputError(f"{len(body.images)} images are too many for one request; send at most {limits.images}.")
    return Uploads(body.images, [""] * len(body.images), body.model_dump(exclude={"images"}, exclude_none=True))


class FormReader(MultiPartParser):
    """Starlette's reader of forms, which here keeps files in memory: their size is bounded while they are received."""

    spool_max_size = 2**40
    ended = False

    def on_end(self) -> None:
        """Note that the form is complete."""
        self.ended = True


async def read_form(request: Request, limits: Limits) -> Uploads:
    """Read the image files of a form."""

    async def parts() -> AsyncGenerator[bytes, None]:
        async for part in request.stream():
            yield part
        if not reader.ended:
            raise MultiPartException("It does not end with its boundary.")

    reader = FormReader(request.headers, parts(), max_files=limits.images, max_fields=0)
    try:
        form = await reader.parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the form cannot be read: {error.message} {HOW}") from None
    files: list[Any] = form.getlist("image")
    uploads = Uploads([file.file.read() for file in files], [file.filename[:MAX_QUOTED_CHARS] for file in files], {})
    await form.close()
    if not files or len(files) < len(form.multi_items()):
        raise InputError(HOW)
    return uploads


async def read_task(
    request: Request, labels: list[str] | None, template: str | None
) -> tuple[bytes | str, list[str], str | None]:
    """Read the Hugging Face task, image, labels and template: JSON, or an image with the others in the query."""
    if not is_raw_image(content_type(request)):
        body = await read_json(schemas.TaskRequest, request)
        return body.inputs, body.parameters.candidate_labels, body.parameters.hypothesis_template
    if not labels:
        raise InputError("an image as the whole body needs ?candidate_labels=cat&candidate_labels=dog.")
    return await read_body(request), labels, template


def is_raw_image(kind: str) -> bool:
    """Return True if a body of this content type is one image file; its real format is found in its bytes."""
    return kind.startswith("image/") or kind == RAW
