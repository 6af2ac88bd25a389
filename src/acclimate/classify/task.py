"""The task of a classification: the values that answers are computed with, and how a run is begun or continued."""

import json
import platform
import shutil
from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from datetime import datetime
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from acclimate import __version__
from acclimate.classifier import Classifier
from acclimate.classify.classification import Classification, digest
from acclimate.classify.table import Table
from acclimate.errors import InputError, RunError, StateError, count
from acclimate.evidence import Head
from acclimate.files import read_snapshot, write_atomically, writing
from acclimate.methods import (
    DEFAULT_METHOD,
    check_settings,
    describe_fit,
    find_method,
    list_methods,
    state_to_bytes,
)
from acclimate.run import ABOUT, HEAD, NEW, START, Batch, Run, check_kinds, is_run, run_path
from acclimate.sources.source import Sample, can_be_read, read_file

# What a run of another source takes over from the run whose features it answers
SOURCE_ONLY = ("source", "order", "follow", "fps", "passes", "origin", "freeze")
MOST_RANKS = 10**6  # labels per row
# Options of the values that features are made with, and of those that answers are computed with
FEATURE_OPTIONS = {
    "model": "--model",
    "views": "--views",
    "decoder": "--encode decoder",
    "precision": "--encode precision",
}
ANSWER_OPTIONS = {
    "labels": "--labels",
    "templates": "--template",
    "expand": "--no-expand",
    "method": "--method",
    "settings": "--set",
    "none_of_these": "--none-of-these",
    "skip_duplicates": "--skip-duplicates",
    "top_k": "--top-k",
    "unsure": "--unsure",
    "passes": "--passes",
    "freeze": "--freeze",
    "order": "--order",
}
KINDS: dict[str, Any] = {  # of what a run says of its answers
    "source": [str],
    "labels": [str],
    "parents": dict,
    "expand": bool,
    "method": str,
    "settings": dict,
    "none_of_these": bool,
    "skip_duplicates": bool,
    "top_k": int,
    "unsure": float,
    "passes": int,
    "freeze": bool,
    "order": str,
    "fps": float,
    "follow": bool,
    "batch_size": int,
    "origin": str,
    "truths": dict,
    "state": str,
    "table": str,
}
FITTED = {name: ANSWER_OPTIONS[name] for name in ("method", "settings", "templates")}  # what `acclimate fit` decides


@dataclass(frozen=True, kw_only=True)
class Task:
    """The values that answers are computed with, as a run keeps them.

    Attributes:
        source: names of the images' sources.
        labels: the labels; None for those of a fitted state.
        parents: group of each label.
        templates: prompts; None where the class vectors alone are kept.
        expand: True to answer broad labels through the nouns below them.
        method: name of the method.
        settings: its settings, as far as they were chosen.
        none_of_these: True to recognise images of no label.
        skip_duplicates: True to learn nothing from near-duplicates.
        top_k: labels per row.
        unsure: answers with a lower score are marked.
        passes: 2 to answer once more at the end.
        freeze: True to learn nothing.
        order: "path" or "shuffled:N".
        fps: frames per second of videos.
        follow: True to wait for more images.
        batch_size: images that are encoded at once.
        origin: name of the stream in states.
        truths: true labels by the names of images; None for those of the source.
        given: names of the values that the user has chosen, for this command.
    """

    source: tuple[str, ...] = ()
    labels: tuple[str, ...] | None = None
    parents: Mapping[str, str] = field(default_factory=dict)
    templates: Any = None
    expand: bool = True
    method: str | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)
    none_of_these: bool = False
    skip_duplicates: bool = False
    top_k: int = 3
    unsure: float = 0.0
    passes: int = 2
    freeze: bool = False
    order: str = "path"
    fps: float = 1.0
    follow: bool = False
    batch_size: int | None = None
    origin: str = ""
    truths: Mapping[str, str] | None = None
    given: frozenset[str] = frozenset()

    def to_json(self) -> dict[str, Any]:
        """Return the values as JSON can hold them."""
        values = {each.name: getattr(self, each.name) for each in fields(self) if each.name != "given"}
        try:
            json.dumps(values["templates"])
        except TypeError:  # functions and learned prompts; the class vectors are kept
            values["templates"] = None
        return values

    def following(self, stored: Mapping[str, Any], leave: Sequence[str] = ()) -> "Task":
        """Return the task of a run, with the values that were given for this command."""
        known = {each.name for each in fields(self)} - {"given", *leave, *self.given}
        if "method" in self.given:  # it has settings of its own
            known.discard("settings")
        taken = {name: stored[name] for name in known if stored.get(name) is not None}
        for name in ("labels", "source"):
            if taken.get(name) is not None:
                taken[name] = tuple(map(str, taken[name]))
        try:
            return replace(self, **taken)
        except (TypeError, ValueError) as error:
            raise RunError(f"the run says nothing that answers could be computed with ({error}).") from error


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """The way images become features.

    Attributes:
        model: name of the model, or an encoder.
        views: views per image.
        views_kind: kind of views; None for that of the method.
        generated: source of generated views.
        device: where the model runs.
        precision: precision of the image tower.
        compile: True to compile the image tower.
        decoder: decoder of JPEGs.
        workers: threads or processes that read.
        given: names of the values that the user has chosen, for this command.
    """

    model: Any = "bundled"
    views: int = 1
    views_kind: Any = None
    generated: str | None = None
    device: str = "auto"
    precision: Any = "auto"
    compile: bool = False
    decoder: Any = "auto"
    workers: int | None = None
    given: frozenset[str] = frozenset()

    def of(self, run: Run, trusted: bool) -> "Encoding":
        """Return the way the features of a run were made; a model of a stranger's run must be named again.

        Raises:
            InputError: another way was asked for.
        """
        for name, option in FEATURE_OPTIONS.items():
            asked = getattr(self, name)
            made = run.features.get(name)
            if name in self.given and isinstance(asked, str | int) and asked not in (made, "auto"):
                raise InputError(
                    f"the features of {run.path} were made with {option} {made}, not {asked}; leave {option} out, or "
                    "encode the images into another --out."
                )
        model = run.features.get("model")
        if not trusted and "model" not in self.given and model != "bundled":
            raise InputError(f"the features of {run.path} were made by {model}; name the model again: --model {model}.")
        names = {"model", "views", "views_kind"} - self.given
        return replace(self, **{name: run.features[name] for name in names if run.features.get(name) is not None})


