"""The options of a classification: what may be combined, and the arguments that follow from them."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from acclimate.errors import LONGEST_TEXT, InputError, count

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.classify.run import Classification

# Options of one command, which another one does not take over
OWN = {"out", "counts", "report", "sort_into", "sort_how", "resume", "overwrite", "workers", "checkpoint_every"}
FILES = ("fitted", "truth", "state")


@dataclass(frozen=True, kw_only=True)
class ClassifyOptions:
    """The options of `acclimate classify`, as they are typed; `acclimate cluster classify` adds some of its own.

    Examples:
        >>> ClassifyOptions(source=["photos"], labels="cat, dog", resume=True).check()
        Traceback (most recent call last):
        acclimate.errors.InputError: --resume, --sort-into and --counts work from results; name the file with --out.
    """

    source: Sequence[str] = ()
    labels: str | None = None  # separated by commas, or a file; None if the fitted file has them
    model: str = "bundled"
    out: Path | str | None = None  # a file; on a cluster a folder, or its URL
    bom: bool = False
    counts: str | None = None  # kinds of counts, with commas
    method: str | None = None
    setting: Sequence[str] | None = None  # KEY=VALUE each
    fitted: Path | None = None
    template: Sequence[str] | None = None
    views: int = 1
    views_kind: str | None = None
    generated: str | None = None
    top_k: int = 3
    unsure: float = 0.0
    expand: bool = True
    none_of_these: bool = False
    order: str = "auto"
    fps: float = 1.0
    skip_duplicates: bool | None = None  # None to skip them where a camera may stand still
    passes: int | None = None
    state: Path | str | None = None
    no_state: bool = False
    origin: str | None = None
    freeze: bool = False
    truth: Path | None = None
    report: Path | None = None
    follow: bool = False
    sort_into: Path | None = None
    sort_how: Literal["copy", "link", "move"] = "copy"
    resume: bool = False
    overwrite: bool = False
    on_error: Literal["skip", "fail"] = "skip"
    batch_size: int | None = None
    workers: int | None = None
    device: str = "auto"
    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    compile: bool = False
    decoder: str = "auto"
    checkpoint_every: float = 10.0

    def begun(self) -> dict[str, Any]:
        """Return the options that a command which continues the run takes over, as JSON can hold them."""
        given = {name: getattr(self, name) for name, default in self._defaults().items()}
        given = {name: value for name, value in given.items() if value != self._defaults()[name]}
        return {name: str(value) if name in FILES else value for name, value in given.items()}

    def continued(self) -> "ClassifyOptions":
        """Return the options with those of the run that they continue, where they do not say otherwise."""
        begun = run_options(Path(self.out)) if self.resume and self.out is not None else {}
        open_ones = [name for name, default in self._defaults().items() if getattr(self, name) in (default, [])]
        taken: dict[str, Any] = {name: begun[name] for name in open_ones if name in begun}
        return replace(self, **taken | {name: Path(taken[name]) for name in FILES if name in taken})

    def _defaults(self) -> dict[str, Any]:
        return {each.name: each.default for each in fields(self) if each.name not in OWN}

    def check(self) -> None:
        """Refuse options that contradict each other, with an `InputError` that says what to do; reads no file."""
        from acclimate.classify.counts import parse_counts

        around = [] if self.sort_into is None else [self.sort_into.resolve(), *self.sort_into.resolve().parents]
        refusals = (
            (
                not self.source,
                "name the images: a folder, files or a list; --resume takes them from the run that it continues.",
            ),
            (
                self.out is None and (self.resume or self.sort_into is not None or self.counts is not None),
                "--resume, --sort-into and --counts work from results; name the file with --out.",
            ),
            (
                self.bom and Path(self.out or "").suffix.lower() != ".csv",
                "--bom is for results in csv; name them with --out, or write .xlsx for Excel.",
            ),
            (
                self.resume and self.overwrite,
                "--resume continues what --overwrite would replace; pass one of them.",
            ),
            (
                self.fitted is not None and bool(self.method or self.setting or self.state),
                "a fitted file has the method, its settings and its state; leave out --method, --set, --state.",
            ),
            (
                self.origin is not None and len(self.origin) > LONGEST_TEXT,
                f"--origin must have {LONGEST_TEXT} characters at most.",
            ),
            (
                self.report is not None and self.report.suffix.lower() not in (".html", ".htm"),
                f"cannot write {self.report}: a report is HTML; choose a name that ends in .html.",
            ),
            (
                self.follow and self.sort_into is not None,
                "a run that follows a folder has no end at which to sort; use `acclimate sort` afterwards.",
            ),
            (
                self.follow and self.passes == 2,
                "a run that follows a folder has no end at which to answer once more; leave out --passes.",
            ),
            (self.follow and len(self.source) > 1, "--follow takes one folder."),
            (
                self.follow and self.truth is not None,
                "--truth names images that are there, and --follow waits for others; use folders per class.",
            ),
            (
                any(Path(each).resolve() in around for each in self.source),
                f"{self.sort_into} is in the folder of the images; sort them into another one.",
            ),
        )
        for refused, message in refusals:
            if refused:
                raise InputError(message)
        if self.counts is not None:
            parse_counts(self.counts)

    def check_files(self) -> None:
        """Refuse files that cannot be written, --freeze without a state, and results that would be replaced."""
        from acclimate.classify.outputs import ResultFile
        from acclimate.classify.sorting import moved_images
        from acclimate.files import check_writable, read_snapshot

        for path in (self.out, self.state, self.report):
            if path is not None:
                check_writable(Path(path))
        output = None if self.out is None else ResultFile(Path(self.out), self.top_k)
        record = output.state if output and not self.no_state else None
        if record is not None:
            check_writable(record)
        if self.freeze and self.state is not None and not Path(self.state).exists():
            raise InputError(f"--freeze answers from a state, and there is none at {self.state}.")
        if output is None:
            return
        exists = output.path.exists()
        incomplete = output.checkpoint.is_file()
        if self.overwrite and exists and not incomplete and (moved := moved_images(output.path)):
            raise InputError(
                f"{self.out} says where {count(moved, 'image')} went; take them back with `acclimate sort {self.out} "
                "--undo`, or choose another --out."
            )
        if not (self.resume or self.overwrite) and (exists or incomplete):
            how = "--resume to continue it, or " if incomplete else ""
            raise InputError(f"{self.out} exists; pass {how}--overwrite to replace it.")
        if record and record.is_file() and not self.resume and Path(self.state or "") != record:
            taught = len(read_snapshot(record)[0].get("corrections.ids", ()))
            if taught:
                raise InputError(
                    f"{record} has {count(taught, 'correction')}, which would be lost; start from it with --state "
                    f"{record}, choose another --out, or delete it."
                )

    def classifier_arguments(self) -> dict[str, Any]:
        """Return the arguments of `Classifier` that the options give as they are."""
        names = (
            "method",
            "fitted",
            "batch_size",
            "workers",
            "device",
            "precision",
            "compile",
            "decoder",
            "views",
            "views_kind",
            "generated",
            "unsure",
            "expand",
        )
        return {name: getattr(self, name) for name in names} | {"reject": self.none_of_these}

    def set_up(self, classifier: "Classifier") -> None:
        """Apply --origin and --freeze to a classifier, after it has loaded a state."""
        if self.origin is not None:
            classifier.adapter.origin = self.origin
        if self.freeze:
            classifier.freeze()

    def describe(self, run: "Classification", command: str, prompts: str) -> dict[str, object]:
        """Return the settings of a run by name, as its report shows them."""
        import platform
        from datetime import datetime

        from acclimate import __version__
        from acclimate.methods import describe_fit
        from acclimate.reading.walk import precision_of

        classifier = run.classifier
        described = {
            "command": command[:1000],
            "date": datetime.now().astimezone().strftime("%Y-%m-%d %H:%M %z"),
            "source": " ".join(self.source),
            "order": self.order,
            "model": self.model,
            "decoder": classifier.decoder,
            "precision": precision_of(classifier.encoder),
            "number of labels": len(classifier.labels),
            "broad labels": ", ".join(f"{label} ({kinds} kinds)" for label, kinds in classifier.head.expanded.items())
            or None,
            "prompts": prompts or "of the fitted file",
            "true labels": self.truth,
            "views per image": self.views,
            "kind of views": classifier.views_kind if self.views > 1 else None,
            "passes": run.passes,
            "method": classifier.adapter.name,
            "fitted file": f"{self.fitted}, {describe_fit(classifier.about_fit)}" if self.fitted else None,
            "acclimate": __version__,
            "Python": platform.python_version(),
        }
        return {name: value for name, value in described.items() if value is not None}


def run_options(results: Path) -> Mapping[str, Any]:
    """Return the options that the run of some results was begun with; {} if they were not kept."""
    from acclimate.classify.outputs import ResultFile
    from acclimate.classify.run import OPTIONS
    from acclimate.files import read_snapshot

    output = ResultFile(results, 1)
    kept = next(filter(Path.is_file, (output.checkpoint, output.state)), None)
    found = {} if kept is None else read_snapshot(kept)[1].get("notes", {}).get(OPTIONS, {})
    return found if isinstance(found, dict) else {}
