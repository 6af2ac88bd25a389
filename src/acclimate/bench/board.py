"""The results of a leaderboard: every run of every method, and the means, intervals and ranks that follow from them.

They are kept in two files, so that a run can be continued and methods can be added later: leaderboard.csv has every
run, and leaderboard.json says what was run, on which files, and how each method answered.
"""

import csv
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from acclimate.arrays import HostArray
from acclimate.bench.orders import SHAPES
from acclimate.bench.prequential import Variant
from acclimate.bench.results import Score, hardware, write_csv, write_page
from acclimate.errors import InputError
from acclimate.files import MAX_LIST, from_cell, open_text
from acclimate.methods import Adapter, find_method

Answered = Literal["online", "set"]
RESAMPLES = 2000
METRICS = ("acc1", "ece", "brier", "us")
COLUMNS = (
    *("stream", "shape", "seed", "samples", "method", "state_kb"),
    *METRICS,
    *(f"set_{name}" for name in METRICS),  # the same of answers to a whole set
)
TEXTS = ("stream", "shape", "method")  # columns; the others are numbers
Row = dict[str, Any]
Key = tuple[str, str, int, str]  # stream, shape, seed, title of the method


@dataclass(frozen=True)
class Standings:
    """The methods of one table by decreasing mean gain, M of them with S streams, H shapes and O orders.

    Attributes:
        titles: names of the methods.
        answered: in words, how each of them answers.
        streams: names of the streams.
        shapes: names of the shapes.
        values: scores (M, S, H, O) by name, with the gain over zero-shot; nan where a stream cannot take a shape.
    """

    titles: Sequence[str]
    answered: Sequence[str]
    streams: Sequence[str]
    shapes: Sequence[str]
    values: Mapping[str, HostArray]

    @cached_property
    def taken(self) -> HostArray:
        """One for each run (S, H, O) that was made, else zero."""
        return np.asarray(~np.isnan(self.values["gain"][0]), np.float64)

    def mean(self, name: str = "gain", weights: HostArray | None = None) -> HostArray:
        """Return means (..., M) over the shapes of the means over their runs, with weights (..., S, H, O) of the runs.

        Shapes whose runs have no weight do not count.
        """
        weights = self.taken if weights is None else weights
        sums = np.einsum("msho,...sho->...mh", np.nan_to_num(self.values[name]), weights)
        totals = weights.sum(axis=(-3, -1))[..., None, :]  # (..., 1, H)
        means = np.divide(sums, totals, out=np.zeros_like(sums), where=totals > 0)
        return np.asarray(means.sum(axis=-1) / (totals > 0).sum(axis=-1))

    def on(self, streams: Sequence[str], name: str = "gain") -> HostArray:
        """Return means (M,) over some streams alone."""
        return self.mean(name, self.taken * np.isin(self.streams, streams)[:, None, None])

    @cached_property
    def won(self) -> HostArray:
        """The share (M,) of cells (a stream in a shape) where the mean gain is the highest; equal ones share a cell."""
        cells = self.values["gain"].mean(axis=-1)[:, self.taken.any(axis=-1)]
        best = cells == cells.max(axis=0)
        return np.asarray((best / best.sum(axis=0)).mean(axis=1))

    @property
    def data_sets(self) -> dict[str, list[str]]:
        """The streams by data set: those whose names differ by the folder alone are of the same one."""
        found: dict[str, list[str]] = {}
        for name in self.streams:
            found.setdefault(name.rpartition("/")[2], []).append(name)
        return found

    @cached_property
    def without(self) -> dict[str, HostArray]:
        """Mean gains (M,) without each stream, and without each data set that has several; {} with one stream."""
        parts = {name: [name] for name in self.streams}
        parts |= {f"all {name}": each for name, each in self.data_sets.items() if len(each) > 1}
        rest = {title: [name for name in self.streams if name not in part] for title, part in parts.items()}
        return {title: self.on(names) for title, names in rest.items() if names}

    @cached_property
    def intervals(self) -> tuple[HostArray, HostArray]:
        """The 95 % intervals (M, 2) of the mean gains, and of their differences to that of the first method.

        Each of the draws takes data sets with replacement, and of each stream and shape orders with replacement: the
        same for all methods.
        """
        sets = list(self.data_sets)
        index = [sets.index(name.rpartition("/")[2]) for name in self.streams]
        orders = self.taken.shape[-1]
        rng = np.random.default_rng(0)
        drawn = rng.multinomial(len(sets), np.full(len(sets), 1 / len(sets)), RESAMPLES)[:, index]
        of_cell = rng.multinomial(orders, np.full(orders, 1 / orders), (RESAMPLES, *self.taken.shape[:2]))
        means = self.mean("gain", drawn[:, :, None, None] * of_cell * self.taken)  # (RESAMPLES, M)
        low_and_high = [np.quantile(each, [0.025, 0.975], axis=0).T for each in (means, means - means[:, :1])]
        return low_and_high[0], low_and_high[1]

    def lowest(self, method: int) -> tuple[float, str]:
        """Return the lowest gain of the runs of a method, and its stream and order."""
        gains = self.values["gain"][method]
        stream, shape, seed = map(int, np.unravel_index(np.nanargmin(gains), gains.shape))
        return float(gains[stream, shape, seed]), f"{self.streams[stream]}, {self.shapes[shape]}:{seed}"


