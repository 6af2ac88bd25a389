"""The machines of a cluster: what they have room for, and whether they can do the work."""

import secrets
from dataclasses import dataclass, replace
from math import floor
from typing import Any

import ray
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from acclimate import __version__
from acclimate.cluster.storage import Storage
from acclimate.errors import InputError, RunError
from acclimate.sources.source import Sample

CPU_BLOCK = 1024  # images of a part
GPU_BLOCK = 4096  # an encoder on a GPU starts its readers for every block
NODE_TIMEOUT_S = 60.0  # time limit for the answer of a machine


@dataclass(frozen=True)
class Pool:
    """The encoders of a run.

    Attributes:
        encoders: their number at most; None for as many as there is room for.
        cpus: CPUs of each.
        gpus: GPUs of each; None for one where there are some and the model can use them.
        images: images of a part of the run; None to choose.

    Examples:
        >>> nodes = [{"Resources": {"CPU": 4.0}}, {"Resources": {"CPU": 8.0, "GPU": 2.0}}]
        >>> Pool(cpus=3).room(nodes), Pool(cpus=3, gpus=1).room(nodes)
        (3, 2)
    """

    encoders: int | None = None
    cpus: float = 1.0
    gpus: float | None = None
    images: int | None = None

    def room(self, nodes: list[dict[str, Any]]) -> int:
        """Return the number of encoders that fit on machines when nothing else runs."""
        needs = {"CPU": self.cpus, "GPU": self.gpus or 0.0}
        asked = {resource: amount for resource, amount in needs.items() if amount > 0} or {"CPU": 1.0}
        return sum(
            min(floor(node["Resources"].get(resource, 0.0) / amount + 1e-9) for resource, amount in asked.items())
            for node in nodes
        )

    def check(self, nodes: list[dict[str, Any]]) -> None:
        """Refuse encoders that can never be placed, which Ray would wait for.

        Raises:
            InputError: no machine has room for one.
        """
        if not self.room(nodes):
            asked = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
            raise InputError(
                f"no machine of the cluster has the {asked} that an encoder asks for; lower --cpus or --gpus, or add "
                "machines. What is encoded is kept: --resume goes on with it."
            )

    def fit_to(self, nodes: list[dict[str, Any]], model: object, grows: bool = False) -> "Pool":
        """Return the pool for the machines of a cluster, to which others may be added if it `grows`.

        Raises:
            InputError: no machine has room for an encoder.
        """
        needs_cpu = str(model).partition(":")[0] in ("bundled", "onnx") or not replace(self, gpus=1.0).room(nodes)
        pool = self if self.gpus is not None else replace(self, gpus=0.0 if needs_cpu else 1.0)
        if not grows:
            pool.check(nodes)
        return replace(pool, encoders=self.encoders or max(1, pool.room(nodes)))

    def block_images(self, batch_size: int, views: int) -> int:
        """Return the images of a part: whole batches of an encoder, which counts views."""
        images = self.images or (GPU_BLOCK if self.gpus else CPU_BLOCK) // views
        batch = max(1, batch_size // views)
        return -(-images // batch) * batch


def alive() -> list[dict[str, Any]]:
    """Return the machines that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def check_machines(out: Storage, sample: Sample) -> None:
    """Refuse machines that cannot do this work, a run that would be scattered, and images that can be read here only.

    Raises:
        RunError: names the machine that lacks this version of acclimate.
        InputError: names the machine that does not see the folder, or cannot read the image.
    """
    name = f"seen-{secrets.token_hex(8)}"
    readable = not _try_to_read(sample)  # else it is broken everywhere
    out.write(name, b"")
    look = ray.remote(num_cpus=0)(_look)
    answers = [
        (
            node,
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(
                out, name, sample
            ),
        )
        for node in alive()
    ]
    try:
        for node, answer in answers:
            where = f"the node {node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
            try:
                version, found, why = ray.get(answer, timeout=NODE_TIMEOUT_S)
            except (ray.exceptions.RayError, TimeoutError) as error:
                version = (str(error).strip().splitlines() or [type(error).__name__])[-1]
            if version != __version__:
                raise RunError(
                    f"{where} cannot do this work: it has acclimate {version} (here {__version__}); install the same "
                    "there, for example with the same image on every node, and see `ray status`."
                )
            if not found:
                raise InputError(
                    f"{where} does not see {out.url} of this machine; use a folder that all nodes share (NFS, EFS, "
                    "CephFS) for --out, or a URL."
                )
            if why and readable:
                raise InputError(
                    f"{where} cannot read {sample.name}, the first image ({why}); use a folder that all nodes share, "
                    "or a URL, with credentials on every node."
                )
    finally:
        out.remove(name)


def _look(out: Storage, name: str, sample: Sample) -> tuple[str, bool, str]:
    """Return the version of acclimate, True if a file appears, and the reason why an image cannot be read."""
    return __version__, out.wait_for(name), _try_to_read(sample)


def _try_to_read(sample: Sample) -> str:
    try:
        sample.read()
    except Exception as error:  # any reader may fail in its own way
        return str(error) or type(error).__name__
    return ""
