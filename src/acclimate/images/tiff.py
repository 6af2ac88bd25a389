"""TIFF directories, in which EXIF is written, too: read far enough to know what reading all of them costs."""

import struct
from typing import Any, NamedTuple

import numpy as np

from acclimate.errors import ImageError

MAX_TAGS = 1000  # tags of a directory
TIFF = (b"II\x2a\0", b"MM\0\x2a", b"II\x2b\0", b"MM\0\x2b", b"II\0\x2a", b"MM\x2a\0")
# bytes of a value by TIFF's type
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}
SUBDIRECTORY_TAGS = (34665, 34853, 40965)  # EXIF, GPS and interoperability, which Pillow reads


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
        if count > MAX_TAGS:
            raise ImageError(f"more than {MAX_TAGS:,} tags; save it again without them")
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
