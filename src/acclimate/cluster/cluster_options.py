"""The options of a classification on a cluster."""

import re
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Literal

from acclimate.classify.options import ClassifyOptions
from acclimate.errors import InputError

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.cluster.machines import Cluster
    from acclimate.cluster.output_folder import OutputFolder

DEFAULT_SHARDS = 8  # the same on clusters of every size, so that the results are the same
LARGE_JOB_IMAGES = 16 * 1024  # blocks are larger from this number of images on


@dataclass(frozen=True, kw_only=True)
class ClusterOptions(ClassifyOptions):
    """The options of `acclimate cluster classify`: those of `acclimate classify`, and how to spread the work."""

    address: str | None = None
    policy: Literal["ordered", "merged"] = "ordered"
    shards: int | None = None
    ordered_first: int = 2048
    every: int | None = None
    encoders: str | None = None  # a number, or LEAST:MOST
    cpus: float = 1.0
    gpus: float | None = None
    adapter_gpus: float = 0.0
    ray_progress: bool = False

    def check(self) -> None:
        """Refuse options that contradict each other, with an `InputError` that says what to do; reads no file."""
        super().check()
        if self.policy == "ordered" and self.shards is not None:
            raise InputError("--shards is for --policy merged; with ordered, one state adapts to all images.")
        if self.gpus == 0 and self.device.startswith("cuda"):
            raise InputError(f"--device {self.device} needs a GPU for each encoder; pass --gpus 1.")
        if self.encoders is not None:
            least_and_most(self.encoders)

    def open_output(self) -> "OutputFolder":
        """Return the folder of the results; refuses one that cannot be written, or whose results would be replaced."""
        from acclimate.cluster.output_folder import OutputFolder

        out = OutputFolder(str(self.out))
        out.check_writable()
        if not (self.resume or self.overwrite):
            out.check_no_results()
        return out

    def fit_to(self, there: "Cluster") -> tuple["ClusterOptions", tuple[int, int]]:
        """Return the options with the GPUs per encoder, and the least and the most encoders.

        Raises:
            InputError: they do not fit into the cluster.
        """
        gpus = self.gpus
        if gpus is None:  # one per encoder, where the cluster has some and the model can use them
            on_gpus = self.device not in ("cpu", "mps") and self.model.partition(":")[0] not in ("bundled", "onnx")
            gpus = float(on_gpus and there.total("GPU") >= 1)
        room = max(1, there.room(self.cpus, gpus))
        workers = least_and_most(self.encoders) if self.encoders else (room, room)
        there.check(self.cpus, gpus, workers[0])
        there.check(0, self.adapter_gpus)
        return replace(self, gpus=gpus), workers

    def for_driver(self) -> "ClusterOptions":
        """Return the options of the process that starts the run, which encodes the labels alone.

        It does so on the CPU where encoders have no GPU: as on their machines. Where states are merged, duplicates are
        not skipped by default: images have predecessors only where there is one order.
        """
        device = "auto" if self.gpus else "cpu" if self.device == "auto" else self.device
        skip = False if self.policy == "merged" and self.skip_duplicates is None else self.skip_duplicates
        return replace(
            self, device=device, batch_size=self.batch_size or (256 if self.gpus else None), skip_duplicates=skip
        )

    def load_state(self, classifier: "Classifier") -> None:
        """Let a classifier continue from --state, on any file system, if there is one.

        Raises:
            InputError: --state is a folder or cannot be written, or --freeze needs it and it does not exist.
        """
        from acclimate.cluster.filesystem import kind, storage_of

        if self.state is None:
            return
        storage, name = storage_of(str(self.state))
        found = kind(storage.where(name))
        if found == "folder":
            raise InputError(f"--state {self.state} is a folder; name a file in it.")
        if found is not None:
            with TemporaryDirectory(prefix="acclimate-") as folder:
                path = Path(folder, name)
                path.write_bytes(storage.read(name))
                classifier.load(path)
        elif self.freeze:
            raise InputError(f"--freeze answers from a state, and there is none at {self.state}.")
        else:
            storage.check_writable()


def least_and_most(text: str) -> tuple[int, int]:
    """Return the numbers of "4" or "2:8".

    Examples:
        >>> least_and_most("4"), least_and_most("2:8")
        ((4, 4), (2, 8))
    """
    match = re.fullmatch(r"(\d+)(?::(\d+))?", text.strip())
    least, most = (int(match[1]), int(match[2] or match[1])) if match else (0, 0)
    if not 1 <= least <= most:
        raise InputError(f"--workers takes a number, or LEAST:MOST such as 2:8, got {text!r}.")
    return least, most
