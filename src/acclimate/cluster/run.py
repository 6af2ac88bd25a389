"""Classification of many images on many machines: the same adapters, the same rows, on Ray.

- `ordered`: encoding is parallel, and one state adapts to the images in order. The result is that of `classify`.
- `merged`: several states adapt side by side, to one block of images each, and become one after every block.

A job ends with the same files whatever fails on the way, and however many machines there are: Ray runs lost tasks again
and replaces lost actors; for all else, the job goes on from its last checkpoint, in this process or in another one
after this one was killed.
"""

import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from acclimate import __version__
from acclimate.arrays import is_tensor
from acclimate.classifier import Classifier
from acclimate.classify.run import Checkpoint, job_identity
from acclimate.classify.summary import Summary
from acclimate.cluster import parts
from acclimate.cluster.adapting import ClusterJob
from acclimate.cluster.encoding import EncoderSetup, start_encoding
from acclimate.cluster.filesystems import UnreachableError
from acclimate.cluster.machines import MachineLostError, Machines
from acclimate.cluster.rounds import FirstPass
from acclimate.cluster.second_pass import SecondPass
from acclimate.cluster.storage import Storage, storage_of
from acclimate.errors import AcclimateError, InputError, RunError, StateError, count
from acclimate.images.opening import URL
from acclimate.methods import duplicate, state_to_bytes
from acclimate.methods.gates import NearDuplicates
from acclimate.sources.source import Sample

Policy = Literal["ordered", "merged"]
MAX_FAILURES = 3  # a job gives up after so many failures without progress


