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
from acclimate.encoders import Encoder, load_encoder
from acclimate.encoders.loading import BUNDLED, PREFIXES, absolute_model
from acclimate.errors import AcclimateError, InputError, ModelError
from acclimate.images.opening import limit_pixels, pixel_limit
from acclimate.reading.walk import Batch, Preparer, encode_ahead
from acclimate.sources.source import Sample

REMOTE_READERS = 16  # threads per encoder that read images over a network
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
        loading = {"device": device, "precision": options.precision, "compile": options.compile, "threads": threads}
        prepare = classifier.preparer
        preparing = {"views": prepare.views, "seed": prepare.seed, "kind": prepare.kind, "generator": prepare.generator}
        return cls(
            model=_model(classifier),
            loading=loading,
            preparing=preparing | {"upright": prepare.upright, "decoder": decoder},
            batch_size=classifier.batch_size,
            workers=classifier.workers or max(threads + 1, REMOTE_READERS if remote else 0),
            fingerprint=classifier.encoder.fingerprint,
        )

    def load(self) -> Preparer:
        """Load the model; refuse one that is not the driver's."""
        limit_pixels(self.pixels)
        model = self.model
        encoder = load_encoder(model, **self.loading) if isinstance(model, str) else pickle.loads(model)
        if encoder.fingerprint != self.fingerprint:
            raise ModelError(
                f"{model if isinstance(model, str) else 'the model'} of a node is not that of the driver: its weights "
                "or preprocessing differ. Copy the same files to all nodes."
            )
        return Preparer(encoder, **self.preparing)


def _model(classifier: Classifier) -> str | bytes:
    """Return the name of the model of a classifier; without a name, the pickled model."""
    name = classifier.model
    if name == BUNDLED or name.partition(":")[0] in PREFIXES:
        return absolute_model(name)
    encoder: Encoder = classifier.encoder
    try:
        return bytes(cloudpickle.dumps(encoder))
    except Exception as error:  # pickling fails with many kinds of errors
        raise InputError(
            f"the encoder, a {type(encoder).__name__}, cannot be sent to other machines ({error}); give a model by its "
            "name, such as onnx:DIR, or an encoder that can be pickled."
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
            samples: list[Sample] = pickle.loads(rows["samples"][0])
            content = pickle.dumps(self.encode(self.prepare, samples, int(rows["start"][0])), protocol=5)
        except AcclimateError as error:
            why = str(error)
        except Exception as error:  # the model's error; another attempt may succeed
            why = f"{AGAIN}{type(error).__name__}: {error}"
        return {"block": [int(rows["block"][0])], "content": [content], "error": [why]}

    def encode(self, prepare: Preparer, samples: Sequence[Sample], start: int) -> list[Batch]:
        """Return the encoded batches of a block that begins at a position of the stream, on the host."""
        reading: dict[str, Any] = {"batch_size": self.setup.batch_size, "workers": self.setup.workers}
        batches = encode_ahead(samples, prepare, start=start, on_error="skip", **reading)
        return [batch._replace(features=to_host(batch.features)) for batch in batches]


class Encoding:
    """The pipeline, which gives references to encoded blocks in order."""

    def __init__(
        self, blocks: Any, setup: EncoderSetup, pool: tuple[int, int], cpus: float, gpus: float, bars: bool
    ) -> None:
        from ray.data import ActorPoolStrategy

        logging.getLogger("ray.data").setLevel(logging.ERROR)
        encoded = blocks.map_batches(
            EncodeBlocks,
            batch_size=1,
            fn_constructor_kwargs={"setup": setup},
            compute=ActorPoolStrategy(min_size=pool[0], max_size=pool[1]),
            num_cpus=cpus,
            num_gpus=gpus,
        )
        encoded.context.execution_options.preserve_order = True
        encoded.context.enable_progress_bars = bars
        self._bundles: Iterator[Any] = iter(encoded.iter_internal_ref_bundles())

    def next(self) -> list[Any]:
        """Return the reference to the next block, in a list so that only it is sent; empty after the last."""
        for bundle in self._bundles:
            [ref] = bundle.block_refs
            return [ref]
        return []


def block_rows(samples: Sequence[Sample], every: int, first: int = 0) -> Iterator[dict[str, Any]]:
    """Yield the rows of the blocks of a stream, from the block `first` on."""
    for number, start in enumerate(range(first * every, len(samples), every), first):
        yield {"block": number, "start": start, "samples": cloudpickle.dumps(list(samples[start : start + every]))}


def start_encoding(
    samples: Sequence[Sample],
    every: int,
    first: int,
    setup: EncoderSetup,
    pool: tuple[int, int],
    cpus: float,
    gpus: float,
    bars: bool = False,
) -> Any:
    """Begin to encode the blocks of `every` samples, from the block `first` on, on the driver's machine.

    With `bars`, Ray Data shows its own progress bars where the driver shows what its workers print.
    """
    from ray.data import from_items
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    rows = list(block_rows(samples, every, first))
    blocks = from_items(rows, override_num_blocks=len(rows))
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=False)
    actor = ray.remote(num_cpus=0, max_restarts=0, scheduling_strategy=here)(Encoding)
    return actor.remote(blocks, setup, pool, cpus, gpus, bars)


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
