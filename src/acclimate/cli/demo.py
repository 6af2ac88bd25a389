"""`acclimate demo`: watch an adapter recover from a shift."""

from pathlib import Path
from typing import Annotated

import typer


def demo(
    seed: Annotated[int, typer.Option(help="Which stream to draw.")] = 0,
    save: Annotated[Path | None, typer.Option(help="Keep the stream here (.safetensors), for `acclimate run`.")] = None,
) -> None:
    """Adapt a synthetic stream whose images change after a third of it, and show accuracy along the way."""
    from time import sleep

    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from acclimate.adapters import create
    from acclimate.bench.synthetic import shifted_stream
    from acclimate.sources.features import write_stream
    from acclimate.state import check_writable

    if save is not None:
        check_writable(save)
    console = Console()
    stream = shifted_stream(seed=seed)
    assert stream.labels is not None
    if save is not None:
        write_stream(stream, save)
    console.print(
        f"{len(stream)} samples of {len(stream.class_names)} synthetic classes. From sample {len(stream) // 3} on they "
        "look different,\nand nobody tells the classifier.\n",
        highlight=False,
    )
    table = Table(box=None, pad_edge=False)
    for heading in ("samples", "zero-shot", "", "TDA", ""):
        table.add_column(heading, justify="right" if heading == "samples" else "left")
    adapters = [
        create(name, stream.class_vectors, logit_scale=stream.logit_scale, class_names=stream.class_names)
        for name in ("zero-shot", "tda")
    ]
    right = [0, 0]
    width = len(stream) // 15
    with Live(table, console=console, auto_refresh=False) as live:
        for start in range(0, len(stream), width):
            part = slice(start, start + width)
            cells = [f"{start}-{min(start + width, len(stream)) - 1}"]
            for i, adapter in enumerate(adapters):
                correct = adapter.step(stream.features[part]).argmax(axis=1) == stream.labels[part]
                right[i] += int(correct.sum())
                colour = "green" if i else "white"
                cells += [f"[{colour}]{'█' * round(20 * correct.mean()):20}[/]", f"{100 * correct.mean():5.1f} %"]
            table.add_row(*cells)
            live.refresh()
            if console.is_terminal:
                sleep(0.1)  # slow enough to watch
    before, after = (100 * count / len(stream) for count in right)
    console.print(
        f"\nWhole stream: zero-shot {before:.2f} %, TDA {after:.2f} %, gain {after - before:+.2f}.", highlight=False
    )
    if save is not None:
        console.print(f"Stream kept in {save}; try: acclimate run {save} --orders 20", highlight=False)
