"""The nodes of a cluster: their resources, and checks that they can do the work."""

import secrets
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from math import floor
from time import monotonic, sleep
from typing import Any

from acclimate.cluster.storage import Storage
from acclimate.errors import InputError, RunError
from acclimate.sources.source import Sample

NODE_TIMEOUT_S = 60.0  # time limit for the answer of a node
FILE_DELAY_S = 10.0  # a network file system shows a new file everywhere within this time


@dataclass(frozen=True)
class Cluster:
    """A connected cluster: the nodes, each with its resources.

    Examples:
        >>> cluster = Cluster(({"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}))
        >>> cluster.room(cpus=3, gpus=0), cluster.room(cpus=3, gpus=1)
        (3, 2)
    """

    nodes: tuple[dict[str, float], ...]
    grows: bool = False  # nodes may be added by an autoscaler

    def total(self, resource: str) -> float:
        """Return the amount of a resource ("CPU", "GPU") of all nodes together."""
        return sum(node.get(resource, 0.0) for node in self.nodes)

    def room(self, cpus: float, gpus: float) -> int:
        """Return the number of workers with these needs that fit on the nodes when nothing else runs."""
        asked = {resource: amount for resource, amount in (("CPU", cpus), ("GPU", gpus)) if amount > 0}
        if not asked:
            return max(1, floor(self.total("CPU")))
        return sum(
            min(floor(node.get(resource, 0.0) / amount + 1e-9) for resource, amount in asked.items())
            for node in self.nodes
        )

    def check(self, cpus: float, gpus: float, count: int = 1) -> None:
        """Refuse what can never be placed, which Ray would wait for.

        Raises:
            InputError: if the nodes have no room for `count` workers of this size, and none can be added.
        """
        if self.grows or (found := self.room(cpus, gpus)) >= count:
            return
        size = _words(cpus, gpus)
        largest = max((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in self.nodes)
        if found == 0:
            most = f"the largest node has {_words(*largest)}"
            raise InputError(f"a worker of {size} fits nowhere: {most}; lower --cpus or --gpus, or add a node.")
        there = f"{_words(self.total('CPU'), self.total('GPU'))} on {len(self.nodes)} node{'s' * (len(self.nodes) > 1)}"
        raise InputError(
            f"{count} workers of {size} each do not fit on the cluster ({there}), which has room for {found}; "
            "lower --workers, --cpus or --gpus, or add nodes."
        )


def _words(cpus: float, gpus: float) -> str:
    """Format numbers of CPUs and GPUs.

    Examples:
        >>> _words(1, 0), _words(0.5, 2)
        ('1 CPU', '0.5 CPUs and 2 GPUs')
    """
    named = [f"{amount:g} {kind}{'s' * (amount != 1)}" for amount, kind in ((cpus, "CPU"), (gpus, "GPU"))]
    return " and ".join(named if gpus else named[:1])


def find_nodes() -> Cluster:
    """Return the nodes that are alive."""
    import ray

    nodes = tuple(dict(node["Resources"]) for node in ray.nodes() if node["Alive"])
    ask = getattr(ray._private.state.state, "get_max_resources_from_cluster_config", lambda: None)
    return Cluster(nodes, grows=ask() is not None)


def check_versions() -> None:
    """Refuse nodes that cannot do the work of this process.

    Raises:
        RunError: which names the node.
    """

    def versions() -> dict[str, str]:  # a local function is sent whole: the node may not have acclimate
        import platform

        found = {"Python": ".".join(platform.python_version_tuple()[:2])}
        for name, package in (("acclimate", "acclimate"), ("NumPy", "numpy")):
            try:
                found[name] = __import__(package).__version__
            except Exception as error:
                found[name] = f"none ({error})"
        return found

    own = versions()
    for name, found in ask_nodes(versions):
        other = [f"{what} {found[what]} (here {own[what]})" for what in own if not _alike(own[what], found[what])]
        if other:
            how = "install the same there, for example with the same image on every node"
            raise RunError(f"{name} cannot do this work: it has {', '.join(other)}; {how}.")


def check_shared(folder: Storage, option: str) -> None:
    """Refuse a folder that is another one on some node: what is written there would be scattered.

    Raises:
        InputError: which names the node.
    """
    name = f"_acclimate/seen-{secrets.token_hex(8)}"
    content = secrets.token_bytes(16)
    folder.write(name, content)
    try:
        for node, found in ask_nodes(_look_for, folder, name, FILE_DELAY_S):
            if found != content:
                how = f"use a folder that all nodes share (NFS, EFS, CephFS) for {option}, or a URL where it takes one"
                raise InputError(f"{node} does not see {folder.url} of this machine; {how}.")
    finally:
        folder.remove(name)


def check_readable(sample: Sample) -> None:
    """Refuse images that can be read here and not on some node.

    Raises:
        InputError: which names the node.
    """
    if not _try_to_read(sample):
        for node, why in ask_nodes(_try_to_read, sample):
            if why:
                how = "use a folder that all nodes share, or a URL, with credentials on every node"
                raise InputError(f"{node} cannot read {sample.name}, the first image ({why}); {how}.")


def ask_nodes(function: Callable[..., Any], *arguments: Any) -> Iterator[tuple[str, Any]]:
    """Call a function on every node; yields how to name the node, and what it returned.

    Raises:
        RunError: a node does not answer.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = [node for node in ray.nodes() if node["Alive"]]
    task = ray.remote(function)
    where = [NodeAffinitySchedulingStrategy(node["NodeID"], soft=False) for node in nodes]
    answers = [task.options(num_cpus=0, scheduling_strategy=each).remote(*arguments) for each in where]
    for node, answer in zip(nodes, answers, strict=True):
        name = f"the node {node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
        try:
            yield name, ray.get(answer, timeout=NODE_TIMEOUT_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            why = (str(getattr(error, "cause", None) or error).splitlines() or [type(error).__name__])[0]
            raise RunError(f"{name} runs no task: {why}; see `ray status`.") from error


def _look_for(folder: Storage, name: str, seconds: float) -> bytes:
    """Read a file as soon as it appears; b"" if it does not."""
    latest = monotonic() + seconds
    while True:
        with suppress(OSError):
            return folder.read(name)
        if monotonic() > latest:
            return b""
        sleep(0.2)


def _try_to_read(sample: Sample) -> str:
    """Return the reason why an image cannot be read; "" if it can be."""
    try:
        sample.read()
    except Exception as error:  # any reader may fail in its own way
        return str(error) or type(error).__name__
    return ""


def _alike(own: str, other: str) -> bool:
    """Return True if two versions agree in their first two numbers, as within one release of acclimate."""
    return own.split(".")[:2] == other.split(".")[:2]
