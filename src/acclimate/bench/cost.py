"""What a method costs: time and memory from the image file to the answer (read, prepare, views, encode, adapt)."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from time import perf_counter

import numpy as np

from acclimate.arrays import HostArray, to_host
from acclimate.bench import Advance
from acclimate.bench.datasets import Listing
from acclimate.bench.orders import take_order
from acclimate.bench.prequential import Outcome, Record, Variant, on_device
from acclimate.bench.results import Result, reset_peak_memory, summarise
from acclimate.bench.store import Setup, head_for, preparer_for
from acclimate.bench.suite import Job, prepared
from acclimate.bench.training import Trainer
from acclimate.encoders import Encoder
from acclimate.errors import RunError
from acclimate.methods import Adapter
from acclimate.reading.walk import encode_ahead, gpu_of
from acclimate.stream import FeatureStream

WARM_UP = 2  # images before the clock starts: the first ones pay for what is loaded and compiled once


def time_jobs(jobs: Sequence[Job], listing: Listing, encoder: Encoder, trainer: Trainer, limit: int) -> list[Result]:
    """Time jobs on the first `limit` images of a dataset in the setup's order, at batch size 1 and at the setup's."""
    results = []
    for job in jobs:
        setup = job.setup
        taken = take_order(setup.orders[0], len(listing), listing.labels, listing.domains)[:limit]
        part = replace(listing, paths=[listing.paths[place] for place in taken], labels=listing.labels[taken])
        variant = prepared(job, trainer, listing.dataset, head_for(setup, listing.dataset, encoder), encoder)
        for path in part.paths:  # so that the first row does not pay for a slow disk alone
            with suppress(OSError):  # reported below
                path.read_bytes()
        for size in dict.fromkeys((1, setup.batch_size)):
            with setup.progress(len(part), f"timing {variant.method} at batch size {size}", "images") as advance:
                results.append(measure(setup, variant, part, encoder, size, advance))
    return results


def measure(
    setup: Setup, variant: Variant, listing: Listing, encoder: Encoder, batch_size: int, progress: Advance
) -> Result:
    """The result of a variant on all images of a listing, with times and memory from the file to the answer.

    A batch counts every view, and holds at least one image.
    """
    device = gpu_of(encoder) or "numpy"
    head = on_device(head_for(setup, listing.dataset, encoder), device)
    prepare = preparer_for(setup, listing.dataset, encoder)

    def answer(adapter: Adapter, paths: Sequence[Path], progress: Advance) -> list[tuple[HostArray, HostArray]]:
        """The logits of zero-shot and of the adapter for each batch."""
        answers = []
        for batch in encode_ahead(paths, prepare, batch_size=batch_size, workers=setup.workers):
            for path, error in zip(batch.names, batch.errors, strict=True):
                if error is not None:
                    raise RunError(f"{path} cannot be read: {error}. Repair it, and run again.")
            evidence = head.observe(batch.features)
            answers.append((to_host(evidence.logits), to_host(adapter.adapt(evidence).logits)))
            progress(len(batch.names))
        return answers

    first = listing.paths[: max(WARM_UP, batch_size // prepare.views)]
    answer(variant.adapter(head, text=encoder), first, lambda images: None)
    adapter = variant.adapter(head, text=encoder)
    reset_peak_memory(device)
    began = perf_counter()
    answers = answer(adapter, listing.paths, progress)
    wall_s = perf_counter() - began
    runs = []
    for logits in zip(*answers, strict=True):
        record = Record(listing.labels, np.arange(len(listing)))
        record.wall_s = wall_s
        for block in logits:
            record.add(block)
        runs.append({setup.orders[0]: record.run()})
    nothing = np.empty((0, setup.views_of(listing.dataset), head.dim), np.float32)  # the features are not kept
    stream = FeatureStream(nothing, head, encoder=setup.model, views_kind=prepare.kind if prepare.views > 1 else "")
    zero_shot, adapted = (Outcome(variant, adapter, run, batch_size, device, {}) for run in runs)
    result = summarise(listing.dataset.key, stream, adapted, zero_shot, setup.prompts)
    return replace(result, end_to_end=True, cost={**result.cost, "baseline_s": None})
