"""The command line. Commands import what they need when they run, so that --help is instant."""

import os
import warnings

import typer

from acclimate.cli import (
    bench,
    catalogue,
    classify,
    correct,
    data,
    demo,
    embed,
    few_shot,
    fit,
    generate,
    leaderboard,
    reproduce,
    run,
    serve,
    state,
    tables,
)
from acclimate.cli.console import CommandGroup, say

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


for command in (
    classify.classify,
    correct.correct,
    classify.sort,
    fit.fit,
    embed.embed,
    generate.generate,
    run.run,
    bench.bench,
    reproduce.reproduce,
    leaderboard.leaderboard,
    few_shot.few_shot,
    tables.tables,
    catalogue.convert,
    catalogue.models,
    catalogue.methods,
    catalogue.doctor,
    demo.demo,
):
    app.command()(command)
cluster = typer.Typer(cls=CommandGroup, help="The same work on many machines, with Ray.", no_args_is_help=True)
cluster.command("classify")(classify.cluster_classify)
app.command(context_settings={"auto_envvar_prefix": "ACCLIMATE_SERVE"})(serve.serve)
app.add_typer(state.state, name="state")
app.add_typer(data.data, name="data")
app.add_typer(cluster, name="cluster")


def main() -> None:
    """Entry point of the `acclimate` command."""
    # Read when NumPy is imported: threads of its BLAS that spin while they wait would occupy cores that encode images.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    warnings.showwarning = lambda message, *_, **__: say(f"note: {message}", err=True)  # one line each
    app()
