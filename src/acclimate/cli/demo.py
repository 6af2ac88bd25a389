"""`acclimate demo`: adapt to the recorded features of real images, then to drawn pictures, with a report."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from acclimate.stream import FeatureStream

FOLDER = Path("acclimate-demo")


def demo(
    out: Annotated[Path, typer.Option("--out", "-o", help="Folder for pictures, results and report.")] = FOLDER,
) -> None:
    """Adapt the bundled model to recorded images whose style changes, then to drawn pictures, with a report."""
    from importlib.resources import files
    from io import BytesIO
    from zipfile import ZipFile

    from acclimate.cli.classify import classify
    from acclimate.errors import InputError
    from acclimate.files import writing
    from acclimate.stream import read_stream

    recorded, results, report = (out / name for name in ("pacs.safetensors", "results.csv", "report.html"))
    pictures = out / "pictures"
    with writing(f"to {out}", InputError, "Choose another place with --out."):
        with ZipFile(BytesIO((files("acclimate.cli") / "pictures.zip").read_bytes())) as archive:
            archive.extractall(pictures)
        recorded.write_bytes((files("acclimate.bench") / "data" / recorded.name).read_bytes())
    _adapt_live(read_stream(recorded))
    typer.echo(f"To run it in 20 orders: acclimate run {recorded} --orders 20\n")
    typer.echo("Now pictures drawn by acclimate: plain, in pencil, blurred, and in large pixels.")
    labels = ", ".join(sorted(folder.name for folder in pictures.iterdir()))
    classify(str(pictures), labels, out=results, report=report, order="seed:0", overwrite=True)
    typer.echo(f"Open {report.resolve().as_uri()} in a browser.")


def _adapt_live(stream: "FeatureStream") -> None:
    """Show the accuracy along the stream, zero-shot and adapted."""
    from acclimate.methods import create

    assert stream.labels is not None
    assert stream.domains is not None
    typer.echo(f"Features of {len(stream)} images of {', '.join(stream.head.class_names)},")
    typer.echo("recorded with the bundled model. The style changes from photo to painting, cartoon and sketch;")
    typer.echo(f"the classifier gets no labels.\n\n{'samples':>7}  {'style':12}  {'zero-shot':23}  TDA")
    adapters, right, width = [create(name, stream.head) for name in ("zero-shot", "tda")], [0, 0], len(stream) // 14
    for start in range(0, len(stream), width):
        part, end = slice(start, start + width), min(start + width, len(stream)) - 1
        line = f"{f'{start}-{end}':>7}  {stream.domains[end].replace('_', ' '):12}"
        for i, (adapter, colour) in enumerate(zip(adapters, ("white", "green"), strict=True)):
            correct = adapter.step(stream.features[part]).argmax(axis=1) == stream.labels[part]
            right[i] += int(correct.sum())
            bar = typer.style(f"{'█' * round(15 * correct.mean()):15}", colour)
            line += f"  {bar} {100 * correct.mean():5.1f} %"
        typer.echo(line)
    before, after = (100 * count / len(stream) for count in right)
    typer.echo(f"\nWhole stream: zero-shot {before:.2f} %, TDA {after:.2f} %, gain {after - before:+.2f}.")
