"""Images from the body of a request."""

from base64 import b64decode
from typing import Any

from fastapi import HTTPException, Request
from pydantic import ValidationError
from python_multipart.exceptions import FormParserError
from starlette.datastructures import UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser

from acclimate.errors import ImageError, InputError
from acclimate.serve.errors import validation_message
from acclimate.serve.limits import Limits
from acclimate.serve.schemas import ImagesRequest

HOW = "send images as files in the form field `image`, or as JSON with base64 in `images`."


async def read_images(request: Request, limits: Limits) -> tuple[list[bytes], dict[str, Any]]:
    """The image files in a form or in JSON, and the options in JSON; a form's file names and types are ignored."""
    options: dict[str, Any] = {}
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind == "multipart/form-data":
        images = await _form_files(request, limits)
    elif kind == "application/json":
        try:
            body = ImagesRequest.model_validate_json(await request.body())
        except ValidationError as error:
            raise InputError(validation_message(error.errors(include_url=False))) from None
        images = [decode_image(text, position) for position, text in enumerate(body.images)]
        options = body.model_dump(exclude={"images"}, exclude_none=True)
    else:
        raise HTTPException(415, f"the content type {kind or 'none'!r} is not supported; {HOW}")
    if len(images) > limits.images:
        raise InputError(f"{len(images)} images are too many for one request; send at most {limits.images}.")
    return images, options


def decode_image(text: str, position: int) -> bytes:
    """The content of an image file that was sent as base64."""
    try:
        return b64decode(text, validate=True)
    except ValueError:
        raise ImageError(f"image {position} is not base64; URLs are not fetched, send the image itself.") from None


async def _form_files(request: Request, limits: Limits) -> list[bytes]:
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
        return [await file.read() for file in files]
    finally:
        await form.close()
