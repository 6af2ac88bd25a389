"""`acclimate demo`: adapt to the recorded features of real images, then to drawn pictures, with a report."""

import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli.arguments import DEFAULT_METHOD
from acclimate.cli.console import say
from acclimate.cli.tables import print_table
from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.stream import FeatureStream


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for pictures, results and report.")] = Path(
        "acclimate-demo"
    ),
) -> None:
    """Watch the bundled model adapt to recorded and to drawn images, and write a report."""
    from importlib.resources import files
    from zipfile import ZipFile

    from acclimate.cli.classify import classify
    from acclimate.cli.run import run
    from acclimate.files import writing
    from acclimate.stream import read_stream

    pictures, names, results, report = (out / name for name in ("pictures", "labels.txt", "results.csv", "report.html"))
    # Recorded of real images: PACS, whose style changes; some of it with noise; and a stream that the model knows.
    recorded = [out / f"{name}.safetensors" for name in ("pacs", "pacs_noise", "cifar10_clean")]
    with writing(f"to {out}", InputError, "Choose another place with --out."):
        with (files("acclimate.cli") / "pictures.zip").open("rb") as content, ZipFile(content) as archive:
            archive.extractall(pictures)
        for path in recorded:
            path.write_bytes((files("acclimate.bench") / "data" / path.name).read_bytes())
        names.write_text("\n".join(sorted(folder.name for folder in pictures.iterdir())) + "\n", encoding="utf-8")
    _adapt_live(read_stream(recorded[0]))
    say(
        "",
        "The same stream, half of its images with noise, and CIFAR-10, which the model knows, so that there is",
        "little to gain. The model alone is zero-shot; accord adapts online, as images come, and answers every image",
        "once more from everything seen in a second pass:",
        "",
    )
    run(recorded, method=[DEFAULT_METHOD], passes=2)
    say("", "Now six scenes drawn by acclimate, as a camera sees them in clear weather, in haze and in snow.")
    classify([str(pictures)], str(names), out=results, report=report, order="shuffled:0", overwrite=True)
    _score(results)
    command, activate = as_typed()
    say(
        f"Open {report.resolve().as_uri()} in a browser. To go on from here:",
        "",
        *((f"  {activate:64}  # puts acclimate on the PATH",) if activate else ()),
        f"  {command} classify {pictures} --labels {names}",
        f"  {command} run {recorded[0]} --passes 2 --orders 20",
    )


def as_typed() -> tuple[str, str]:
    """Return how to type the command here, by name if it is on the PATH; and else how to put it there, if known."""
    started = Path(sys.argv[0])
    if started.stem != "acclimate":  # python -m acclimate
        return f"{sys.executable} -m acclimate", ""
    found = shutil.which("acclimate")
    if found is not None and started.exists() and Path(found).samefile(started):
        return "acclimate", ""
    activate = started.with_name("activate")
    return str(started), f"{'' if os.name == 'nt' else '. '}{activate}" if activate.exists() else ""


def _adapt_live(stream: "FeatureStream") -> None:
    from acclimate.methods import create

    assert stream.targets is not None
    assert stream.domains is not None
    say(
        f"Features of {len(stream)} images of {', '.join(stream.head.class_names)},",
        "recorded with the bundled model. The style changes from photo to painting, cartoon and sketch;",
        "the classifier gets no labels.",
        "",
        f"{'samples':>7}  {'style':12}  {'model alone':23}  adapted",
    )
    adapters = [create(name, stream.head) for name in ("zero-shot", DEFAULT_METHOD)]
    width = len(stream) // 14
    for start in range(0, len(stream), width):
        part = slice(start, start + width)
        end = min(start + width, len(stream)) - 1
        line = f"{f'{start}-{end}':>7}  {stream.domains[end].replace('_', ' '):12}"
        for adapter, colour in zip(adapters, ("white", "green"), strict=True):
            right = (adapter.step(stream.features[part]).argmax(axis=1) == stream.targets[part]).mean()
            bar = typer.style(f"{'█' * round(15 * right):15}", colour)
            line += f"  {bar} {100 * right:5.1f} %"
        typer.echo(line)  # its bars have colours


def _score(results: Path) -> None:
    """Print how many answers of a table of results are right; the folder of an image names what it shows."""
    import numpy as np

    from acclimate.bench.scoring import expected_calibration_error
    from acclimate.classify.table import read_results

    found = read_results(results)
    answers = {"model alone": "zero_shot_", "adapted, as they came": "online_", "adapted, at the end": ""}
    rows = []
    before = None
    for name, prefix in answers.items():
        right = np.array([each[f"{prefix}label"] == Path(each["file"]).parent.name for each in found])
        ece = expected_calibration_error(np.array([float(each[f"{prefix}score"]) for each in found]), right)
        before = right if before is None else before
        counts = [f"{right.sum()} of {len(right)}", f"{100 * right.mean():.2f}", f"{100 * ece:.2f}"]
        rows.append([name, *counts, str((right & ~before).sum()), str((before & ~right).sum())])
    print_table(["answers", "right", "accuracy", "ECE", "corrected", "broken"], rows, left=("answers",))