def find_run(task: Task, encoding: Encoding, out: Path | None, resume: bool) -> tuple[Task, Encoding, Run | None]:
    """Return a task as the run wants it that it continues, or whose features it answers; and the run, if there is one.

    Raises:
        InputError: the command asks for something else than the run that it continues.
        RunError: the run is damaged.
    """
    if resume and out is not None:
        path = run_path(out)
        path = path.with_name(path.name + NEW) if is_run(path.with_name(path.name + NEW)) else path
        run = _open(path) if is_run(path) else None
        if run is not None and run.answer:
            _check_same(task, run, out)
            return task.following(run.answer), encoding.of(run, trusted=True), run
        if out.exists():
            raise InputError(
                f"{out} has no run beside it ({run_path(out)}), so there is nothing to continue; pass --overwrite to "
                "encode the images again, or choose another --out."
            )
    if len(task.source) == 1 and is_run(task.source[0]):
        run = _open(Path(task.source[0]))
        run.check_whole()
        return task.following(run.answer, leave=SOURCE_ONLY), encoding.of(run, trusted=False), run
    return task, encoding, None


def _open(path: Path) -> Run:
    """Open a run, whose values are data of anybody."""
    run = Run.open(path)
    check_kinds(run.answer, KINDS, path / ABOUT)
    texts = {**(run.answer.get("parents") or {}), **(run.answer.get("truths") or {})}
    if not all(isinstance(text, str) for text in texts.values()) or not 0 < (run.answer.get("top_k") or 1) < MOST_RANKS:
        raise RunError(f"{path / ABOUT} says nothing that answers could be computed with; use another copy of the run.")
    return run


def _check_same(task: Task, run: Run, out: Path) -> None:
    """Refuse to continue a run with options that ask for other answers."""
    if run.answer.get("table") not in (None, out.name):
        raise InputError(f"{run.path} is the run of {run.answer['table']}; choose another --out than {out}.")
    asked = task.to_json()
    for name, option in ANSWER_OPTIONS.items():
        before = run.answer.get(name)
        if name == "settings":  # a run keeps all of them
            before = {key: (before or {}).get(key) for key in asked[name]}
        same = json.dumps(asked[name]) == json.dumps(before)
        if name in task.given and asked[name] != "auto" and not same:
            raise InputError(
                f"--resume continues what {out} was begun with, and {option} asks for other answers; for these, encode "
                f"nothing again: acclimate classify {run_path(out)} {option} ... --out {out} --overwrite"
            )


