"""Options that the commands of `acclimate cluster` share, and what their values mean."""

import re
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli import arguments
from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.cluster.nodes import Cluster

Address = Annotated[
    str | None,
    typer.Option(
        help="A Ray cluster: auto for that of this machine, or HOST:PORT of its head node.",
        envvar="RAY_ADDRESS",
        show_default="a Ray on this machine alone, which ends with the command",
    ),
]
Cpus = Annotated[float, typer.Option(help="CPUs per encoder.", min=0)]
Gpus = Annotated[
    float | None,
    typer.Option(
        help="GPUs per encoder, such as 1 or 0.5.", min=0, show_default="1 for a PyTorch model if there are GPUs"
    ),
]


def least_and_most(text: str, option: str) -> tuple[int, int]:
    """The numbers of "4" or "2:8"."""
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise InputError(f"{option} takes a number, or LEAST:MOST such as 2:8, got {text!r}.")
    return least, most


def gpus_for(there: "Cluster", model: str, device: str) -> float:
    """One GPU per encoder if there are some and the model can use them."""
    on_gpus = model != arguments.DEFAULT_MODEL and not model.startswith("onnx:") and device not in ("cpu", "mps")
    return float(on_gpus and there.total("GPU") >= 1)
