"""The options of a classification: combinations that are refused, and the same defaults everywhere."""

import inspect
from dataclasses import fields
from pathlib import Path

import pytest

from acclimate.classify.options import ClassifyOptions
from acclimate.classify.outputs import ResultFile
from acclimate.cli.classify import classify, cluster_classify
from acclimate.cluster.cluster_options import ClusterOptions
from acclimate.errors import LONGEST_TEXT, InputError


def options(**given):
    return ClassifyOptions(**{"source": ["photos"], "labels": "cat, dog", **given})


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"resume": True}, "--resume, --sort-into and --counts work from results"),
        ({"sort_into": Path("sorted")}, "--resume, --sort-into and --counts work from results"),
        ({"out": Path("r.csv"), "resume": True, "overwrite": True}, "pass one of them"),
        ({"fitted": Path("f.safetensors"), "method": "tda"}, "leave out --method, --set, --state"),
        ({"fitted": Path("f.safetensors"), "state": Path("s.safetensors")}, "leave out --method, --set, --state"),
        ({"origin": "x" * (LONGEST_TEXT + 1)}, "--origin must have"),
        ({"report": Path("r.pdf")}, r"cannot write r\.pdf: a report is HTML; choose a name that ends in \.html"),
        ({"report": Path("html")}, "a report is HTML"),
        ({"out": Path("r.csv"), "follow": True, "sort_into": Path("sorted")}, "has no end at which to sort"),
        ({"follow": True, "passes": 2}, "has no end at which to answer once more"),
        ({"follow": True, "source": ["a", "b"]}, "--follow takes one folder"),
        ({"follow": True, "truth": Path("truth.csv")}, "--follow waits for others"),
        ({"out": Path("r.csv"), "sort_into": Path("photos/sorted")}, "is in the folder of the images"),
        ({"out": Path("r.csv"), "sort_into": Path("photos")}, "is in the folder of the images"),
    ],
)
def test_combinations_that_are_refused(given, message):
    with pytest.raises(InputError, match=message):
        options(**given).check()


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"report": Path("x/r.HTM")},
        {"follow": True, "passes": 1},
        {"out": Path("r.csv"), "sort_into": Path("sorted"), "resume": True},
        {"labels": None, "fitted": Path("f.safetensors"), "freeze": True},
        {"origin": "x" * LONGEST_TEXT},
    ],
)
def test_combinations_that_are_allowed(given):
    options(**given).check()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"policy": "ordered", "shards": 2}, "--shards is for --policy merged"),
        ({"device": "cuda", "gpus": 0}, "pass --gpus 1"),
        ({"encoders": "2:1"}, "--workers takes a number, or LEAST:MOST"),
        ({"resume": True, "overwrite": True}, "pass one of them"),
    ],
)
def test_combinations_that_a_cluster_refuses(given, message):
    with pytest.raises(InputError, match=message):
        ClusterOptions(**{"source": ["photos"], "out": "results", **given}).check()


def test_files_that_are_refused(here):
    with pytest.raises(InputError, match="there is no folder no"):
        options(out=Path("no/r.csv")).check_files()
    with pytest.raises(InputError, match=r"there is none at s\.safetensors"):
        options(state=Path("s.safetensors"), freeze=True).check_files()
    options(out=Path("r.csv"), state=Path("s.safetensors")).check_files()
    (here / "r.csv").write_text("")
    with pytest.raises(InputError, match=r"r\.csv exists; pass --overwrite to replace it"):
        options(out=Path("r.csv")).check_files()
    ResultFile(here / "r.csv", 3).checkpoint.write_text("")
    with pytest.raises(InputError, match="pass --resume to continue it, or --overwrite to replace it"):
        options(out=Path("r.csv")).check_files()
    options(out=Path("r.csv"), resume=True).check_files()


@pytest.mark.parametrize(("command", "options"), [(classify, ClassifyOptions), (cluster_classify, ClusterOptions)])
def test_the_command_has_the_same_defaults(command, options):
    parameters = inspect.signature(command).parameters
    defaults = {each.name: each.default for each in fields(options)}
    shared = [name for name in parameters if name in defaults and parameters[name].default is not inspect._empty]
    assert {name: parameters[name].default for name in shared} == {name: defaults[name] for name in shared}
    assert parameters.keys() - defaults.keys() == {"plugin", "max_pixels"}
