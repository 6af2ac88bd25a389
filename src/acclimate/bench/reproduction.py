"""The paper's tables, figures and ablations from runs and feature files: what is measured on which.

A row of a table is measured on the run of a dataset that has its views; the first view of several is the image itself.
Its prompts are those of the paper where the model is there to encode them, else those of the run. Few-shot methods are
fitted to a run of ImageNet's training images. What was fitted is kept in a file whose name ends in a fingerprint of all
that it depends on, so that it is read where it was fitted before.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench import Progress, silent
from acclimate.bench.comparison import BACKBONES, backbone, row_title
from acclimate.bench.measurements import fingerprint, name_files, read_labelled
from acclimate.bench.orders import stream_order
from acclimate.bench.prequential import Variant, compare, on_device
from acclimate.bench.recipes import SEARCHED, Recipe, row_of, trained_on
from acclimate.bench.results import OF_FILE, Score, score_all, write_results
from acclimate.encoders import Encoder
from acclimate.errors import InputError, ModelError, StateError
from acclimate.evidence import Head
from acclimate.files import writing
from acclimate.methods import NOTE, FewShot, duplicate, find_method, load_fitted, save_state
from acclimate.prompts import build_head, prompts_for
from acclimate.sources.datasets import DATASETS, DRAW_SEED, Dataset, dataset_named
from acclimate.sources.source import MOST_HELD_OUT, draw_shots
from acclimate.stream import FeatureStream, original_views

IMAGENET = DATASETS["imagenet"]
VERSIONS = 16  # a training image and 15 random crops of it; the authors crop anew in each epoch
Settings = Mapping[str, Mapping[str, Any]]  # method -> settings given by the user


@dataclass(frozen=True)
class Task:
    """Variants that share a pass over a stream: a row of a table, or the settings of the ablations.

    Attributes:
        key: the dataset, or the name of a stream that stands for none.
        name: the name of the stream.
        variants: what is measured; the first says which prompts and views all of them have.
    """

    key: str
    name: str
    variants: tuple[Variant, ...]


@dataclass
class Reproduction:
    """Runs and feature files, what recipes measure on them, and why they cannot measure the rest.

    Attributes:
        paths: runs and feature files with labels.
        folder: the folder of what is written.
        encoder: the model of the features, for prompts and for methods that need its text tower; None without one.
        orders: the orders to take samples in; shuffled for a run of a dataset, else stored, when not given.
        shots: training images per class; the paper's number when not given.
        device: the device of the methods.
        streams: all streams by name.
        datasets: the datasets that streams stand for.
        other_files: streams that stand for no dataset, and the reason.
        tasks: what is measured.
    """

    paths: Sequence[Path]
    folder: Path
    encoder: Encoder | None = None
    orders: Sequence[str] = ()
    shots: int | None = None
    device: str = "numpy"
    streams: dict[str, FeatureStream] = field(init=False)
    datasets: dict[str, Dataset] = field(default_factory=dict, init=False)
    other_files: dict[str, str] = field(default_factory=dict, init=False)
    tasks: list[Task] = field(default_factory=list, init=False)
    _lacks: dict[tuple[str, str], dict[str, str]] = field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self.streams = read_labelled(self.paths)
        self._files = name_files(self.paths)
        for name, stream in self.streams.items():
            found = dataset_of(name.rpartition("/")[2], stream)
            if isinstance(found, str):
                self.other_files[name] = found
                continue
            self._check_model(name, stream)
            for other in self._of(found.key, split_of(stream)).values():
                if (other.views, other.views_kind) == (stream.views, stream.views_kind):
                    raise InputError(f"two of the files are {found.key} with the same views; leave out one of them.")
            self.datasets[name] = found
        self.datasets = dict(sorted(self.datasets.items(), key=lambda item: list(DATASETS).index(item[1].key)))

    @property
    def notes(self) -> list[str]:
        """Sentences on files that stand for no dataset, and on methods that cannot be measured."""
        return [
            *(f"{name} does not stand for a dataset of the paper: {why}." for name, why in self.other_files.items()),
            *(f"{recipe}: {sentence}" for recipe, row in self._lacks for sentence in self.lacking(recipe, row)),
        ]

    def lacking(self, recipe: str, row: str = "") -> list[str]:
        """Return sentences on the paper's rows of a recipe, or on one of them, that cannot be measured."""
        return [
            f"{name} is not measured on {', '.join(keys)}; it needs {lack}."
            for (title, name), lacks in self._lacks.items()
            for lack in dict.fromkeys(lacks.values())
            if (keys := [key for key, each in lacks.items() if each == lack]) and title == recipe and row in ("", name)
        ]

    def plan(self, recipes: Sequence[Recipe], methods: Sequence[str] = (), settings: Settings | None = None) -> None:
        """Decide what recipes measure, before anything is measured.

        Args:
            recipes: tables and figures of the paper.
            methods: rows to measure besides zero-shot; all rows of the paper that can be measured when not given.
            settings: settings of methods, in place of the paper's.

        Raises:
            InputError: a method that was chosen by name cannot be measured.
        """
        given = settings or {}
        tests = [each.key for name, each in self.datasets.items() if split_of(self.streams[name]) == "test"]
        every = [row for recipe in recipes for sweep in recipe.sweeps for row in sweep.rows.values()]
        ablations = tuple({repr(row.config): row for row in every}.values())
        for key in dict.fromkeys(tests):
            passes: dict[str, dict[str, Variant]] = {}  # what shares a pass, by what tells the first and all apart
            for recipe in recipes:
                if (DATASETS[key].part_of or key) in recipe.datasets:
                    for row in self._rows(recipe, key, methods, given.get):
                        own = recipe.variants(row, DATASETS[key], given.get(row.method))
                        passes.setdefault(_protocol(own[0]), {}).update({_protocol(each): each for each in own})
            groups = [tuple(each.values()) for each in passes.values()] + ([ablations] if ablations else [])
            self.tasks += [Task(key, self._name_for(group[0], key), group) for group in groups]
        if ablations:
            self.tasks += [Task(name, name, ablations) for name in self.other_files]
        if not self.tasks:
            why = "; ".join(f"{name}: {self.other_files.get(name, 'not in this table')}" for name in self.streams)
            raise InputError(f"no file stands for a dataset of {', '.join(each.name for each in recipes)} ({why}).")

    def run(self, progress: Progress = silent, say: Callable[[str], None] = lambda line: None) -> list[Score]:
        """Measure everything and return all scores.

        Those of a row are written to a file as soon as they are known, and `say` is called with a line on them.
        """
        with writing(self.folder):
            (self.folder / "runs").mkdir(parents=True, exist_ok=True)
        scores: dict[str, list[Score]] = {}
        for number, task in enumerate(self.tasks, 1):
            found = self._measure(task, progress)
            kept = scores.setdefault(task.key, [])
            kept += found
            write_results(kept, self.folder / "runs" / f"{task.key.replace('/', '-')}.json")
            named = ", ".join(f"{row_title(score)} {100 * score.accuracy:.2f} %" for score in found[:2])
            more = f" and {len(found) - 2} more settings" if len(found) > 2 else ""
            say(f"{number}/{len(self.tasks)} {task.key}: {named}{more}")
        return [score for each in scores.values() for score in each]

    def _measure(self, task: Task, progress: Progress) -> list[Score]:
        stream = self.streams[task.name]
        first = task.variants[0]
        dataset = self.datasets.get(task.name)
        prompts = OF_FILE
        if dataset is not None:
            if dataset.views_of(first.views) == 1:
                stream = original_views(stream)
            stream, prompts = self._with_prompts(stream, dataset, first.prompts)
        orders = self.orders or (["shuffled:1"] if "dataset" in stream.notes else ["stored"])
        ready = [self._with_shots(variant, dataset, stream.head, progress) for variant in task.variants]
        adapting = [variant for variant in ready if variant.method != "zero-shot"]
        samples = sum(len(stream_order(stream, order)) for order in orders)
        with progress(samples * (1 + len(adapting)), f"adapting {task.key}", "samples") as advance:
            compared = partial(compare, orders=orders, device=self.device, encoder=self.encoder)
            outcomes = compared(stream, adapting, progress=advance)
            if find_method(first.method).kind == "episodic" and stream.views > 1:
                # It answers from the views of one image alone: the model alone is what answers without any.
                outcomes[0] = compared(original_views(stream), [])[0]
        found = score_all(task.key, stream, outcomes, prompts, task.name)
        return found if len(task.variants) > len(adapting) else found[1:]

    def _rows(
        self, recipe: Recipe, key: str, methods: Iterable[str], given: Callable[[str], Mapping[str, Any] | None]
    ) -> list[Variant]:
        """Return the rows of a recipe that can be measured on a dataset; note what the others need."""
        names = {row.method: name for name, row in recipe.rows.items()}
        chosen = dict.fromkeys(("zero-shot", *methods) if methods else names) if recipe.rows else ()
        rows = []
        for method in chosen:
            row = recipe.row(method) if method in names else row_of(method, DATASETS[recipe.datasets[0]])
            lack = self._lack(row, key, recipe, given(method) or {})
            if not lack:
                rows.append(row)
            elif methods:
                raise InputError(f"{method} in {recipe.name} needs {lack}.")
            else:
                self._lacks.setdefault((recipe.name, names[method]), {})[key] = lack
        return rows

    def _lack(self, row: Variant, key: str, recipe: Recipe, given: Mapping[str, Any]) -> str:
        """Return what a row needs and does not have, in words; "" if it can be measured."""
        method = find_method(row.method)
        new_classes = not all(DATASETS[each].wnids for each in recipe.datasets)
        if issubclass(method, FewShot) and new_classes and not method.takes_new_classes({**row.config, **given}):
            return "the classes that it was fitted to, as it cannot take new ones"
        if "text" in method.needs and (lack := text_lack(self.encoder)):
            return lack
        if row.shots and not self._of("imagenet", "train"):
            return "a run of ImageNet's training images: `acclimate embed dataset:imagenet#train:20 --views 16`"
        if row.shots:
            try:
                self._draw(row)
            except InputError as error:
                return f"more training images ({str(error).rstrip('.')})"
        if not self._name_for(row, key):
            views = DATASETS[key].views_of(row.views)
            how = f"--views {views} --encode views_kind={row.views_kind}"
            return f"a run with views: `acclimate embed dataset:{key} {how}`"
        return ""

    def _of(self, key: str, split: str = "test") -> dict[str, FeatureStream]:
        """Return the streams of a split of a dataset."""
        streams = {name: self.streams[name] for name, dataset in self.datasets.items() if dataset.key == key}
        return {name: stream for name, stream in streams.items() if split_of(stream) == split}

    def _name_for(self, row: Variant, key: str) -> str:
        """Return the stream of a dataset with the views of a row, or else the one that comes nearest; "" for none."""
        streams = self._of(key)
        views = DATASETS[key].views_of(row.views)
        kind = row.views_kind
        for name, each in streams.items():
            if (each.views, each.views_kind or kind) == (views, kind):
                return name
        if views > 1 and "views" in find_method(row.method).needs:
            several = [name for name, each in streams.items() if each.views > 1]
            return next((name for name in several if kind in ("crop", "augmix", streams[name].views_kind)), "")
        return min(streams, key=lambda name: streams[name].views)

    def _with_prompts(self, stream: FeatureStream, dataset: Dataset, prompts: str) -> tuple[FeatureStream, str]:
        """Return a stream with the head of some prompts if they can be encoded, and the name of those that it has."""
        recorded = re.sub(r" *\([^()]*\)", "", stream.prompts) or stream.prompts
        recorded = "dataset" if recorded == dataset.key else recorded
        if self.encoder is None or recorded == prompts or stream.head.class_names != dataset.labels:
            return stream, recorded
        made = prompts_for(dataset.class_names, dataset.key if prompts == "dataset" else prompts)
        head = build_head(self.encoder, dataset.labels, dict(zip(dataset.labels, made, strict=True)), expand=False)
        return replace(stream, head=head), prompts

    def _check_model(self, name: str, stream: FeatureStream) -> None:
        if self.encoder is None:
            return
        known = stream.notes.get("fingerprint", "")
        if self.encoder.dim != stream.head.dim or (known and known != self.encoder.fingerprint):
            raise InputError(f"{name} was encoded with {stream.encoder}, which is not the model of --model.")

    def _draw(self, row: Variant) -> tuple[str, HostArray, HostArray]:
        """Return the stream of training images, and the positions of the shots of a row and of other images."""
        streams = self._of("imagenet", "train")
        kind = find_method(row.method).views_kind
        name = next((name for name, each in streams.items() if each.views_kind == kind), next(iter(streams)))
        targets = np.asarray(streams[name].targets)
        return name, *draw_shots(targets, IMAGENET.labels, self.shots or row.shots, DRAW_SEED, MOST_HELD_OUT)

    def _with_shots(self, variant: Variant, dataset: Dataset | None, head: Head, progress: Progress) -> Variant:
        """Return what to run on a dataset with that head: a variant, with a fitted adapter if it is few-shot.

        Where settings are searched, this is done on ImageNet's validation images. If these are the test images, other
        training images take their place; if there are none, the settings stay as they are.
        """
        method = find_method(variant.method)
        if method.kind != "few-shot" or dataset is None:
            return variant
        name, shots, rest = self._draw(variant)
        trained = trained_on(self.shots or variant.shots)
        held_out = ("", rest)
        tests = self._of("imagenet")
        if variant.validation and dataset.key != IMAGENET.key and tests:
            validation = min(tests, key=lambda each: tests[each].views)
            held_out = (validation, np.arange(len(tests[validation])))
            trained += SEARCHED
        elif variant.validation and len(rest):
            held_out = (name, rest)
            trained += f" (settings searched on other training images, up to {MOST_HELD_OUT} per class)"
        training = self.streams[name]
        if (training.views, training.views_kind) != (VERSIONS, method.views_kind):
            trained += f" (versions: {training.views} {training.views_kind})".replace("1 )", "the image alone)")
        adapter = duplicate(self._adapter(variant, name, shots, held_out, progress))
        if not dataset.wnids:
            adapter.relabel(head)
        names = zip(IMAGENET.wnids, IMAGENET.labels, strict=True)
        if dataset.wnids and (gone := [label for wnid, label in names if wnid not in dataset.wnids]):
            adapter.remove_classes(gone)  # the others stay in the order that all kinds of ImageNet have: by WordNet id
        return replace(variant, fitted=adapter, trained=trained)

    def _adapter(
        self, variant: Variant, name: str, shots: HostArray, held_out: tuple[str, HostArray], progress: Progress
    ) -> FewShot:
        """Return the adapter with all classes of ImageNet; it is read if it was fitted before."""
        training, prompts = self._with_prompts(self.streams[name], IMAGENET, variant.prompts)
        validation, rest = held_out
        files = [fingerprint(self._files[each]) for each in (name, validation) if each]
        about = [variant.method, variant.config, training.head.fingerprint, files, shots.tolist(), rest.tolist()]
        digest = sha256(json.dumps(about).encode()).hexdigest()[:16]
        path = self.folder / "fitted" / f"{variant.method}-{digest}.safetensors"
        with suppress(StateError):  # missing or damaged
            return load_fitted(path, self.encoder)[0]
        adapter = variant.adapter(on_device(training.head, self.device), encoder=self.encoder)
        assert isinstance(adapter, FewShot)
        held = None
        if validation:
            stream = original_views(self.streams[validation])
            held = (stream.features[rest], np.asarray(stream.targets)[rest])
        steps = adapter.fit_steps(len(shots), len(rest) if held else 0)
        with progress(steps, f"fitting {variant.method}", "steps") as advance:
            targets = np.asarray(training.targets)[shots]
            adapter.fit(training.features[shots], targets, validation=held, progress=advance)
        with writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
        note = {
            "model": training.encoder,
            "fingerprint": training.notes.get("fingerprint", ""),
            "seed": DRAW_SEED,
            "shots": len(shots) // len(adapter.head),
            "templates": prompts,
            "source": "ImageNet's training images",
        }
        save_state(adapter, path, {NOTE: note})
        return adapter


