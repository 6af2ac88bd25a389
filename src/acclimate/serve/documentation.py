"""Additions to FastAPI's API documentation: the JSON of requests, and the permissions that a token needs."""

from fastapi import FastAPI
from pydantic.json_schema import models_json_schema

from acclimate.serve import schemas
from acclimate.serve.security import OPEN

STREAMS = "/v1/streams"
BODIES = (
    schemas.StreamRequest,
    schemas.NamelessStreamRequest,
    schemas.ImagesRequest,
    schemas.CorrectionRequest,
    schemas.LabelsRequest,
    schemas.RollbackRequest,
    schemas.TaskRequest,
)
CLASSIFY = {("get", f"{STREAMS}/{{name}}"), ("post", f"{STREAMS}/{{name}}/classify")}


def permission(method: str, path: str) -> str:
    """Describe the permission that an operation needs in a service with tokens."""
    if path in OPEN:
        return "No token is needed."
    if (method, path) in CLASSIFY:
        return "Needs a token with `classify` or `manage` for the stream."
    if path.startswith(f"{STREAMS}/") or (method, path) == ("post", STREAMS):
        return "Needs a token with `manage` for the stream."
    return "Needs any token."


def document(app: FastAPI) -> None:
    """Add the JSON that requests have, and the permission that every operation needs, to /openapi.json."""
    description = app.openapi()  # made once: the application keeps this object
    kinds = [(each, "validation") for each in BODIES]
    _, found = models_json_schema(kinds, ref_template="#/components/schemas/{model}")  # type: ignore[arg-type]
    description["components"]["schemas"] |= found["$defs"]
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            operation["description"] = f"{operation['description']}\n\n{permission(method, path)}"