@dataclass
class Board:
    """Every run of a leaderboard, and what they were.

    Attributes:
        protocol: the runs that every method makes: "streams" by name, each with a "sha256" of its file, "samples",
            "classes", and whether it is "unseen"; "shapes", "orders", "limit" and "passes".
        methods: of each method by its title, "settings", the way it answers "online" and a "set", where it does, and
            the place where the settings are "published".
        rows: the columns of leaderboard.csv, by stream, shape, seed and title.
        commands: those that made the runs.
        notes: sentences on what was left out.
        machines: the hardware of the runs.
    """

    protocol: dict[str, Any]
    methods: dict[str, dict[str, Any]] = field(default_factory=dict)
    rows: dict[Key, Row] = field(default_factory=dict)
    commands: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    machines: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, folder: Path) -> "Board":
        """Read what `save` wrote."""
        try:
            board = cls(**json.loads(open_text(folder / "leaderboard.json", MAX_LIST).read()))
            for line in csv.DictReader(open_text(folder / "leaderboard.csv", MAX_LIST)):
                row: Row = {
                    name: from_cell(line[name]) if name in TEXTS else json.loads(line[name] or "null")
                    for name in COLUMNS
                }
                board.rows[_key(row)] = row
        except FileNotFoundError as error:
            raise InputError(f"no leaderboard in {folder} to add to: {Path(error.filename).name} is missing.") from None
        except (ValueError, TypeError, KeyError) as error:
            raise InputError(f"the leaderboard in {folder} cannot be read ({error}); make it again.") from error
        return board

    def keep(self, scores: Sequence[Score], folder: Path) -> None:
        """Add the scores of one run, and save the board."""
        self.add(scores)
        self.save(folder)

    def save(self, folder: Path) -> None:
        """Write leaderboard.csv, sorted, and leaderboard.json."""
        rows = [self.rows[key] for key in sorted(self.rows)]
        write_csv([{name: row[name] for name in COLUMNS} for row in rows], folder / "leaderboard.csv")
        content = {name: value for name, value in vars(self).items() if name != "rows"}
        write_page([json.dumps(content, indent=1)], folder / "leaderboard.json")

    def check_same(self, protocol: Mapping[str, Any]) -> None:
        """Refuse a protocol that is not that of this board, which would compare different runs."""
        here, there = ({**each, "streams": "", **each["streams"]} for each in (protocol, self.protocol))
        for name in {**there, **here}:
            if here.get(name) != there.get(name):
                known = there.get(name, "nothing of that name")
                raise InputError(
                    f"{name} is not as on the board: it has {known}, and here is {here.get(name, 'nothing')}. "
                    "Give the files and options that the board was made of."
                )

    def enter(self, variant: Variant) -> None:
        """Enter a method, or check that it has the settings of the method of that title."""
        method = find_method(variant.method)
        again = self.protocol["passes"] == 2 and method.kind != "episodic"
        described = {
            "settings": json.loads(json.dumps(variant.config)),
            "online": None if method.kind == "collection" else how_answered(method, variant.config, "online"),
            "set": how_answered(method, variant.config, "set") if again else None,
            "published": method.published,
        }
        known = self.methods.setdefault(variant.title, described)
        if known["settings"] != described["settings"]:
            raise InputError(
                f"the board has {variant.title} with the settings {settings_text(known['settings'])}, "
                f"not {settings_text(described['settings'])}; make it again, or give the method another name."
            )

    def add(self, scores: Sequence[Score]) -> None:
        """Add the scores of one run; those of zero-shot must agree with those that are there, but for one answer."""
        for score in scores:
            title = score.label or score.method
            row: Row = {
                **dict.fromkeys(COLUMNS),
                "stream": score.stream,
                "shape": score.shape,
                "seed": score.seed,
                "samples": score.samples,
                "method": title,
                "state_kb": round(score.cost["state_bytes"] / 1000, 1),
            }
            known = self.rows.setdefault(_key(row), row)
            of_set = score.passes == 2 or find_method(score.method).kind == "collection"
            figures = {
                "acc1": round(score.accuracy, 4),
                "ece": round(score.ece or 0.0, 4),
                "brier": round(score.brier or 0.0, 4),
                "us": round(score.cost["us_per_sample"], 1),
            }
            if title == "zero-shot" and known["acc1"] is not None:
                if known["samples"] != score.samples or abs(known["acc1"] - figures["acc1"]) * score.samples > 1.5:
                    raise InputError(
                        f"zero-shot on {score.stream} in the order {score.order} is {100 * figures['acc1']:.2f} % of "
                        f"{score.samples} samples here, and {100 * known['acc1']:.2f} % of {known['samples']} on the "
                        "board: its runs cannot be compared with others of this version. Make it again."
                    )
            else:
                known |= {"set_" * of_set + name: value for name, value in figures.items()}
        self.machines = list(dict.fromkeys([*self.machines, hardware("numpy")]))

    def standings(self, answered: Answered) -> Standings:
        """Return the methods that answer online, or whole sets, beside zero-shot; they must have all runs."""
        titles = ["zero-shot", *(title for title, each in self.methods.items() if each[answered])]
        streams = list(self.protocol["streams"])
        shapes = [name for name in SHAPES if name in {row["shape"] for row in self.rows.values()}]
        size = (len(titles), len(streams), len(shapes), self.protocol["orders"])
        values = {name: np.full(size, np.nan) for name in (*METRICS, "state_kb")}
        for (stream, shape, seed, title), row in self.rows.items():
            if title in titles:
                at = (titles.index(title), streams.index(stream), shapes.index(shape), seed)
                prefix = "set_" if answered == "set" and title != "zero-shot" else ""
                for name, array in values.items():
                    array[at] = row["state_kb" if name == "state_kb" else prefix + name]
        values["gain"] = values["acc1"] - values["acc1"][:1]
        words = ["each by itself", *(self.methods[title][answered] for title in titles[1:])]
        ranks = np.argsort(-Standings(titles, words, streams, shapes, values).mean(), kind="stable")
        return Standings(
            [titles[i] for i in ranks],
            [words[i] for i in ranks],
            streams,
            shapes,
            {name: each[ranks] for name, each in values.items()},
        )


def how_answered(method: type[Adapter], settings: Mapping[str, Any], answered: Answered) -> str:
    """Return in words how a method answers online or a set."""
    if answered == "online":
        if method.answers_batches and settings["batch"] > 1:
            return f"in batches of {settings['batch']}"
        return "each by itself" if method.kind == "episodic" else "online"
    if method.kind == "collection":
        return "as a set"
    if rounds := settings.get("rounds", 0):
        return f"learnt anew in {rounds} round{'s' if rounds > 1 else ''}"
    return (
        "frozen and read once more"
        if method.second_pass_blocks is Adapter.second_pass_blocks
        else "by a second pass of its own"
    )


def settings_text(settings: Mapping[str, Any]) -> str:
    """Return settings as on the command line."""
    return ", ".join(f"{name}={value}" for name, value in settings.items()) or "none"


def _key(row: Row) -> Key:
    return row["stream"], row["shape"], row["seed"], row["method"]
