"""Additions to FastAPI's API documentation: the JSON of requests, and the permissions that a token needs."""

import json
from typing import Any

from fastapi import FastAPI, Request, Response

from acclimate.serve import schemas
from acclimate.serve.security import OPEN

STREAMS = "/v1/streams"
BODIES = (
    schemas.NamelessStreamRequest,
    schemas.StreamRequest,
    schemas.ImagesRequest,
    schemas.CorrectionRequest,
    schemas.LabelsRequest,
    schemas.RollbackRequest,
    schemas.TaskRequest,
)
_DESCRIPTIONS: dict[tuple[object, ...], tuple[dict[str, Any], bytes]] = {}  # the description of each kind of service
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


def _inlined(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a JSON schema whose references to its own definitions are replaced by them."""
    text = json.dumps(schema)
    for name, definition in schema.get("$defs", {}).items():
        text = text.replace(json.dumps({"$ref": f"#/$defs/{name}"}), json.dumps(definition))
    return {key: value for key, value in json.loads(text).items() if key != "$defs"}


def _described(app: FastAPI) -> dict[str, Any]:
    """Return FastAPI's description of an application with our additions."""
    description = app.openapi()
    description["components"]["schemas"] |= {each.__name__: _inlined(each.model_json_schema()) for each in BODIES}
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            operation["description"] = f"{operation['description']}\n\n{permission(method, path)}"
    return description


def document(app: FastAPI) -> None:
    """Serve /openapi.json, with the JSON that requests have and the permission that every operation needs.

    Anyone may ask for it, as often as they like: it is made once, and once for all services of a process that have the
    same operations.
    """
    operations = (bool(app.router.dependencies), *(str(getattr(route, "path", "")) for route in app.routes))
    if operations not in _DESCRIPTIONS:
        described = _described(app)
        _DESCRIPTIONS[operations] = described, json.dumps(described, separators=(",", ":")).encode()
    description, content = _DESCRIPTIONS[operations]
    app.openapi = lambda: description  # type: ignore[method-assign]

    async def respond(_: Request) -> Response:
        return Response(content, media_type="application/json")

    app.add_route("/openapi.json", respond, include_in_schema=False)
