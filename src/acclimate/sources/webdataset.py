"""WebDataset shards: images and labels in tar files, read in place.

Listing a shard notes the offsets of its members; reading a sample opens the shard and reads its bytes. So samples can
be read in any order, and nothing is unpacked or held in memory.
"""

import io
import re
import tarfile
from collections.abc import Iterator, Sequence
from functools import cache, partial
from pathlib import PurePath
from sys import intern
from typing import BinaryIO

from acclimate.errors import InputError
from acclimate.files import MAX_TEXT
from acclimate.images.opening import URL
from acclimate.sources.folder import is_pattern, match_files, natural_key
from acclimate.sources.source import LOCAL, Place, Sample

IMAGES = ("webp", "png", "jpg", "jpeg")
MAX_HEADER_BYTES = 2**20  # a member's name and other metadata
MAX_LABEL_BYTES = 2**12
Entry = tuple[str, int, int, str]  # member name, offset, size, label


def open_samples(spec: str, place: Place = LOCAL) -> list[Sample]:
    """List the images of tar shards, named `shard.tar::key.jpg`.

    The label of an image is the content of the member `key.cls`: text, or an index into `classnames.txt`, which is
    looked for next to the shards and in the folder above.

    Args:
        spec: a tar file, a folder of them, a glob pattern, or braces as in `root/{000..015}.tar`.
        place: where the shards are; its `map` reads their headers.
    """
    samples: list[Sample] = []
    shards = _shards(spec, place)
    class_names = cache(partial(_read_class_names, place))
    first = list[str]()
    for shard, (images, members) in zip(shards, place.map(partial(read_index, place), shards), strict=True):
        first = first or members
        for member, offset, size, text in images:
            label = intern(text) or None
            if re.fullmatch(r"[0-9]+", text) and (names := class_names(place.parent(shard))):
                if len(text) > 9 or int(text) >= len(names):
                    raise InputError(
                        f"{shard} has the label {text:.20}, but its classnames.txt has only {len(names)} names."
                    )
                label = names[int(text)]
            samples.append(Sample(f"{shard}::{member}", place.reader(shard, offset, size), label))
    if not samples:
        found = ", ".join(first) or "nothing"
        raise InputError(f"no images in the shards of {spec}: no member ends in {', '.join(IMAGES)} (found {found}).")
    return samples


def read_index(place: Place, shard: str) -> tuple[list[Entry], list[str]]:
    """Return the images of a shard by its headers, and the names of its first members.

    It is a function of the module, so that other processes can call it.
    """
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, str] = {}
    first: list[str] = []
    try:
        with place.open(shard) as content:
            file = _Bounded(content)
            end = 0
            with tarfile.open(fileobj=file, mode="r:") as tar:
                while (member := tar.next()) is not None:
                    if tar.offset <= end or member.size < 0:  # it would lead back, again and again
                        raise tarfile.ReadError("bad header")
                    end = tar.offset
                    tar.members.clear()  # type: ignore[attr-defined]  # tarfile would retain every header it reads
                    if len(first) < 3:
                        first.append(member.name)
                    folder, _, name = member.name.rpartition("/")
                    if not member.isreg() or member.issparse() or name.startswith("."):
                        continue
                    stem, _, suffix = name.partition(".")
                    key = f"{folder}/{stem}"
                    if suffix.lower() in IMAGES:
                        images.setdefault(key, (member.name, member.offset_data, member.size))
                    elif suffix.lower() == "cls":
                        if not 0 <= member.size <= MAX_LABEL_BYTES:
                            raise tarfile.ReadError(f"{member.name} holds {member.size:,} bytes, more than a label")
                        file.seek(member.offset_data)
                        labels[key] = file.read(member.size).decode("utf-8", "replace").strip()
                end = tar.offset
            # tarfile takes a partial or missing header for the end; a complete archive ends with a block of zeros.
            file.seek(end)
            if len(block := file.read(tarfile.BLOCKSIZE)) < tarfile.BLOCKSIZE or block.strip(b"\0"):
                raise tarfile.ReadError(f"bad header at byte {end}")
    except FileNotFoundError:
        raise InputError(f"no shard at {shard}; check the path.") from None
    except InputError:
        raise
    except (tarfile.TarError, OSError, ValueError, RecursionError) as error:
        raise InputError(
            f"the shard {shard} is truncated, compressed or not a tar file ({error}); "
            "download it again, or decompress it."
        ) from error
    return [(*image, labels.get(key, "")) for key, image in images.items()], first


class _Bounded(io.RawIOBase):
    """A file that refuses to read more at once than a header may be long: tarfile believes what a header says."""

    def __init__(self, file: BinaryIO) -> None:
        self.seek = file.seek  # type: ignore[method-assign]
        self.tell = file.tell  # type: ignore[method-assign]
        self._read = file.read

    def read(self, size: int = -1) -> bytes:
        if not 0 <= size <= MAX_HEADER_BYTES:
            raise tarfile.ReadError(f"a header of {size:,} bytes" if size > 0 else "bad header")
        return self._read(size)


def _shards(spec: str, place: Place) -> list[str]:
    if place.kind(spec) == "folder":
        tars = [name for name in place.list_files(spec) if name.endswith(".tar") and "/" not in name]
        if not tars:
            raise InputError(f"no images in {spec}: the folder contains no .tar files; name the folder of the shards.")
        return sorted((place.join(spec, name) for name in tars), key=natural_key)
    shards = []
    for name in [spec] if place.kind(spec) == "file" else _expand_braces(spec):
        if URL.match(name) and place.urls:
            shards.append(name)  # whether it is there shows when its headers are read
        elif place.kind(name) == "file":
            shards.append(PurePath(name).as_posix())
        elif is_pattern(name):
            base, files = match_files(name)
            shards += [PurePath(base, file).as_posix() for file in files]
        else:
            raise InputError(f"no shard at {name}; check the path.")
    return shards


def _expand_braces(spec: str) -> Iterator[str]:
    """Expand `{08..10}` to 08, 09, 10 and `{a,b}` to a, b, as a shell does."""
    braces = re.search(r"\{(?:([0-9]+)\.\.([0-9]+)|([^{}]*,[^{}]*))\}", spec)
    if braces is None:
        yield spec
        return
    first, last, names = braces.groups()
    if names is not None:
        choices: Sequence[str] = names.split(",")
    else:
        padded = any(len(end) > 1 and end[0] == "0" for end in (first, last))
        width = max(len(first), len(last)) if padded else 0
        choices = [str(number).zfill(width) for number in range(int(first), int(last) + 1)]
        if not choices:
            raise InputError(f"{braces[0]} in {spec} is empty; write the lower number first.")
    for choice in choices:
        yield from _expand_braces(spec[: braces.start()] + choice + spec[braces.end() :])


def _read_class_names(place: Place, folder: str) -> Sequence[str]:
    for each in (folder, place.above(folder)):
        path = place.join(each, "classnames.txt")
        if place.kind(path) == "file":
            try:
                content = place.read(path, MAX_TEXT).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read as class names in UTF-8 ({error}).") from error
            return [line.strip() for line in content.strip().splitlines()]
    return ()
