"""The images in the body of a request: a form, JSON with base64, or the bytes of one file."""

import json
from base64 import b64decode, b64encode
from typing import Any, NamedTuple, TypeVar

from fastapi import HTTPException, Request
from pydantic import BaseModel, ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from acclimate.errors import ImageError, InputError
from acclimate.serve import schemas
from acclimate.serve.errors import validation_message
from acclimate.serve.limits import Limits


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """A JSON schema whose references to its own definitions are replaced by them."""
    text = json.dumps(schema)
    for name, definition in schema.get("$defs", {}).items():
        text = text.replace(json.dumps({"$ref": f"#/$defs/{name}"}), json.dumps(definition))
    return {key: value for key, value in json.loads(text).items() if key != "$defs"}


FILES = {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}}
BINARY = {"schema": {"type": "string", "format": "binary"}}
RAW = "application/octet-stream"
BODY = {
    "required": True,
    "content": {
        "multipart/form-data": {"schema": {"type": "object", "required": ["image"], "properties": FILES}},
        "application/json": {"schema": schemas.ImagesRequest.model_json_schema()},
        "image/*": BINARY,
        RAW: BINARY,
    },
}
HOW = (
    "send images as files in the form field `image`, as JSON with base64 in `images`, or one image as the body itself."
)
TASK = {
    "required": True,
    "content": {
        "application/json": {"schema": _inlined(schemas.TaskRequest.model_json_schema())},
        "image/*": BINARY,
        RAW: BINARY,
    },
}
AnyModel = TypeVar("AnyModel", bound=BaseModel)
NAME_CHARS = 80  # of a file name that is quoted in a message


class Uploads(NamedTuple):
    """The images of a request, their file names ("" where none was sent), and the options that came with them."""

    images: list[bytes]
    names: list[str]
    options: dict[str, Any]


async def read_images(request: Request, limits: Limits) -> Uploads:
    """The image files of a request. The file names of a form are used in messages only, their types not at all."""
    kind = content_type(request)
    names, options = [""], {}
    if kind == "multipart/form-data":
        images, names = await _form_files(request, limits)
    elif is_raw_image(kind):
        images = [await request.body()]
    elif kind == "application/json":
        body = await read_json(schemas.ImagesRequest, request)
        images = [decode_image(text, position) for position, text in enumerate(body.images)]
        names, options = [""] * len(images), body.model_dump(exclude={"images"}, exclude_none=True)
    else:
        raise HTTPException(415, f"the content type {kind[:NAME_CHARS] or 'none'!r} is not supported; {HOW}")
    if len(images) > limits.images:
        raise InputError(f"{len(images)} images are too many for one request; send at most {limits.images}.")
    return Uploads(images, names, options)


async def read_task(request: Request, labels: list[str] | None, template: str | None) -> schemas.TaskRequest:
    """The Hugging Face task in JSON; or an image as the whole body, with the labels and the template of the query."""
    if not is_raw_image(content_type(request)):
        return await read_json(schemas.TaskRequest, request)
    if not labels:
        raise InputError("an image as the whole body needs ?candidate_labels=cat&candidate_labels=dog.")
    parameters = schemas.TaskParameters(candidate_labels=labels, hypothesis_template=template)
    return schemas.TaskRequest(inputs=b64encode(await request.body()).decode(), parameters=parameters)


async def read_json(model: type[AnyModel], request: Request) -> AnyModel:
    """The body of a request as JSON of this kind."""
    try:
        return model.model_validate_json(await request.body())
    except ValidationError as error:
        raise InputError(validation_message(error.errors(include_url=False))) from None


def content_type(request: Request) -> str:
    """The kind of a body, without parameters."""
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


def is_raw_image(kind: str) -> bool:
    """Whether a body of this content type is one image file; its real format is found in its bytes."""
    return kind.startswith("image/") or kind == RAW


def decode_image(text: str, position: int) -> bytes:
    """The content of an image file that was sent as base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ImageError(f"image {position} is not base64; URLs are not fetched, send the image itself.") from None


async def _form_files(request: Request, limits: Limits) -> tuple[list[bytes], list[str]]:
    parser = MultiPartParser(request.headers, request.stream(), max_files=limits.images, max_fields=limits.images)
    parser.spool_max_size = limits.body_bytes  # in memory, which the limit on bodies bounds; never on disk
    try:
        form = await parser.parse()
    except (MultiPartException, FormParserError) as error:
        raise HTTPException(400, f"the form cannot be read: {error}; {HOW}") from None
    try:
        files = [value for key, value in form.multi_items() if key == "image" and isinstance(value, UploadFile)]
        if not files or len(files) < len(form.multi_items()):
            raise InputError(HOW)
        return [await file.read() for file in files], [(file.filename or "")[:NAME_CHARS] for file in files]
    finally:
        await form.close()
