"""The cost of decoding an image, found in its bytes before anything is decoded.

A file of a few bytes can ask for gigabytes or for minutes. For each kind of file, a walk over its structure finds the
size of the image and the memory that decoding takes, and refuses what makes Pillow or a codec slow. A walk is linear in
the length of the file and stops at the first bound.
"""

import re
import struct
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from PIL import JpegImagePlugin

from acclimate.errors import ImageError

BYTES_PER_PIXEL = 8  # peak memory of decoding: an RGB image of Pillow, twice
MAX_METADATA_BYTES = 16 * 2**20  # bytes beside the pixels
MAX_COMMENT_BYTES = 2**20  # bytes of a GIF's extensions, which Pillow joins one by one
MAX_PARTS = 1000  # segments, chunks or boxes beside those of the pixels
MAX_PACKED_PARTS = 100  # compressed chunks
MAX_GAP_BYTES = 4096  # bytes between two segments of a JPEG
MAX_SCANS = 100  # scans of a JPEG; encoders write about ten
SCAN_FACTOR = 16  # all scans of a JPEG may hold factor * allowed pixels together
SLOW_FACTOR = 16  # bytes or values that Pillow decodes in Python <= allowed pixels / factor
FAX_COMPRESSIONS = (2, 3, 4, 32771)  # libtiff writes a line to standard error for each of their bad rows
MIN_FAX_ROW_PIXELS = 1000  # rows of a fax <= allowed pixels / this
MIN_BLOCK_PIXELS = 256  # smallest mean size of the tiles or strips of a TIFF
MAX_TAGS = 1000  # tags of a directory
TIFF = (b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b", b"II\0\x2a", b"MM\x2a\0")
# bytes of a value by TIFF's type
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
SUBDIRECTORY_TAGS = (34665, 34853, 40965)  # EXIF, GPS and interoperability, which Pillow reads
HOW_TO_ALLOW = (
    "start with a larger --max-pixels (in Python: acclimate.images.opening.limit_pixels; for the service: "
    "`pixels` in [limits])"
)

MARKER = re.compile(rb"\xff([^\x00\xff])", re.DOTALL)
NEXT_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)  # not the restart markers within a scan
COMMENT = re.compile(rb"#[^\r\n]*[\r\n]?")

# Width, height, and the bytes of memory that decoding takes, if they are more than `BYTES_PER_PIXEL` for each pixel.
Cost = tuple[int, int, int]


def jpeg(content: bytes, limit: int) -> Cost:
    """Bound segments, and count scans: a progressive JPEG repeats the work for each."""
    place = 2
    frame = b""
    progressive = False
    exif = list[bytes]()
    for _ in range(MAX_PARTS):
        if not (marker := MARKER.search(content, place, place + MAX_GAP_BYTES)):
            raise ImageError("damaged: its segments cannot be followed")
        code = marker[1][0]
        place = marker.end()
        if not JpegImagePlugin.MARKER.get(0xFF00 | code, (0, 0, 0))[2]:
            continue  # stands alone, for Pillow
        length = max(2, int.from_bytes(content[place : place + 2], "big"))
        segment = content[place + 2 : place + length]
        if code == 0xDA:
            break
        if 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC):
            frame = segment
            progressive = code & 3 == 2
        elif code == 0xE1 and segment.startswith(b"Exif\0\0"):
            exif.append(segment[6:] if exif else segment)  # Pillow joins them so
        elif code == 0xE2 and segment.startswith(b"MPF\0"):
            check_exif(segment[4:])
        place += length
        _bound(place, "bytes of metadata", MAX_METADATA_BYTES)
    else:
        raise _too_much("segments", MAX_PARTS)
    check_exif(b"".join(exif))
    if len(frame) < 6 or len(frame) < 6 + 3 * frame[5]:
        raise ImageError("damaged: it says nothing of its size")
    height, width = struct.unpack_from(">HH", frame, 1)
    if segment[:1] == frame[5:6] and not progressive:
        return width, height, 0  # decoders stop after one scan of all components
    scans = _scans(content, place + length)
    if scans > MAX_SCANS or scans * width * height > SCAN_FACTOR * limit:
        raise ImageError(
            f"{scans} scans of {width} x {height} pixels take too long to decode; save it again, or {HOW_TO_ALLOW}"
        )
    sampling = [(each >> 4) * (each & 15) for each in frame[7 : 6 + 3 * frame[5] : 3]]
    coefficients = 2 * sum(sampling) / max(max(sampling), 1)  # bytes per pixel, kept from scan to scan
    return width, height, int(width * height * (4 + coefficients))


