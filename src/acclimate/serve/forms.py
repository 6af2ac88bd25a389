"""Forms with files (multipart/form-data): parsed from the whole body, in time linear in its size.

They are parsed here, not by a package, because the bodies are in memory already and may be hostile: the time is linear
whatever they hold, a thread beside the event loop does it, and no part is copied to a temporary file.
"""

import re
from typing import NamedTuple
from urllib.parse import unquote

PARAMETER = re.compile(rb';\s*([^\s=;"]+)\s*=\s*(?:"([^"\\]*(?:\\.[^"\\]*)*)"|([^\s;]*))', re.DOTALL)
ESCAPED = re.compile(rb'\\(["\\])')
LINE_END = re.compile(rb"[ \t]*\r\n")
MAX_BOUNDARY_CHARS = 70  # characters (RFC 2046)
MAX_HEADER_BYTES = 8 * 2**10  # all headers of a part
SEARCH_BYTES = 2**20  # bytes that are searched at once, while other threads wait


class FormError(ValueError):
    """A form that cannot be read."""


class FormPart(NamedTuple):
    """A part of a form: the name of its field, the name of its file (None if it is not a file), and its content."""

    name: str
    filename: str | None
    content: bytes


def parse_form(body: bytes, content_type: str, most: int) -> list[FormPart]:
    r"""Parse the parts of a form, at most so many.

    Examples:
        >>> body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n123\r\n--x--'
        >>> parse_form(body, "multipart/form-data; boundary=x", 1)
        [FormPart(name='image', filename='a.png', content=b'123')]
    """
    boundary = _parameters(content_type[:500].encode("latin-1")).get("boundary", "")
    if not (boundary.isascii() and 1 <= len(boundary) <= MAX_BOUNDARY_CHARS):
        raise FormError("its content type has no valid boundary")
    delimiter = b"--" + boundary.encode("latin-1")
    position = 0 if body.startswith(delimiter) else _find(body, b"\r\n" + delimiter, 0) + 2
    parts: list[FormPart] = []
    while True:
        position += len(delimiter)
        if body.startswith(b"--", position):
            return parts
        if len(parts) == most:
            raise FormError(f"it has more than {most} parts")
        latest = position + MAX_HEADER_BYTES
        line = LINE_END.match(body, position, latest)
        head = body.find(b"\r\n\r\n", line.end() - 2, latest) if line else -1
        if head < 0:
            raise FormError(f"a part has no header, or one of more than {MAX_HEADER_BYTES} bytes")
        end = _find(body, b"\r\n" + delimiter, head + 2)  # an empty part has the same line break before and after
        parts.append(_part(body[position:head], body[head + 4 : end]))
        position = end + 2


def _find(body: bytes, wanted: bytes, start: int) -> int:
    for begin in range(start, len(body), SEARCH_BYTES):
        found = body.find(wanted, begin, begin + SEARCH_BYTES + len(wanted) - 1)
        if found >= 0:
            return found
    raise FormError("it does not end with its boundary")


def _part(head: bytes, content: bytes) -> FormPart:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    disposition = next((value for name, _, value in lines if name.strip().lower() == b"content-disposition"), b"")
    fields = _parameters(disposition)
    filename = fields.get("filename")
    if (extended := fields.get("filename*")) is not None:  # CHARSET'LANGUAGE'NAME, of which the charset is UTF-8
        filename = unquote(extended.split("'", 2)[-1])
    return FormPart(fields.get("name", ""), filename, content)


def _parameters(header: bytes) -> dict[str, str]:
    r"""Return the parameters of a header by name, with and without quotes.

    Examples:
        >>> _parameters(rb'form-data; name=image; FileName="a \"b\".png"')
        {'name': 'image', 'filename': 'a "b".png'}
    """
    found = {}
    for name, quoted, token in PARAMETER.findall(header):
        value = ESCAPED.sub(rb"\1", quoted) or token
        found[name.decode(errors="replace").lower()] = value.decode(errors="replace")
    return found
