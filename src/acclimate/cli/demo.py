"""`acclimate demo`: adapt to the recorded features of real images, then to drawn pictures, with a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from rich.console import Console

    from acclimate.stream import FeatureStream

FOLDER = Path("acclimate-demo")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for pictures, results and report.")] = FOLDER,
) -> None:
    """Adapt the bundled model to recorded images whose style changes, then to drawn pictures, with a report."""
    import shutil
    from importlib.resources import as_file, files

    from rich.console import Console

    from acclimate.cli.classify import classify
    from acclimate.cli.pictures import SCENES, draw_folder
    from acclimate.errors import InputError
    from acclimate.stream import read_stream

    console, recorded = Console(), out / "pacs.safetensors"
    try:
        pictures = draw_folder(out / "pictures", each=5)
        with as_file(files("acclimate.bench") / "data" / recorded.name) as shipped:
            shutil.copyfile(shipped, recorded)
    except OSError as error:
        raise InputError(
            f"cannot write to {out}: {error.strerror or error}; choose another place with --out."
        ) from error
    _adapt_live(read_stream(recorded), console)
    console.print(f"To run it in 20 orders: acclimate run {recorded} --orders 20\n", highlight=False, soft_wrap=True)
    console.print("Now pictures drawn by acclimate: plain, in pencil, blurred, and in large pixels.", highlight=False)
    classify(
        str(pictures),
        ", ".join(SCENES),
        out=out / "results.csv",
        report=out / "report.html",
        order="seed:0",
        overwrite=True,
    )
    console.print(f"Open {(out / 'report.html').resolve().as_uri()} in a browser.", highlight=False, soft_wrap=True)


def _adapt_live(stream: "FeatureStream", console: "Console") -> None:
    """Show the accuracy along the stream, zero-shot and adapted."""
    import json
    from time import sleep

    from rich.live import Live
    from rich.table import Table

    from acclimate.methods import create

    assert stream.labels is not None
    domains = json.loads(stream.metadata["domains"])
    console.print(
        f"Features of {len(stream)} images of {', '.join(stream.class_names)}, recorded with the bundled model. "
        "The style changes from photo to painting, cartoon and sketch; the classifier gets no labels.\n",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("samples", "style", "zero-shot", "", "TDA", ""):
        table.add_column(heading, justify="right" if heading == "samples" else "left")
    adapters = [
        create(name, stream.class_vectors, logit_scale=stream.logit_scale, class_names=stream.class_names)
        for name in ("zero-shot", "tda")
    ]
    right = [0, 0]
    width = len(stream) // 14
    with Live(table, console=console, auto_refresh=False) as live:
        for start in range(0, len(stream), width):
            part = slice(start, start + width)
            end = min(start + width, len(stream)) - 1
            cells = [f"{start}-{end}", domains[end].replace("_", " ")]
            for i, adapter in enumerate(adapters):
                correct = adapter.step(stream.features[part]).argmax(axis=1) == stream.labels[part]
                right[i] += int(correct.sum())
                colour = "green" if i else "white"
                cells += [f"[{colour}]{'█' * round(15 * correct.mean()):15}[/]", f"{100 * correct.mean():5.1f} %"]
            table.add_row(*cells)
            live.refresh()
            if console.is_terminal:
                sleep(0.1)  # slow enough to watch
    before, after = (100 * count / len(stream) for count in right)
    console.print(
        f"\nWhole stream: zero-shot {before:.2f} %, TDA {after:.2f} %, gain {after - before:+.2f}.", highlight=False
    )
