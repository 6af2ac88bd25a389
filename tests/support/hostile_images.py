"""Image files that cost far more than they weigh: for each, bytes that a decoder without bounds pays dearly for."""

import struct
import zlib
from functools import cache

import numpy as np
from PIL import Image

from drawn_images import encoded

FILLER = 4 * 2**20  # bytes of comments, chunks and the like


def chunk(name, data=b""):
    return struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))


def png(width, height, *chunks, pixels=b""):
    """Return a PNG of 1 bit per pixel, of one colour unless `pixels` are given, with more chunks before the pixels."""
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
    data = pixels or chunk(b"IDAT", zlib.compress(bytes((1 + (width + 7) // 8) * height)))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(chunks) + data + chunk(b"IEND")


def segment(code, data=b""):
    return bytes([0xFF, code]) + struct.pack(">H", len(data) + 2) + data


def jpeg(*segments):
    """Return a small JPEG with more bytes behind its start."""
    content = encoded(Image.new("RGB", (32, 24), "red"), "JPEG")
    return content[:2] + b"".join(segments) + content[2:]


@cache
def _progressive(size):
    return encoded(Image.new("RGB", size), "JPEG", progressive=True)


def scans(count, size=(8000, 5000)):
    """Return a progressive JPEG whose last scan is repeated."""
    content = _progressive(size)
    last = content.rindex(b"\xff\xda")
    return content[:-2] + content[last:-2] * count + content[-2:]


def directory(entries, size):
    """Return a little-endian TIFF directory of (tag, type, count, value), followed by zeros up to a size."""
    rows = b"".join(struct.pack("<HHII", *entry) for entry in sorted(entries))
    content = b"II\x2a\0" + struct.pack("<I", 8) + struct.pack("<H", len(entries)) + rows + bytes(4)
    return content + bytes(max(0, size - len(content)))


def overlapping(size, count=None, base=()):
    """Return tags that each claim all of the file."""
    count = count or (size - 14) // 12
    used = {tag for tag, *_ in base}
    tags = [tag for tag in range(1000, 60000) if tag not in used][: count - len(base)]
    return directory([*base, *((tag, 7, size - 8, 8) for tag in tags)], size)


def cut_off(content):
    """Return a directory at the end of its file, which is to have more tags."""
    count = struct.unpack_from("<H", content, 8)[0]
    rows = content[8 : 10 + 12 * count]
    return content[:4] + struct.pack("<I", len(content)) + content[8:] + struct.pack("<H", count + 1) + rows[2:]


def tiff(width, height, *more, size=0):
    """Return a TIFF of 8 bits per pixel with more tags."""
    base = [(256, 4, 1, width), (257, 4, 1, height), (258, 3, 1, 8), (262, 3, 1, 1), (277, 3, 1, 1)]
    entries = {tag: (tag, *rest) for tag, *rest in [*base, *more]}
    return directory(list(entries.values()), size)


def tiled(side=19000):
    """Return a TIFF of 10 x 10 pixels whose only tile is enormous, in deflated zeros."""
    data = zlib.compress(bytes(side * side), 1)
    at = 4096
    head = tiff(10, 10, (259, 3, 1, 8), (322, 4, 1, side), (323, 4, 1, side), (324, 4, 1, at), (325, 4, 1, len(data)))
    return head.ljust(at, b"\0") + data


def no_pixels():
    """Return a TIFF of 0 x 0 pixels, in no tiles, which are enormous."""
    return tiff(0, 0, (259, 3, 1, 5), (322, 4, 1, 100_000), (323, 4, 1, 100_000), (324, 4, 0, 0))


def repeated_strips(side=6000, count=5000):
    """Return a TIFF of 1 bit per pixel with many strips, each the whole image and all in the same place."""
    places = np.full(count, 8192, "<u4").tobytes()
    counts = np.full(count, side * side // 8, "<u4").tobytes()
    at = 8192
    pixels = side * side // 8
    head = tiff(
        side,
        side,
        (258, 3, 1, 1),
        (278, 4, 1, side),
        (273, 4, count, at + pixels),
        (279, 4, count, at + pixels + len(places)),
    )
    return head.ljust(at, b"\0") + bytes(pixels) + places + counts


def tiny_tiles(count=FILLER // 4):
    """Return a TIFF with a million tiles of one pixel."""
    return tiff(
        count, 1, (322, 4, 1, 1), (323, 4, 1, 1), (324, 4, count, 4096), (325, 4, count, 4096), size=4096 + 4 * count
    )


def scanned_tiff():
    """Return a TIFF that holds a JPEG of many scans."""
    data = scans(900)
    at = 4096
    head = tiff(
        8000,
        5000,
        (258, 3, 3, 2048),
        (259, 3, 1, 7),
        (262, 3, 1, 6),
        (277, 3, 1, 3),
        (278, 4, 1, 5000),
        (273, 4, 1, at),
        (279, 4, 1, len(data)),
    )
    return head.ljust(2048, b"\0") + struct.pack("<HHH", 8, 8, 8).ljust(at - 2048, b"\0") + data


def fax(rows=500_000):
    """Return a TIFF of noise in which every row of the fax is bad."""
    data = np.random.default_rng(0).bytes(100_000)
    at = 4096
    tags = (258, 3, 1, 1), (259, 3, 1, 3), (278, 4, 1, rows), (273, 4, 1, at), (279, 4, 1, len(data))
    return tiff(8, rows, *tags).ljust(at, b"\0") + data


def gif(*blocks, screen=(10, 10), frame=(10, 10)):
    head = b"GIF89a" + struct.pack("<HHBBB", *screen, 0x80, 0, 0) + bytes(6)
    return head + b"".join(blocks) + b"," + struct.pack("<HHHHB", 0, 0, *frame, 0) + b"\x02\x02\x44\x01\0;"


def tiles_of_jpeg2000(side=6000):
    size = struct.pack(">HHIIIIIIIIH", 41, 0, side, side, 0, 0, 24, 24, 0, 0, 1) + b"\x07\x01\x01"
    return b"\xff\x4f\xff\x51" + size + bytes(64)


def profile(text):
    return chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(text))


PACKED = zlib.compress(bytes(2**20 - 64), 9)

# Content that must be refused or be decoded within the limits of `test_a_hostile_image_costs_little`.
CASES = {
    "PNG 20000 x 1": lambda: png(20000, 1),
    "PNG 1 x 1000000": lambda: png(1, 1_000_000),
    "PNG 40000000 x 1": lambda: png(40_000_000, 1),
    "JPEG 65000 x 2": lambda: encoded(Image.new("L", (65000, 2)), "JPEG"),
    "JPEG of 900 scans": lambda: scans(900),
    "JPEG of 90 scans of 40 million pixels": lambda: scans(80),
    "JPEG with junk": lambda: jpeg(segment(0xFE), bytes(FILLER)),
    "JPEG with padding": lambda: jpeg(b"\xff" * FILLER),
    "JPEG with escaped junk": lambda: jpeg(b"\xff\0" * (FILLER // 2)),
    "JPEG with empty comments": lambda: jpeg(segment(0xFE) * (FILLER // 4)),
    "JPEG with restart markers": lambda: jpeg(b"\xff\xd0" * (FILLER // 2)),
    "JPEG with hidden junk": lambda: jpeg((b"\xff\xf0\xff\xf0" + bytes(60_000)) * 64),
    "JPEG with overlapping EXIF": lambda: jpeg(
        *(segment(0xE1, b"Exif\0\0" + part) for part in [*_cut(overlapping(60_000 * 20, 900), 60_000)])
    ),
    "JPEG with overlapping MPF": lambda: jpeg(segment(0xE2, b"MPF\0" + overlapping(65_000, 5_000))),
    "PNG with empty chunks": lambda: png(9, 9, chunk(b"abCd") * (FILLER // 12)),
    "PNG with empty pixels": lambda: png(9, 9, pixels=chunk(b"IDAT") * (FILLER // 12)),
    "PNG with packed profiles": lambda: png(9, 9, *[chunk(b"iCCP", b"x\0\0" + PACKED)] * 3000),
    "PNG with packed texts": lambda: png(9, 9, *[chunk(b"zTXt", b"x\0\0" + PACKED)] * 3000),
    "PNG with overlapping EXIF that is cut off": lambda: png(9, 9, chunk(b"eXIf", cut_off(overlapping(2**21, 900)))),
    "PNG with overlapping EXIF": lambda: png(9, 9, chunk(b"eXIf", overlapping(2**21, 900))),
    "PNG with overlapping EXIF in hexadecimal": lambda: png(
        9, 9, profile(b"\n\n\n" + overlapping(500_000, 40_000).hex().encode())
    ),
    "GIF with comments": lambda: gif(b"!\xfe" + (b"\xff" + bytes(255)) * (FILLER // 64) + b"\0"),
    "GIF with short comments": lambda: gif(b"!\xfe" + b"\x01x" * FILLER + b"\0"),
    "GIF with junk": lambda: gif(bytes(FILLER)),
    "GIF with a hidden extension": lambda: gif(b"!\xff\x0bNETSCAPE2.0\0" + b"\x01," * FILLER + b"\0\0"),
    "GIF with a frame beyond its screen": lambda: gif(screen=(10, 10), frame=(65535, 65535)),
    "TIFF with an enormous tile": tiled,
    "TIFF without pixels": no_pixels,
    "TIFF with many tags": lambda: overlapping(2**20, 60_000, [(256, 4, 1, 9), (257, 4, 1, 9), (273, 4, 1, 8)]),
    "TIFF with overlapping tags": lambda: overlapping(2**21, 900, [(256, 4, 1, 9), (257, 4, 1, 9), (273, 4, 1, 8)]),
    "TIFF with strips in one place": repeated_strips,
    "TIFF with tiny tiles": tiny_tiles,
    "TIFF with a JPEG of 900 scans": scanned_tiff,
    "TIFF with a fax of bad rows": fax,
    "PPM with a comment": lambda: b"P6\n#" + b"x" * FILLER + b"\n1 1 255 abc",
    "PPM with spaces": lambda: b"P6\n" + b" " * FILLER + b"\n1 1 255 abc",
    "WebP of 40 million pixels": lambda: encoded(Image.new("RGBA", (8000, 5000)), "WEBP", lossless=True, method=0),
    "JPEG 2000 with tiny tiles": tiles_of_jpeg2000,
    "EPS": lambda: b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9000 9000\n%%EndComments\n{} loop\n%%EOF\n",
}


def _cut(content, size):
    return (content[at : at + size] for at in range(0, len(content), size))
