"""The images in the body of a request: a form, JSON with base64, or the bytes of one file."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from fastapi import HTTPException, Request

from acclimate.errors import InputError
from acclimate.serve import schemas
from acclimate.serve.bodies import JSON, content_type, read_body, read_json, reference, run_apart, unsupported
from acclimate.serve.forms import FormError, FormPart, parse_form
from acclimate.serve.http_errors import MAX_QUOTED_CHARS
from acclimate.serve.limits import Limits

FILES = {"image": {"type": "array", "items": {"type": "string", "format": "binary"}}}
BINARY = {"schema": {"type": "string", "format": "binary"}}
RAW = "application/octet-stream"
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
    "send images as files in the form field `image`, as JSON with base64 in `images`, or one image as the body itself."
)
TASK = {
    "required": True,
    "content": {
        JSON: {"schema": reference(schemas.TaskRequest)},
        "image/*": BINARY,
        RAW: BINARY,
    },
}


class Uploads(NamedTuple):
    """The images of a request, their file names ("" where none was sent), and the options that came with them.

    An image is the content of a file, or that as base64.
    """

    images: Sequence[bytes | str]
    names: list[str]
    options: dict[str, Any]


class ZeroShotTask(NamedTuple):
    """The Hugging Face task: an image, the content of a file or that as base64, its labels and the template."""

    image: bytes | str
    labels: list[str]
    template: str | None


async def read_images(request: Request, limits: Limits) -> Uploads:
    """Read the image files of a request. A form's file names are used in messages only, their types not at all."""
    kind = content_type(request)
    if kind == "multipart/form-data":
        files = await _form_files(request, limits)
        uploads = Uploads(
            [file.content for file in files], [(file.filename or "")[:MAX_QUOTED_CHARS] for file in files], {}
        )
    elif is_raw_image(kind):
        uploads = Uploads([await read_body(request)], [""], {})
    elif kind == JSON:
        body = await read_json(schemas.ImagesRequest, request)
        options = body.model_dump(exclude={"images"}, exclude_none=True)
        uploads = Uploads(body.images, [""] * len(body.images), options)
    else:
        raise unsupported(kind, HOW)
    if len(uploads.images) > limits.images:
        raise InputError(f"{len(uploads.images)} images are too many for one request; send at most {limits.images}.")
    return uploads


async def read_task(request: Request, labels: list[str] | None, template: str | None) -> ZeroShotTask:
    """Read the Hugging Face task: JSON, or an image as the whole body with labels and template in the query."""
    if not is_raw_image(content_type(request)):
        body = await read_json(schemas.TaskRequest, request)
        return ZeroShotTask(body.inputs, body.parameters.candidate_labels, body.parameters.hypothesis_template)
    if not labels:
        raise InputError("an image as the whole body needs ?candidate_labels=cat&candidate_labels=dog.")
    return ZeroShotTask(await read_body(request), labels, template)


def is_raw_image(kind: str) -> bool:
    """Return True if a body of this content type is one image file; its real format is found in its bytes."""
    return kind.startswith("image/") or kind == RAW


async def _form_files(request: Request, limits: Limits) -> list[FormPart]:
    body = await read_body(request)
    kind = request.headers["content-type"]
    try:
        parts = await run_apart(request, lambda: parse_form(body, kind, limits.images), len(body))
    except FormError as error:
        raise HTTPException(400, f"the form cannot be read: {error}; {HOW}") from None
    if not parts or any(part.name != "image" or part.filename is None for part in parts):
        raise InputError(HOW)
    return parts
