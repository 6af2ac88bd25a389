"""`acclimate serve`: classification over HTTP."""

from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import arguments

NEW_STREAMS = "For streams created by their first images"
STREAM_OPTIONS = ("labels", "fitted", "method", "thumbnails")  # settings of the table [streams]

EARLIER = {
    "--template": "streams.templates",
    "--prompts": "streams.templates",
    "--views": "streams.views",
    "--views-kind": "streams.views_kind",
    "--no-skip-duplicates": "streams.skip_duplicates",
    "--none-of-these": "streams.reject",
    "--unsure": "streams.unsure",
    "--no-guard": "streams.guard",
    "--precision": "precision",
    "--max-body": "limits.body_bytes",
    "--max-json": "limits.json_bytes",
    "--max-pixels": "limits.pixels",
    "--decode-seconds": "limits.decode_s",
    "--workers": "limits.workers",
    "--max-images": "limits.images",
    "--max-labels": "limits.labels",
    "--max-task-labels": "limits.task_labels",
    "--max-prompts": "limits.prompts",
    "--max-corrections": "limits.corrections",
    "--max-streams": "limits.streams",
    "--max-client-streams": "limits.client_streams",
    "--max-queue": "limits.queue",
    "--timeout": "limits.timeout_s",
    "--batch-size": "limits.batch",
    "--max-wait": "limits.wait_s",
    "--snapshot-every": "limits.snapshot_samples",
    "--snapshot-seconds": "limits.snapshot_s",
    "--history": "limits.history",
}


def _earlier(words: list[str]) -> dict[str, Any]:
    """Return the settings that options of earlier versions give."""
    found: dict[str, Any] = {"streams": {}, "limits": {}}
    rest = iter(words)
    for word in rest:
        if word not in EARLIER:
            raise typer.BadParameter(f"no such option: {word}")
        table, _, name = EARLIER[word].rpartition(".")
        value = word == "--none-of-these" if word.startswith("--no") else next(rest)
        (found[table] if table else found)[name] = value
    return found


def serve(
    ctx: typer.Context,
    config: Annotated[
        Path | None, typer.Option(help="A TOML file with settings; see --print-config.", show_default=False)
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print all settings as such a file, with their values, and exit.")
    ] = False,
    data: Annotated[
        Path | None,
        typer.Option(help="Folder for the state of all streams; created if it does not exist.", show_default=False),
    ] = None,
    model: Annotated[str | None, typer.Option(help=arguments.MODEL_HELP, show_default=arguments.DEFAULT_MODEL)] = None,
    device: Annotated[
        str | None, typer.Option(help="Where the model runs: auto, cpu, cuda, cuda:1, mps.", show_default="auto")
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(help="Address to listen on; any except loopback needs --token-file.", show_default="127.0.0.1"),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535, show_default="8000"),
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(help="Tokens: one NAME TOKEN STREAM=ACTION per line; SIGHUP reads it again.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name for this service, besides localhost.")
    ] = None,
    labels: Annotated[
        str | None,
        typer.Option(help="Create a stream with these labels (comma-separated, or a file) on its first images."),
    ] = None,
    fitted: Annotated[
        Path | None,
        typer.Option(help=f"{NEW_STREAMS}: a file of `acclimate fit`, which has method, settings and labels."),
    ] = None,
    method: Annotated[
        str | None, typer.Option(help=f"{NEW_STREAMS}: the adaptation method.", show_default=arguments.DEFAULT_METHOD)
    ] = None,
    setting: Annotated[
        list[str] | None,
        typer.Option("--set", envvar="ACCLIMATE_SERVE_SET", help=f"{NEW_STREAMS}: KEY=VALUE of the method."),
    ] = None,
    thumbnails: Annotated[
        bool | None,
        typer.Option("--thumbnails", help=f"{NEW_STREAMS}: keep thumbnails of the images in the caches."),
    ] = None,
    plugin: Annotated[
        list[str] | None,
        typer.Option(help="A Python file with methods of your own (@acclimate.register); repeatable."),
    ] = None,
) -> None:
    """Classify images over HTTP: each stream adapts on its own, and survives restarts.

    The page is at /, the API documentation at /docs. Ctrl-C finishes the running requests and saves every state.
    Limits and other settings are those of --config; each can also be set with an environment variable, such as
    ACCLIMATE_SERVE_MODEL or ACCLIMATE_SERVE_LIMITS__TIMEOUT_S.
    """
    options = {name: value for name, value in locals().items() if value not in (None, [])}
    del options["ctx"]
    earlier = _earlier(ctx.args)
    from acclimate.serve import check_installed

    check_installed()
    from acclimate.methods import load_plugin
    from acclimate.prompts import clean_labels
    from acclimate.serve.command import run_service
    from acclimate.serve.settings import load_settings

    del options["print_config"]
    options.pop("config", None)
    options.pop("setting", None)
    chosen = {name: options.pop(name) for name in STREAM_OPTIONS if name in options}
    settings = load_settings(
        config,
        {**earlier, **options, "streams": {**earlier["streams"], **chosen}},
        (*STREAM_OPTIONS, "print_config", "set"),
    )
    for path in settings.plugin:
        load_plugin(Path(path))
    new = settings.streams
    new.settings.update(arguments.parse_settings(new.method, setting))
    if print_config:
        typer.echo(settings.toml(), nl=False)
        return
    names = (
        arguments.read_labels(new.labels) if isinstance(new.labels, str) else new.labels and clean_labels(new.labels)
    )
    arguments.note_language(names or (), settings.model)
    given = [new.templates] if isinstance(new.templates, str) else new.templates
    templates = given if isinstance(given, dict) else arguments.read_templates(given)

    def announce(address: str) -> None:
        typer.echo(f"serving on {address} (API documentation at /docs); press Ctrl-C to stop.")

    run_service(settings, names, templates, announce)
