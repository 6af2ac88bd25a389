"""The bodies of requests, read as JSON, as images in a form, or as one file; see also `AccessMiddleware`."""

from collections.abc import AsyncGenerator, Sequence
from typing import Any, NamedTuple, TypeVar

from fastapi import Depends, HTTPException, Request
from pydantic import BaseModel, ValidationError
from pydantic_core import from_json
from starlette.formparsers import MultiPartException, MultiPartParser

from acclimate.errors import InputError
from acclimate.serve import schemas
from acclimate.serve.http_errors import MAX_QUOTED_CHARS, validation_message
from acclimate.serve.limits import Limits

AnyModel = TypeVar("AnyModel", bound=BaseModel)
NAME_BYTES = 255  # the end of a longer file name is kept
INLINE_BYTES = 64 * 2**10  # smaller bodies are parsed in the event loop
JSON = "application/json"
RAW = "application/octet-stream"
ONE_IMAGE = ("image/", RAW)  # beginnings of content types of one image file; its real format is found in its bytes
FORM = "multipart/form-data"


def reference(model: type[BaseModel]) -> dict[str, str]:
    """Return a reference to a kind of JSON in the API documentation."""
    return {"$ref": f"#/components/schemas/{model.__name__}"}


BINARY = {"schema": {"type": "string", "format": "binary"}}
TASK = {
    "required": True,
    "content": {JSON: {"schema": reference(schemas.TaskRequest)}, "image/*": BINARY, RAW: BINARY},
}
BODY = {
    "required": True,
    "content": {
        FORM: {
            "schema": {
                "type": "object",
                "required": ["image"],
                "properties": {"image": {"type": "array", "items": BINARY["schema"]}},
            }
        },
        JSON: {"schema": reference(schemas.ImagesRequest)},
        "image/*": BINARY,
        RAW: BINARY,
    },
}
HOW = (
    "Send images as files in the form field `image`, as JSON with base64 in `images`, or one image as the body itself."
)


async def read_json(model: type[AnyModel], request: Request, required: bool = True) -> AnyModel:
    """Read the body of a request as JSON of this kind; the defaults for an empty body if it is not `required`.

    FastAPI's own parser runs in the event loop, and a list of many small values takes seconds and a gigabyte: the
    number of values is bounded before anything is parsed, and large bodies are parsed in a thread.
    """
    content = await request.body()
    streams = request.app.state.streams
    limits = streams.limits
    commas = 1000 + 10 * (limits.labels + limits.prompts + limits.images)  # some for each item that it may have

    def parse() -> AnyModel:
        if content.count(b",") > commas:
            raise InputError(f"the JSON has more than {commas} commas; send less.")
        try:
            return model.model_validate(from_json(content) if content or required else {})
        except ValidationError as error:
            raise InputError(validation_message(error)) from None
        except ValueError as error:
            raise InputError(f"the body is not valid JSON: {error}.") from None

    if len(content) <= INLINE_BYTES:
        return parse()
    parsed: AnyModel = await streams.pool.run(request.state.caller.name, parse)
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
    """Read the image files of a request. A form's file names are for people only, their types are not used."""
    kind = content_type(request)
    if kind == FORM:
        return await read_form(request, limits)
    if kind.startswith(ONE_IMAGE):
        return Uploads([await request.body()], [""], {})
    if kind != JSON:
        raise unsupported(kind, HOW)
    body = await read_json(schemas.ImagesRequest, request)
    if len(body.images) > limits.images:
        raise InputError(f"{len(body.images)} images are too many for one request; send at most {limits.images}.")
    return Uploads(body.images, [""] * len(body.images), body.model_dump(exclude={"images"}, exclude_none=True))


class FormReader(MultiPartParser):
    """Starlette's reader of forms; it keeps files in memory, where the body is already."""

    spool_max_size = 2**40
    ended = False

    def on_end(self) -> None:
        """Note that the form is complete."""
        self.ended = True


async def read_form(request: Request, limits: Limits) -> Uploads:
    """Read the image files of a form."""

    async def parts() -> AsyncGenerator[bytes, None]:
        content = await request.body()
        for start in range(0, len(content), INLINE_BYTES):
            yield content[start : start + INLINE_BYTES]
        if not reader.ended:
            raise MultiPartException("It does not end with its boundary.")

    reader = FormReader(request.headers, parts(), max_files=limits.images, max_fields=0)
    try:
        form = await reader.parse()
    except MultiPartException as error:
        raise HTTPException(400, f"the form cannot be read: {error.message} {HOW}") from None
    files: list[Any] = form.getlist("image")
    uploads = Uploads(
        [file.file.read() for file in files],
        [file.filename.encode()[-NAME_BYTES:].decode(errors="ignore") for file in files],
        {},
    )
    await form.close()
    if not files or len(files) < len(form.multi_items()):
        raise InputError(HOW)
    return uploads


async def read_task(request: Request, given: dict[str, Any]) -> tuple[bytes | str, schemas.TaskParameters]:
    """Read the Hugging Face task, an image and its parameters: JSON, or an image with those `given` in the query."""
    if not content_type(request).startswith(ONE_IMAGE):
        body = await read_json(schemas.TaskRequest, request)
        return body.inputs, body.parameters
    if not given["candidate_labels"]:
        raise InputError("an image as the whole body needs ?candidate_labels=cat&candidate_labels=dog.")
    return await request.body(), schemas.TaskParameters.model_construct(**given)
