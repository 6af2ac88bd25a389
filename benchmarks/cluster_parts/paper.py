"""What follows from the measured figures for many machines: computed, not measured. Each table says how.

Reads `cluster.csv` and, for the rates of a GPU, `gpu.csv` and `gpu.md` beside it.
"""

import csv
import re
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from pathlib import Path

from cluster_parts.adapters import CLASSES, DIM
from cluster_parts.figures import Figures

BILLION = 10**9
EVERY = 1024  # images of a block by default
# bytes of a number of a feature
FLOAT = 4
HALF = 2
WIDTH = 8  # states that one task merges
GIGABITS = 10  # per second and machine: an assumption
KILOBYTES = 58  # of a drawn JPEG file of 500 x 375, as in gpu.md
BEGIN = "<!-- begin computed -->"
END = "<!-- end computed -->"
H200S = (
    "an H200 with ViT-B/16 that decodes with nvJPEG, one that is fed by Pillow in 16 processes (both measured in one "
    "process, files to answers), and [one through Ray](results/cluster_gpu.md)."
)
Section = tuple[str, str, Sequence[str], list[tuple[str, ...]]]


@dataclass(frozen=True)
class Gpu:
    """What was measured on a GPU."""

    images: dict[str, float]  # images/s of files to answers, by decoder
    steps: dict[
        str, float
    ]  # seconds per sample of a step of an adapter, batch 1,024, by name such as "tda, 10 classes"

    @classmethod
    def read(cls, folder: Path) -> "Gpu":
        """What `gpu.csv` and `gpu.md` say."""
        with (folder / "gpu.csv").open(newline="", encoding="utf-8") as file:
            rates = {row["name"]: float(row["images/s"]) for row in csv.DictReader(file) if row["kind"] == "whole"}
        images = {name: rates[f"{name}, tda, batch 256"] for name in ("nvjpeg", "pillow")}
        if (folder / "cluster_gpu.csv").exists():  # of `cluster_gpu.py`
            with (folder / "cluster_gpu.csv").open(newline="", encoding="utf-8") as file:
                found = {row["what"]: float(row["images/s"]) for row in csv.DictReader(file)}
            images["ray"] = max(rate for name, rate in found.items() if name.startswith("tda, Ray"))
        section = (folder / "gpu.md").read_text(encoding="utf-8").partition("## A step of the adapter")[2]
        steps = {}
        for line in section.partition("\n## ")[0].splitlines():
            cells = [cell.strip() for cell in line.strip("|").split("|")]
            if len(cells) == 6 and re.fullmatch(r"[0-9.,]+", cells[4]):
                steps[cells[0]] = 1e-6 * float(cells[4].replace(",", ""))
        return cls(images, steps)


def states_moved(shards: int, width: int = WIDTH) -> int:
    """States that travel in one exchange, if every task runs on a machine of its own: up the tree, and to all shards.

    Examples:
        >>> states_moved(8)  # 8 up, the start of the round, and 8 down
        17
        >>> states_moved(64)  # 64 and 8 up, the start to 9 tasks, and 64 down
        145
    """
    moved = shards
    level = shards
    while level > 1:
        sizes = [min(width, level - first) for first in range(0, level, width)]
        moved += sum(size + 1 for size in sizes if size > 1)
        level = len(sizes)
    return moved


def levels(shards: int, width: int = WIDTH) -> int:
    """Levels of the tree of an exchange."""
    count = 0
    while shards > 1:
        shards = ceil(shards / width)
        count = count + 1
    return count


def chain_rate(figures: Figures, method: str, classes: int) -> float:
    """Samples per second of one ordered adapter on a CPU, in batches of 256 on Ray."""
    return figures.value("chain", "samples/s, tasks on Ray", method=method, classes=classes, every=256)


