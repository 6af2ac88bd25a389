"""The machines of a cluster: their resources, checks that they can do the work, and a watch for lost ones."""

import secrets
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from math import floor
from time import monotonic, sleep
from typing import TYPE_CHECKING, Any

from acclimate.errors import InputError, RunError, count
from acclimate.sources.source import Sample

if TYPE_CHECKING:
    from acclimate.cluster.filesystem import Storage  # needs pyarrow

NODE_TIMEOUT_S = 60.0  # time limit for the answer of a machine
FILE_DELAY_S = 10.0  # a network file system shows a new file everywhere within this time
POLL_S = 1.0  # interval between checks of the machines while nothing happens
PATIENCE_S = 300.0  # time to wait for a machine that has room for an encoder, and for results after a loss


class MachineLostError(Exception):
    """A lost machine whose work cannot run elsewhere; the rest of the work can."""


@dataclass(frozen=True)
class Cluster:
    """A connected cluster: its machines, each with its resources.

    Examples:
        >>> cluster = Cluster(({"CPU": 4.0}, {"CPU": 8.0, "GPU": 2.0}))
        >>> cluster.room(cpus=3, gpus=0), cluster.room(cpus=3, gpus=1)
        (3, 2)
    """

    nodes: tuple[dict[str, float], ...]
    grows: bool = False  # machines may be added: by people, or by an autoscaler

    def total(self, resource: str) -> float:
        """Return the amount of a resource ("CPU", "GPU") of all machines together."""
        return sum(node.get(resource, 0.0) for node in self.nodes)

    def room(self, cpus: float, gpus: float) -> int:
        """Return the number of workers with these needs that fit on the machines when nothing else runs."""
        asked = {resource: amount for resource, amount in (("CPU", cpus), ("GPU", gpus)) if amount > 0}
        if not asked:
            return max(1, floor(self.total("CPU")))
        return sum(
            min(floor(node.get(resource, 0.0) / amount + 1e-9) for resource, amount in asked.items())
            for node in self.nodes
        )

    def check(self, cpus: float, gpus: float, workers: int = 1) -> None:
        """Refuse what can never be placed, which Ray would wait for; only warn if machines may be added.

        Raises:
            InputError: the machines have no room for so many workers of this size.
        """
        found = self.room(cpus, gpus)
        if found >= workers:
            return
        largest = max((node.get("CPU", 0.0), node.get("GPU", 0.0)) for node in self.nodes)
        message = (
            f"{count(workers, 'worker')} of {_words(cpus, gpus)} cannot run at once: the cluster has "
            f"{_words(self.total('CPU'), self.total('GPU'))} on {count(len(self.nodes), 'node')}, the largest "
            f"{_words(*largest)}, and room for {found}; lower --workers, --cpus or --gpus, or add nodes."
        )
        if not self.grows:
            raise InputError(message)
        warnings.warn(f"{message} The job begins, and waits up to {PATIENCE_S:g} seconds for nodes.", stacklevel=2)


def _words(cpus: float, gpus: float) -> str:
    named = [f"{amount:g} {kind}{'s' * (amount != 1)}" for amount, kind in ((cpus, "CPU"), (gpus, "GPU"))]
    return " and ".join(named if gpus else named[:1])


def find_nodes(grows: bool = False) -> Cluster:
    """Return the machines that are alive."""
    return Cluster(tuple(dict(node["Resources"]) for node in _alive()), grows)


def _alive() -> list[dict[str, Any]]:
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


