"""The cost of decoding an image, found in its bytes before anything is decoded.

A file of a few bytes can ask for gigabytes or for minutes. Pillow refuses images with too many pixels; here stands what
it does not bound, or does not in its older versions: scans of a JPEG, tiles of a TIFF, colour profiles of a PNG, and
headers of many pieces or of pieces on top of each other.
"""

import io
import re
import struct
from itertools import count
from typing import Any

from PIL.TiffImagePlugin import ImageFileDirectory_v2

from acclimate.errors import ImageError

BYTES_PER_PIXEL = 8  # peak memory of decoding: an RGB image of Pillow, twice
# peak memory of other formats, in images of `BYTES_PER_PIXEL`
PEAK_FACTORS = {"WEBP": 2.0, "AVIF": 2.0, "HEIF": 2.0, "JPEG2000": 2.5}
# reads of a file before its pixels; Pillow reads each segment, chunk, tag or comment on its own
MAX_HEADER_READS = 5000
MAX_HEADER_FACTOR = 3  # bytes read before the pixels <= factor * bytes of the file + `SMALL_HEADER_BYTES`
SMALL_HEADER_BYTES = 2**16
MAX_PARTS = 1000  # segments of a JPEG, or tiles of a TIFF in addition to those of `MIN_BLOCK_PIXELS`
MAX_PROFILES = 100  # colour profiles of a PNG, each of which Pillow inflates
SCAN_FACTOR = 16  # pixels of all scans of a JPEG together <= factor * allowed pixels; encoders write about ten scans
MIN_BLOCK_PIXELS = 256  # smallest mean size of the tiles or strips of a TIFF
FAX_COMPRESSIONS = (2, 3, 4, 32771)  # libtiff writes a line to standard error for each of their bad rows
MIN_FAX_ROW_PIXELS = 1000  # rows of a fax <= allowed pixels / this
TIFF = (b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b", b"II\0\x2a", b"MM\x2a\0")
HOW_TO_ALLOW = (
    "start with a larger --max-pixels, of classify: --encode max_pixels=N (in Python: "
    "acclimate.images.opening.limit_pixels; for the service: `pixels` in [limits])"
)
NEXT_MARKER = re.compile(rb"\xff([^\x00\xff\xd0-\xd7])", re.DOTALL)  # not the restart markers within a scan


class HeaderFile(io.BytesIO):
    """An image file that refuses a header of too many or overlapping pieces, until `checking` is False."""

    checking = True
    read_count = 0
    read_bytes = 0

    def read(self, size: int | None = -1) -> bytes:
        """Read like any other file."""
        content = super().read(size)
        self.read_count += 1
        self.read_bytes += len(content)
        if self.checking:
            _bound(self.read_count, "parts beside its pixels", MAX_HEADER_READS)
            most = MAX_HEADER_FACTOR * self.getbuffer().nbytes + SMALL_HEADER_BYTES
            _bound(self.read_bytes, "bytes of parts that lie on top of each other", most)
        return content


def jpeg(content: bytes, limit: int) -> int:
    """Bound EXIF, and count scans: a progressive JPEG repeats the work for each.

    Returns the memory that decoding takes; 0 if it is that of other images.
    """
    place = 2
    scans = 0
    frame = b""
    progressive = False
    exif = list[bytes]()
    for parts in count():
        _bound(parts, "segments", MAX_PARTS)
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
    check_exif(b"".join(exif))
    sampling = [(each >> 4) * (each & 15) for each in frame[7::3]]
    if not sampling or (scans < 2 and not progressive):
        return 0
    height, width = struct.unpack_from(">HH", frame, 1)
    if scans * width * height > SCAN_FACTOR * limit:
        raise ImageError(
            f"{scans} scans of {width} x {height} pixels take too long to decode; save it again, or {HOW_TO_ALLOW}"
        )
    coefficients = 2 * sum(sampling) / max(*sampling, 1)  # bytes per pixel, kept from scan to scan
    return int(width * height * (4 + coefficients))


def png(content: bytes, limit: int) -> int:
    """Bound the colour profiles, and return the memory that an animation takes; 0 for other images."""
    _bound(content.count(b"iCCP"), "colour profiles", MAX_PROFILES)
    width, height = struct.unpack_from(">II", content, 16)
    return 2 * BYTES_PER_PIXEL * width * height if b"acTL" in content else 0


def tiff(content: bytes, limit: int) -> int:
    """Bound directories and blocks: a tile may be far larger than the image, and all of them in one place.

    Returns the memory that decoding takes; 0 if it is that of other images.
    """
    tags = read_tags(content)
    width = int(tags.get(256, 0))
    height = int(tags.get(257, 0))
    planes = int(tags.get(277, 1))
    compression = tags.get(259, 1)
    tiled = 324 in tags
    across = int(tags.get(322, 0)) if tiled else width
    down = int(tags.get(323, 0)) if tiled else min(int(tags.get(278, height)), height)
    apart = planes if tags.get(284) == 2 else 1
    blocks = _ceil(width, across) * _ceil(height, down) * apart
    _bound(blocks, "tiles or strips", MAX_PARTS + limit // MIN_BLOCK_PIXELS)
    _bound(len(tags.get(324 if tiled else 273, ())), "tiles or strips", blocks)
    bits = planes // apart * max(tags.get(258, (1,)))
    if compression in FAX_COMPRESSIONS and height > limit // MIN_FAX_ROW_PIXELS:
        raise ImageError(f"a fax of {height:,} rows takes too long to decode; save it as PNG, or {HOW_TO_ALLOW}")
    row = 10 * across if compression in (6, 7) else _ceil(across * bits, 8)  # JPEG: coefficients and RGBA
    return 4 * width * height + row * down if compression > 1 else 0


def check_exif(data: bytes) -> None:
    """Refuse EXIF with too many tags, or whose values, which Pillow copies, lie on top of each other."""
    while data.startswith(b"Exif\0\0"):
        data = data[6:]
    if data[:4] in TIFF:
        read_tags(data)


def read_tags(data: bytes, offset: int = 0) -> Any:
    """Read a directory of a TIFF, by default the first, as Pillow does, within the bounds of `HeaderFile`."""
    tags = ImageFileDirectory_v2(data[: 16 if 43 in data[2:4] else 8])
    file = HeaderFile(data)
    file.seek(offset or tags.next)
    tags.load(file)
    return tags


def _ceil(size: int, block: int) -> int:
    return -(-size // max(block, 1))


def _bound(found: int, what: str, most: int) -> None:
    if found > most:
        raise ImageError(f"more than {most:,} {what}; save it again without them")


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
