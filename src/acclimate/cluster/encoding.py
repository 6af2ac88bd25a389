"""Encoding of blocks of images with Ray Data: a pool of actors, each of which loads the model once and writes parts.

The pipeline is run by an actor of its own, `Pipeline`, so that it can be killed, with the pool, at any time, which a
pipeline that waits for a lost machine cannot. Nothing large passes through Ray: an encoder reads the images of a block,
writes the part, whole or not at all, and returns its number.
"""

import json
import logging
import math
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, sleep
from typing import Any

import ray
from ray import cloudpickle
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from acclimate.arrays import to_host
from acclimate.classifier import Classifier
from acclimate.classify.task import Encoding
from acclimate.cluster.machines import Pool, alive
from acclimate.cluster.run_folder import Block, RunFolder
from acclimate.encoders import load_encoder
from acclimate.encoders.loading import absolute_model
from acclimate.errors import AcclimateError, ModelError, RunError
from acclimate.images.opening import limit_pixels, pixel_limit
from acclimate.reading.walk import Preparer, encode_ahead, precision_of
from acclimate.run import part_bytes, part_name

TRIES = 3  # attempts to make a part, and to go on after Ray has failed
PAUSE_S = 1.0  # time between two attempts to make a part
POLL_S = 1.0  # interval between looks at whether the user stops the run
PATIENCE_S = 300.0  # time without a new part after which the machines are looked at


class StopRequest(Exception):  # noqa: N818 (it is not an error)
    """A user's request to stop the run."""


@dataclass(eq=False)
class Encoder:
    """The function of an actor of the pool: the row of a block becomes a part, and a row that says so.

    The model is loaded with the first block: Ray does not replace actors that cannot be constructed.
    """

    folder: RunFolder
    run_id: str
    model: Any  # its name, or an encoder
    loading: Mapping[str, Any]  # options of `load_encoder`
    preparing: Mapping[str, Any]  # options of `Preparer`
    reading: Mapping[str, Any]  # options of `encode_ahead`
    fingerprint: str  # fingerprint of the driver's model
    pixels: int | None = field(default_factory=pixel_limit)  # largest image
    prepare: Preparer | None = None  # None before the first block

    @staticmethod
    def options(classifier: Classifier, encoding: Encoding, pool: Pool, remote: bool = False) -> dict[str, Any]:
        """Return the options of encoders that encode as a classifier does; images that are `remote` come slowly."""
        threads = max(1, math.ceil(pool.cpus))
        preparer = classifier.preparer
        return {
            "model": absolute_model(encoding.model) if isinstance(encoding.model, str) else encoding.model,
            "loading": {
                "device": "auto" if pool.gpus else "cpu",  # GPUs belong to those who asked Ray for them
                "precision": encoding.precision,
                "compile": encoding.compile,
                "threads": threads,
            },
            "preparing": {
                "views": preparer.views,
                "seed": preparer.seed,
                "kind": preparer.kind,
                "generator": preparer.generator,
                "upright": preparer.upright,
                "decoder": encoding.decoder,
            },
            "reading": {
                "on_error": "skip",
                "batch_size": classifier.batch_size,
                "workers": max(threads + 1, 16 if remote else 0),
            },
            "fingerprint": classifier.encoder.fingerprint,
        }

    def __call__(self, rows: Mapping[str, Any]) -> dict[str, list[str]]:
        """Make the part of the block of the one row, unless it is there.

        An error is put into the row, and so arrives as it is, whatever Ray makes of errors.
        """
        block: Block = pickle.loads(rows["block"][0])
        done = {"number": block.number, "error": "", "features": {}}
        for _ in range(TRIES):
            try:
                done |= {"features": self.make(block), "error": ""}
                break
            except Exception as error:  # of the file system or the model; another attempt may succeed
                done["error"] = str(error) if isinstance(error, AcclimateError) else f"{type(error).__name__}: {error}"
                sleep(PAUSE_S)
        return {"done": [json.dumps(done)]}

    def make(self, block: Block) -> dict[str, str]:
        """Write the part of a block; returns what made the features, nothing if the part is there."""
        if self.folder.has_block(block, self.run_id):
            return {}
        self.prepare = self.prepare or self._load()
        batches = encode_ahead(block.samples, self.prepare, start=block.start, **self.reading)
        on_host = [batch._replace(features=to_host(batch.features)) for batch in batches]
        self.folder.save(part_name(block.number), part_bytes(self.run_id, on_host))
        encoder = self.prepare.encoder
        device = str(getattr(encoder, "device", "cpu"))
        return {"device": device, "precision": precision_of(encoder), "decoder": self.prepare.decoder}

    def _load(self) -> Preparer:
        """Load the model; refuse one that is not the driver's."""
        limit_pixels(self.pixels)
        encoder = load_encoder(self.model, **self.loading) if isinstance(self.model, str) else self.model
        if encoder.fingerprint != self.fingerprint:
            raise ModelError(
                "the model of a node is not that of the driver: its weights or preprocessing differ. Copy the same "
                "files to all nodes."
            )
        return Preparer(encoder, **self.preparing)


