"""The API documents: one page made from the OpenAPI description, with no script and no other host."""

import json
from collections.abc import Iterator, Mapping
from html import escape
from typing import Any

HEAD = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>acclimate: the API</title>
<link rel="icon" href="page/icon.svg" type="image/svg+xml">
<link rel="stylesheet" href="page/style.css">
</head>
<body>
<main>"""


def render(description: Mapping[str, Any]) -> str:
    """The page.

    Args:
        description: an OpenAPI description, as FastAPI makes it.
    """
    schemas = description["components"]["schemas"]
    info = description["info"]
    parts = [
        HEAD,
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>",
        f"<p>{escape(info['description'])}</p>",
    ]
    parts.append('<p>For programs: <a href="openapi.json">openapi.json</a>. To watch: <a href="./">the page</a>.</p>')
    for path, operations in description["paths"].items():
        for method, operation in operations.items():
            parts += _operation(method.upper(), path, operation, schemas)
    return "\n".join([*parts, "</main>", "</body>", "</html>"])


def _operation(method: str, path: str, operation: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[str]:
    yield f"<section>\n<h2><code>{method} {escape(path)}</code></h2>\n<p>{escape(operation['description'])}</p>"
    parameters = operation.get("parameters", [])
    if parameters:
        yield "<ul>"
        for each in parameters:
            yield f"<li><code>{escape(each['name'])}</code> ({each['in']}): {escape(each.get('description', ''))}</li>"
        yield "</ul>"
    for kind, content in operation.get("requestBody", {}).get("content", {}).items():
        yield f"<p>Takes <code>{escape(kind)}</code></p>{_shape(content.get('schema', {}), schemas)}"
    for kind, content in operation["responses"].get("200", {}).get("content", {}).items():
        yield f"<p>Answers <code>{escape(kind)}</code></p>{_shape(content.get('schema', {}), schemas)}"
    yield "</section>"


def _shape(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> str:
    """What a body looks like, and what its fields mean."""
    example = escape(json.dumps(_example(schema, schemas), indent=2, ensure_ascii=False))
    fields = (f"<li><code>{escape(name)}</code>: {escape(said)}</li>" for name, said in _fields(schema, schemas))
    return "\n".join([f"<pre>{example}</pre>", "<ul>", *fields, "</ul>"])


def _fields(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Every field that is explained, those of objects within included."""
    if "$ref" in schema:
        yield from _fields(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    for name, each in schema.get("properties", {}).items():
        if "description" in each:
            yield name, each["description"]
        yield from _fields(each, schemas)
    for within in [*schema.get("anyOf", []), *([schema["items"]] if "items" in schema else [])]:
        yield from _fields(within, schemas)


def _example(schema: Mapping[str, Any], schemas: Mapping[str, Any]) -> Any:
    """What a value of a schema looks like: its example or default where it has one, else its types by name."""
    if "$ref" in schema:
        return _example(schemas[schema["$ref"].rpartition("/")[2]], schemas)
    if "examples" in schema:
        return schema["examples"][0]
    if schema.get("default") is not None:
        return schema["default"]
    if "anyOf" in schema:
        return _example(schema["anyOf"][0], schemas)
    if schema.get("type") == "object" and "properties" in schema:
        return {name: _example(each, schemas) for name, each in schema["properties"].items()}
    if schema.get("type") == "array":
        return [_example(schema.get("items", {}), schemas)]
    return schema.get("type", "any")