def _scans(content: bytes, place: int) -> int:
    """Count the scans behind the head of the first one, up to the end of the image, or to more than are allowed."""
    scans = 1
    for _ in range(MAX_PARTS):
        if not (marker := NEXT_MARKER.search(content, place)) or marker[1] == b"\xd9":
            return scans
        place = marker.end()
        if marker[1] not in b"\x01\xd8":
            place += int.from_bytes(content[place : place + 2], "big")
        scans += marker[1] == b"\xda"
        if scans > MAX_SCANS:
            return scans
    raise _too_much("segments", MAX_PARTS)


def png(content: bytes, limit: int) -> Cost:
    """Bound chunks: each costs Pillow time, and some are compressed."""
    place = 8
    beside = 0
    packed = 0
    frames = False
    most = MAX_PARTS + len(content) // 1024
    name = b""
    for _ in range(most):
        if name == b"IEND" or place + 8 > len(content):
            break
        length, name = struct.unpack_from(">I4s", content, place)
        place += 12 + length
        if name not in (b"IDAT", b"fdAT"):
            beside += length
            packed += name in (b"iCCP", b"zTXt", b"iTXt")
            frames |= name == b"acTL"
        if name == b"eXIf":
            check_exif(content[place - 4 - length : place - 4])
    else:
        raise _too_much("chunks", most)
    _bound(packed, "compressed chunks", MAX_PACKED_PARTS)
    _bound(beside, "bytes of metadata", MAX_METADATA_BYTES)
    width, height = struct.unpack_from(">II", content, 16)
    # An animation has a background as well.
    return width, height, 2 * BYTES_PER_PIXEL * width * height if frames else 0


def gif(content: bytes, limit: int) -> Cost:
    """Bound extensions; the first frame may be larger than the screen."""
    width, height = struct.unpack_from("<HH", content, 6)
    start = place = 13 + (3 << (content[10] & 7) + 1 if content[10] & 128 else 0)
    while place + 10 <= len(content) and content[place] != 0x3B:
        if content[place] == 0x2C:
            left, top, *size = struct.unpack_from("<HHHH", content, place + 1)
            return max(width, left + size[0]), max(height, top + size[1]), 0
        if content[place] == 0x21:  # Pillow reads up to two blocks of some extensions before it looks for their end
            first = 0 if content[place + 1] == 0xFE else 2 if content.startswith(b"NETSCAPE2.0", place + 3) else 1
            place += 2
            while place < min(start + MAX_COMMENT_BYTES, len(content)) and (first > 0 or content[place]):
                place = place + 1 + content[place]
                first = first - 1
        place += 1
        _bound(place - start, "bytes of comments", MAX_COMMENT_BYTES)
    return width, height, 0


def webp(content: bytes, limit: int) -> Cost:
    """Find the size; the decoder keeps two canvases, a frame and a copy."""
    chunk = content[12:16]
    if chunk == b"VP8X":
        width, height = (1 + int.from_bytes(content[at : at + 3], "little") for at in (24, 27))
    elif chunk == b"VP8L":
        bits = int.from_bytes(content[21:25], "little")
        width = 1 + (bits & 0x3FFF)
        height = 1 + (bits >> 14 & 0x3FFF)
    else:
        width, height = (each & 0x3FFF for each in struct.unpack_from("<HH", content, 26))
    return width, height, 16 * width * height


def bmp(content: bytes, limit: int) -> Cost:
    """Find the size; Pillow decodes the compressed ones in Python."""
    start = 14 if content.startswith(b"BM") else 0
    if content[start] == 12:
        return *struct.unpack_from("<HH", content, start + 4), 0
    width, height, _, _, compression = struct.unpack_from("<IiHHI", content, start + 4)
    if compression in (1, 2) and len(content) > limit // SLOW_FACTOR:
        raise _too_slow(content)
    return width, abs(height), 0