class MachineWatch:
    """A watch over the machines while a pool of encoders works.

    Ray moves the actors of a lost machine to others. If there is no room for them, Ray waits for a new machine, for
    ever. Then it is better to start again with a smaller pool.

    Args:
        cpus: CPUs that an encoder asks for.
        gpus: GPUs that an encoder asks for.
        workers: the least and the most encoders that were asked for.
        adapter_gpus: GPUs that no encoder may take.

    Attributes:
        pool: the least and the most encoders to start with.
    """

    def __init__(self, cpus: float, gpus: float, workers: tuple[int, int], adapter_gpus: float = 0.0) -> None:
        self.cpus = cpus
        self.gpus = gpus
        self.adapter_gpus = adapter_gpus
        self._known = {node["NodeID"] for node in _alive()}
        room = self.room()
        most = min(workers[1], room) if gpus and adapter_gpus else workers[1]
        self.pool = max(1, min(workers[0], room)), max(1, most)

    def room(self) -> int:
        """Return the number of encoders the machines have room for, if nobody else uses them."""
        cluster = find_nodes()
        room = cluster.room(self.cpus, self.gpus)
        if self.gpus and self.adapter_gpus:
            room = min(room, int((cluster.total("GPU") - self.adapter_gpus) / self.gpus + 1e-9))
        return max(0, room)

    def check(self, seconds: float) -> None:
        """Check the machines; called when nothing has happened for some seconds.

        Raises:
            MachineLostError: a machine is gone, and its encoders find no other place.
            RunError: there has been no room for any encoder for a long time.
        """
        waited = seconds > PATIENCE_S
        room = self.room()
        if not room and waited:
            raise RunError(
                f"no machine of the cluster has the {_words(self.cpus, self.gpus)} that an encoder asks for; ask for "
                "less, or add machines, and pass --resume to go on."
            )
        lost = self._known - {node["NodeID"] for node in _alive()}
        if lost and room and (room < self.pool[0] or waited):
            raise MachineLostError(f"a machine was lost, and there is room for {room} encoders")


def check_versions() -> None:
    """Refuse machines that cannot do the work of this process.

    Raises:
        RunError: names the machine.
    """

    def version(package: str) -> str:  # a local function is sent whole: the machine may not have acclimate
        try:
            return str(__import__(package).__version__)
        except Exception as error:
            return f"none ({error})"

    for package in ("acclimate", "numpy"):  # Ray compares its own version, and that of Python
        own = version(package)
        for name, found in ask_nodes(version, package):
            if found.split(".")[:2] != own.split(".")[:2]:
                raise RunError(
                    f"{name} cannot do this work: it has {package} {found} (here {own}); install the same there, for "
                    "example with the same image on every node."
                )


def check_access(out: "Storage", sample: Sample) -> None:
    """Refuse results that would be scattered over several machines, and images that can be read here only.

    Raises:
        InputError: names the machine that does not see the folder, or cannot read the image.
    """
    name = f"_acclimate/seen-{secrets.token_hex(8)}"
    readable = not _try_to_read(sample)  # else it is broken everywhere
    out.write(name, b"")
    try:
        for node, (found, why) in ask_nodes(_look, out, name, FILE_DELAY_S, sample):
            if not found:
                raise InputError(
                    f"{node} does not see {out.url} of this machine; use a folder that all nodes share (NFS, EFS, "
                    "CephFS) for --out, or a URL."
                )
            if why and readable:
                raise InputError(
                    f"{node} cannot read {sample.name}, the first image ({why}); use a folder that all nodes share, "
                    "or a URL, with credentials on every node."
                )
    finally:
        out.remove(name)


def ask_nodes(function: Callable[..., Any], *arguments: Any) -> Iterator[tuple[str, Any]]:
    """Call a function on every machine; yields how to name the machine, and what it returned.

    Raises:
        RunError: a machine does not answer.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = _alive()
    task = ray.remote(num_cpus=0)(function)
    answers = [
        task.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(*arguments)
        for node in nodes
    ]
    for node, answer in zip(nodes, answers, strict=True):
        name = f"the node {node['NodeManagerAddress']} ({node['NodeManagerHostname']})"
        try:
            yield name, ray.get(answer, timeout=NODE_TIMEOUT_S)
        except (ray.exceptions.RayError, TimeoutError) as error:
            why = (str(getattr(error, "cause", None) or error).splitlines() or [type(error).__name__])[0]
            raise RunError(f"{name} runs no task: {why}; see `ray status`.") from error


def _look(out: "Storage", name: str, seconds: float, sample: Sample) -> tuple[bool, str]:
    """Return True if a file appears within some seconds, and the reason why an image cannot be read."""
    latest = monotonic() + seconds
    while not out.exists(name) and monotonic() < latest:
        sleep(0.2)
    return out.exists(name), _try_to_read(sample)


def _try_to_read(sample: Sample) -> str:
    try:
        sample.read()
    except Exception as error:  # any reader may fail in its own way
        return str(error) or type(error).__name__
    return ""
