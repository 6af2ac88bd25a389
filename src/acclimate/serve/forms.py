"""Forms with files (multipart/form-data): parsed from the whole body, in time linear in its size."""

import re
from typing import NamedTuple

BOUNDARY = re.compile(r"""boundary=(?:"([^"]{1,70})"|([^\s;,"]{1,70}))(?:\s*;|\s*$)""", re.IGNORECASE)
FIELD = re.compile(rb';\s*(name|filename)="((?:[^"\\]|\\.)*)"', re.IGNORECASE)
HEADER_BYTES = 8 * 2**10  # of a part
WINDOW = 2**20  # bytes that are searched at once: other threads wait meanwhile


class FormError(ValueError):
    """A form that cannot be read."""


class Part(NamedTuple):
    """A part of a form: the name of its field, the name of its file (None if it is not a file), and its content."""

    name: str
    filename: str | None
    content: bytes


def parse_form(body: bytes, content_type: str, most: int) -> list[Part]:
    r"""The parts of a form, at most so many.

    Examples:
        >>> body = b'--x\r\nContent-Disposition: form-data; name="image"; filename="a.png"\r\n\r\n123\r\n--x--'
        >>> parse_form(body, "multipart/form-data; boundary=x", 1)
        [Part(name='image', filename='a.png', content=b'123')]
    """
    found = BOUNDARY.search(content_type[:500])
    if found is None:
        raise FormError("its content type has no valid boundary")
    delimiter = b"--" + (found[1] or found[2]).encode("latin-1")
    position = 0 if body.startswith(delimiter) else _find(body, b"\r\n" + delimiter, 0) + 2
    parts: list[Part] = []
    while True:
        position += len(delimiter)
        if body.startswith(b"--", position):
            return parts
        if len(parts) == most:
            raise FormError(f"it has more than {most} parts")
        head = body.find(b"\r\n\r\n", position, position + HEADER_BYTES)
        if head < 0 or not body.startswith(b"\r\n", position):
            raise FormError(f"a part has no header, or one of more than {HEADER_BYTES} bytes")
        end = _find(body, b"\r\n" + delimiter, head + 2)  # an empty part has the same line break before and after
        parts.append(_part(body[position:head], body[head + 4 : end]))
        position = end + 2


def _find(body: bytes, wanted: bytes, start: int) -> int:
    for begin in range(start, len(body), WINDOW):
        found = body.find(wanted, begin, begin + WINDOW + len(wanted) - 1)
        if found >= 0:
            return found
    raise FormError("it does not end with its boundary")


def _part(head: bytes, content: bytes) -> Part:
    lines = (line.partition(b":") for line in head.split(b"\r\n"))
    disposition = next((value for name, _, value in lines if name.strip().lower() == b"content-disposition"), b"")
    fields = {key.lower(): value.decode(errors="replace") for key, value in FIELD.findall(disposition)}
    return Part(fields.get(b"name", ""), fields.get(b"filename"), content)
