"""`acclimate convert`: a PyTorch model becomes an ONNX folder."""

from pathlib import Path
from typing import Annotated

import typer


def convert(
    model: Annotated[str, typer.Argument(help="hf:ID or local:DIR.")],
    to: Annotated[Path, typer.Option(help="The folder to make.")],
) -> None:
    """Convert a model to ONNX, so that classifying and serving need no PyTorch."""
    from acclimate.encoders import load_encoder
    from acclimate.encoders.convert import convert as convert_encoder

    gap = convert_encoder(load_encoder(model, "cpu"), to)
    size = sum(path.stat().st_size for path in to.iterdir()) / 1e6
    typer.echo(f"{to}: {size:.1f} MB, features differ by at most {gap:.1e}. Use it as onnx:{to}")
