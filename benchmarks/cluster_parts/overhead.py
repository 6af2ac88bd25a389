"""What Ray itself costs: the pipeline of the encoders with an encoder that does nothing, and the list of the images."""

import io
import tempfile
import tracemalloc
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
import ray
from PIL import Image
from ray import cloudpickle

from acclimate.cluster.connection import connect
from acclimate.cluster.encoding import EncodeBlocks, EncoderSetup, block_rows, start_encoding
from acclimate.cluster.listing import list_images
from acclimate.cluster.machines import MachineWatch
from acclimate.sources.source import Sample
from cluster_parts.figures import Figures

PART = "overhead"
IMAGES = 4  # per block: a pixel each, so that all the time is Ray's
EVERY = 1024  # of a real block


class Nothing:
    """An encoder that does nothing."""

    fingerprint = "nothing"
    dim = 512
    logit_scale = 100.0
    logit_bias = 0.0

    @staticmethod
    def prepare(image: Image.Image) -> np.ndarray:
        """Nothing."""
        return np.zeros(1, np.float32)

    def encode_images(self, images: list[np.ndarray]) -> np.ndarray:
        """The same feature for every image."""
        return np.full((len(images), self.dim), 1.0, np.float32)

    def encode_text(self, texts: list[str]) -> np.ndarray:
        """The same feature for every text."""
        return np.full((len(texts), self.dim), 1.0, np.float32)


def overhead(figures: Figures, quick: bool) -> None:
    """Measure blocks with one and two encoders, and the list."""
    blocks, files, turns = (24, 500, 1) if quick else (300, 20_000, 1)
    add = partial(figures.add, PART)
    content = io.BytesIO()
    Image.new("RGB", (1, 1)).save(content, "PNG")
    samples = [Sample(f"{place:09}.png", partial(bytes, content.getvalue())) for place in range(blocks * IMAGES)]
    setup = EncoderSetup(
        model=cloudpickle.dumps(Nothing()),
        loading={},
        preparing={"decoder": "pillow"},
        batch_size=IMAGES,
        workers=1,
        fingerprint=Nothing.fingerprint,
    )
    add("ms per block, in one process", 1e3 * _in_process(samples, setup) / blocks)
    with connect(num_cpus=2, object_store_memory=2**29):
        for workers in (1, 2):
            runs = [_on_ray(samples, setup, workers) for _ in range(turns)]
            add("s to the first block", min(first for first, _ in runs), shards=workers)
            add("ms per block, on Ray", 1e3 * min(rest for _, rest in runs) / (blocks - 1), shards=workers)
    _list(figures, files)
    tables(figures)


def _in_process(samples: list[Sample], setup: EncoderSetup) -> float:
    encode = EncodeBlocks(setup)
    blocks = [{name: [value] for name, value in row.items()} for row in block_rows(samples, IMAGES)]
    encode(blocks[0])  # loads the model
    began = perf_counter()
    for block in blocks:
        encode(block)
    return perf_counter() - began


def _on_ray(samples: list[Sample], setup: EncoderSetup, workers: int) -> tuple[float, float]:
    """Seconds to the first block, and from there to the last; two blocks are asked for ahead, as in a job."""
    began = perf_counter()
    times = []
    encoding = start_encoding(samples, IMAGES, 0, setup, MachineWatch(1.0, 0.0, (workers, workers)), bars=False)
    coming: list[Any] = [encoding.next.remote() for _ in range(3)]
    while ray.get(coming.pop(0)):
        times.append(perf_counter())
        coming.append(encoding.next.remote())
    ray.kill(encoding)
    return times[0] - began, times[-1] - times[0]


def _list(figures: Figures, files: int) -> None:
    """Bytes and seconds that a listed file costs the driver, and bytes of the rows that the encoders are given."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "photos")
        for place in range(files):
            path = folder / f"{place // 1000:04}" / f"photo-{place:09}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        began = perf_counter()
        list_images([str(folder)])
        figures.add(PART, "us per listed file", 1e6 * (perf_counter() - began) / files)
        tracemalloc.start()
        samples = list_images([str(folder)])
        figures.add(PART, "bytes per listed file", tracemalloc.get_traced_memory()[0] / files)
        tracemalloc.stop()
        rows = list(block_rows(samples, EVERY))
        figures.add(
            PART, "bytes per file in the rows of the encoders", sum(len(row["samples"]) for row in rows) / files
        )


def tables(figures: Figures) -> None:
    """Print what was measured."""
    if figures.of(PART, "ms per block, on Ray"):
        _blocks_table(figures)
    names = ("bytes per listed file", "bytes per file in the rows of the encoders", "us per listed file")
    rows = [(name, f"{each.value:,.0f}") for name in names for each in figures.of(PART, name)]
    about = "What each image of a local folder costs the driver, and the object store of Ray."
    figures.table("The list of the images", about, ("", "measured"), rows)


def _blocks_table(figures: Figures) -> None:
    value = partial(figures.value, PART)
    alone = value("ms per block, in one process")
    rows = [("in one process", f"{alone:.2f}", "", "")]
    for workers in (1, 2):
        ray_ms = value("ms per block, on Ray", shards=workers)
        first = value("s to the first block", shards=workers)
        batch_ms = (ray_ms - alone) / (EVERY / 32)
        rows.append((f"{workers} encoder{'s' * (workers > 1)}", f"{ray_ms:.2f}", f"{batch_ms:.3f}", f"{first:.1f}"))
    about = (
        f"An encoder that does nothing, and blocks of {IMAGES} images of one pixel: what a block costs whatever is in "
        f"it. A real block has {EVERY:,} images, 32 batches of 32, over which this is spread."
    )
    columns = ("", "ms per block", "ms of Ray per batch of 32", "s to the first block")
    figures.table("What Ray costs per block", about, columns, rows)
