"""The command `acclimate cluster serve`, from its options on."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from acclimate.cluster.cluster_options import gpus_for, least_and_most
from acclimate.cluster.connection import connect, import_ray
from acclimate.cluster.nodes import check_shared
from acclimate.cluster.storage import Storage
from acclimate.encoders.loading import absolute_model
from acclimate.errors import InputError
from acclimate.serve.command import NewStreams
from acclimate.serve.limits import Limits


def run_cluster_service(
    options: Mapping[str, Any],
    limits: Limits,
    new_streams: Callable[[], NewStreams],
    announce: Callable[[str], None],
) -> None:
    """Serve on a cluster until the process gets a signal to stop.

    Args:
        options: the options of `acclimate cluster serve` by name.
        limits: the limits that they give.
        new_streams: returns the arguments of new streams.
        announce: called with the address when it works.
    """
    import_ray()
    from acclimate.cluster.serving.cluster_service import ClusterService

    model = absolute_model(options["model"])
    least, most = least_and_most(options["encoders"], "--encoders")
    new = new_streams()
    if new.learned is not None:
        raise InputError("learned prompts need the model where streams are; use `acclimate serve`, or other templates.")
    names = ("data", "device", "precision", "compile", "token_file", "host", "port", "cpus", "every_node")
    service = ClusterService(
        model=model,
        limits=limits,
        defaults=new.defaults,
        allow_hosts=options["allow_host"] or (),
        replicas=(least, most),
        gpus=options["gpus"] or 0.0,
        fronts=options["front"],
        plugins=options["plugin"] or (),
        **{name: options[name] for name in names},
    )
    with connect(options["address"]) as there:
        if options["gpus"] is None:
            service = replace(service, gpus=gpus_for(there, model, options["device"]))
        there.check(options["cpus"], service.gpus, least)
        if len(there.nodes) > 1:
            check_shared(Storage(options["data"]), "--data")
        service.serve(announce)