def feeds(figures: Figures, gpu: Gpu) -> Section:
    """How many encoders one ordered adapter can feed."""
    core = figures.value("whole", "images/s", stream="ordered, 1 encoder with 1 core")
    columns = (
        "adapter",
        "samples/s",
        f"cores of {core:.0f}/s",
        *(f"H200 of {rate:,.0f}/s" for rate in gpu.images.values()),
    )
    rows = []
    for method in figures.methods("chain"):
        for classes in CLASSES:
            rate = chain_rate(figures, method, classes)
            rows.append((f"{method}, {classes:,} classes, CPU", *_feeds(rate, gpu, core)))
    about = (
        "Encoders that one ordered adapter keeps busy: its samples/s over the images/s of an encoder. Adapter: "
        "measured here (tasks on Ray, one thread, batches of 256). Encoders: a core here with the bundled model, and "
        f"{H200S}"
    )
    return "How many encoders one ordered adapter feeds", about, columns, rows


def feeds_at_most(gpu: Gpu) -> Section:
    """How many GPUs one ordered adapter could feed, if handing on the state cost nothing."""
    columns = ("adapter", "samples/s", *(f"H200 of {rate:,.0f}/s" for rate in gpu.images.values()))
    names = [name for name in gpu.steps if re.fullmatch(r"(tda|accord), [0-9,]+ classes", name)]
    rows = [(f"{name}, on an H200", *_feeds(1 / gpu.steps[name], gpu)) for name in names]
    about = (
        "GPUs that encode for one ordered adapter on a GPU of its own: 1 / step over the images/s of an encoder, with "
        "the step of [gpu.md](results/gpu.md) (batch 1,024, warm caches). An upper bound: handing on the state from "
        f"block to block comes on top. Encoders: {H200S}"
    )
    return "How many GPUs one adapter on a GPU feeds, at most", about, columns, rows


def _feeds(rate: float, gpu: Gpu, *cores: float) -> tuple[str, ...]:
    return f"{rate:,.0f}", *(f"{rate / each:,.1f}" for each in (*cores, *gpu.images.values()))


def exchange_seconds(figures: Figures, method: str, classes: int, shards: int) -> float:
    """An exchange on as many machines as shards: per level a merge of eight, and the states over the network.

    A task of the tree receives up to eight states and the start; the merged state then leaves one machine for all
    others, which Ray does from machine to machine, so that it takes as long as about log2 of their number.
    """
    given = {"method": method, "classes": classes}
    merge = 1e-3 * figures.value("exchange", "ms, merge in one process", shards=8, **given)
    size = figures.value("exchange", "MB of a state that travels", **given)
    second = size * 8e-3 / GIGABITS  # one state over the network
    width = min(WIDTH, shards)
    return levels(shards) * (merge + (width + 1) * second) + max(1, (shards - 1).bit_length()) * second


def pays(figures: Figures) -> Section:
    """Samples per second of `merged`."""
    shards = (8, 64)
    sizes = (EVERY, 8 * EVERY)
    columns = (
        "",
        "ordered",
        *(f"{count} shards, N = {size:,}" for count in shards for size in sizes),
        "exchange, 8 / 64",
    )
    rows = []
    for method in figures.methods("chain"):
        for classes in CLASSES:
            rate = chain_rate(figures, method, classes)
            waits = {count: exchange_seconds(figures, method, classes, count) for count in shards}
            cells = [count * size / (size / rate + waits[count]) for count in shards for size in sizes]
            times = " / ".join(f"{1e3 * wait:,.0f} ms" for wait in waits.values())
            name = f"{method}, {classes:,} classes"
            rows.append((name, f"{rate:,.0f}", *(f"{cell:,.0f}" for cell in cells), times))
    about = (
        "Samples/s of all shards together, S x N / (N / ordered rate + exchange), one core per shard. The exchange is "
        "computed: levels of the tree x (a merge of 8, measured here, and 9 states over the network), and the way of "
        f"the merged state to all shards, log2(S) states; {GIGABITS} Gbit/s per machine is an assumption. `merged` "
        "pays when the encoders together are faster than the column `ordered`, and never before."
    )
    return "When `merged` pays", about, columns, rows


