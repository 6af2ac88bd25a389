"""The machines of a cluster: their room for encoders, and the detection of lost machines."""

from time import monotonic

import ray

from acclimate.cluster.nodes import find_nodes
from acclimate.errors import InputError, RunError

POLL_S = 1.0  # interval between checks of the machines while nothing happens


class MachineLostError(Exception):
    """A lost machine whose work cannot run elsewhere; the rest of the work can."""


class Machines:
    """A watch over the machines while a pool of encoders works.

    Ray moves the actors of a lost machine to others. If there is no room for them, Ray waits for a new machine, for
    ever. Then it is better to start again with a smaller pool.

    Args:
        cpus: CPUs that an encoder asks for.
        gpus: the same for GPUs.
        workers: the least and the most encoders that were asked for.
        adapter_gpus: GPUs that no encoder may take.
        patience: seconds to wait for a machine that has room for an encoder, and for results after a loss.

    Raises:
        InputError: no machine can ever adapt.
    """

    def __init__(
        self, cpus: float, gpus: float, workers: tuple[int, int], adapter_gpus: float, patience: float
    ) -> None:
        self.cpus = cpus
        self.gpus = gpus
        self.adapter_gpus = adapter_gpus
        self.patience = patience
        self._known = _alive()
        room = self.room()
        cluster = find_nodes()
        least, most = workers
        if adapter_gpus > max(node.get("GPU", 0.0) for node in cluster.nodes) and not cluster.grows:
            raise InputError(
                f"an adapter asks for {adapter_gpus:g} GPUs, and no machine of the cluster has as many; ask for less, "
                "or leave out --adapter-gpus to adapt on CPUs."
            )
        if gpus and adapter_gpus and not cluster.grows:
            most = min(most, room)
        self.pool = max(1, min(least, room)), max(1, most)  # the least is what there is room for
        self.progress()

    def progress(self) -> None:
        """Note that something happened."""
        self._since = monotonic()

    def room(self) -> int:
        """Return the number of encoders the machines have room for, if nobody else uses them."""
        cluster = find_nodes()
        room = cluster.room(self.cpus, self.gpus)
        if self.gpus and self.adapter_gpus:
            room = min(room, int((cluster.total("GPU") - self.adapter_gpus) / self.gpus + 1e-9))
        return max(0, room)

    def check(self) -> None:
        """Check the machines; called while nothing happens.

        Raises:
            MachineLostError: a machine is gone, and its encoders find no other place.
            RunError: there has been no room for any encoder for a long time.
        """
        waited = monotonic() - self._since > self.patience
        room = self.room()
        if not room and waited:
            needs = f"{self.cpus:g} CPUs" + (f" and {self.gpus:g} GPUs" if self.gpus else "")
            raise RunError(
                f"no machine of the cluster has the {needs} that an encoder asks for; ask for less, or add machines, "
                "and pass --resume to go on."
            )
        lost = not self._known <= _alive()
        if lost and room and (room < self.pool[0] or waited):
            raise MachineLostError(f"a machine was lost, and there is room for {room} encoders")


def _alive() -> set[str]:
    return {node["NodeID"] for node in ray.nodes() if node["Alive"]}
