"""Datasets in the exact layouts of researchers' disks, with drawn images in place of the real ones.

A miniature holds a few images of a few classes. A whole dataset has all of its files, as links to a few images.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from acclimate.sources.datasets import DATASETS, Dataset, list_images
from acclimate.views.generated import GeneratedFolder
from drawn_images import COLOURS, draw

POOL = 24  # images that are really drawn


def few(classes: int = 3, per_class: int = 4) -> dict[int, int]:
    """Return images of each class of a miniature."""
    return dict.fromkeys(range(classes), per_class)


def whole(dataset: Dataset) -> dict[int, int]:
    """Return images of each class so that their number is that of the real dataset."""
    share, rest = divmod(dataset.test, dataset.classes)
    return {label: share + (label < rest) for label in range(dataset.classes)}


def draw_dataset(root: Path, dataset: Dataset, counts: Mapping[int, int]) -> Path:
    """Lay out a dataset below `root` and return its folder."""
    pool = _pool(root)
    folder = root / dataset.folder
    images = folder / dataset.images
    rows = list(_LAYOUTS[dataset.layout](dataset, counts))
    for parent in {(images / file).parent for file, _ in rows}:
        parent.mkdir(parents=True)
    for i, (file, label) in enumerate(rows):
        os.link(pool[(label + 3 * i) % POOL], images / file)
    if dataset.layout == "split":
        test = [[file, label, dataset.class_names[label]] for file, label in rows]
        (folder / dataset.split).write_text(json.dumps({"train": [], "val": [], "test": test}))
    elif dataset.layout == "variants":
        (folder / "variants.txt").write_text("\n".join(dataset.class_names) + "\n")
        lines = [f"{Path(file).stem} {dataset.class_names[label]}\n" for file, label in rows]
        (folder / dataset.split).write_text("".join(lines))
    else:
        named = zip(dataset.wnids, dataset.class_names, strict=True)
        (folder / "classnames.txt").write_text("".join(f"{wnid} {name}\n" for wnid, name in named))
    return folder


def draw_training_images(root: Path, counts: Mapping[int, int]) -> Path:
    """Lay out ImageNet's training images and return their folder."""
    pool = _pool(root)
    folder = root / "imagenet" / "images" / "train"
    for label, count in counts.items():
        wnid = DATASETS["imagenet"].wnids[label]
        (folder / wnid).mkdir(parents=True)
        for i in range(count):
            os.link(pool[(label + 3 * i) % POOL], folder / wnid / f"{wnid}_{i}.JPEG")
    return folder


def draw_generated_images(root: Path, folder: Path, datasets: Iterable[Dataset], count: int = 63) -> Path:
    """Lay out images that a generator could have made of every test image, and return their folder."""
    pool = _pool(root)
    generated = GeneratedFolder(folder)
    for dataset in datasets:
        for path in list_images(dataset, root).paths:
            generated.folder_of(str(path)).mkdir(parents=True)
            for i in range(count):
                os.link(pool[(len(path.name) + i) % POOL], generated.folder_of(str(path)) / f"{i}.jpg")
    return folder


def _pool(root: Path) -> list[Path]:
    folder = root / ".pool"
    paths = [folder / f"{i}.jpg" for i in range(POOL)]
    if not folder.is_dir():
        folder.mkdir(parents=True)
        for i, path in enumerate(paths):
            draw(list(COLOURS)[i % 3], i).save(path)
    return paths


def _split(dataset: Dataset, counts: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    folder_of = {name: folder for folder, name in dataset.folder_names.items()}
    number = 0
    for label, count in counts.items():
        name = dataset.class_names[label]
        folder = folder_of.get(name, name)
        for i in range(1, count + 1):
            number += 1
            yield (
                {
                    "caltech101": f"{folder}/image_{i:04d}.jpg",
                    "cars": f"cars_test/{number:05d}.jpg",
                    "flowers102": f"image_{number:05d}.jpg",
                    "food101": f"{folder}/{1000003 * number % 3999971}.jpg",
                    "pets": f"{name.capitalize()}_{i}.jpg",
                    "sun397": f"{'/'.join([folder.split()[-1][0], *reversed(folder.split())])}/sun_{number:x}.jpg",
                    "ucf101": f"{folder}/v_{folder.replace('_', '')}_g{i:02d}_c01.jpg",
                }.get(dataset.key, f"{folder}/{folder}_{i:04d}.jpg"),
                label,
            )


def _wnids(dataset: Dataset, counts: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    number = 0
    for label, count in counts.items():
        for i in range(count):
            number += 1
            taken_for = dataset.class_names[(label + i) % dataset.classes]  # the deceived classifier's answer
            name = {
                "imagenet": f"ILSVRC2012_val_{number:08d}.JPEG",
                "imagenet-a": f"0.{number:06d}_{taken_for}.jpg".replace("/", " "),
                "imagenet-r": f"art_{i}.jpg",
                "imagenet-sketch": f"sketch_{i}.JPEG",
            }[dataset.part_of or dataset.key]
            yield f"{dataset.wnids[label]}/{name}", label


def _numbers(dataset: Dataset, counts: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    for label, count in counts.items():
        for i in range(count):
            yield f"{label}/{hashlib.sha1(f'{label} {i}'.encode()).hexdigest()}.jpeg", label


def _variants(dataset: Dataset, counts: Mapping[int, int]) -> Iterator[tuple[str, int]]:
    number = 0
    for label, count in counts.items():
        for _ in range(count):
            number += 1
            yield f"{number:07d}.jpg", label


_LAYOUTS = {"split": _split, "wnids": _wnids, "numbers": _numbers, "variants": _variants}
