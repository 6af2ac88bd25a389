"""Hostile image files: small to send, dear to decode."""

import struct
import zlib

import numpy as np
from PIL import Image, PngImagePlugin

from drawn_images import encoded


def noise(width, height, seed=0):
    return Image.fromarray(np.random.default_rng(seed).integers(0, 255, (height, width, 3), dtype=np.uint8))


def photo(seed=0, size=(320, 240)):
    """Return an honest JPEG with photo-like detail."""
    coarse = noise(16, 12, seed).resize(size, Image.Resampling.BICUBIC)
    fine = np.random.default_rng(seed).integers(-12, 12, (size[1], size[0], 3))
    return encoded(Image.fromarray(np.clip(np.asarray(coarse, int) + fine, 0, 255).astype(np.uint8)), "JPEG")


def flat(width, height, kind, **options):
    """Return an image of one colour: a few bytes, whatever its size."""
    return encoded(Image.new("RGB", (width, height), "navy"), kind, **options)


def png_chunk(name, content):
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))


def png(width, height, rows=b"", extra=b"", depth=8, colour=2, interlaced=0):
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, interlaced)
    body = png_chunk(b"IDAT", zlib.compress(rows, 9)) + png_chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + png_chunk(b"IHDR", header) + extra + body


def png_with_chunks(count):
    """Return a small PNG with empty chunks before its pixels."""
    return png(8, 8, (b"\0" + b"\x40" * 24) * 8, extra=png_chunk(b"tEXt", b"a\0b") * count)


def jpeg_with_scans(scans, size=(8000, 5000)):
    """Return a progressive JPEG whose last scan is repeated: a few bytes a scan, each of which visits every block."""
    content = flat(*size, "JPEG", progressive=True, quality=30)
    start = content.rindex(b"\xff\xda")
    scan = content[start:-2]
    return content[:start] + scan * scans + b"\xff\xd9"


def jpeg_with_comment(length):
    content = encoded(noise(64, 64), "JPEG")
    parts = [b"\xff\xfe" + struct.pack(">H", 65535) + b"private" * 9361 + b"priva" for _ in range(length // 65533 + 1)]
    return content[:2] + b"".join(part[: 2 + 65535] for part in parts) + content[2:]


def gif_with_comment(length):
    image = noise(64, 64).quantize()
    return encoded(image, "GIF", comment=b"private" * (length // 7))


def tiff_with_tile(side=20_000):
    """Return a TIFF of 10 x 10 pixels in one compressed tile of side x side."""
    tile = zlib.compress(bytes(side * side), 1)
    tags = [(256, 4, 10), (257, 4, 10), (258, 3, 8), (259, 3, 8), (262, 3, 1), (277, 3, 1)]
    tags += [(322, 4, side), (323, 4, side), (324, 4, 8), (325, 4, len(tile))]
    directory = struct.pack("<H", len(tags))
    for tag, kind, value in tags:
        directory += struct.pack("<HHII", tag, kind, 1, value)
    return struct.pack("<2sHI", b"II", 42, 8 + len(tile)) + tile + directory + struct.pack("<I", 0)


def ppm_with_comment(length):
    return b"P6\n#" + b"x" * length + b"\n2 2\n255\n" + bytes(12)


def plain_ppm(side=2000):
    return f"P3\n{side} {side}\n255\n".encode() + b"9 " * (3 * side * side)


def png_with_text(length):
    """Return a PNG whose compressed comment inflates to this length."""
    about = PngImagePlugin.PngInfo()
    about.add_text("a", "x" * length, zip=True)
    return encoded(noise(8, 8), "PNG", pnginfo=about)


def wide_bombs():
    """Return images of one pixel height or width, which scaling the short side would blow up."""
    shapes = [(2_000, 1), (20_000, 1), (100_000, 1), (1, 1_000_000), (40_000_000, 1), (1, 65_500)]
    return [png(width, height, (b"\0" + bytes(3 * width)) * height) for width, height in shapes]