class Pipeline:
    """The pipeline, which tells of the blocks that are done, in any order."""

    def __init__(self, blocks: Sequence[Block], pool: Pool, **options: Any) -> None:
        from ray.data import ActorPoolStrategy, from_items

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        rows = [{"block": cloudpickle.dumps(block)} for block in blocks]
        done = from_items(rows, override_num_blocks=len(rows)).map_batches(
            Encoder,
            batch_size=1,
            fn_constructor_kwargs=options,
            compute=ActorPoolStrategy(min_size=1, max_size=pool.encoders),  # a pool of one can always start
            num_cpus=pool.cpus,
            num_gpus=pool.gpus,
        )
        done.context.enable_progress_bars = False
        self._bundles: Iterator[Any] = iter(done.iter_internal_ref_bundles())

    def next(self) -> list[dict[str, Any]]:
        """Return what came of the next blocks; nothing after the last."""
        bundle = next(self._bundles, None)
        tables = ray.get(list(bundle.block_refs)) if bundle else []
        return [json.loads(row["done"]) for table in tables for row in table.to_pylist()]


class Encoders:
    """The encoders of a run, which make its missing parts side by side; they are started again when Ray fails.

    Args:
        blocks: the missing parts, in order.
        pool: number and size of the encoders.
        stop: True stops the run.
        options: options of `Encoder`.

    Attributes:
        features: what makes the features, as the first encoder says; {} before.
    """

    def __init__(self, blocks: Sequence[Block], pool: Pool, stop: Callable[[], bool], **options: Any) -> None:
        self.features: dict[str, str] = {}
        self._missing = {block.number: block for block in blocks}
        self._pool = pool
        self._stop = stop
        self._options = options
        self._failures = 0
        if blocks:
            self._start()

    def wait_for(self, number: int) -> None:
        """Wait until a part is there.

        Raises:
            StopRequest: the user stops the run.
            RunError: it cannot be made.
        """
        while number in self._missing:
            try:
                self._receive()
            except RayError as error:
                self._failures += 1
                if self._failures > TRIES:
                    why = str(error).strip().splitlines()[-1].rstrip(".")
                    raise RunError(
                        f"Ray failed {self._failures} times in a row, the last time with: {why}. Look at its logs; "
                        "then pass --resume to go on."
                    ) from error
                self.close()
                self._start()

    def close(self) -> None:
        """End the encoders."""
        if self._missing:
            ray.kill(self._pipeline)

    def _start(self) -> None:
        here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
        actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=here)(Pipeline)
        self._nodes = {node["NodeID"] for node in alive()}
        self._pipeline = actor.remote(list(self._missing.values()), self._pool, **self._options)
        self._next = self._pipeline.next.remote()

    def _receive(self) -> None:
        """Wait until some blocks are done."""
        began = monotonic()
        while not ray.wait([self._next], timeout=POLL_S)[0]:
            if self._stop():
                raise StopRequest
            if monotonic() - began > PATIENCE_S:
                self._pool.check(nodes := alive())
                if self._nodes - {node["NodeID"] for node in nodes}:
                    raise RayError("a machine was lost, and no other one has made its parts")
        found = ray.get(self._next)
        if not found:
            raise RayError("blocks were lost")
        self._next = self._pipeline.next.remote()
        for done in found:
            if done["error"]:
                raise RunError(f"{done['error'].rstrip('.')}. What is encoded is kept: --resume goes on with it.")
            self._missing.pop(done["number"], None)
            self._failures = 0
            self.features = self.features or done["features"]
