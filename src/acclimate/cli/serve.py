"""`acclimate serve`: classification over HTTP."""

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple

import typer

from acclimate.cli import arguments
from acclimate.cli.plugins import Plugins

if TYPE_CHECKING:
    from acclimate.encoders import Encoder
    from acclimate.prompts import LearnedPrompts
    from acclimate.serve.limits import Limits

NEW = "For streams created by their first images"

LIMITS = {  # field -> option
    "body_bytes": "max_body",
    "json_bytes": "max_json",
    "pixels": "max_pixels",
    "decode_s": "decode_seconds",
    "workers": "workers",
    "images": "max_images",
    "labels": "max_labels",
    "task_labels": "max_task_labels",
    "prompts": "max_prompts",
    "corrections": "max_corrections",
    "streams": "max_streams",
    "client_streams": "max_client_streams",
    "queue": "max_queue",
    "timeout_s": "timeout",
    "header_s": "header_timeout",
    "log_lines": "max_log_lines",
    "batch": "batch_size",
    "wait_s": "max_wait",
    "snapshot_samples": "snapshot_every",
    "snapshot_s": "snapshot_seconds",
    "history": "history",
}


def serve(
    data: Annotated[Path, typer.Option(help="Folder for the state of all streams; created if it does not exist.")],
    model: arguments.Model = arguments.DEFAULT_MODEL,
    labels: Annotated[
        str | None,
        typer.Option(help="Create a stream with these labels (comma-separated, or a file) on its first images."),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Address to listen on; any except loopback needs --token-file.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="Tokens: one NAME TOKEN STREAM=ACTION per line; SIGHUP reads it again.")
    ] = None,
    allow_host: Annotated[
        list[str] | None, typer.Option(help="Another host name for this service, besides localhost.")
    ] = None,
    method: Annotated[
        str | None, typer.Option(help=f"{NEW}: the adaptation method.", show_default=arguments.DEFAULT_METHOD)
    ] = None,
    setting: Annotated[
        list[str] | None, typer.Option("--set", envvar="ACCLIMATE_SERVE_SET", help=f"{NEW}: KEY=VALUE of the method.")
    ] = None,
    plugin: Plugins = None,
    fitted: Annotated[
        Path | None, typer.Option(help=f"{NEW}: a file of `acclimate fit`, which has method, settings and labels.")
    ] = None,
    template: arguments.Templates = None,
    views: Annotated[int, typer.Option(help=f"{NEW}: views per image, itself and augmented versions.", min=1)] = 1,
    views_kind: Annotated[
        Literal["augmix", "crop", "large-crop"] | None,
        typer.Option(help=f"{NEW}: crops with AugMix, or crops alone.", show_default="that of the method's paper"),
    ] = None,
    thumbnails: Annotated[
        bool, typer.Option("--thumbnails", help=f"{NEW}: keep thumbnails of the images in the caches.")
    ] = False,
    skip_duplicates: Annotated[
        bool, typer.Option(help=f"{NEW}: do not learn from images that are nearly the same as one of the last learnt.")
    ] = True,
    none_of_these: Annotated[
        bool, typer.Option("--none-of-these", help=f"{NEW}: recognise images that belong to no label.")
    ] = False,
    unsure: Annotated[
        float | None, typer.Option(help=f"{NEW}: mark answers with a lower score as unsure.", min=0, max=1)
    ] = None,
    guard: Annotated[bool, typer.Option(help=f"{NEW}: limit what one of several clients can teach a stream.")] = True,
    guard_share: Annotated[
        float | None,
        typer.Option(help=f"{NEW}: largest share of one of several clients, up to 1.", show_default="0.5"),
    ] = None,
    guard_burst: Annotated[
        int | None, typer.Option(help=f"{NEW}: samples of one client learnt within --guard-window.")
    ] = None,
    guard_window: Annotated[float | None, typer.Option(help=f"{NEW}: in seconds.", show_default="60")] = None,
    guard_age: Annotated[
        int | None,
        typer.Option(help=f"{NEW}: samples after which cache entries give way to others.", show_default="10000"),
    ] = None,
    snapshot_every: Annotated[int, typer.Option(help="Images learnt between two snapshots of a stream.")] = 1000,
    snapshot_seconds: Annotated[float, typer.Option(help="Seconds between two snapshots of a stream.")] = 300.0,
    history: Annotated[int, typer.Option(help="Snapshots kept per stream.")] = 24,
    max_body: Annotated[int, typer.Option(help="Bytes per request with images or a state.")] = 32 * 2**20,
    max_json: Annotated[int, typer.Option(help="Bytes of JSON per request, not counting images.")] = 2 * 2**20,
    max_pixels: Annotated[int, typer.Option(help="Pixels per image.")] = 40_000_000,
    decode_seconds: Annotated[float, typer.Option(help="Processor seconds that an image may take to decode.")] = 5.0,
    workers: Annotated[
        int, typer.Option(help="Processes that decode images; 0 for one more than there are cores.", min=0)
    ] = 0,
    max_images: Annotated[int, typer.Option(help="Images per request.")] = 64,
    max_labels: Annotated[int, typer.Option(help="Labels per stream.")] = 2000,
    max_task_labels: Annotated[int, typer.Option(help="Labels of a request that brings its own.")] = 500,
    max_prompts: Annotated[int, typer.Option(help="Prompts that labels and templates make together.")] = 5000,
    max_corrections: Annotated[int, typer.Option(help="Corrections per stream.")] = 1000,
    max_streams: Annotated[int, typer.Option(help="Number of streams.")] = 1000,
    max_client_streams: Annotated[int, typer.Option(help="Number of streams that one client may make.")] = 100,
    max_queue: Annotated[int, typer.Option(help="Images of a client that wait, counting views.")] = 512,
    timeout: Annotated[float, typer.Option(help="Seconds per request.")] = 30.0,
    header_timeout: Annotated[float, typer.Option(help="Seconds from connecting to a complete header.")] = 10.0,
    max_log_lines: Annotated[int, typer.Option(help="Lines of one kind logged per second.")] = 200,
    batch_size: Annotated[int, typer.Option(help="Images encoded at once, counting views.")] = 32,
    max_wait: Annotated[float, typer.Option(help="Seconds an image waits for others to share its batch.")] = 0.005,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
) -> None:
    """Classify images over HTTP: each stream adapts on its own, and survives restarts.

    The page is at /, the API documentation at /docs. Ctrl-C finishes the running requests and saves every state.
    Every option can be set with an environment variable: ACCLIMATE_SERVE_MODEL and so on.
    """
    given = dict(locals())
    from acclimate.errors import InputError

    check_installed()
    from acclimate.encoders import load_encoder
    from acclimate.serve.app import bind, create_app, is_loopback
    from acclimate.serve.app import serve as serve_app
    from acclimate.serve.security import LOOPBACK_NAMES, TokenFile
    from acclimate.serve.streams import Streams

    limits = read_limits(given)
    tokens = None if token_file is None else TokenFile(token_file)
    local = is_loopback(host)
    if tokens is None and not local:
        raise InputError(f"{host} can be reached from other machines; give --token-file, or listen on 127.0.0.1.")
    new = read_new_streams(given, limits)
    with bind(host, port) as listening:
        encoder = new.encoder or load_encoder(model, device, precision, compile)
        if new.learned is not None and new.defaults is not None:
            new.learned.vectors(encoder, new.defaults["labels"])  # refuses prompts that new streams could not have
        streams = Streams(data, encoder, limits, new.defaults, new.learned)
        address, bound = listening.getsockname()[:2]
        shown = f"[{address}]" if ":" in address else address
        hosts = frozenset(name.lower() for name in (*LOOPBACK_NAMES, shown, *(allow_host or []))) if local else None
        application = create_app(streams, tokens, hosts)
        listening.listen()  # the address must work before it is printed
        announce(f"http://{shown}:{bound}")
        serve_app(application, listening, model)


