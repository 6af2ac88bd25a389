"""`acclimate serve`: classification over HTTP."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from acclimate.cli import arguments

if TYPE_CHECKING:
    from acclimate.serve.settings import ServeSettings

NEW_STREAMS = "For streams created by their first images"
STREAM_OPTIONS = ("labels", "fitted", "method", "thumbnails")  # settings of the table [streams]
OTHER_OPTIONS = ("config", "print_config", "setting")  # no settings themselves

Config = Annotated[Path | None, typer.Option(help="A TOML file with settings; see --print-config.")]
PrintConfig = Annotated[
    bool, typer.Option("--print-config", help="Print all settings as such a file, with their values, and exit.")
]
Data = Annotated[Path | None, typer.Option(help="Folder for the state of all streams; created if it does not exist.")]
Model = Annotated[str | None, typer.Option(help=arguments.MODEL_HELP, show_default=arguments.DEFAULT_MODEL)]
Device = Annotated[
    str | None, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1, mps.", show_default="auto")
]
Host = Annotated[
    str | None,
    typer.Option(help="Address to listen on; any except loopback needs --token-file.", show_default="127.0.0.1"),
]
Port = Annotated[
    int | None, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535, show_default="8000")
]
TokenFile = Annotated[
    Path | None, typer.Option(help="Tokens: one NAME TOKEN STREAM=ACTION per line; SIGHUP reads it again.")
]
AllowHost = Annotated[list[str] | None, typer.Option(help="Another host name for this service, besides localhost.")]
Labels = Annotated[
    str | None, typer.Option(help="Create a stream with these labels (comma-separated, or a file) on its first images.")
]
Fitted = Annotated[
    Path | None, typer.Option(help=f"{NEW_STREAMS}: a file of `acclimate fit`, which has method, settings and labels.")
]
Method = Annotated[
    str | None, typer.Option(help=f"{NEW_STREAMS}: the adaptation method.", show_default=arguments.DEFAULT_METHOD)
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", envvar="ACCLIMATE_SERVE_SET", help=f"{NEW_STREAMS}: KEY=VALUE of the method."),
]
Thumbnails = Annotated[
    bool | None, typer.Option("--thumbnails", help=f"{NEW_STREAMS}: keep thumbnails of the images in the caches.")
]
Plugin = Annotated[
    list[str] | None, typer.Option(help="A Python file with methods of your own (@acclimate.register); repeatable.")
]


def serve(
    config: Config = None,
    print_config: PrintConfig = False,
    data: Data = None,
    model: Model = None,
    device: Device = None,
    host: Host = None,
    port: Port = None,
    token_file: TokenFile = None,
    allow_host: AllowHost = None,
    labels: Labels = None,
    fitted: Fitted = None,
    method: Method = None,
    setting: Setting = None,
    thumbnails: Thumbnails = None,
    plugin: Plugin = None,
) -> None:
    """Classify images over HTTP: each stream adapts on its own, and survives restarts.

    The page is at /, the API documentation at /docs. Ctrl-C finishes the running requests and saves every state.
    Limits and other settings are those of --config; each can also be set with an environment variable, such as
    ACCLIMATE_SERVE_MODEL or ACCLIMATE_SERVE_LIMITS__TIMEOUT_S.
    """
    given = {name: value for name, value in locals().items() if value not in (None, []) and name not in OTHER_OPTIONS}
    from acclimate.serve import check_installed

    check_installed()
    from acclimate.methods import load_plugin
    from acclimate.serve.settings import load_settings

    given["streams"] = {name: given.pop(name) for name in STREAM_OPTIONS if name in given}
    settings = load_settings(config, given, (*STREAM_OPTIONS, "print_config", "set"))
    for path in settings.plugin:
        load_plugin(Path(path))
    settings.streams.settings.update(arguments.parse_settings(settings.streams.method, setting))
    if print_config:
        typer.echo(settings.toml(), nl=False)
    else:
        _run(settings)


def _run(settings: "ServeSettings") -> None:
    from acclimate.prompts import clean_labels
    from acclimate.serve.command import run_service

    labels = settings.streams.labels
    names = arguments.read_labels(labels) if isinstance(labels, str) else labels and clean_labels(labels)
    arguments.note_language(names or (), settings.model)
    chosen = settings.streams.templates
    words = [chosen] if isinstance(chosen, str) else chosen
    templates = words if isinstance(words, dict) else arguments.read_templates(words)

    def announce(address: str) -> None:
        typer.echo(f"serving on {address} (API documentation at /docs); press Ctrl-C to stop.")

    run_service(settings, names, templates, announce)
