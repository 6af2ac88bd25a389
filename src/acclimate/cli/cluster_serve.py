"""`acclimate cluster serve`: the service on many machines."""

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli import arguments, service_options
from acclimate.cli.console import say
from acclimate.cli.serve import announce, read_new_streams
from acclimate.serve import check_installed

Data = Annotated[str, typer.Option(help="Folder for the state of all streams, on a file system that all nodes see.")]
Encoders = Annotated[
    str,
    typer.Option(help="Replicas that encode images: a number, or LEAST:MOST, between which Ray Serve scales them."),
]
Front = Annotated[int, typer.Option(help="Replicas that answer HTTP.", min=1)]
EveryNode = Annotated[bool, typer.Option("--every-node", help="Listen on every node, not only on the head node.")]


def serve(
    data: Data = "acclimate-streams",
    address: arguments.Address = None,
    encoders: Encoders = "1",
    cpus: arguments.Cpus = 1.0,
    gpus: arguments.Gpus = None,
    front: Front = 1,
    every_node: EveryNode = False,
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
    max_log_lines: service_options.MaxLogLines = 200,
    batch_size: service_options.BatchSize = 32,
    max_wait: service_options.MaxWait = 0.005,
    device: arguments.Device = "auto",
    precision: arguments.Precision = "auto",
    compile: arguments.Compile = False,
) -> None:
    """Classify images over HTTP on many machines: encoders that scale, and one adapter per stream.

    The API, the page and the files are those of `acclimate serve`. A stream whose process is lost is restored from its
    snapshot and journal elsewhere. Ctrl-C finishes the running requests and saves every state.
    """
    _serve(locals())


def _serve(options: Mapping[str, Any]) -> None:
    check_installed()
    from acclimate.cluster.serving.cluster_command import run_cluster_service
    from acclimate.serve.limits import Limits

    def announce_folder(address: str) -> None:
        say(f"Streams are stored in {Path(options['data']).absolute()}.", err=True)
        announce(address)

    limits = Limits.from_options(options)
    run_cluster_service(options, limits, partial(read_new_streams, options, limits), announce_folder)
