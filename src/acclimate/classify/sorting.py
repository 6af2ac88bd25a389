"""Sort classified images into a folder per answer, and undo it, from the results file.

Where every image goes is written to the results first, in the column `sorted_to`. Then the images are copied, linked or
moved, each atomically. So whatever interrupts it, the results say where each image is or was about to go, and the same
call does what is left.
"""

import filecmp
import os
import re
import secrets
import shutil
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

from acclimate.classify.outputs import is_true, read_results, write_results
from acclimate.errors import InputError, RunError, reason

How = Literal["copy", "link", "move"]
UNSURE = "unsure"  # the folder of answers that are not sure
RESERVED = r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?"  # names that Windows keeps for itself


def sort_images(results: Path, folder: Path, how: How = "copy") -> Counter[str]:
    """Copy, link or move the images of results into `folder`, one subfolder per answer; returns the images of each.

    Corrected images go to the subfolder of their correct label, other unsure answers to "unsure". Images that could not
    be read, or are not files of their own (frames of a video, members of an archive), stay where they are. No file is
    ever replaced.
    """
    records = read_results(results)
    taken = {record["sorted_to"].casefold() for record in records if record["sorted_to"]}
    unsure = UNSURE if UNSURE not in {record["label"] for record in records} else f"{UNSURE}_"
    planned: list[tuple[dict[str, Any], Path]] = []
    for record in records:
        source = Path(record["file"])
        if record["error"] or not (record["sorted_to"] or source.is_file()):
            continue
        if not record["sorted_to"]:
            group = unsure if is_true(record["unsure"]) else folder_name(record["label"])
            group = folder_name(record["correct_label"]) if record["correct_label"] else group
            record["sorted_to"] = _free(folder / group / source.name, taken)
            taken.add(record["sorted_to"].casefold())  # some disks take upper and lower case as the same
        planned.append((record, Path(record["sorted_to"])))
    write_results(results, records)
    counts: Counter[str] = Counter()
    for record, target in planned:
        _place(Path(record["file"]), target, how)
        counts[target.parent.name] += 1
    return counts


def moved_images(results: Path) -> int:
    """How many images were moved, so that only the results say where they are; 0 for what is not results."""
    try:
        records = read_results(results)
    except InputError:
        return 0
    return sum(bool(record["sorted_to"]) and not Path(record["file"]).exists() for record in records)


def unsort_images(results: Path) -> tuple[int, list[str]]:
    """Undo `sort_images`: returns how many images were taken back, and copies that were changed since and are left."""
    records = read_results(results)
    left, done, folders = [], 0, set()
    for record in records:
        if not record["sorted_to"]:
            continue
        source, target = Path(record["file"]), Path(record["sorted_to"])
        folders.add(target.parent)
        try:
            if _is_made_of(target, source):
                target.unlink()
            elif target.is_file() and not target.is_symlink() and not source.exists():
                source.parent.mkdir(parents=True, exist_ok=True)
                _move(target, source)
            elif target.exists() or target.is_symlink():
                left.append(str(target))
        except OSError as error:
            raise RunError(f"cannot take back {target}: {reason(error)}. Undo again to continue.") from error
        done += 1
    for folder in folders:
        for empty in (folder, folder.parent):
            with suppress(OSError):  # it has other files
                empty.rmdir()
    write_results(results, [record | {"sorted_to": None} for record in records])
    return done, left


def folder_name(label: str) -> str:
    """A label as the name of a folder on any system.

    Examples:
        >>> folder_name("AC/DC: live"), folder_name("..")
        ('AC_DC_ live', '_')
    """
    name = re.sub(r'[\x00-\x1f<>:"/\\|?*]', "_", label).rstrip(". ").lstrip()[:100]
    return f"{name}_" if not name or re.fullmatch(RESERVED, name, re.IGNORECASE) else name


def _is_made_of(target: Path, source: Path) -> bool:
    """Whether a file is a link to another one, or a copy of it that was not changed."""
    if target.is_symlink():
        return target.resolve() == source.resolve()
    if not target.is_file() or not source.is_file() or target.samefile(source):
        return False
    return filecmp.cmp(source, target, shallow=False)


def _free(target: Path, taken: set[str]) -> str:
    """The target, or the same with a number, such that no file and no other image has it."""
    number, path = 1, target
    while str(path).casefold() in taken or path.exists() or path.is_symlink():
        number += 1
        path = target.with_name(f"{target.stem} ({number}){target.suffix}")
    return str(path)


def _place(source: Path, target: Path, how: How) -> None:
    if target.exists() or target.is_symlink():
        return  # done before
    if not source.is_file():
        raise RunError(f"cannot sort {source}: it is gone. Undo with --undo, or bring it back and sort again.")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        if how == "move":
            _move(source, target)
        elif how == "link":
            target.symlink_to(source.resolve())
        else:
            _copy(source, target)
    except OSError as error:
        why = f"cannot {how} {source} to {target}: {reason(error)}"
        why += "; copies are always possible" if how == "link" else ""
        raise RunError(f"{why}. Sort again to continue, or take everything back with --undo.") from error


def _move(source: Path, target: Path) -> None:
    try:
        source.rename(target)
    except OSError:  # another file system
        _copy(source, target)
        source.unlink()


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its times; the target is there whole or not at all."""
    temporary = target.with_name(f".{target.name}.{secrets.token_hex(4)}.tmp")
    try:
        shutil.copy2(source, temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise
