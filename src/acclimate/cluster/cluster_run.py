"""Classification of many images on many machines: the same adapters, the same rows, on Ray.

- `ordered`: encoding is parallel, and one state adapts to the images in order. The result is that of `classify`.
- `merged`: several states adapt side by side, to one block of images each, and become one after every block.

A job ends with the same files whatever fails on the way, and however many machines there are: Ray runs lost tasks again
and replaces lost actors; for all else, the job goes on from its last checkpoint, in this process or in another one
after this one was killed.
"""

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import numpy as np
import ray
from ray.exceptions import RayError, RayTaskError

from acclimate import __version__
from acclimate.arrays import is_tensor
from acclimate.classifier import Classifier
from acclimate.classify.run import Checkpoint, count_passes, job_identity
from acclimate.classify.summary import Summary
from acclimate.cluster.adapting import ClusterJob, move
from acclimate.cluster.cluster_options import DEFAULT_SHARDS, LARGE_JOB_IMAGES, ClusterOptions
from acclimate.cluster.connection import connect, send_plugins
from acclimate.cluster.encoding import EncoderSetup, start_encoding
from acclimate.cluster.filesystem import FileSystemError, storage_of
from acclimate.cluster.machines import MachineLostError, MachineWatch, check_access
from acclimate.cluster.output_folder import CHECKPOINT, OutputFolder
from acclimate.cluster.passes import FirstPass, answer_again
from acclimate.errors import AcclimateError, InputError, RunError, StateError, count
from acclimate.images.opening import URL
from acclimate.methods import duplicate, state_to_bytes
from acclimate.methods.gates import NearDuplicates
from acclimate.sources.source import Sample

MAX_FAILURES = 3  # a job gives up after so many failures without progress


class ClusterRun:
    """A classification of many images on a cluster that Ray is connected to.

    Blocks of images are rounded up to whole batches of the encoder, and the images that `merged` begins with in order
    to whole blocks. An encoder on a GPU starts its readers per block: give it blocks of several thousand images.

    Args:
        options: the options, after `fit_to`; those of `--workers` and `--resume` are arguments here.
        classifier: made by the driver: labels, method, state, gates. Workers load the model by its name.
        samples: the images, in order; every machine must be able to read them.
        workers: the least and the most encoders.
        progress: called with the stage, "classifying" or "answering once more", and the images that it has done.
        stop: True stops the run; it can be resumed.

    Attributes:
        out: the folder of the results: a parquet file per block.
        state: path or URL to which the state is written at the end.
        blocks: number of blocks of the stream.
        ordered_blocks: blocks that are adapted to in order, before several are at a time; the stream may have fewer.
        summary: sums over the predictions, after the run.
        kept: images that were done before, if the run was resumed; their second pass may not have been.
        was_complete: True if nothing was left to do.

    Raises:
        InputError: the job cannot be run so; the message says how it can.
    """

    def __init__(
        self,
        options: ClusterOptions,
        classifier: Classifier,
        samples: Sequence[Sample],
        workers: tuple[int, int] = (1, 1),
        progress: Callable[[str, int], None] = lambda stage, done: None,
        stop: Callable[[], bool] = lambda: False,
    ) -> None:
        check_policy(options.policy, classifier)
        if is_tensor(classifier.head.class_vectors):  # features come from other machines, and are on the host
            move(classifier.adapter, classifier.gates, np.empty(0, np.float32))
        self.options = options
        self.classifier = classifier
        self.samples = samples
        self.workers = workers
        self.progress = progress
        self.stop = stop
        self.out = OutputFolder(str(options.out))
        self.state = None if options.freeze or options.state is None else str(options.state)
        self.shards = options.shards or (DEFAULT_SHARDS if options.policy == "merged" else 1)
        default_passes = 1 if options.policy == "merged" and classifier.learns else 2
        self.passes = count_passes(classifier, options.passes or default_passes)
        batch = max(1, classifier.batch_size // classifier.views)
        every = options.every or (256 if len(samples) < LARGE_JOB_IMAGES else 1024)
        self.every = -(-every // batch) * batch
        self.blocks = -(-len(samples) // self.every)
        self.ordered_blocks = 0 if self.shards == 1 else -(-options.ordered_first // self.every)
        self.summary = Summary()
        self.kept = 0
        self.was_complete = False
        self._identity = self._identify()
        self._setup = EncoderSetup.of(classifier, options, remote=any(URL.match(each.name) for each in samples[:1]))

    def _identify(self) -> dict[str, Any]:
        """Return what must be the same to resume the job.

        A checkpoint is compared with the method, its settings and the labels; complete results have none any more.
        """
        classifier = self.classifier
        images = hashlib.sha256()
        for sample in self.samples:
            images.update(f"{sample.name}\0{sample.label}\0".encode(errors="backslashreplace"))
        return job_identity(classifier, self.options.top_k, self.passes) | {
            "method": classifier.adapter.name,
            "choice of settings": _digest(classifier.adapter.settings),
            "list of labels": _digest(classifier.labels),
            "choice of templates": _digest(classifier.templates),
            "policy": self.options.policy,
            "number of shards": self.shards,
            "number of images between two exchanges": self.every,
            "number of images adapted to in order": self.ordered_blocks * self.every,
            "list of images": images.hexdigest(),
            "choice of --adapter-gpus": self.options.adapter_gpus > 0,
        }

    def describe_policy(self) -> str:
        """Return in words how the states adapt: one in order, or several that exchange what they learn."""
        if self.options.policy == "ordered":
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
        self.classifier.adapter = duplicate(done.adapter)  # what Ray gave is read-only
        for gate, remembered in zip(self.classifier.gates, done.gates, strict=True):
            gate.restore(remembered)
        self.summary = done.summary
        if done.position < self.blocks:
            return False
        if self.passes == 2:
            summary = self._retrying(self._second_pass, done)
            if summary is None:
                return False
            self.summary = summary
        self._retrying(self._finish, done)
        return True

    def _open(self, resume: bool, overwrite: bool) -> Checkpoint | None:
        """Return the checkpoint to begin with; None if everything is done."""
        if overwrite:
            self.out.claim()  # first, so that another run does not write what is removed
            self.out.remove_results()
        elif not resume:
            self.out.check_no_results()
        complete = self.out.read_complete(self._identity)
        if complete is not None:
            self.out.clean_up()
            self.summary = complete
            self.kept = complete.images
            self.was_complete = True
            return None
        self.out.claim()
        adapter = self.classifier.adapter
        if self.out.exists(CHECKPOINT):
            found = self.out.read_checkpoint(self._identity, adapter)
            self.kept = found.summary.images
            return found
        if self.out.parts():  # left by a job that was being overwritten, or by another program
            raise InputError(
                f"{self.out.url} has parts of results, and nothing that says how they were begun; --overwrite them, or "
                "choose another --out."
            )
        gates = [gate.dump() for gate in self.classifier.gates]
        new = Checkpoint(adapter, self._identity, 0, adapter.next_id, gates, Summary())
        self.out.write_checkpoint(new)  # exists before any part
        return new

    def _retrying(self, work: Callable[[Checkpoint], Any], begun: Checkpoint) -> Any:
        """Do a pass; after a failure that Ray could not make good, again from the last checkpoint."""
        self._done = begun
        failures = 0
        while True:
            before = self._done.position
            try:
                return work(self._done)
            except (RayError, MachineLostError, FileSystemError) as error:
                failure = error.cause if isinstance(error, RayTaskError) else error
                if isinstance(failure, AcclimateError) and not isinstance(failure, FileSystemError):
                    raise failure from None
            failures = 1 if self._done.position > before else failures + 1
            if failures > MAX_FAILURES:
                why = str(failure).strip().splitlines() or [type(failure).__name__]
                raise RunError(
                    f"the job failed {failures} times at the same place, the last time with: {why[-1].rstrip('.')}. "
                    "Look at the logs of Ray; then pass --resume to go on."
                ) from failure

    def _first_pass(self, done: Checkpoint) -> Checkpoint:
        if done.position == self.blocks:
            return done
        options = self.options
        machines = MachineWatch(options.cpus, options.gpus or 0.0, self.workers, options.adapter_gpus)
        encoding = start_encoding(
            self.samples, self.every, done.position, self._setup, machines, bars=options.ray_progress
        )
        try:
            whole = FirstPass(
                job=self._job(done),
                encoding=encoding,
                done=done,
                blocks=self.blocks,
                shards=self.shards,
                ordered_first=self.ordered_blocks,
                save=self._save,
                seconds=options.checkpoint_every,
                progress=partial(self.progress, "classifying"),
                stop=self.stop,
                machines=machines,
                adapter_gpus=options.adapter_gpus,
            ).run()
            if whole and options.ray_progress:
                ray.get(encoding.next.remote())  # the pipeline ends, and its bars with it
        finally:
            ray.kill(encoding)
        return self._done

    def _second_pass(self, done: Checkpoint) -> Summary | None:
        dim = self.classifier.head.dim
        shape = (self.classifier.views, dim) if self.classifier.views > 1 else (dim,)
        try:
            progress = partial(self.progress, "answering once more")
            return answer_again(self._job(done), done.adapter, shape, self.blocks, progress, self.stop)
        except StateError:
            self.out.check_owner()  # another run that is complete has removed the features
            raise

    def _finish(self, done: Checkpoint) -> None:
        self.out.check_owner()
        if self.state is not None:
            storage, name = storage_of(self.state)
            storage.write(name, state_to_bytes(self.classifier.adapter, self.classifier.notes))
        self.out.write_complete(self._identity, self.summary, self._about)

    def _save(self, done: Checkpoint) -> None:
        self.out.write_checkpoint(done)
        self._done = done

    def _job(self, done: Checkpoint) -> ClusterJob:
        return ClusterJob(
            head=self.classifier.head,
            gates=self.classifier.gates,
            first_id=done.first_id,
            learns=self.classifier.learns,
            top_k=self.options.top_k,
            unsure=self.classifier.unsure,
            keep=self.passes == 2,
            out=self.out,
            about={"acclimate": json.dumps(self._about)},
            device="cuda" if self.options.adapter_gpus else "",
        )

    @property
    def _about(self) -> dict[str, Any]:
        return {
            "policy": self.options.policy,
            "shards": self.shards,
            "every": self.every,
            "ordered_first": self.ordered_blocks * self.every,
            "passes": self.passes,
            "method": self.classifier.adapter.name,
            "model": self.classifier.model,
            "version": __version__,
        }


def check_policy(policy: str, classifier: Classifier) -> None:
    """Refuse a method that cannot adapt under a policy.

    Raises:
        InputError: the message says what can be done.
    """
    adapter = classifier.adapter
    if adapter.text is not None:
        raise InputError(
            f"the method {adapter.name!r} needs the model where it adapts, and on a cluster the model is elsewhere; "
            "use `acclimate classify`, or another method."
        )
    if policy == "merged" and classifier.learns and adapter.merges is None:
        raise InputError(
            f"states of {adapter.name!r} cannot be merged: what it learns depends on the order of the images; use "
            "--policy ordered."
        )
    if policy == "merged" and any(isinstance(gate, NearDuplicates) for gate in classifier.gates):
        raise InputError(
            "skipping duplicates compares each image with those before it; use --policy ordered, or keep them."
        )


def _digest(options: Any) -> str:
    """Identify options in every process; functions by their names."""
    text = json.dumps(options, sort_keys=True, default=lambda value: getattr(value, "__qualname__", str(type(value))))
    return hashlib.sha256(text.encode(errors="backslashreplace")).hexdigest()


def classify_on_cluster(
    options: ClusterOptions,
    samples: Sequence[Sample],
    out: OutputFolder,
    open_classifier: Callable[[ClusterOptions], Classifier],
    running: Callable[[Classifier, str], AbstractContextManager[tuple[Callable[..., None], Callable[[], bool]]]],
) -> tuple[ClusterRun, bool]:
    """Classify images on a cluster as the options say.

    Args:
        options: the options, after `check`.
        samples: the images, in order.
        out: the folder of the results.
        open_classifier: returns the classifier for the options of this process, which encodes the labels alone.
        running: returns the context of the run, given the classifier and the size of the cluster in words: a function
            that shows progress (stage, images done since its last call, their total, and more images that an earlier
            run had done), and one that returns True to stop.

    Returns:
        The run, and False if it was stopped.
    """
    shown = Counter[str]()  # stage -> images that its bar shows

    def progress(stage: str, done: int) -> None:
        earlier = max(0, min(run.kept, done) - shown[stage]) if stage == "classifying" else 0
        show(stage, done - shown[stage] - earlier, len(samples), earlier)
        shown[stage] = done

    with connect(options.address, log_to_driver=options.ray_progress) as there:
        options, workers = options.fit_to(there)
        if len(there.nodes) > 1:
            check_access(out, samples[0])
        classifier = open_classifier(options.for_driver())
        options.load_state(classifier)
        options.set_up(classifier)
        send_plugins()
        size = f"{count(len(there.nodes), 'node')}, {count(workers[1], 'encoder')}"
        with running(classifier, size) as (show, stop):
            run = ClusterRun(options, classifier, samples, workers, progress, stop)
            progress("classifying", 0)
            return run, run.run(options.resume, options.overwrite)
