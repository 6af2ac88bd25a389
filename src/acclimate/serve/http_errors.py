"""Errors that only the service raises, and the JSON that answers a request that failed."""

import json
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import Scope

from acclimate.errors import AcclimateError, BusyError, ImageError, InputError, ModelError, StateError
from acclimate.serve.schemas import NAME_RULE


class StorageError(StateError):
    """A state that could not be written; everything is as it was before."""


class NotFoundError(AcclimateError):
    """A stream or snapshot that does not exist."""


class ExistsError(AcclimateError):
    """A name that another stream already has."""


class TooManyError(AcclimateError):
    """A stream beyond the maximum number of streams."""


class UnusableError(AcclimateError):
    """A stream whose files cannot be used."""


CODES = {
    400: "bad_request",
    401: "unauthorized",
    403: "forbidden",
    404: "not_found",
    405: "method_not_allowed",
    408: "too_slow",
    409: "conflict",
    413: "too_large",
    415: "unsupported_type",
    422: "invalid",
    429: "busy",
    499: "disconnected",
    500: "internal",
    503: "unavailable",
    504: "timeout",
}
STATUSES: dict[type[Exception], int] = {
    InputError: 422,
    ImageError: 422,
    StateError: 422,
    RequestValidationError: 422,
    StorageError: 503,
    ModelError: 503,
    UnusableError: 503,
    NotFoundError: 404,
    ExistsError: 409,
    TooManyError: 409,
    BusyError: 429,
    TimeoutError: 504,
}
MAX_MESSAGE_CHARS = 1000  # longer messages are cut
MAX_QUOTED_CHARS = 80  # longer quotations of a client's text are cut


def path_below_mount(scope: Scope) -> str:
    """Return the path of a request within this application, which may be mounted in another one."""
    return str(scope["path"]).removeprefix(scope.get("root_path", ""))


def failure(scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """Return the response to a request that failed: a code for programs, a message for people, the request's id."""
    scope["state"]["error"] = CODES[status]
    error = {"code": CODES[status], "message": cut(message), "request_id": scope["state"]["request_id"]}
    retry = {"Retry-After": "1"} if status in (429, 503) else {}
    content = json.dumps({"error": error})  # ASCII only: a message may quote text that cannot be encoded
    return Response(content, status, {**retry, **(headers or {})}, "application/json")


def cut(text: str, most: int = MAX_MESSAGE_CHARS) -> str:
    """Return a text that may have been sent by a client, without its middle if it is longer than this.

    Examples:
        >>> cut("a" * 6 + "b" * 94, 10)
        'aaaaa (90 characters left out) bbbbb'
    """
    half = most // 2
    return text if len(text) <= most else f"{text[:half]} ({len(text) - 2 * half} characters left out) {text[-half:]}"


def validation_message(error: ValidationError | RequestValidationError) -> str:
    """Return the first problem that Pydantic found, without repeating the input."""
    first = error.errors()[0]
    where = ".".join(str(each)[:MAX_QUOTED_CHARS] for each in first["loc"])
    if first["type"] == "string_pattern_mismatch":  # only names have a pattern
        return f"a stream cannot have this name. {NAME_RULE}"
    message = f"{where}: {first['msg']}".removeprefix(": ")
    return message if message.endswith((".", "?")) else f"{message}."  # Pydantic's own have no full stop


async def respond(request: Request, error: Any) -> Response:
    """Answer an error that a request has caused with `failure`; any other is a bug and left to the log."""
    known = (STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES)
    status = error.status_code if isinstance(error, HTTPException) else next(known, 500)
    message = getattr(error, "detail", str(error)) or "the service was stopped before it had an answer; try again."
    if isinstance(error, RequestValidationError):
        message = validation_message(error)
    elif message == HTTPStatus(status).phrase:  # the framework's own message says nothing but the status
        message = (
            f"there is no {request.method[:20]} {request.scope['path'][:MAX_QUOTED_CHARS]!r}; /docs lists all routes."
        )
    error.__traceback__ = None  # its frames hold the body, and would until the next garbage collection
    error.__context__ = None
    return failure(request.scope, status, message, getattr(error, "headers", None))


HANDLERS: dict[Any, Any] = dict.fromkeys((AcclimateError, HTTPException, RequestValidationError, TimeoutError), respond)
