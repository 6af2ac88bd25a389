"""Sorting of classified images into a folder per answer, and its undoing, from the results file.

The place of every image is written to the results first, in the column `sorted_to`. Then the images are copied, linked
or moved, each atomically. So whatever interrupts it, the results say where each image is or was about to go, and the
same call does what is left.
"""

import filecmp
import os
import re
import shutil
from collections import Counter
from collections.abc import Collection
from contextlib import suppress
from glob import escape
from pathlib import Path
from secrets import token_hex
from typing import Literal

from acclimate.classify.table import read_results, write_results
from acclimate.errors import InputError, RunError, reason
from acclimate.predict import is_true

UNSURE = "unsure"  # folder of the answers that are unsure


def sort_images(results: Path, folder: Path, how: Literal["copy", "link", "move"] = "copy") -> Counter[str]:
    """Copy, link or move the images of results into `folder`, one subfolder per answer; returns the images of each.

    Corrected images go to the subfolder of their correct label, other unsure answers to "unsure". Images that could not
    be read, or are not files of their own (frames of a video, members of an archive), stay where they are. No file is
    ever replaced, and no symbolic link among the subfolders is followed.
    """
    records = read_results(results)
    taken = {record["sorted_to"].casefold() for record in records if record["sorted_to"]}
    unsure = UNSURE if UNSURE not in {record["label"] for record in records} else f"{UNSURE}_"
    readable = [record for record in records if not record["error"]]
    planned = [record for record in readable if record["sorted_to"] or _is_image_file(record["file"])]
    new = [record for record in planned if not record["sorted_to"]]
    for record in new:
        group = unsure if is_true(record["unsure"]) else folder_name(record["label"])
        group = folder_name(record["correct_label"]) if record["correct_label"] else group
        record["sorted_to"] = _free(folder / group / Path(record["file"]).name, taken)
        taken.add(record["sorted_to"].casefold())  # some disks take upper and lower case as the same
    write_results(results, records)
    planned_now = {record["sorted_to"] for record in new}
    counts: Counter[str] = Counter()
    failed = []
    for record in planned:
        source = Path(record["file"])
        target = Path(record["sorted_to"])
        try:
            if target.parent.is_symlink():
                raise OSError("its folder is a symbolic link")
            target.parent.mkdir(parents=True, exist_ok=True)
            if record["sorted_to"] not in planned_now and (target.exists() or target.is_symlink()):
                pass  # it was done before
            elif how == "move":
                _move(source, target)
            elif how == "link":
                target.symlink_to(source.resolve(strict=True))
            else:
                _copy(source, target)
            counts[target.parent.name] += 1
        except OSError as error:
            failed.append(f"{record['file']} to {target}: {reason(error)}")
            if isinstance(error, FileExistsError):
                record["sorted_to"] = None  # it gets another name next time
    if failed:
        write_results(results, records)
        other = " Links are not possible everywhere, copies are." if how == "link" else ""
        raise RunError(
            f"{len(failed)} of {len(planned)} images could not be sorted. The first is {failed[0]}.{other} Sort again "
            "to try these again, or take everything back with --undo."
        )
    return counts


def moved_images(results: Path) -> int:
    """Return the number of moved images, whose place only the results know; 0 for a file that holds no results."""
    try:
        records = read_results(results)
    except InputError:
        return 0
    return sum(bool(record["sorted_to"]) and not Path(record["file"]).exists() for record in records)


