"""Encoding of blocks of images with Ray Data: a pool of actors, each of which loads the model once.

The pipeline is run by an actor of its own, `Encoding`. It owns what the pool encodes, so features never visit the
driver, which is handed references only; and it can be killed, with the pool, at any time, which a pipeline that waits
for a lost machine cannot. Ray Data is imported where it is used: it takes seconds, and tasks that adapt do not need it.
"""

import logging
import math
import pickle
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import ray
from ray import cloudpickle

from acclimate.arrays import to_host
from acclimate.classifier import Classifier
from acclimate.cluster.cluster_options import ClusterOptions
from acclimate.cluster.machines import MachineWatch
from acclimate.encoders import load_encoder
from acclimate.encoders.loading import BUNDLED, PREFIXES, absolute_model
from acclimate.errors import AcclimateError, InputError, ModelError
from acclimate.images.opening import limit_pixels, pixel_limit
from acclimate.reading.walk import Preparer, encode_ahead
from acclimate.run import Batch
from acclimate.sources.source import Sample

AGAIN = "again: "  # prefix of the message of an error that may not recur


@dataclass(frozen=True)
class EncoderSetup:
    """The settings with which an actor loads the model and encodes images."""

    model: str | bytes  # a name, or a pickled encoder
    loading: Mapping[str, Any]  # options of `load_encoder`
    preparing: Mapping[str, Any]  # options of `Preparer`
    batch_size: int  # images, counting views
    workers: int  # threads per actor that read images
    fingerprint: str  # fingerprint of the driver's model
    pixels: int | None = field(default_factory=pixel_limit)  # largest image

    @classmethod
    def of(cls, classifier: Classifier, options: ClusterOptions, remote: bool = False) -> "EncoderSetup":
        """Return the setup that encodes as a classifier does, on actors with the CPUs and GPUs of the options.

        Images that are `remote` take longer to come, and more of them are read at a time.
        """
        threads = max(1, math.ceil(options.cpus))
        # The GPUs of a machine belong to those who asked Ray for them.
        device = "cpu" if options.device == "auto" and not options.gpus else options.device
        decoder = classifier.decoder if options.decoder == "auto" and not options.gpus else options.decoder
        return cls(
            model=_model(classifier),
            loading={
                "device": device,
                "precision": options.precision,
                "compile": options.compile,
                "threads": threads,
            },
            preparing={
                "views": classifier.preparer.views,
                "seed": classifier.preparer.seed,
                "kind": classifier.preparer.kind,
                "generator": classifier.preparer.generator,
                "upright": classifier.preparer.upright,
                "decoder": decoder,
            },
            batch_size=classifier.batch_size,
            workers=classifier.workers or max(threads + 1, 16 if remote else 0),
            fingerprint=classifier.encoder.fingerprint,
        )

    def load(self) -> Preparer:
        """Load the model; refuse one that is not the driver's."""
        limit_pixels(self.pixels)
        encoder = load_encoder(self.model, **self.loading) if isinstance(self.model, str) else pickle.loads(self.model)
        if encoder.fingerprint != self.fingerprint:
            raise ModelError(
                "the model of a node is not that of the driver: its weights or preprocessing differ. Copy the same "
                "files to all nodes."
            )
        return Preparer(encoder, **self.preparing)


def _model(classifier: Classifier) -> str | bytes:
    """Return the name of the model of a classifier; without a name, the pickled model."""
    if classifier.model.partition(":")[0] in (BUNDLED, *PREFIXES):
        return absolute_model(classifier.model)
    try:
        return bytes(cloudpickle.dumps(classifier.encoder))
    except Exception as error:  # pickling fails with many kinds of errors
        raise InputError(
            f"the encoder, a {type(classifier.encoder).__name__}, cannot be sent to other machines ({error}); give a "
            "model by its name, such as onnx:DIR, or an encoder that can be pickled."
        ) from error


class EncodeBlocks:
    """The function of an actor of the pool: a row of samples becomes a row of encoded batches.

    An error is put into the row, as text, and so arrives as it is, whatever Ray makes of errors.
    """

    def __init__(self, setup: EncoderSetup) -> None:
        self.setup = setup
        self.prepare: Preparer | None = None

    def __call__(self, rows: Mapping[str, Any]) -> dict[str, list[Any]]:
        """Encode the block of the one row."""
        content = b""
        why = ""
        try:
            self.prepare = self.prepare or self.setup.load()
            batches = encode_ahead(
                pickle.loads(rows["samples"][0]),
                self.prepare,
                start=int(rows["start"][0]),
                on_error="skip",
                batch_size=self.setup.batch_size,
                workers=self.setup.workers,
            )
            on_host = [batch._replace(features=to_host(batch.features)) for batch in batches]
            content = pickle.dumps(on_host, protocol=5)
        except AcclimateError as error:
            why = str(error)
        except Exception as error:  # the model's error; another attempt may succeed
            why = f"{AGAIN}{type(error).__name__}: {error}"
        return {"block": [int(rows["block"][0])], "content": [content], "error": [why]}


class Encoding:
    """The pipeline, which gives references to encoded blocks in order."""

    def __init__(self, blocks: Any, setup: EncoderSetup, machines: MachineWatch, bars: bool) -> None:
        from ray.data import ActorPoolStrategy

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        encoded = blocks.map_batches(
            EncodeBlocks,
            batch_size=1,
            fn_constructor_kwargs={"setup": setup},
            compute=ActorPoolStrategy(min_size=machines.pool[0], max_size=machines.pool[1]),
            num_cpus=machines.cpus,
            num_gpus=machines.gpus,
        )
        encoded.context.execution_options.preserve_order = True
        encoded.context.enable_progress_bars = bars
        self._bundles: Iterator[Any] = iter(encoded.iter_internal_ref_bundles())

    def next(self) -> list[Any]:
        """Return the reference to the next block, in a list so that only it is sent; empty after the last."""
        return next((list(bundle.block_refs) for bundle in self._bundles), [])


def block_rows(samples: Sequence[Sample], every: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of the blocks of a stream, from the block `first` on."""
    for number, start in enumerate(range(first * every, len(samples), every), first):
        yield {"block": number, "start": start, "samples": cloudpickle.dumps(list(samples[start : start + every]))}


def start_encoding(
    samples: Sequence[Sample], every: int, first: int, setup: EncoderSetup, machines: MachineWatch, bars: bool
) -> Any:
    """Begin to encode the blocks of `every` samples, from the block `first` on, with the pool of the watched machines.

    With `bars`, Ray Data shows its own progress bars where the driver shows what its workers print.
    """
    from ray.data import from_items
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    rows = list(block_rows(samples, every, first))
    blocks = from_items(rows, override_num_blocks=len(rows))
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=here)(Encoding)
    return actor.remote(blocks, setup, machines, bars)


def encoded_batches(block: Any, number: int) -> list[Batch]:
    """Return the batches of a block, an Arrow table of one row, that came out of the pipeline.

    Raises:
        ModelError: the block cannot be encoded.
        RuntimeError: it could not be encoded, but perhaps another time.
    """
    [row] = block.to_pylist()
    if row["error"].startswith(AGAIN):
        raise RuntimeError(row["error"].removeprefix(AGAIN))
    if row["error"]:
        raise ModelError(row["error"])
    if row["block"] != number:
        raise RuntimeError(f"block {row['block']} came in the place of {number}")
    batches: list[Batch] = pickle.loads(row["content"])
    return batches
