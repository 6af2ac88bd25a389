"""`acclimate cluster serve`: the service on many machines."""

from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from acclimate.cli.classifying import with_options_of
from acclimate.cli.cluster_options import Address, Cpus, Gpus, gpus_for, least_and_most
from acclimate.cli.console import say
from acclimate.cli.serve import announce, check_installed, read_limits, read_new_streams
from acclimate.cli.serve import serve as serve_here
from acclimate.errors import InputError


@with_options_of(serve_here, without=("header_timeout",))
def serve(
    data: Annotated[
        str, typer.Option(help="Folder for the state of all streams, on a file system that all nodes see.")
    ] = "acclimate-streams",
    address: Address = None,
    encoders: Annotated[
        str,
        typer.Option(help="Replicas that encode images: a number, or LEAST:MOST, between which Ray Serve scales them."),
    ] = "1",
    cpus: Cpus = 1.0,
    gpus: Gpus = None,
    front: Annotated[int, typer.Option(help="Replicas that answer HTTP.", min=1)] = 1,
    every_node: Annotated[
        bool, typer.Option("--every-node", help="Listen on every node, not only on the head node.")
    ] = False,
    **given: Any,
) -> None:
    """Classify images over HTTP on many machines: encoders that scale, and one adapter per stream.

    The API, the page and the files are those of `acclimate serve`. A stream whose process is lost is restored from its
    snapshot and journal elsewhere. Ctrl-C finishes the running requests and saves every state.
    """
    from acclimate.cluster.connection import connect, import_ray
    from acclimate.cluster.nodes import check_shared
    from acclimate.cluster.storage import Storage
    from acclimate.encoders.loading import absolute_model

    check_installed()
    import_ray()
    from acclimate.cluster.serving.cluster_service import ClusterService

    given["model"] = absolute_model(given["model"])
    least, most = least_and_most(encoders, "--encoders")
    limits = read_limits(given)
    new = read_new_streams(given, limits)
    if new.learned is not None:
        raise InputError("learned prompts need the model where streams are; use `acclimate serve`, or other templates.")
    names = ("model", "device", "precision", "compile", "token_file", "host", "port")
    service = ClusterService(
        data=data,
        limits=limits,
        defaults=new.defaults,
        allow_hosts=given["allow_host"] or (),
        replicas=(least, most),
        cpus=cpus,
        gpus=gpus or 0.0,
        fronts=front,
        every_node=every_node,
        plugins=given["plugin"] or (),
        **{name: given[name] for name in names},
    )
    with connect(address) as there:
        if gpus is None:
            service = replace(service, gpus=gpus_for(there, given["model"], given["device"]))
        there.check(cpus, service.gpus, least)
        if len(there.nodes) > 1:
            check_shared(Storage(data), "--data")
        say(f"Streams are stored in {Path(data).absolute()}.", err=True)
        service.serve(announce)
