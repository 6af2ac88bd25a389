"""`acclimate bench`: the paper's benchmarks, one JSON file per result."""

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from acclimate.cli.arguments import (
    COMPARED,
    DEFAULT_MAX_PIXELS,
    Device,
    Generated,
    MaxPixels,
    Model,
    Plugins,
    Precision,
    ViewsKind,
    Workers,
)
from acclimate.cli.console import interruptible, progress_bar, say
from acclimate.cli.tables import print_results
from acclimate.errors import InputError, MissingExtraError

if TYPE_CHECKING:
    from acclimate.bench.measurements import Measurements
    from acclimate.bench.results import Score

Orders = Annotated[
    int, typer.Option(help="Run over this many orders of that shape (shuffled by default), seeds 0 to N-1.", min=0)
]
Store = Annotated[Path, typer.Option(help="The folder of encoded features; images are encoded once.")]
Out = Annotated[Path, typer.Option("--out", "-o", help="The folder for everything that is written.")]
EncodeSize = Annotated[int, typer.Option("--batch-size", help="Images encoded at once; each view counts.", min=1)]
Methods = Annotated[
    list[str] | None, typer.Option(help="Method to run; can be repeated.", show_default=", ".join(COMPARED))
]
SettingsOf = Annotated[
    Literal["paper", "authors-per-dataset"],
    typer.Option(help="The same settings for all datasets, or those the authors published for each dataset."),
]
FittedFile = Annotated[
    Path | None, typer.Option(help="A file of `acclimate fit`, to run in place of --method or beside it.")
]
Prompts = Annotated[
    str, typer.Option(help="dataset (a template set per dataset), the name of a set for all, or learned:FILE.")
]


def bench(
    data: Annotated[Path, typer.Option(help="The folder of all datasets; see `acclimate data check`.")],
    model: Model,
    suite: Annotated[list[str] | None, typer.Option(help="ood or cross-domain; can be repeated.")] = None,
    dataset: Annotated[list[str] | None, typer.Option(help="One dataset, such as dtd; can be repeated.")] = None,
    method: Methods = None,
    plugin: Plugins = None,
    fitted: FittedFile = None,
    settings: SettingsOf = "paper",
    prompts: Prompts = "dataset",
    views: Annotated[Literal["paper", "1", "64"], typer.Option(help="Views per image.")] = "paper",
    views_kind: ViewsKind = None,
    generated: Generated = None,
    order: Annotated[
        str, typer.Option(help="shuffled:N, rows, or a shape such as class-sequential:N, correlated:N.")
    ] = "shuffled:1",
    orders: Orders = 0,
    store: Store = Path("features"),
    out: Out = Path("results"),
    skip_existing: Annotated[bool, typer.Option(help="Do not run again what has a result in --out.")] = True,
    max_pixels: MaxPixels = DEFAULT_MAX_PIXELS,
    batch_size: EncodeSize = 64,
    workers: Workers = None,
    device: Device = "auto",
    precision: Precision = "float32",
) -> None:
    """Run methods on the paper's datasets: encode each once, adapt, and write one JSON file per dataset and method.

    Every result includes the scores of zero-shot. The same command continues an interrupted run.
    """
    from acclimate.bench.datasets import find_datasets, incomplete_datasets, present_datasets
    from acclimate.bench.orders import order_names
    from acclimate.bench.store import FeatureStore
    from acclimate.bench.suite import run_suite
    from acclimate.methods import find_method

    chosen = find_datasets(suite or [], dataset or [])
    if not chosen:
        raise InputError("nothing to run; name a --suite (ood, cross-domain) or a --dataset.")
    methods = list(dict.fromkeys(method or (("zero-shot",) if fitted else COMPARED)))
    for name in methods:
        find_method(name)
    present = present_datasets(chosen, data)
    features = FeatureStore(data, model, store, batch_size, workers, device, precision, generated, progress_bar)
    report_skipped([each.key for each in chosen if each not in present], data)
    warnings = list(incomplete_datasets(present, data))
    report(warnings)
    with interruptible("run the same command again to continue."):
        scores = run_suite(
            *(features, present, methods, out),
            orders=order_names(order, orders),
            settings=settings,
            prompts=prompts,
            views=views,
            views_kind=views_kind,
            skip_existing=skip_existing,
            fitted=fitted,
        )
    print_results(scores)
    report([*warnings, f"{len(scores)} results in {out}; try `acclimate tables {out}`."])


def options_text(**given: Any) -> str:
    """Return options as on the command line, without those that are None; a list is an option that is repeated."""
    pairs = [(name, each) for name, value in given.items() for each in (value if isinstance(value, list) else [value])]
    return " ".join(f"--{name.replace('_', '-')} {value}" for name, value in pairs if value is not None)


def as_patterns(paths: Sequence[Path]) -> str:
    """Return paths as on the command line: those of a folder as a pattern if they are all the files that it matches."""
    words: dict[str, None] = {}
    for path in paths:
        pattern = path.parent / f"*{path.suffix}"
        matched = set(pattern.parent.glob(pattern.name))
        words[str(pattern if len(matched) > 1 and matched <= set(paths) else path)] = None
    return " ".join(words)


def run_measurements(
    plan: "Measurements", out: Path, jobs: int | None, note: str, keep: "Callable[[list[Score]], None] | None" = None
) -> "list[Score]":
    """Make the folder of the results, report what is left out, and make the measurements in several processes.

    `keep` stores the scores of each measurement as soon as they are known.
    """
    from acclimate.files import writing

    report_pictures()
    with writing(out):
        out.mkdir(parents=True, exist_ok=True)
    report([f"{note}: {sentence}" for sentence in plan.notes])
    with interruptible(f"the same command with --add continues from {out}." if keep else "nothing was written."):
        return plan.run(jobs or os.cpu_count() or 1, progress_bar, keep or (lambda scores: None))


def report(sentences: Sequence[str]) -> None:
    """Print sentences on stderr, each on a line; nothing if there are none."""
    for sentence in sentences:
        say(sentence, err=True)


def report_pictures() -> None:
    """Report on stderr, before the work, that pictures are left out where matplotlib is missing."""
    from acclimate.bench.plots import pyplot

    try:
        pyplot()
    except MissingExtraError as error:
        say(f"note: the pictures are left out; {error}", err=True)


def report_skipped(keys: list[str], data: Path | None) -> None:
    """Report on stderr which datasets are not in a folder, or not among feature files."""
    if keys and data is None:
        say(f"not among the feature files: {', '.join(keys)}.", err=True)
    elif keys:
        say(f"skipped, not in {data}: {', '.join(keys)}; see `acclimate data check {data}`.", err=True)
