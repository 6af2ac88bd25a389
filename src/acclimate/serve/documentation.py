"""What the API documentation adds to what FastAPI knows: what a token must allow, for every operation."""

from typing import Any

from fastapi import FastAPI

from acclimate.serve.security import OPEN

STREAMS = "/v1/streams"
CLASSIFY = {("get", f"{STREAMS}/{{name}}"), ("post", f"{STREAMS}/{{name}}/classify")}


def permission(method: str, path: str) -> str:
    """What a service with tokens requires for an operation, in words."""
    if path in OPEN:
        return "No token is needed."
    if (method, path) in CLASSIFY:
        return "Needs a token with `classify` or `manage` for the stream."
    if path.startswith(f"{STREAMS}/") or (method, path) == ("post", STREAMS):
        return "Needs a token with `manage` for the stream."
    return "Needs any token."


def document(app: FastAPI) -> None:
    """Add the permission to the description of every operation."""
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        if app.openapi_schema is None:
            for path, operations in generate()["paths"].items():
                for method, operation in operations.items():
                    operation["description"] = f"{operation['description']}\n\n{permission(method, path)}"
        return generate()

    app.openapi = openapi  # type: ignore[method-assign]
