"""`acclimate serve`: classification over HTTP."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from acclimate.cli.options import DEFAULT_MODEL, MODEL_HELP, TEMPLATE_HELP

if TYPE_CHECKING:
    from acclimate.serve.guard import GuardRules
    from acclimate.serve.limits import Limits

FIRST = "For streams made by their first images"
WORKERS = (
    "there is one process, for the state of a stream lives in it, and a second one would learn something else. Threads "
    "read images and adapt, and all streams share the encoder's batches. For more than one machine, run a service on "
    "each and give each stream to one of them."
)


def serve(
    data: Annotated[Path, typer.Option(help="Folder for the state of all streams; made if it is not there.")],
    model: Annotated[str, typer.Option(help=MODEL_HELP)] = DEFAULT_MODEL,
    labels: Annotated[
        str | None,
        typer.Option(help="Make a stream with these labels (commas, or a file) when images come for a new name."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; others than loopback need --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any.", min=0, max=65535)] = 8000,
    token_file: Annotated[Path | None, typer.Option(help="Who may do what: NAME TOKEN STREAM=ACTION a line.")] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="A name requests may use for this machine, besides localhost.")
    ] = None,
    method: Annotated[str, typer.Option(help=f"{FIRST}: how to adapt.")] = "tda",
    setting: Annotated[
        list[str] | None, typer.Option("--set", envvar="ACCLIMATE_SERVE_SET", help=f"{FIRST}: KEY=VALUE of the method.")
    ] = None,
    template: Annotated[list[str] | None, typer.Option(help=TEMPLATE_HELP)] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help=f"{FIRST}: keep pictures of what is cached.")
    ] = False,
    guard_share: Annotated[
        float | None, typer.Option(help=f"{FIRST}: most of the cache entries one client may hold, 0 to 1.")
    ] = None,
    guard_burst: Annotated[
        int | None, typer.Option(help=f"{FIRST}: most entries of one client within --guard-window.")
    ] = None,
    guard_window: Annotated[float, typer.Option(help="Seconds.")] = 60.0,
    snapshot_every: Annotated[int, typer.Option(help="Images learnt between two snapshots of a stream.")] = 1000,
    snapshot_seconds: Annotated[float, typer.Option(help="Seconds between two snapshots of a stream.")] = 300.0,
    history: Annotated[int, typer.Option(help="Snapshots kept of a stream.")] = 24,
    max_body: Annotated[int, typer.Option(help="Bytes of a request.")] = 32 * 2**20,
    max_pixels: Annotated[int, typer.Option(help="Pixels of an image.")] = 40_000_000,
    max_images: Annotated[int, typer.Option(help="Images of a request.")] = 64,
    max_labels: Annotated[int, typer.Option(help="Labels of a stream.")] = 2000,
    max_streams: Annotated[int, typer.Option(help="Streams kept at once.")] = 1000,
    max_queue: Annotated[int, typer.Option(help="Images that wait for the encoder.")] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds for a request.")] = 30.0,
    batch_size: Annotated[int, typer.Option(help="Images encoded at once.")] = 32,
    max_wait: Annotated[float, typer.Option(help="Seconds an image waits for others to share its batch.")] = 0.005,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda, ...")] = "auto",
    workers: Annotated[int | None, typer.Option(hidden=True)] = None,
) -> None:
    """Classify images over HTTP: each stream adapts for itself, and survives restarts.

    The page is at /, the API documents at /docs. Ctrl-C finishes the requests under way and keeps every state.
    Every option can be given as a variable, too: ACCLIMATE_SERVE_MODEL and so on.
    """
    from acclimate.errors import InputError, MissingExtraError

    if workers is not None:
        raise InputError(f"--workers cannot be given: {WORKERS}")
    try:
        import fastapi  # noqa: F401
        import prometheus_client  # noqa: F401
        import python_multipart  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError as error:
        raise MissingExtraError(f"serving needs {error.name}: pip install 'acclimate[serve]'.") from None
    from acclimate.encoders import load_encoder
    from acclimate.serve.auth import read_tokens
    from acclimate.serve.guard import GuardRules
    from acclimate.serve.limits import Limits
    from acclimate.serve.metrics import Metrics
    from acclimate.serve.security import LOOPBACK_NAMES
    from acclimate.serve.server import bind, is_loopback, run
    from acclimate.serve.service import Service
    from acclimate.serve.streams import Streams

    limits = Limits(
        body_bytes=max_body,
        pixels=max_pixels,
        images=max_images,
        labels=max_labels,
        streams=max_streams,
        queue=max_queue,
        timeout_s=timeout,
        batch=batch_size,
        wait_s=max_wait,
        snapshot_samples=snapshot_every,
        snapshot_s=snapshot_seconds,
        history=history,
    )
    tokens = None if token_file is None else read_tokens(token_file)
    local = is_loopback(host)
    if tokens is None and not local:
        raise InputError(f"on {host} strangers could reach this service; give --token-file, or stay on 127.0.0.1.")
    guard = None if (guard_share, guard_burst) == (None, None) else GuardRules(guard_share, guard_burst, guard_window)
    defaults = _defaults(labels, method, setting, template, thumbnails, guard, limits)
    hosts = frozenset([*LOOPBACK_NAMES, *(name.lower() for name in allow_host or [])]) if local else None
    with bind(host, port) as listening:
        metrics = Metrics()
        streams = Streams(data, load_encoder(model, device), limits, metrics)
        listening.listen()  # so that the address works once it is shown
        shown, taken = listening.getsockname()[:2]
        address = f"[{shown}]:{taken}" if ":" in shown else f"{shown}:{taken}"
        typer.echo(f"serving on http://{address} (API documents at /docs); Ctrl-C stops.")
        run(Service(streams, metrics, tokens, hosts, defaults), listening)


def _defaults(
    labels: str | None,
    method: str,
    setting: list[str] | None,
    template: list[str] | None,
    thumbnails: bool,
    guard: "GuardRules | None",
    limits: "Limits",
) -> dict[str, Any] | None:
    """What streams are made with when their first images come; None if they are not made so."""
    from acclimate.cli.options import parse_settings, read_labels, read_templates
    from acclimate.errors import InputError
    from acclimate.serve.setup import check_labels

    if labels is None:
        if setting or template or thumbnails or guard or method != "tda":
            raise InputError("settings of new streams were given, but no --labels to make them with.")
        return None
    templates = read_templates(template)
    return {
        "labels": check_labels(read_labels(labels), templates, limits),
        "templates": templates,
        "method": method,
        "settings": parse_settings(method, setting or [], [method]),
        "thumbnails": thumbnails,
        "guard": guard,
    }
