"""The command line. Commands import what they need when they run, so that --help is instant."""

import os
import signal
import warnings
from collections.abc import Callable

import typer

from acclimate.cli import (
    catalogue,
    classify,
    cluster,
    correct,
    demo,
    embed,
    fit,
    generate,
    labels,
    leaderboard,
    reproduce,
    run,
    serve,
    state,
)
from acclimate.cli.console import Command, CommandGroup, say

app = typer.Typer(
    cls=CommandGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # help without boxes, which leave few columns for the text and read [brackets] as markup
    context_settings={
        "help_option_names": ["-h", "--help"],
        "max_content_width": 100,
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
    """Zero-shot image classification that adapts to your images.

    To begin: acclimate classify FOLDER --labels "cat, dog, horse" --report out.html
    """


on_cluster = typer.Typer(cls=CommandGroup, help="The same work on many machines, with Ray.", no_args_is_help=True)
on_cluster.command("classify", cls=Command)(cluster.classify)

IMAGES = "Your images"
METHODS = "Methods and benchmarks"
MODELS = "Models and installation"
SERVICE = "Service and cluster"
COMMANDS: dict[str, tuple[Callable[..., None], ...]] = {
    IMAGES: (demo.demo, classify.classify, classify.sort, correct.correct, fit.fit),
    METHODS: (
        catalogue.methods,
        embed.embed,
        run.run,
        leaderboard.leaderboard,
        reproduce.reproduce,
        generate.generate,
    ),
    MODELS: (catalogue.models, catalogue.convert, catalogue.doctor),
}
for panel, commands in COMMANDS.items():
    for command in commands:
        app.command(cls=Command, rich_help_panel=panel)(command)
serving = {"auto_envvar_prefix": "ACCLIMATE_SERVE"}
app.command(cls=Command, rich_help_panel=SERVICE, context_settings=serving)(serve.serve)
app.add_typer(labels.labels, name="labels", rich_help_panel=IMAGES)
app.add_typer(state.state, name="state", rich_help_panel=IMAGES)
app.add_typer(on_cluster, name="cluster", rich_help_panel=SERVICE)


def main() -> None:
    """Entry point of the `acclimate` command."""
    # Read when NumPy is imported: threads of its BLAS that spin while they wait would occupy cores that encode images.
    os.environ.setdefault("OPENBLAS_THREAD_TIMEOUT", "4")
    warnings.showwarning = lambda message, *_, **__: say(f"note: {message}", err=True)  # one line each
    try:
        app()
    finally:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # it ends now; another Ctrl-C would only print a traceback