def ppm(content: bytes, limit: int) -> Cost:
    """Bound the header; Pillow decodes numbers written as text, and other maxima than 255, in Python."""
    kind, *numbers = [*COMMENT.sub(b"", content[:MAX_GAP_BYTES]).split(None, 4), b"", b""][:4]
    try:
        width = int(numbers[0])
        height = int(numbers[1])
        most = int(numbers[2]) if kind in (b"P5", b"P6") else 255
    except ValueError:
        raise ImageError(f"damaged: no size among its first {MAX_GAP_BYTES} bytes") from None
    values = width * height * (3 if kind == b"P6" else 1)
    plain = kind in (b"P1", b"P2", b"P3")
    direct = most == 255 or (most == 65535 and kind == b"P5")
    if (len(content) if plain else 0 if direct else values) > limit // SLOW_FACTOR:
        raise _too_slow(content)
    return width, height, 0


def tga(content: bytes, limit: int) -> Cost:
    """Find the size."""
    return *struct.unpack_from("<HH", content, 12), 0


def jpeg2000(content: bytes, limit: int) -> Cost:
    """Bound boxes, components and tiles; the decoder keeps each component as 32-bit integers."""
    place = 0
    boxes = 0
    while not content.startswith(b"\xff\x4f\xff\x51", place):
        length, name = struct.unpack_from(">I4s", content, place)
        head, length = (16, *struct.unpack_from(">Q", content, place + 8)) if length == 1 else (8, length)
        boxes += 1
        if boxes > MAX_PARTS or (name == b"jp2h" and length > MAX_GAP_BYTES):
            raise _too_much("boxes", MAX_PARTS)
        place += head if name == b"jp2c" else max(length, head)
    width, height, left, top, across, down, _, _, count = struct.unpack_from(">IIIIIIIIH", content, place + 8)
    width = width - left
    height = height - top
    if count > 4 or _ceil(width, across) * _ceil(height, down) > MAX_PARTS + limit // MIN_BLOCK_PIXELS**2:
        raise _too_much("tiles or components", MAX_PARTS)
    return width, height, width * height * (4 * count + BYTES_PER_PIXEL)