def open_classifier(
    task: Task, encoding: Encoding, run: Run | None, state: Path | None, progress: Callable[[str, int, int], None]
) -> Classifier:
    """Return the classifier of a task, in the state before the first image.

    The class vectors of a run are taken as they are, unless others were asked for.
    """
    continued = run is not None and not {"labels", "templates", "expand"} & task.given
    head = _stored_head(run) if run is not None and continued else None
    start = state if state is not None and state.exists() else None
    settings = check_settings(find_method(task.method or DEFAULT_METHOD), task.settings)
    chosen = {"labels": head or task.labels, "method": task.method, "templates": task.templates, **settings}
    if fitted := start is not None and _is_fitted(start):
        decided = [option for name, option in FITTED.items() if name in task.given]
        if decided and (run is None or not continued):
            raise InputError(
                f"{start} was fitted by `acclimate fit`, which decides this; leave out {', '.join(decided)}."
            )
        chosen = {"fitted": start, "labels": task.labels if "labels" in task.given else None}
    classifier = Classifier(
        encoder=encoding.model,
        expand=task.expand,
        reject=task.none_of_these,
        skip_duplicates=task.skip_duplicates,
        unsure=task.unsure,
        views=encoding.views,
        views_kind=encoding.views_kind,
        generated=encoding.generated,
        batch_size=task.batch_size,
        workers=encoding.workers,
        device=encoding.device,
        precision=encoding.precision,
        compile=encoding.compile,
        decoder=encoding.decoder,
        progress=progress,
        **chosen,
    )
    if run is not None:
        classifier.check_run(run)
    if start is not None and not fitted:
        classifier.continue_from(start)
    if task.origin:
        classifier.adapter.origin = task.origin
    if task.freeze:
        classifier.freeze()
    return classifier


def _stored_head(run: Run) -> Head | None:
    """Return the class vectors of the last answers of a run; None if they are not there as they were written."""
    try:
        tensors, about = read_snapshot(run.path / HEAD)
        head = Head.from_file(tensors, about, run.path / HEAD)
    except StateError:
        return None
    return head if head.fingerprint == run.answer.get("head") else None


def _is_fitted(path: Path) -> bool:
    """Return True if a state is that of a few-shot method, which is never written back."""
    method = read_snapshot(path)[1].get("method")
    return method in list_methods() and find_method(str(method)).kind == "few-shot"


