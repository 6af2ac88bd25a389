"""`acclimate serve`: classification over HTTP."""

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import typer

from acclimate.cli import arguments, service_options
from acclimate.serve import check_installed

if TYPE_CHECKING:
    from acclimate.serve.command import NewStreams
    from acclimate.serve.limits import Limits


def serve(
    data: service_options.Data,
    model: arguments.Model = arguments.DEFAULT_MODEL,
    labels: service_options.Labels = None,
    host: service_options.Host = "127.0.0.1",
    port: service_options.Port = 8000,
    token_file: service_options.TokenFile = None,
    allow_host: service_options.AllowHost = None,
    method: service_options.Method = None,
    setting: service_options.Setting = None,
    plugin: arguments.Plugins = None,
    fitted: service_options.Fitted = None,
    template: arguments.Templates = None,
    views: service_options.Views = 1,
    views_kind: service_options.ViewsKind = None,
    thumbnails: service_options.Thumbnails = False,
    skip_duplicates: service_options.SkipDuplicates = True,
    none_of_these: service_options.NoneOfThese = False,
    unsure: service_options.Unsure = None,
    guard: service_options.Guard = True,
    guard_share: service_options.GuardShare = None,
    guard_burst: service_options.GuardBurst = None,
    guard_window: service_options.GuardWindow = None,
    guard_age: service_options.GuardAge = None,
    snapshot_every: service_options.SnapshotEvery = 1000,
    snapshot_seconds: service_options.SnapshotSeconds = 300.0,
    history: service_options.History = 24,
    max_body: service_options.MaxBody = 32 * 2**20,
    max_json: service_options.MaxJson = 2 * 2**20,
    max_pixels: service_options.MaxPixels = 40_000_000,
    decode_seconds: service_options.DecodeSeconds = 5.0,
    workers: service_options.Workers = 0,
    max_images: service_options.MaxImages = 64,
    max_labels: service_options.MaxLabels = 2000,
    max_task_labels: service_options.MaxTaskLabels = 500,
    max_prompts: service_options.MaxPrompts = 5000,
    max_corrections: service_options.MaxCorrections = 1000,
    max_streams: service_options.MaxStreams = 1000,
    max_client_streams: service_options.MaxClientStreams = 100,
    max_queue: service_options.MaxQueue = 512,
    timeout: service_options.Timeout = 30.0,
    header_timeout: service_options.HeaderTimeout = 10.0,
    max_log_lines: service_options.MaxLogLines = 200,
    batch_size: service_options.BatchSize = 32,
    max_wait: service_options.MaxWait = 0.005,
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
    check_installed()
    from acclimate.serve.command import run_service
    from acclimate.serve.limits import Limits

    limits = Limits.from_options(options)
    run_service(options, limits, partial(read_new_streams, options, limits), announce)


def announce(address: str) -> None:
    """Print the address of the service."""
    typer.echo(f"serving on {address} (API documentation at /docs); press Ctrl-C to stop.")


def read_new_streams(options: Mapping[str, Any], limits: "Limits") -> "NewStreams":
    """Return what the options say of streams that are created by their first images."""
    from acclimate.serve.command import check_new_streams, open_new_streams

    check_new_streams(options)
    names = None if options["labels"] is None else arguments.read_labels(options["labels"])
    arguments.note_language(names or (), options["model"])
    templates = arguments.read_templates(options["template"])
    method = options["method"] or arguments.DEFAULT_METHOD
    settings = arguments.parse_settings(method, options["setting"])
    return open_new_streams(options, names, templates, {"method": method, "settings": settings}, limits)