def unsort_images(results: Path) -> tuple[int, list[str]]:
    """Undo `sort_images`; returns the number of images taken back, and those left because they are not as they were.

    An image that was put into another subfolder since is found by its name there.
    """
    records = read_results(results)
    left = []
    there = [each for each in records if each["sorted_to"]]
    placed = {Path(each["sorted_to"]) for each in there}
    if there and not any(Path(each[name]).exists() for each in there for name in ("file", "sorted_to")):
        raise InputError(f"no image is where {results} says; undo from the folder in which they were sorted.")
    for record in there:
        source = Path(record["file"])
        target = _put_elsewhere(Path(record["sorted_to"]), source, placed)
        try:
            if _is_made_of(target, source):
                target.unlink()
            elif _goes_back(target, source):
                source.parent.mkdir(parents=True, exist_ok=True)
                _move(target, source)
            elif target.exists() or target.is_symlink() or not source.exists():
                left.append(str(target))
                continue
        except OSError as error:
            left.append(f"{target} ({reason(error)})")
            continue
        for folder in (Path(record["sorted_to"]).parent, target.parent, target.parent.parent):
            with suppress(OSError):  # it has other files, or is gone
                folder.rmdir()
        record["sorted_to"] = None
    write_results(results, records)
    return len(there) - len(left), left


def folder_name(label: str) -> str:
    """Return a label as the name of a folder on any system.

    Examples:
        >>> folder_name("AC/DC: live"), folder_name("..")
        ('AC_DC_ live', '_')
    """
    reserved = r"(con|prn|aux|nul|com\d|lpt\d)(\..*)?"  # names that Windows keeps for itself
    name = re.sub(r'[\x00-\x1f<>:"/\\|?*]', "_", label).rstrip(". ").lstrip()[:100]
    return f"{name}_" if not name or re.fullmatch(reserved, name, re.IGNORECASE) else name


def _is_image_file(name: str) -> bool:
    """Return True for the name of a file, and False for a member of an archive, `x.tar::a/b.jpg`, or a frame."""
    archive, _, member = name.partition("::")
    return Path(name).is_file() and not (member and Path(archive).is_file())


def _put_elsewhere(target: Path, source: Path, placed: Collection[Path]) -> Path:
    """Return where an image of another folder beside that of a target is that can only be this one; else the target."""
    if target.exists() or target.is_symlink():
        return target
    others = {*target.parent.parent.glob(f"*/{escape(target.name)}")}.difference(placed)
    found = [other for other in others if _is_made_of(other, source) or _goes_back(other, source)]
    return found[0] if len(found) == 1 else target


def _is_made_of(target: Path, source: Path) -> bool:
    """Return True if a file is a link to another one, or a copy of it that was not changed."""
    if target.is_symlink():
        return target.resolve() == source.resolve()
    other_file = target.is_file() and source.is_file() and not target.samefile(source)
    return other_file and filecmp.cmp(source, target, shallow=False)


def _free(target: Path, taken: set[str]) -> str:
    """Return the target, or the same with a number, such that no file and no other image has it."""
    number = 1
    path = target
    while str(path).casefold() in taken or path.exists() or path.is_symlink():
        number += 1
        path = target.with_name(f"{target.stem} ({number}){target.suffix}")
    return str(path)


def _goes_back(target: Path, source: Path) -> bool:
    """Return True if a file was moved from where nothing is now; it has its old name, perhaps with a number."""
    named = target.suffix == source.suffix and target.stem.startswith(source.stem)
    return named and (target.is_file() or target.is_symlink()) and not (source.exists() or source.is_symlink())


def _move(source: Path, target: Path) -> None:
    if source.is_symlink():  # a relative link would lead elsewhere
        target.symlink_to(source.resolve())
        source.unlink()
        return
    try:
        _place(source, target)
    except FileExistsError:
        raise
    except OSError:  # another file system
        _copy(source, target)
        source.unlink()


def _copy(source: Path, target: Path) -> None:
    """Copy a file with its times; the target is there whole or not at all."""
    made = target.with_name(f".{token_hex(8)}.new")
    try:
        shutil.copy2(source, made)
        _place(made, target)
    finally:
        made.unlink(missing_ok=True)


def _place(source: Path, target: Path) -> None:
    """Give a file another name on its file system; FileExistsError if there is something of that name."""
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        raise
    except OSError:  # some file systems have no hard links
        if target.exists() or target.is_symlink():
            raise FileExistsError(f"{target} has appeared meanwhile") from None
        source.rename(target)
        return
    source.unlink()