@dataclass(kw_only=True)
class Job:
    """A classification as a command asks for it: fresh, continued, or from the features of another run.

    Attributes:
        task: the values that answers are computed with.
        encoding: the way images become features.
        run: the run that it continues or answers from; see `find_run`.
        out: file of the results; None for none.
        resume: True to continue the run.
        overwrite: True to replace results that are there.
        state: file to start from if it exists, and to write at the end.
    """

    task: Task
    encoding: Encoding
    run: Run | None = None
    out: Path | None = None
    resume: bool = False
    overwrite: bool = False
    state: Path | None = None

    def begin(
        self, classifier: Classifier, samples: Sequence[Sample], more: Any = None, **options: Any
    ) -> Classification:
        """Return the classification, whose run is ready on the disk.

        Args:
            classifier: made by `open_classifier`.
            samples: the images of the sources in order; empty for a run as source.
            more: for --follow: called with the names that are known, waits for more images; none end the run.
            options: others of `Classification`.
        """
        table = None if self.out is None else Table(self.out, self.task.top_k)
        passes = 1 if self.task.follow else self.task.passes
        continued = self.resume and self.run is not None
        folder = None
        if self.out is None and (self.run is not None or passes == 2):
            folder = TemporaryDirectory(prefix="acclimate-")
        path = run_path(self.out) if self.out is not None else Path(folder.name, "answers.run") if folder else None
        run = self.run if continued else None if path is None else self._begin_run(path, classifier)
        new = list(samples)
        shown = list(samples)
        if self.run is not None:
            shown = [Sample(name, partial(_read_near, self.run.path, name)) for name in self.run.names]
            if continued:
                new = self._match(self.run, shown, new)

        def encode(start: int) -> Iterator[Batch]:
            waiting = new
            while True:
                if waiting:
                    yield from classifier.encoded(waiting, "skip", start)
                    start += len(waiting)
                waiting = [] if more is None else more({sample.name for sample in shown})
                if not waiting:
                    return
                shown.extend(waiting)

        lasting = classifier.adapter.kind == "few-shot" or self.task.freeze  # the state does not change
        return Classification(
            classifier=classifier,
            run=run,
            encode=None if self.run is not None and not continued else encode,
            expected=None if more is not None else len(shown),
            table=table,
            top_k=self.task.top_k,
            parents=self.task.parents,
            truths=self.task.truths,
            passes=passes,
            state=None if lasting else self.state,
            samples=shown,
            temporary=folder,
            **options,
        )

    def describe(self, run: Classification, command: str, prompts: str) -> dict[str, object]:
        """Return the settings of a run by name, as its report shows them."""
        classifier = run.classifier
        described = {
            "command": command[:1000],
            "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
            "source": " ".join(self.task.source),
            "order": self.task.order,
            **{name: value for name, value in classifier.about_features.items() if name not in ("fingerprint", "dim")},
            "number of labels": len(classifier.labels),
            "broad labels": ", ".join(f"{label} ({kinds} kinds)" for label, kinds in classifier.head.expanded.items()),
            "prompts": prompts or "those of the fitted state",
            "passes": run.passes,
            "method": classifier.adapter.name,
            "fitted state": describe_fit(classifier.about_fit) if classifier.about_fit else "",
            "acclimate": __version__,
            "Python": platform.python_version(),
        }
        return {name: value for name, value in described.items() if value not in (None, "")}

    def check_out(self) -> None:
        """Refuse results that are there, or that would take the features of others with them.

        Raises:
            InputError: the message says what can be done.
        """
        if self.out is None or (self.resume and self.run is not None):
            return
        path = run_path(self.out)
        there = Run.open(path) if is_run(path) else None
        if there is not None and there.answer.get("table") not in (None, self.out.name):
            raise InputError(
                f"{path} is the run of {there.answer['table']}; choose another --out, with another name before the dot."
            )
        if (there is not None or self.out.exists()) and not self.overwrite:
            how = "" if there is None else "--resume to continue it, or "
            raise InputError(f"{self.out} exists; pass {how}--overwrite to replace it.")
        own = there is not None and there.feature_path == there.path and there.images
        if self.run is not None and own and path.resolve() != self.run.feature_path.resolve():
            raise InputError(
                f"{path} has the features of {count(own, 'image')} of its own, which would be lost; choose another "
                f"--out, or remove it."
            )

    def _begin_run(self, path: Path, classifier: Classifier) -> Run:
        """Write what the answers of a run are computed with, and return the run."""
        there = Run.open(path) if is_run(path) else None
        signature = there.answer.get("signature") if there is not None else None
        if self.run is not None and path.resolve() == self.run.path.resolve():
            run = self.run
        elif self.run is not None:
            run = self.run.derive(path)
            run.corrections = self.run.corrections
        else:
            if there is not None:  # it stays until the new one is complete
                path = path.with_name(path.name + NEW)
                shutil.rmtree(path, ignore_errors=True)
            run = Run.create(path, classifier.about_features)
            run.corrections = {} if there is None else there.corrections
        with writing(run.path):
            write_atomically(run.path / START, state_to_bytes(classifier.adapter, classifier.notes))
        run.write_head(*classifier.head.to_file())
        run.answer = self.task.to_json() | {
            "labels": list(classifier.labels),
            "method": classifier.adapter.name,
            "settings": classifier.adapter.settings,
            "batch_size": classifier.batch_size,
            "head": classifier.head.fingerprint,
            "table": None if self.out is None else self.out.name,
            "state": None if self.state is None else str(self.state),
            "state_digest": digest(self.state),
            "answers": "online",
            "signature": signature,
        }
        run.save()
        return run

    def _match(self, run: Run, shown: list[Sample], listed: Sequence[Sample]) -> list[Sample]:
        """Return the listed images that are in no part of the run, or could not be read before and can be now.

        They are added to the samples that are shown; those of the run become the listed ones of the same name.
        """
        positions: dict[str, deque[int]] = defaultdict(deque)
        replaced = set(run.features.get("replaced", ()))
        for position, name in enumerate(run.names):
            if position not in replaced:
                positions[name].append(position)
        errors = run.errors
        new = []
        for sample in listed:
            if not positions[sample.name]:
                new.append(sample)
                continue
            position = positions[sample.name].popleft()
            shown[position] = sample
            if errors[position] is not None and can_be_read(sample):
                replaced.add(position)
                new.append(sample)
        if "source" in self.task.given and listed and len(new) == len(listed) and run.images:
            raise InputError(
                f"cannot continue {run.path}: none of its {count(run.images, 'image')} is among those of the source. "
                "Choose another --out, or --overwrite it."
            )
        run.features["replaced"] = sorted(replaced)
        run.save()
        shown.extend(new)
        return new


def _read_near(run: Path, name: str) -> bytes:
    """Return the content of an image that a run names, if it lies beside the run or below the current folder."""
    path = Path(name).resolve()
    if not any(path.is_relative_to(folder.resolve()) for folder in (Path(), run.parent)):
        raise OSError(f"{name} lies elsewhere")
    return read_file(name)
