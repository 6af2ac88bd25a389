"""`acclimate serve`: classification over HTTP."""

from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import arguments

NEW_STREAMS = "For streams created by their first images"
STREAM_OPTIONS = ("labels", "fitted", "method", "thumbnails", "expand")  # settings of the table [streams]


def serve(
    config: Annotated[
        Path | None, typer.Option(exists=True, dir_okay=False, help="A TOML file with settings; see --print-config.")
    ] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all settings as such a file.")] = False,
    data: Annotated[Path | None, typer.Option(help="Folder for the state of all streams; made if missing.")] = None,
    model: Annotated[str | None, typer.Option(help=arguments.MODEL_HELP, show_default=arguments.DEFAULT_MODEL)] = None,
    device: Annotated[
        str | None, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1, mps.", show_default="auto")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on; any except loopback needs --token-file.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535, show_default="8000")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Tokens: one NAME TOKEN STREAM=ACTION per line; SIGHUP reads it again.")
    ] = None,
    allow_host: Annotated[list[str] | None, typer.Option(help="Another host name, besides localhost.")] = None,
    labels: Annotated[
        str | None, typer.Option(help=f"{NEW_STREAMS}: their labels (comma-separated, or a file); none without them.")
    ] = None,
    fitted: Annotated[
        Path | None, typer.Option(help=f"{NEW_STREAMS}: a file of `acclimate fit` with method, settings and labels.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help=f"{NEW_STREAMS}: the adaptation method.", show_default=arguments.DEFAULT_METHOD)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", envvar="ACCLIMATE_SERVE_SET", help=f"{NEW_STREAMS}: KEY=VALUE of the method."),
    ] = None,
    thumbnails: Annotated[
        bool | None, typer.Option("--thumbnails", help=f"{NEW_STREAMS}: keep thumbnails of images in the caches.")
    ] = None,
    expand: Annotated[
        bool | None,
        typer.Option(help=f"{NEW_STREAMS}: answer broad labels through nouns below them.", show_default="expand"),
    ] = None,
    plugin: Annotated[list[str] | None, typer.Option(help="A Python file with methods of your own.")] = None,
) -> None:
    """Classify images over HTTP: each stream adapts on its own, and survives restarts.

    The page is at /, the API documentation at /docs. Ctrl-C finishes the running requests and saves every state.
    Limits and other settings are those of --config; each can also be set with an environment variable, such as
    ACCLIMATE_SERVE_MODEL or ACCLIMATE_SERVE_LIMITS__TIMEOUT_S.
    """
    given = {name: value for name, value in locals().items() if value not in (None, [])}
    _run(given, given.pop("config", None), given.pop("print_config"), given.pop("setting", None))


def _run(given: dict[str, Any], config: Path | None, print_config: bool, setting: list[str] | None) -> None:
    """Run the service, or print its settings; `given` are those of the command line."""
    from acclimate.serve import check_installed

    check_installed()
    from acclimate.methods import load_plugin
    from acclimate.prompts import clean_labels
    from acclimate.serve.settings import load_settings

    given["streams"] = {name: given.pop(name) for name in STREAM_OPTIONS if name in given}
    settings = load_settings(config, given, (*STREAM_OPTIONS, "print_config", "set"))
    for path in settings.plugin:
        load_plugin(Path(path))
    chosen = settings.streams
    chosen.settings.update(arguments.parse_settings(chosen.method, setting))
    if print_config:
        typer.echo(settings.toml(), nl=False)
        return
    from acclimate.serve.command import run_service

    labels = chosen.labels
    names = arguments.read_labels(labels) if isinstance(labels, str) else labels and clean_labels(labels)
    arguments.note_language(names or (), settings.model)
    words = [chosen.templates] if isinstance(chosen.templates, str) else chosen.templates
    templates = words if isinstance(words, dict) else arguments.read_templates(words)
    run_service(settings, names, templates, typer.echo)
