"""`acclimate serve`: classification over HTTP."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from acclimate.cli import arguments

# field of Limits -> option of `acclimate serve`
LIMIT_OPTIONS = {
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
NEW_STREAMS = "For streams created by their first images"

# The service
Labels = Annotated[
    str | None, typer.Option(help="Create a stream with these labels (comma-separated, or a file) on its first images.")
]
Host = Annotated[str, typer.Option(help="Address to listen on; any except loopback needs --token-file.")]
Port = Annotated[int, typer.Option(help="Port to listen on; 0 for any free port.", min=0, max=65535)]
TokenFile = Annotated[
    Path | None, typer.Option(help="Tokens: one NAME TOKEN STREAM=ACTION per line; SIGHUP reads it again.")
]
AllowHost = Annotated[list[str] | None, typer.Option(help="Another host name for this service, besides localhost.")]

# New streams
Method = Annotated[
    str | None, typer.Option(help=f"{NEW_STREAMS}: the adaptation method.", show_default=arguments.DEFAULT_METHOD)
]
Setting = Annotated[
    list[str] | None,
    typer.Option("--set", envvar="ACCLIMATE_SERVE_SET", help=f"{NEW_STREAMS}: KEY=VALUE of the method."),
]
Fitted = Annotated[
    Path | None, typer.Option(help=f"{NEW_STREAMS}: a file of `acclimate fit`, which has method, settings and labels.")
]
Views = Annotated[int, typer.Option(help=f"{NEW_STREAMS}: views per image, itself and augmented versions.", min=1)]
ViewsKind = Annotated[
    Literal["augmix", "crop", "large-crop"] | None,
    typer.Option(help=f"{NEW_STREAMS}: crops with AugMix, or crops alone.", show_default="that of the method's paper"),
]
Thumbnails = Annotated[
    bool, typer.Option("--thumbnails", help=f"{NEW_STREAMS}: keep thumbnails of the images in the caches.")
]
SkipDuplicates = Annotated[
    bool,
    typer.Option(help=f"{NEW_STREAMS}: do not learn from images that are nearly the same as one of the last learnt."),
]
NoneOfThese = Annotated[
    bool, typer.Option("--none-of-these", help=f"{NEW_STREAMS}: recognise images that belong to no label.")
]
Unsure = Annotated[
    float | None, typer.Option(help=f"{NEW_STREAMS}: mark answers with a lower score as unsure.", min=0, max=1)
]
Guard = Annotated[bool, typer.Option(help=f"{NEW_STREAMS}: limit what one of several clients can teach a stream.")]
GuardShare = Annotated[
    float | None,
    typer.Option(help=f"{NEW_STREAMS}: largest share of one of several clients, up to 1.", show_default="0.5"),
]
GuardBurst = Annotated[
    int | None, typer.Option(help=f"{NEW_STREAMS}: samples of one client learnt within --guard-window.")
]
GuardWindow = Annotated[float | None, typer.Option(help=f"{NEW_STREAMS}: in seconds.", show_default="60")]
GuardAge = Annotated[
    int | None,
    typer.Option(help=f"{NEW_STREAMS}: samples after which cache entries give way to others.", show_default="10000"),
]

# Limits
SnapshotEvery = Annotated[int, typer.Option(help="Images learnt between two snapshots of a stream.")]
SnapshotSeconds = Annotated[float, typer.Option(help="Seconds between two snapshots of a stream.")]
History = Annotated[int, typer.Option(help="Snapshots kept per stream.")]
MaxBody = Annotated[int, typer.Option(help="Bytes per request with images or a state.")]
MaxJson = Annotated[int, typer.Option(help="Bytes of JSON per request, not counting images.")]
MaxPixels = Annotated[int, typer.Option(help="Pixels per image.")]
DecodeSeconds = Annotated[float, typer.Option(help="Processor seconds that an image may take to decode.")]
Workers = Annotated[int, typer.Option(help="Processes that decode images; 0 for one more than there are cores.", min=0)]
MaxImages = Annotated[int, typer.Option(help="Images per request.")]
MaxLabels = Annotated[int, typer.Option(help="Labels per stream.")]
MaxTaskLabels = Annotated[int, typer.Option(help="Labels of a request that brings its own.")]
MaxPrompts = Annotated[int, typer.Option(help="Prompts that labels and templates make together.")]
MaxCorrections = Annotated[int, typer.Option(help="Corrections per stream.")]
MaxStreams = Annotated[int, typer.Option(help="Number of streams.")]
MaxClientStreams = Annotated[int, typer.Option(help="Number of streams that one client may make.")]
MaxQueue = Annotated[int, typer.Option(help="Images of a client that wait, counting views.")]
Timeout = Annotated[float, typer.Option(help="Seconds per request.")]
MaxLogLines = Annotated[int, typer.Option(help="Lines of one kind logged per second.")]
BatchSize = Annotated[int, typer.Option(help="Images encoded at once, counting views.")]
MaxWait = Annotated[float, typer.Option(help="Seconds an image waits for others to share its batch.")]


def serve(
    data: Annotated[Path, typer.Option(help="Folder for the state of all streams; created if it does not exist.")],
    model: arguments.Model = arguments.DEFAULT_MODEL,
    labels: Labels = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    token_file: TokenFile = None,
    allow_host: AllowHost = None,
    method: Method = None,
    setting: Setting = None,
    plugin: arguments.Plugins = None,
    fitted: Fitted = None,
    template: arguments.Templates = None,
    views: Views = 1,
    views_kind: ViewsKind = None,
    thumbnails: Thumbnails = False,
    skip_duplicates: SkipDuplicates = True,
    none_of_these: NoneOfThese = False,
    unsure: Unsure = None,
    guard: Guard = True,
    guard_share: GuardShare = None,
    guard_burst: GuardBurst = None,
    guard_window: GuardWindow = None,
    guard_age: GuardAge = None,
    snapshot_every: SnapshotEvery = 1000,
    snapshot_seconds: SnapshotSeconds = 300.0,
    history: History = 24,
    max_body: MaxBody = 32 * 2**20,
    max_json: MaxJson = 2 * 2**20,
    max_pixels: MaxPixels = 40_000_000,
    decode_seconds: DecodeSeconds = 5.0,
    workers: Workers = 0,
    max_images: MaxImages = 64,
    max_labels: MaxLabels = 2000,
    max_task_labels: MaxTaskLabels = 500,
    max_prompts: MaxPrompts = 5000,
    max_corrections: MaxCorrections = 1000,
    max_streams: MaxStreams = 1000,
    max_client_streams: MaxClientStreams = 100,
    max_queue: MaxQueue = 512,
    timeout: Timeout = 30.0,
    header_timeout: Annotated[float, typer.Option(help="Seconds from connecting to a complete header.")] = 10.0,
    max_log_lines: MaxLogLines = 200,
    batch_size: BatchSize = 32,
    max_wait: MaxWait = 0.005,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
) -> None:
    """Classify images over HTTP: each stream adapts on its own, and survives restarts.

    The page is at /, the API documentation at /docs. Ctrl-C finishes the running requests and saves every state.
    Every option can be set with an environment variable: ACCLIMATE_SERVE_MODEL and so on.
    """
    _serve(locals())


def _serve(options: Mapping[str, Any]) -> None:
    from acclimate.serve import check_installed

    check_installed()
    from acclimate.serve.command import NewStreams, check_new_streams, open_new_streams, run_service
    from acclimate.serve.limits import Limits

    known = {field: option for field, option in LIMIT_OPTIONS.items() if field in Limits.model_fields}
    limits = Limits(**{field: options[option] for field, option in known.items()})

    def read_new_streams() -> NewStreams:
        """Return what the options say of streams that are created by their first images."""
        check_new_streams(options)
        names = None if options["labels"] is None else arguments.read_labels(options["labels"])
        arguments.note_language(names or (), options["model"])
        templates = arguments.read_templates(options["template"])
        method = options["method"] or arguments.DEFAULT_METHOD
        settings = arguments.parse_settings(method, options["setting"])
        return open_new_streams(options, names, templates, {"method": method, "settings": settings}, limits)

    def announce(address: str) -> None:
        typer.echo(f"serving on {address} (API documentation at /docs); press Ctrl-C to stop.")

    run_service(options, limits, read_new_streams, announce)