def check_installed() -> None:
    """Refuse to serve without the packages that it needs."""
    from importlib.util import find_spec

    from acclimate.errors import missing

    for package in ("fastapi", "fastapi_swagger", "prometheus_client", "uvicorn"):
        if find_spec(package) is None:
            raise missing(f"serving needs {package}", "serve")


def announce(address: str) -> None:
    """Say where the service is."""
    typer.echo(f"serving on {address} (API documentation at /docs); press Ctrl-C to stop.")


def read_limits(given: Mapping[str, Any]) -> "Limits":
    """The limits that the options of `serve` give."""
    from acclimate.serve.limits import Limits

    return Limits(**{field: given[option] for field, option in LIMITS.items() if option in given})


class NewStreams(NamedTuple):
    """What is said of streams that are created by their first images."""

    defaults: dict[str, Any] | None  # None if there are to be none
    learned: "LearnedPrompts | None"
    encoder: "Encoder | None"  # if it had to be loaded


def read_new_streams(given: Mapping[str, Any], limits: "Limits") -> NewStreams:
    """What the options of `serve` say of new streams."""
    import numpy as np

    from acclimate.classifier import Classifier
    from acclimate.errors import InputError
    from acclimate.prompts import LearnedPrompts
    from acclimate.serve.service import check_setup

    fitted = given["fitted"]
    method = given["method"]
    views = given["views"]
    guard = given["guard"]
    rules = {"share": "guard_share", "burst": "guard_burst", "window_s": "guard_window", "age": "guard_age"}
    rules = {name: given[option] for name, option in rules.items() if given[option] is not None}
    if rules and not guard:
        raise InputError("--no-guard leaves nothing to set; leave out --guard-share, -burst, -window and -age.")
    wanted = ("setting", "template", "thumbnails", "views_kind", "method", "none_of_these", "unsure")
    chosen = any(given[name] for name in wanted) or rules or not guard or views != 1 or not given["skip_duplicates"]
    if given["labels"] is None and fitted is None and chosen:
        raise InputError("options for new streams need --labels or --fitted.")
    if fitted is not None and (method or given["setting"]):
        raise InputError("a fitted file has the method and its settings; leave out --method and --set.")
    names = None if given["labels"] is None else arguments.read_labels(given["labels"])
    arguments.note_language(names or (), given["model"])
    templates = arguments.read_templates(given["template"])
    learned = templates if isinstance(templates, LearnedPrompts) else None
    method = method or arguments.DEFAULT_METHOD
    setup: dict[str, Any] = {"method": method, "settings": arguments.parse_settings(method, given["setting"])}
    setup |= {name: given[name] for name in ("views", "views_kind", "thumbnails", "skip_duplicates", "unsure")}
    setup |= {"templates": learned.name if learned else templates, "reject": given["none_of_these"]}
    setup["guard"] = rules if guard else None
    adapter = encoder = None
    if fitted is not None:
        how: dict[str, Any] = {name: given[name] for name in ("device", "precision", "compile")}
        ready = Classifier(names, given["model"], templates=given["template"] and templates, fitted=fitted, **how)
        ready.adapter.to(np.empty(0, np.float32))  # streams adapt on the host
        adapter = ready.adapter
        encoder = ready.encoder
        names = ready.labels
        setup |= {"method": adapter.name, "settings": adapter.settings}
        setup["templates"] = learned.name if learned else ready.templates
    if names is None:
        return NewStreams(None, learned, encoder)
    names, checked = check_setup(names, setup, limits, adapter)
    return NewStreams({"labels": names, "fitted": adapter, **checked.model_dump()}, learned, encoder)