def tiff(content: bytes, limit: int) -> Cost:
    """Bound directories and blocks: a tile may be far larger than the image, and all of them in one place."""
    tags = read_directory(content)
    width = tags.value(256)
    height = tags.value(257)
    planes = tags.value(277, 1)
    tiled = 324 in tags.entries
    across, down = (tags.value(322), tags.value(323)) if tiled else (width, min(tags.value(278, height), height))
    apart = planes if tags.value(284, 1) == 2 else 1
    blocks = _ceil(width, across) * _ceil(height, down) * apart
    found = tags.entries.get(324 if tiled else 273, (0, 0, 0))[1]
    _bound(max(found, blocks), "tiles or strips", min(blocks, MAX_PARTS + limit // MIN_BLOCK_PIXELS))
    if int(tags.values(325 if tiled else 279).astype(float).sum()) > 2 * len(content):
        raise ImageError("damaged: its tiles or strips lie on top of each other")
    compression = tags.value(259, 1)
    bits = planes // apart * int(tags.values(258, 1).max())
    if compression in (6, 7) and (scans := content.count(b"\xff\xda")) > MAX_SCANS + 4 * blocks:
        raise ImageError(f"{scans} scans take too long to decode; save it again")
    if compression in FAX_COMPRESSIONS and height > limit // MIN_FAX_ROW_PIXELS:
        raise ImageError(f"a fax of {height:,} rows takes too long to decode; save it as PNG, or {HOW_TO_ALLOW}")
    row = 10 * across if compression in (6, 7) else _ceil(across * bits, 8)  # JPEG: coefficients and RGBA
    return width, height, 4 * width * height + row * down if compression > 1 else 0


class Directory(NamedTuple):
    """A directory of a TIFF: for each tag the size of a value, the number of values and their offset."""

    data: bytes
    entries: dict[int, tuple[int, int, int]]
    order: str  # byte order, "<" or ">"

    def values(self, tag: int, default: int = 0) -> "np.ndarray[Any, np.dtype[np.uint64]]":
        """Return the whole numbers of a tag."""
        size, count, offset = self.entries.get(tag, (0, 0, 0))
        if size not in (1, 2, 4, 8) or not count or offset + size * count > len(self.data):
            return np.array([default], np.uint64)
        return np.frombuffer(self.data, f"{self.order}u{size}", count, offset).astype(np.uint64)

    def value(self, tag: int, default: int = 0) -> int:
        """Return the first number of a tag."""
        return int(self.values(tag, default)[0])


def check_exif(data: bytes) -> None:
    """Refuse EXIF with too many tags, or whose values, which Pillow copies, lie on top of each other."""
    while data.startswith(b"Exif\0\0"):
        data = data[6:]
    if data[:4] in TIFF:
        read_directory(data)


def read_directory(data: bytes, offset: int | None = None, depth: int = 2) -> Directory:
    """Read the first directory of a TIFF, or the one at an offset; check it, and those it points to."""
    order = "<" if data[:2] == b"II" else ">"
    wide = 43 in data[2:4]
    number = struct.Struct(order + ("Q" if wide else "H"))
    slot = struct.Struct(order + ("Q" if wide else "I"))
    head = struct.Struct(order + ("HHQ" if wide else "HHI"))
    entries: dict[int, tuple[int, int, int]] = {}
    total = 0  # bytes of all values that lie elsewhere
    try:
        offset = slot.unpack_from(data, slot.size)[0] if offset is None else offset
        (count,), offset = number.unpack_from(data, offset), offset + number.size
        _bound(count, "tags", MAX_TAGS)
        for start in range(offset, offset + count * (head.size + slot.size), head.size + slot.size):
            tag, kind, many = head.unpack_from(data, start)
            size = SIZES.get(kind, 0)
            where = start + head.size
            if size * many > slot.size:
                (where,) = slot.unpack_from(data, where)
                total += min(size * many, max(0, len(data) - where))
            entries[tag] = size, many, where
    except struct.error:  # cut off: Pillow reads as far, and may then refuse it
        pass
    if total > 2 * len(data):
        raise ImageError("damaged: its tags lie on top of each other")
    directory = Directory(data, entries, order)
    if depth:
        for tag in SUBDIRECTORY_TAGS:
            if tag in entries:
                read_directory(data, directory.value(tag), depth - 1)
    return directory


def _ceil(size: int, block: int) -> int:
    return -(-size // max(block, 1))


def _bound(count: int, what: str, most: int) -> None:
    if count > most:
        raise _too_much(what, most)


def _too_much(what: str, most: int) -> ImageError:
    return ImageError(f"more than {most:,} {what}; save it again without them")


def _too_slow(content: bytes) -> ImageError:
    return ImageError(f"{len(content):,} bytes of a kind that is slow to read; save it as PNG, or {HOW_TO_ALLOW}")


EXAMINERS: dict[str, Callable[[bytes, int], Cost]] = {
    "JPEG": jpeg,
    "PNG": png,
    "WEBP": webp,
    "GIF": gif,
    "BMP": bmp,
    "TIFF": tiff,
    "PPM": ppm,
    "DIB": bmp,
    "JPEG2000": jpeg2000,
    "TGA": tga,
}
SIGNATURES = {
    kind: re.compile(begins, re.DOTALL)
    for kind, begins in {
        "JPEG": rb"\xff\xd8\xff",
        "PNG": rb"\x89PNG\r\n\x1a\n",
        "WEBP": rb"RIFF....WEBPVP8[ LX]",
        "GIF": rb"GIF8[79]a",
        "BMP": rb"BM",
        "TIFF": b"|".join(map(re.escape, TIFF)),
        "PPM": rb"P[1-6f]",
        "AVIF": rb"....ftypavi[fs]",
        "HEIF": rb"....ftyp(hei|hev|mif1|msf1)",
        "JPEG2000": rb"\xff\x4f\xff\x51|\0\0\0\x0cjP  \r\n\x87\n",
        "TGA": rb".[\0\x01][\x01-\x03\x09-\x0b].{13}[\x01\x08\x10\x18\x20]",  # no signature, but few values
        "DIB": rb"[\x0c\x28\x34\x38\x40\x6c\x7c]\0\0\0",
    }.items()
}
