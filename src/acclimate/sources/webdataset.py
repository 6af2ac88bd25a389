"""WebDataset shards: images and labels in tar files, read in place.

Listing a shard notes the offsets of its members; reading a sample opens the shard and reads its bytes. So samples can
be read in any order, and nothing is unpacked or held in memory.
"""

import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from functools import cache, partial
from pathlib import Path, PurePath

from acclimate.errors import InputError
from acclimate.files import open_text
from acclimate.sources.base import Sample, read_file
from acclimate.sources.folder import is_pattern, match_files, natural_key

IMAGES = ("webp", "png", "jpg", "jpeg")


def open_samples(spec: str) -> list[Sample]:
    """List the images of tar shards, named `shard.tar::key.jpg`.

    The label of an image is the content of the member `key.cls`: text, or an index into `classnames.txt`, which is
    looked for next to the shards and in the folder above.

    Args:
        spec: a tar file, a folder of them, a glob pattern, or braces as in `root/{000..015}.tar`.
    """
    samples: list[Sample] = []
    shards, class_names = _shards(spec), cache(_read_class_names)
    for shard in shards:
        images, labels = _read_index(shard)
        for key, (member, offset, size) in images.items():
            label = _label(shard, labels.get(key, ""), class_names)
            samples.append(Sample(f"{shard}::{member}", partial(read_file, shard, offset, size), label))
    if not samples:
        with tarfile.open(shards[0]) as tar:
            found = ", ".join(tar.getnames()[:3]) or "nothing"
        raise InputError(f"no images in the shards of {spec}: no member ends in {', '.join(IMAGES)} (found {found}).")
    return samples


def _shards(spec: str) -> list[str]:
    path = Path(spec)
    if path.is_dir():
        shards = [shard.as_posix() for shard in path.glob("*.tar") if not shard.name.startswith(".")]
        if not shards:
            raise InputError(f"no images in {spec}: the folder contains no .tar files; name the folder of the shards.")
        return sorted(shards, key=natural_key)
    shards = []
    for name in [spec] if path.is_file() else _expand_braces(spec):
        if Path(name).is_file():
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


def _read_index(shard: str) -> tuple[dict[str, tuple[str, int, int]], dict[str, str]]:
    """The images (member name, offset, size) and the labels of a shard, by key."""
    images: dict[str, tuple[str, int, int]] = {}
    labels: dict[str, str] = {}
    try:
        with tarfile.open(shard, "r:") as tar:
            while (member := tar.next()) is not None:
                tar.members.clear()  # type: ignore[attr-defined]  # tarfile would retain every header it reads
                folder, _, file = member.name.rpartition("/")
                if not member.isreg() or member.issparse() or file.startswith("."):
                    continue
                stem, _, suffix = file.partition(".")
                key = f"{folder}/{stem}"
                if suffix.lower() in IMAGES:
                    images.setdefault(key, (member.name, member.offset_data, member.size))
                elif suffix.lower() == "cls" and (content := tar.extractfile(member)):
                    labels[key] = content.read().decode("utf-8", "replace").strip()
            end = tar.offset
        # tarfile takes a partial or missing header for the end; a complete archive ends with a block of zeros.
        if read_file(shard, end, tarfile.BLOCKSIZE).strip(b"\0"):
            raise tarfile.ReadError("bad header")
    except (tarfile.TarError, OSError, ValueError) as error:
        raise InputError(
            f"the shard {shard} is truncated, compressed or not a tar file ({error}); "
            "download it again, or decompress it."
        ) from error
    return images, labels


def _label(shard: str, text: str, class_names: Callable[[Path], Sequence[str]]) -> str | None:
    if not re.fullmatch(r"[0-9]+", text) or not (names := class_names(Path(shard).parent)):
        return text or None
    if int(text) >= len(names):
        raise InputError(f"{shard} has the label {text}, but its classnames.txt has only {len(names)} names.")
    return names[int(text)]


def _read_class_names(folder: Path) -> Sequence[str]:
    for path in (folder / "classnames.txt", folder.resolve().parent / "classnames.txt"):
        if path.is_file():
            try:
                return [line.strip() for line in open_text(path).read().strip().splitlines()]
            except (OSError, UnicodeDecodeError) as error:
                raise InputError(f"{path} cannot be read as class names in UTF-8 ({error}).") from error
    return ()
