"""What goes wrong, as JSON: a code for programs, a message that says what to do, the id under which it is logged."""

import json
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Scope

from acclimate import errors

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
    500: "internal",
    503: "unavailable",
    504: "timeout",
}
STATUSES: dict[type[errors.AcclimateError], int] = {
    errors.InputError: 422,
    errors.ImageError: 422,
    errors.StateError: 422,
    errors.StorageError: 503,
    errors.NotFoundError: 404,
    errors.ExistsError: 409,
    errors.TooManyError: 409,
    errors.BusyError: 429,
    errors.UnusableError: 503,
    errors.ModelError: 503,
}
RETRY_AFTER_S = 1


def failure(scope: Scope, status: int, message: str, headers: Mapping[str, str] | None = None) -> Response:
    """The answer to a request that failed."""
    error = {"code": CODES[status], "message": message, "request_id": scope["state"]["request_id"]}
    retry = {"Retry-After": str(RETRY_AFTER_S)} if status in (429, 503) else {}
    # Escaped to ASCII, since a message may quote what cannot be encoded.
    content = json.dumps({"error": error})
    return Response(content, status, {**retry, **(headers or {})}, "application/json")


def answer_failures(app: FastAPI, timeout_s: float) -> None:
    """Have an app answer errors with `failure`."""

    async def of_ours(request: Request, error: errors.AcclimateError) -> Response:
        status = next((STATUSES[kind] for kind in type(error).__mro__ if kind in STATUSES), 500)
        return failure(request.scope, status, str(error))

    async def of_http(request: Request, error: HTTPException) -> Response:
        return failure(request.scope, error.status_code, error.detail, error.headers)

    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return failure(request.scope, 422, said(error.errors()))

    async def late(request: Request, error: TimeoutError) -> Response:
        return failure(request.scope, 504, f"no answer within {timeout_s:g} s; send fewer images, or try again later.")

    async def gone(request: Request, error: ClientDisconnect) -> Response:
        return failure(request.scope, 400, "the connection was closed before the whole body came.")

    handlers: dict[type[Exception], Any] = {
        errors.AcclimateError: of_ours,
        HTTPException: of_http,
        RequestValidationError: invalid,
        TimeoutError: late,
        ClientDisconnect: gone,
    }
    for kind, handler in handlers.items():
        app.add_exception_handler(kind, handler)


def said(problems: Any) -> str:
    """What a validation found, without repeating what was sent."""
    first, *others = problems
    where = ".".join(map(str, first["loc"]))
    more = f" ({len(others)} more like this)" if others else ""
    return f"{where}: {first['msg']}{more}. See /docs."
