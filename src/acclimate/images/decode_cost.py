"""The cost of decoding an image, found in its bytes before anything is decoded.

A file of a few bytes can ask for gigabytes or for minutes. Pillow refuses images with too many pixels; here stands what
it does not bound, or does not in its older versions: scans of a JPEG, tiles of a TIFF, overlapping tags, colour
profiles of a PNG, and headers in many pieces.
"""

import io
import re
import struct
from typing import Any, NamedTuple

import numpy as np

from acclimate.errors import ImageError

BYTES_PER_PIXEL = 8  # peak memory of decoding: an RGB image of Pillow, twice
# peak memory of other formats, in images of `BYTES_PER_PIXEL`
PEAK_FACTORS = {"WEBP": 2.0, "AVIF": 2.0, "HEIF": 2.0, "JPEG2000": 2.5}
MAX_HEADER_READS = (
    5000  # reads of a file before its pixels; Pillow reads each segment, chunk, tag or comment on its own
)
MAX_PARTS = 1000  # segments of a JPEG, or tiles of a TIFF in addition to those of `MIN_BLOCK_PIXELS`
MAX_PROFILES = 100  # colour profiles of a PNG, each of which Pillow inflates
MAX_SCANS = 100  # scans of a JPEG; encoders write about ten
SCAN_FACTOR = 16  # all scans of a JPEG may hold factor * allowed pixels together
MIN_BLOCK_PIXELS = 256  # smallest mean size of the tiles or strips of a TIFF
FAX_COMPRESSIONS = (2, 3, 4, 32771)  # libtiff writes a line to standard error for each of their bad rows
MIN_FAX_ROW_PIXELS = 1000  # rows of a fax <= allowed pixels / this
MAX_TAGS = 1000  # tags of a directory
TIFF = (b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b", b"II\0\x2a", b"MM\x2a\0")
# bytes of a value by TIFF's type
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
SUBDIRECTORY_TAGS = (34665, 34853, 40965)  # EXIF, GPS and interoperability, which Pillow reads
HOW_TO_ALLOW = (
    "start with a larger --max-pixels (in Python: acclimate.images.opening.limit_pixels; for the service: "
    "`pixels` in [limits])"
)
NEXT_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)  # not the restart markers within a scan


class HeaderFile(io.BytesIO):
    """An image file that refuses a header of too many pieces, until `reads_left` is set to infinity."""

    reads_left: float = MAX_HEADER_READS

    def read(self, size: int | None = -1) -> bytes:
        """Read like any other file."""
        self.reads_left -= 1
        if self.reads_left < 0:
            raise ImageError(f"more than {MAX_HEADER_READS:,} parts beside its pixels; save it again without them")
        return super().read(size)


def jpeg(content: bytes, limit: int) -> int:
    """Bound EXIF, and count scans: a progressive JPEG repeats the work for each.

    Returns the memory that decoding takes; 0 if it is that of other images.
    """
    place = 2
    scans = 0
    frame = b""
    progressive = False
    exif = list[bytes]()
    for _ in range(MAX_PARTS):
        marker = NEXT_MARKER.search(content, place)
        if not marker or marker[1] == b"\xd9":
            break
        code = marker[1][0]
        place = marker.end()
        if code in (0x01, 0xD8):  # have no length
            continue
        length = max(2, int.from_bytes(content[place : place + 2], "big"))
        segment = content[place + 2 : place + length]
        place += length
        if code == 0xDA:
            scans += 1
            if not progressive and segment[:1] == frame[5:6]:
                break  # decoders stop after one scan of all components
        elif 0xC0 <= code <= 0xCF and code not in (0xC4, 0xC8, 0xCC):
            frame = segment
            progressive = code & 3 == 2
        elif code == 0xE1 and segment.startswith(b"Exif\0\0"):
            exif.append(segment[6:] if exif else segment)  # Pillow joins them so
    else:
        raise _too_much("segments", MAX_PARTS)
    check_exif(b"".join(exif))
    sampling = [(each >> 4) * (each & 15) for each in frame[7::3]]
    if not sampling or (scans < 2 and not progressive):
        return 0
    height, width = struct.unpack_from(">HH", frame, 1)
    if scans > MAX_SCANS or scans * width * height > SCAN_FACTOR * limit:
        raise ImageError(
            f"{scans} scans of {width} x {height} pixels take too long to decode; save it again, or {HOW_TO_ALLOW}"
        )
    coefficients = 2 * sum(sampling) / max(*sampling, 1)  # bytes per pixel, kept from scan to scan
    return int(width * height * (4 + coefficients))


def png(content: bytes, limit: int) -> int:
    """Bound the colour profiles, and return the memory that an animation takes; 0 for other images."""
    if content.count(b"iCCP") > MAX_PROFILES:
        raise _too_much("colour profiles", MAX_PROFILES)
    width, height = struct.unpack_from(">II", content, 16)
    return 2 * BYTES_PER_PIXEL * width * height if b"acTL" in content else 0


def tiff(content: bytes, limit: int) -> int:
    """Bound directories and blocks: a tile may be far larger than the image, and all of them in one place.

    Returns the memory that decoding takes; 0 if it is that of other images.
    """
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
    compression = tags.value(259, 1)
    bits = planes // apart * int(tags.values(258, 1).max())
    if compression in FAX_COMPRESSIONS and height > limit // MIN_FAX_ROW_PIXELS:
        raise ImageError(f"a fax of {height:,} rows takes too long to decode; save it as PNG, or {HOW_TO_ALLOW}")
    row = 10 * across if compression in (6, 7) else _ceil(across * bits, 8)  # JPEG: coefficients and RGBA
    return 4 * width * height + row * down if compression > 1 else 0


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


# checks before a file is opened
EXAMINERS = {"JPEG": jpeg, "PNG": png, "TIFF": tiff}
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