def _protocol(variant: Variant) -> str:
    """Return what tells what is measured apart."""
    return repr(
        (variant.method, variant.config, variant.settings_name, variant.prompts, variant.views, variant.views_kind)
    )


def dataset_of(name: str, stream: FeatureStream) -> Dataset | str:
    """Return the dataset of the paper that a run or feature file stands for, or why it stands for none."""
    dataset = DATASETS.get(stream.notes.get("dataset", "")) or dataset_named(name)
    if dataset is None:
        return "no dataset of the paper has this name"
    if len(stream.head) != dataset.classes:
        return f"{len(stream.head):,} classes, and {dataset.title} has {dataset.classes:,}"
    if "dataset" not in stream.notes and backbone(stream.encoder) is None:
        return f"the encoder is {stream.encoder or 'not recorded'}, and not OpenAI CLIP {' or '.join(BACKBONES)}"
    return dataset if stream.prompts else "the prompts of its class vectors are not recorded"


def split_of(stream: FeatureStream) -> str:
    """Return the split of a dataset that a stream is of."""
    return stream.notes.get("split", "test")


def text_lack(encoder: Encoder | None) -> str:
    """Return what a method that learns prompts lacks, in words; "" if it can use the encoder."""
    if encoder is None:
        return "the text tower of a model: --model"
    with suppress(ModelError):
        if hasattr(encoder, "text_tower"):
            encoder.text_tower()
            return ""
    return "a text tower that takes embeddings: a CLIP model of hf:, local: or open_clip:"
