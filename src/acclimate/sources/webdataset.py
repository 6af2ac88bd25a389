"""WebDataset shards: images and labels in tar files, read in place.

A shard is listed once, by the offsets of its members; reading a sample opens the shard and reads that many bytes, so
any order works and nothing is unpacked or kept in memory.
"""

import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path, PurePath

from acclimate.errors import InputError
from acclimate.sources.base import Sample
from acclimate.sources.folder import is_pattern, match_files, natural_key

IMAGES = ("webp", "png", "jpg", "jpeg")


@dataclass(slots=True)
class _Entry:
    """What a shard holds under one key."""

    image: tuple[str, int, int] | None = None  # member, offset, size
    label: str | None = None


def open_webdataset(spec: str) -> list[Sample]:
    """The images of tar shards, named `shard.tar::key.jpg`.

    The label comes from the member `key.cls`: text, or a number to be looked up in `classnames.txt`, which lies beside
    the shards or one folder above.

    Args:
        spec: a tar file, a folder of them, a glob pattern, or braces as in `root/{000..015}.tar`.
    """
    samples: list[Sample] = []
    seen: list[str] = []
    names_beside = cache(_class_names)
    for shard in _shards(spec):
        for entry in _index(shard, seen):
            if entry.image is not None:
                member, offset, size = entry.image
                label = _name_of(shard, entry.label, names_beside)
                samples.append(Sample(f"{shard}::{member}", partial(_read_member, shard, offset, size), label))
    if not samples:
        reason = f"no member ends in {', '.join(IMAGES)} (saw {', '.join(seen)})" if seen else "the shards are empty"
        raise InputError(f"no images in {spec}: {reason}.")
    return samples


def _shards(spec: str) -> list[str]:
    path = Path(spec)
    if path.is_dir():
        shards = [PurePath(spec, entry.name).as_posix() for entry in path.glob("*.tar") if entry.name[0] != "."]
        if not shards:
            raise InputError(f"no images in {spec}: the folder holds no .tar files; name the folder of the shards.")
        return sorted(shards, key=natural_key)
    if path.is_file():
        return [path.as_posix()]
    shards = []
    for name in _expand(spec):
        if Path(name).is_file() or not is_pattern(name):
            shards.append(PurePath(name).as_posix())
        else:
            base, files = match_files(name)
            shards += [PurePath(base, file).as_posix() for file in files]
    for shard in shards:
        if not Path(shard).is_file():
            raise InputError(f"no shard at {shard}; check the path.")
    return shards


def _expand(spec: str) -> Iterator[str]:
    """Spell out braces: `{08..10}` as 08, 09, 10, and `{a,b}` as a, b."""
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
        yield from _expand(spec[: braces.start()] + choice + spec[braces.end() :])


def _index(shard: str, seen: list[str]) -> Iterator[_Entry]:
    """The entries of a shard in the order of their first members; notes up to three other members in `seen`."""
    entries: dict[str, _Entry] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would keep every header it has read
                folder, slash, file = member.name.rpartition("/")
                if not member.isreg() or member.issparse() or file.startswith("."):
                    continue
                key, _, suffix = file.partition(".")
                entry = entries.setdefault(folder + slash + key, _Entry())
                if suffix.lower() in IMAGES:
                    entry.image = entry.image or (member.name, member.offset_data, member.size)
                elif suffix.lower() == "cls":
                    content = tar.extractfile(member)
                    entry.label = content.read().decode("utf-8", "replace").strip() if content else None
                elif len(seen) < 3:
                    seen.append(member.name)
            end = tar.offset
        # tarfile takes half a header, or none, for the end; a whole archive ends in a block of zeros.
        if _read_member(shard, end, tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError("bad header")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise InputError(
            f"the shard {shard} is truncated, compressed or not a tar file ({error}); "
            "fetch it again, or unpack the compression."
        ) from error
    yield from entries.values()


def _read_member(shard: str, offset: int, size: int) -> bytes:
    with open(shard, "rb") as file:
        file.seek(offset)
        content = file.read(size)
    if len(content) != size:
        raise OSError(f"{shard} ends before byte {offset + size}; it is truncated.")
    return content


def _name_of(shard: str, text: str | None, names_beside: Callable[[Path], Sequence[str]]) -> str | None:
    if not text or not re.fullmatch(r"[0-9]+", text):
        return text or None
    names = names_beside(Path(shard).parent)
    if not names:
        return text
    if int(text) >= len(names):
        raise InputError(f"{shard} has the label {text}, but its classnames.txt only {len(names)} names.")
    return names[int(text)]


def _class_names(folder: Path) -> Sequence[str]:
    for path in (folder / "classnames.txt", folder.resolve().parent / "classnames.txt"):
        if path.is_file():
            try:
                return [line.strip() for line in path.read_text("utf-8-sig").strip().splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read as class names in UTF-8 ({error}).") from error
    return ()