def traffic(figures: Figures) -> Section:
    """Gigabytes of states that a billion images move."""
    pairs = [(shards, size) for shards in (8, 64) for size in (EVERY, 8 * EVERY, 64 * EVERY)]
    columns = ("", "state, MB", *(f"{shards} x {size:,}" for shards, size in pairs), "ordered, at most")
    rows = []
    for method in figures.methods("exchange"):
        for classes in CLASSES:
            size = figures.value("exchange", "MB of a state that travels", method=method, classes=classes)
            cells = [size * states_moved(shards) * BILLION / (shards * every) for shards, every in pairs]
            block = EVERY * DIM * FLOAT / 1e6
            ordered = min(size, block) * BILLION / EVERY
            name = f"{method}, {classes:,} classes"
            rows.append((name, f"{size:.2f}", *(f"{cell / 1e3:,.0f}" for cell in (*cells, ordered))))
    about = (
        "Gigabytes that a billion images move between machines in states, for shards x N: state x "
        "(states per exchange) x 10^9 / (S x N), where an exchange of 8 shards moves "
        f"{states_moved(8)} states and one of 64 {states_moved(64)} (up the tree, the start of the round to the tasks "
        "that merge, and down to all shards), if each task is on a machine of its own. *Ordered*: per block of "
        f"{EVERY:,} either the state or the features travel, whichever is smaller, if Ray places the task where the "
        "larger one is."
    )
    return "What a billion images move in states", about, columns, rows


def billion(figures: Figures, gpu: Gpu) -> Section:
    """Everything else that a billion images cost, as far as it was measured."""
    names = {"nvjpeg": "nvJPEG", "pillow": "fed by Pillow in 16 processes", "ray": "through Ray"}
    items = [
        (f"GPU hours, H200, ViT-B/16, {names[name]}", BILLION / rate / 3600, "10^9 / images/s / 3600")
        for name, rate in gpu.images.items()
    ]
    items += [
        ("TB of files read", 1e3 * KILOBYTES * BILLION / 1e12, f"10^9 x {KILOBYTES} kB"),
        ("TB of features from encoders to adapters", BILLION * DIM * FLOAT / 1e12, f"10^9 x {DIM} x {FLOAT} bytes"),
        ("TB of features kept for a second pass", BILLION * DIM * HALF / 1e12, f"10^9 x {DIM} x {HALF} bytes"),
        ("files of results", BILLION / EVERY, f"10^9 / {EVERY:,}"),
    ]
    core = figures.of("whole", "images/s", stream="ordered, 1 encoder with 1 core")
    items += [("core hours, the bundled model", BILLION / each.value / 3600, "10^9 / images/s / 3600") for each in core]
    for classes in (10, 1000):
        given = {"method": "tda", "classes": classes, "every": 256}
        for each in figures.of("chain", "samples/s, tasks on Ray", **given):
            hours = BILLION / each.value / 3600
            name = f"hours of one ordered adapter, tda, {classes:,} classes"
            items.append((name, hours, "10^9 / samples/s / 3600"))
    rest = {
        ("overhead", "bytes per listed file"): "GB of the driver's memory for the list",
        ("overhead", "bytes per file in the rows of the encoders"): "GB of the object store for the list",
    }
    for key, name in rest.items():
        items += [(name, each.value * BILLION / 1e9, f"10^9 x {key[1]}") for each in figures.of(*key)]
    rows = [(name, _short(value), how) for name, value, how in items]
    about = (
        "Beside the states. The list of the images does not fit into one driver: a billion images are many jobs, each "
        "with a list of its own, and `--state` hands on what was learnt."
    )
    return "What else a billion images cost", about, ("", "computed", "from"), rows


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:,.1f}" if value >= 10 else f"{value:.2f}"


def paper(figures: Figures, beside: Path) -> str:
    """Print all tables; returns them as Markdown."""
    gpu = Gpu.read(beside)
    computed = Figures()
    for section in (
        feeds(figures, gpu),
        pays(figures),
        feeds_at_most(gpu),
        traffic(figures),
        billion(figures, gpu),
    ):
        computed.table(*section)
    return "\n\n".join(computed.sections)


def put_into(page: Path, text: str) -> None:
    """Replace what a page says between its two marks."""
    before, begin, rest = page.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit(f"{page} lacks the marks {BEGIN} and {END}.")
    page.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}", encoding="utf-8")
