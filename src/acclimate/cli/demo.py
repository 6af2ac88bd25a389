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
    from time import sleep

    from acclimate.methods import create

    assert stream.labels is not None
    assert stream.domains is not None
    console.print(
        f"Features of {len(stream)} images of {', '.join(stream.head.class_names)}, recorded with the bundled model. "
        "The style changes from photo to painting, cartoon and sketch; the classifier gets no labels.\n",
        highlight=False,
    )
    console.print(f"{'samples':>7}  {'style':12}  {'zero-shot':23}  TDA", style="bold")
    adapters, right = [create(name, stream.head) for name in ("zero-shot", "tda")], [0, 0]
    width = len(stream) // 14
    for start in range(0, len(stream), width):
        part, end = slice(start, start + width), min(start + width, len(stream)) - 1
        line = f"{f'{start}-{end}':>7}  {stream.domains[end].replace('_', ' '):12}"
        for i, (adapter, colour) in enumerate(zip(adapters, ("white", "green"), strict=True)):
            correct = adapter.step(stream.features[part]).argmax(axis=1) == stream.labels[part]
            right[i] += int(correct.sum())
            line += f"  [{colour}]{'█' * round(15 * correct.mean()):15}[/] {100 * correct.mean():5.1f} %"
        console.print(line, highlight=False)
        if console.is_terminal:
            sleep(0.1)  # slow enough to watch
    before, after = (100 * count / len(stream) for count in right)
    console.print(
        f"\nWhole stream: zero-shot {before:.2f} %, TDA {after:.2f} %, gain {after - before:+.2f}.", highlight=False
    )