@dataclass(kw_only=True)
class ClusterRun:
    """A classification of many images on a cluster that Ray is connected to.

    Args:
        classifier: made by the driver: labels, method, state, gates. Workers load the model by its name.
        samples: the images, in order; every machine must be able to read them.
        out: the folder of the results: a parquet file per block.
        policy: "ordered" or "merged".
        shards: states that adapt side by side, for "merged".
        every: images of a block, rounded up to whole batches of the encoder: those that a state adapts to between two
            exchanges. An encoder on a GPU starts its readers per block: give it several thousand.
        ordered_first: images at the beginning, rounded up to whole blocks, that one state adapts to in order, for
            "merged": a method that learns from its own answers would spread the weak ones of its beginning.
        workers: encoders, or the least and the most.
        cpus: CPUs per encoder.
        gpus: GPUs per encoder.
        adapter_gpus: GPUs per adapter; with more than 0, adapters adapt on GPUs, and sums are rounded as they round.
        top_k: labels per row.
        passes: 2 to answer all images again at the end; when not given, 2 for "ordered" and 1 for "merged". A
            classifier that does not learn needs only one.
        state: path or URL to which the state is written at the end.
        plugins: modules that the workers import.
        model: options of `load_encoder`, and `decoder`, as they were given: how a worker loads the model.
        checkpoint_every: seconds between two checkpoints.
        patience: seconds to wait for machines that are missing.
        progress: called with the images that are done, their total, and the stage.
        ray_progress: have Ray Data show its own progress bars.
        stop: True stops the run; it can be resumed.

    Attributes:
        summary: sums over the predictions, after the run.
        kept: images that were done before, if the run was resumed; their second pass may not have been.
        was_complete: True if nothing was left to do.

    Raises:
        InputError: the job cannot be run so; the message says how it can.
    """

    classifier: Classifier
    samples: Sequence[Sample]
    out: Storage
    policy: Policy = "ordered"
    shards: int = 1
    every: int = 1024
    ordered_first: int = 2048
    workers: int | tuple[int, int] = 1
    cpus: float = 1.0
    gpus: float = 0.0
    adapter_gpus: float = 0.0
    top_k: int = 3
    passes: int | None = None
    state: str | None = None
    plugins: Sequence[str] = ()
    model: Mapping[str, Any] = field(default_factory=dict)
    checkpoint_every: float = 10.0
    patience: float = 300.0
    progress: Callable[[int, int, str], None] = lambda done, total, stage: None
    ray_progress: bool = False
    stop: Callable[[], bool] = lambda: False

    def __post_init__(self) -> None:
        self._check()
        classifier = self.classifier
        size = max(1, self.classifier.batch_size // self.classifier.views)
        self.every = -(-self.every // size) * size
        default = 2 if self.policy == "ordered" else 1
        self.passes = (self.passes or default) if classifier.learns else 1
        self.summary = Summary()
        self.kept = 0
        self.was_complete = False
        if is_tensor(classifier.head.class_vectors):  # features come from other machines, and are on the host
            classifier.adapter.to(np.empty(0, np.float32))
            for gate in classifier.gates:
                gate.relabel(classifier.head)
        # A checkpoint is compared with the method, its settings and the labels; complete results have none any more.
        self._identity = job_identity(classifier, self.top_k, self.passes) | {
            "method": classifier.adapter.name,
            "choice of settings": _options_digest(classifier.adapter.settings),
            "list of labels": _options_digest(classifier.labels),
            "choice of templates": _options_digest(classifier.templates),
            "policy": self.policy,
            "number of shards": self.shards,
            "number of images between two exchanges": self.every,
            "number of images adapted to in order": self.ordered_blocks * self.every,
            "list of images": _digest(self.samples),
            "choice of --adapter-gpus": self.adapter_gpus > 0,
        }
        remote = bool(self.samples) and URL.match(self.samples[0].name) is not None
        self._setup = EncoderSetup.of(classifier, self.model, self.cpus, self.gpus, self.plugins, remote)

    def describe_policy(self) -> str:
        """Return in words how the states adapt: one in order, or several that exchange what they learn."""
        if self.policy == "ordered":
            return f"one state, in order, {count(self.blocks, 'block')} of {self.every} images"
        first = min(self.blocks, self.ordered_blocks)
        rounds = count(first + -(-(self.blocks - first) // self.shards), "round")
        began = f", the first {first * self.every:,} images in order" if first else ""
        return f"{count(self.shards, 'shard')}, states exchanged every {self.every} images of each, {rounds}{began}"

    def run(self, resume: bool = False, overwrite: bool = False) -> bool:
        """Classify all images; returns False if the run was stopped.

        Args:
            resume: go on where a run that was stopped or killed has come to.
            overwrite: remove the results that are there.

        Raises:
            InputError: there are results already, or those of another job.
            RunError: the job cannot go on; what was done is kept.
        """
        begun = self._open(resume, overwrite)
        if begun is None:
            return True
        done = self._retrying(self._first_pass, begun)
        # what Ray gave is read-only
        self.classifier.adapter = duplicate(done.adapter)
        self.summary = done.summary
        if done.position < self.blocks:
            return False
        if self.passes == 2:
            summary = self._retrying(self._second_pass, done)
            if summary is None:
                return False
            self.summary = summary
        self._finish()
        return True

    @property
    def blocks(self) -> int:
        """Blocks of the stream."""
        return -(-len(self.samples) // self.every)

    @property
    def ordered_blocks(self) -> int:
        """Blocks that are adapted to in order, before several are at a time; the stream may have fewer."""
        return 0 if self.shards == 1 else -(-self.ordered_first // self.every)

    def _check(self) -> None:
        """Refuse what cannot be run."""
        adapter = self.classifier.adapter
        least, most = self._workers
        if self.policy not in ("ordered", "merged"):
            raise InputError(f"unknown policy {self.policy!r}; choose 'ordered' or 'merged'.")
        if (
            self.shards < 1
            or self.every < 1
            or not 1 <= least <= most
            or min(self.cpus, self.gpus, self.adapter_gpus) < 0
        ):
            raise InputError("shards, every and workers must be at least 1, cpus and gpus at least 0.")
        if self.passes not in (None, 1, 2):
            raise InputError(f"there are one or two passes, not {self.passes}.")
        if self.policy == "ordered" and self.shards > 1:
            raise InputError("the policy 'ordered' has one state; leave out shards, or choose 'merged'.")
        if adapter.text is not None:
            raise InputError(
                f"the method {adapter.name!r} needs the model where it adapts, and on a cluster the model is "
                "elsewhere; use `acclimate classify`, or another method."
            )
        if self.policy == "merged" and self.classifier.learns and adapter.merges is None:
            raise InputError(
                f"states of {adapter.name!r} cannot be merged: what it learns depends on the order of the images; use "
                "the policy 'ordered'."
            )
        if self.policy == "merged" and any(isinstance(gate, NearDuplicates) for gate in self.classifier.gates):
            raise InputError(
                "skipping duplicates compares each image with those before it; use the policy 'ordered', or keep them."
            )

    @property
    def _workers(self) -> tuple[int, int]:
        return (self.workers, self.workers) if isinstance(self.workers, int) else self.workers

    def _open(self, resume: bool, overwrite: bool) -> Checkpoint | None:
        """Return the checkpoint to begin with; None if everything is done."""
        self.out.check_writable()
        if overwrite:
            self._owner = parts.claim(self.out)  # first, so that another run does not write what is removed
            parts.remove_results(self.out)
        elif not resume:
            parts.check_no_results(self.out)
        adapter = self.classifier.adapter
        gates = self.classifier.gates
        complete = parts.read_complete(self.out, self._identity)
        if complete is not None:
            parts.clean_up(self.out)
            self.summary = complete
            self.kept = complete.images
            self.was_complete = True
            return None
        self._owner = parts.claim(self.out)
        if self.out.exists(parts.CHECKPOINT):
            found = parts.read_checkpoint(self.out, self._identity, adapter)
            self.kept = found.summary.images
            return found
        if parts.has_parts(self.out):  # left by a job that was being overwritten, or by another program
            raise InputError(
                f"{self.out.url} has parts of results, and nothing that says how they were begun; --overwrite them, or "
                "choose another --out."
            )
        gate_states = [gate.dump() for gate in gates]
        new = Checkpoint(adapter, self._identity, 0, adapter.next_id, gate_states, Summary())
        parts.write_checkpoint(self.out, new)  # exists before any part
        return new

    def _retrying(self, work: Callable[[Checkpoint], Any], begun: Checkpoint) -> Any:
        """Do a pass; after a failure that Ray could not make good, again from the last checkpoint."""
        self._done = begun
        failures = 0
        while True:
            before = self._done.position
            try:
                return work(self._done)
            except RayTaskError as error:
                if isinstance(error.cause, AcclimateError):
                    raise error.cause from None
                failure: Exception = error
            except (RayError, MachineLostError, UnreachableError) as error:
                failure = error
            failures = 1 if self._done.position > before else failures + 1
            if failures > MAX_FAILURES:
                why = str(getattr(failure, "cause", None) or failure).strip().splitlines() or [type(failure).__name__]
                raise RunError(
                    f"the job failed {failures} times at the same place, the last time with: {why[-1].rstrip('.')}. "
                    "Look at the logs of Ray; then pass --resume to go on."
                ) from failure

    def _first_pass(self, done: Checkpoint) -> Checkpoint:
        if done.position == self.blocks:
            return done
        machines = Machines(self.cpus, self.gpus, self._workers, self.adapter_gpus, self.patience)
        encoding = start_encoding(
            self.samples,
            self.every,
            done.position,
            self._setup,
            machines.pool,
            self.cpus,
            self.gpus,
            self.ray_progress,
        )
        try:
            whole = FirstPass(
                self._job(done),
                encoding,
                done,
                blocks=self.blocks,
                shards=self.shards,
                ordered_first=self.ordered_blocks,
                save=self._save,
                seconds=self.checkpoint_every,
                progress=lambda images: self.progress(images, len(self.samples), "first pass"),
                stop=self.stop,
                machines=machines,
                adapter_gpus=self.adapter_gpus,
            ).run()
            if whole and self.ray_progress:
                ray.get(encoding.next.remote())  # the pipeline ends, and its bars with it
        finally:
            ray.kill(encoding)
        return self._done

    def _second_pass(self, done: Checkpoint) -> Summary | None:
        views = (self.classifier.views,) if self.classifier.views > 1 else ()
        with TemporaryDirectory(prefix="acclimate-") as folder:
            again = SecondPass(
                self._job(done),
                done.adapter,
                Path(folder, "features"),
                (*views, self.classifier.head.dim),
                blocks=self.blocks,
                progress=lambda images: self.progress(images, len(self.samples), "second pass"),
                stop=self.stop,
            )
            try:
                return again.run()
            except StateError:
                parts.check_owner(self.out, self._owner)  # another run that is complete has removed the features
                raise

    def _save(self, done: Checkpoint) -> None:
        parts.check_owner(self.out, self._owner)
        parts.write_checkpoint(self.out, done)
        self._done = done

    def _finish(self) -> None:
        """Write the state, and say that the results are complete."""
        classifier = self.classifier
        parts.check_owner(self.out, self._owner)
        if self.state is not None:
            storage, name = storage_of(self.state)
            parts.write(storage, name, state_to_bytes(classifier.adapter, classifier.notes))
        parts.write_complete(self.out, self._identity, self.summary, self._about)

    def _job(self, done: Checkpoint) -> ClusterJob:
        classifier = self.classifier
        return ClusterJob(
            head=classifier.head,
            gates=classifier.gates,
            first_id=done.first_id,
            learns=classifier.learns,
            top_k=self.top_k,
            unsure=classifier.unsure,
            keep=self.passes == 2,
            out=self.out,
            about={"acclimate": json.dumps(self._about)},
            owner=self._owner,
            device="cuda" if self.adapter_gpus else "",
        )

    @property
    def _about(self) -> dict[str, Any]:
        about: dict[str, Any] = {
            "policy": self.policy,
            "shards": self.shards,
            "every": self.every,
            "ordered_first": self.ordered_blocks * self.every,
            "passes": self.passes,
        }
        return about | {"method": self.classifier.adapter.name, "model": self.classifier.model, "version": __version__}


def _options_digest(options: Any) -> str:
    """Identify options in every process; functions by their names."""
    text = json.dumps(options, sort_keys=True, default=lambda value: getattr(value, "__qualname__", str(type(value))))
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def _digest(samples: Sequence[Sample]) -> str:
    """Identify the images of a stream, their order and their true labels."""
    digest = hashlib.sha256()
    for sample in samples:
        digest.update(f"{sample.name}\0{sample.label}\0".encode(errors="backslashreplace"))
    return digest.hexdigest()
