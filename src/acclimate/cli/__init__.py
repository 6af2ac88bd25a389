"""The command line. Commands import what they need when they run, so that --help is instant."""

import os
import warnings

import typer

from acclimate.cli.bench import bench
from acclimate.cli.catalogue import convert, doctor, methods, models
from acclimate.cli.classify import classify, cluster_classify
from acclimate.cli.console import CommandGroup, say
from acclimate.cli.correct import correct
from acclimate.cli.data import data
from acclimate.cli.demo import demo
from acclimate.cli.embed import embed
from acclimate.cli.few_shot import few_shot
from acclimate.cli.fit import fit
from acclimate.cli.generate import generate
from acclimate.cli.leaderboard import leaderboard
from acclimate.cli.reproduce import reproduce
from acclimate.cli.run import run
from acclimate.cli.serve import cluster_serve, serve
from acclimate.cli.sort import sort
from acclimate.cli.state import state
from acclimate.cli.tables import tables

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help without boxes, which leave few columns for the text and read [brackets] as markup
    context_settings={
        "help_option_names": ["-h", "--help"],
        # Both spellings are accepted: --batch-size and --batch_size.
        "token_normalize_func": lambda name: name.replace("_", "-"),
    },
)


def _show_version(value: bool) -> None:
    if value:
        from acclimate import __version__

        typer.echo(__version__)
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_show_version, is_eager=True, help="Show the version."),
) -> None:
    """Zero-shot image classification that adapts to your images."""


COMMANDS = (
    *(classify, correct, sort, fit, embed, generate, run, bench, reproduce, leaderboard, few_shot, tables),
    *(convert, models, methods, doctor, demo),
)
for command in COMMANDS:
    app.command()(command)
cluster = typer.Typer(cls=CommandGroup, help="The same work on many machines, with Ray.", no_args_is_help=True)
cluster.command("classify")(cluster_classify)
cluster.command("serve", context_settings={"auto_envvar_prefix": "ACCLIMATE_SERVE"})(cluster_serve)
app.command(context_settings={"auto_envvar_prefix": "ACCLIMATE_SERVE"})(serve)
app.add_typer(state, name="state")
app.add_typer(data, name="data")
app.add_typer(cluster, name="cluster")


def main() -> None:
    """Entry point of the `acclimate` command."""
    # Read when NumPy is imported: threads of its BLAS that spin while they wait would occupy cores that encode images.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    warnings.showwarning = lambda message, *_, **__: say(f"note: {message}", err=True)  # one line each
    app()
