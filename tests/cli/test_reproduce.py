"""`acclimate reproduce`, as a user runs it."""

import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from acclimate.checks.synthetic import shifted_stream
from acclimate.sources.datasets import DATASETS
from acclimate.stream import read_stream, write_stream
from miniatures import draw_dataset, few
from waiting import wait_until


@pytest.fixture
def streams(here):
    (here / "streams").mkdir()
    for seed, name in enumerate(("a", "b")):
        stream = shifted_stream(samples=200, classes=6, dim=16, seed=seed)
        stream = replace(stream, encoder="one for both")
        write_stream(stream, here / "streams" / f"{name}.safetensors")
    return ["streams/a.safetensors", "streams/b.safetensors"]  # a shell makes this of streams/*.safetensors


@pytest.fixture
def embed(invoke, tiny_onnx, here):
    """Encode miniatures with a tiny model, with one template for each class."""

    def embed(*keys, views=1):
        for key in keys:
            if not (here / "data" / DATASETS[key].folder).exists():
                draw_dataset(here / "data", DATASETS[key], few(3, 2))
            options = ("--data", "data", "--model", f"onnx:{tiny_onnx}", "--template", "single", "--views", views)
            invoke("embed", f"dataset:{key}", *options, "--out", f"{key}-{views}.run")
        return [f"{key}-{views}.run" for key in keys]

    return embed


def test_ablations_on_any_features(invoke, streams, here):
    result = invoke("reproduce", *streams, "--recipe", "caches", "--recipe", "alpha-beta", "--out", "out")
    assert "Caches: top-1 accuracy, % (measured / reported)" in result.stdout
    assert "a does not stand for a dataset of the paper: no dataset of the paper has this name." in result.stderr
    assert "1/2 a: tda, negative False " in result.stderr  # progress without a terminal
    page = (here / "out" / "README.md").read_text()
    assert "acclimate reproduce streams/*.safetensors --recipe caches --recipe alpha-beta --out out\n" in page
    assert "**These are not the paper's datasets.**" in page
    assert "In the paper each cache alone improves on zero-shot" in page
    for shown in (page, result.stdout):  # what the second figures are
        assert "(a) the model is not the paper's (OpenAI's CLIP RN50)." in shown
        assert "(b) the datasets and prompts are not the paper's." in shown
        assert "(c) the paper's figure is for Aircraft, Caltech101," in shown
    (both,) = (line for line in result.stdout.splitlines() if line.startswith("both "))
    assert " / 61.03 (a, b, c) " in both
    assert both.endswith(" \N{EN DASH} / 61.35")  # ImageNet was not measured
    written = {"README.md", "tables.tex", "runs", "caches.png", "alpha-beta.png"}
    assert {path.name for path in (here / "out").iterdir()} == written
    assert {path.name for path in (here / "out" / "runs").iterdir()} == {"a.json", "b.json"}
    assert r"\textbf{" in (here / "out" / "tables.tex").read_text()
    with_orders = invoke("reproduce", streams[0], "--recipe", "caches", "--orders", 3, "--out", "out2").stdout
    assert " ± " in with_orders


def test_suites_on_feature_files_of_the_papers_datasets(invoke, streams, here):
    stream = shifted_stream(samples=200, classes=10, dim=16)
    stream = replace(stream, encoder="OpenAI CLIP ViT-B/16", prompts="words of our own")
    write_stream(stream, here / "eurosat.safetensors")
    chosen = ("--recipe", "cross-domain", "--recipe", "caches")
    output = invoke("reproduce", "eurosat.safetensors", *streams, *chosen, "--out", "out")
    assert "b does not stand for a dataset of the paper: no dataset of the paper has this name." in output.stderr
    lack = "TPT is not measured on eurosat; it needs the text tower of a model: --model."
    assert f"cross-domain: {lack}" in output.stderr
    page = (here / "out" / "README.md").read_text()
    first = page.index("**These are the paper's datasets.**")
    second = page.index("**These are not the paper's datasets.**")
    assert first < page.index("| eurosat | 200 of 8,100 | 10 | words of our own |") < second
    assert f"- {lack}" in page
    assert "| CoOp | \N{EN DASH} / 46.39 |" in page
    for shown in (page, output.stdout):
        assert "(a) 200 of 8,100 images." in shown
        assert "(b) prompts: words of our own; in the paper: openai-80." in shown
    authors = [line for line in output.stdout.splitlines() if line.startswith("tda, authors-per-dataset ")]
    assert " / 58.00 (a, " in authors[0]


def test_without_matplotlib_the_pictures_are_left_out(invoke, streams, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("reproduce", streams[0], "--recipe", "caches")
    assert "the pictures are left out; plots need matplotlib: " in result.stderr
    assert ".png" not in (here / "results" / "README.md").read_text()
    assert not list((here / "results").glob("*.png"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["x.safetensors", "--recipe", "cache"], "unknown recipe 'cache'; did you mean 'caches'"),
        (["x.safetensors", "--recipe", "caches"], "no run or feature file at x.safetensors"),
        (
            ["streams/a.safetensors", "--recipe", "ood"],
            "no file stands for a dataset of ood (a: no dataset of the paper has this name).",
        ),
        (["streams/a.safetensors", "--recipe", "efficiency"], "no file stands for a dataset of efficiency"),
        (["streams/a.safetensors", "--recipe", "caches", "--method", "dota"], "--method and --set are for ood,"),
        (["streams/a.safetensors", "--set", "accord.rounds=1"], "'accord' is not among the methods of this run"),
    ],
)
def test_invalid_recipes_and_options_are_refused(invoke, streams, arguments, message):
    assert message in invoke("reproduce", *arguments, exit_code=2).stderr


def test_results_that_cannot_be_written(invoke, streams, here):
    (here / "taken").write_text("")
    command = ("reproduce", streams[0], "--recipe", "caches", "--out")
    assert "cannot write taken: Not a directory" in invoke(*command, "taken", exit_code=1).stderr
    (here / "out" / "README.md").mkdir(parents=True)
    assert "cannot write out/README.md" in invoke(*command, "out", exit_code=1).stderr


@pytest.mark.slow
@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stopped_command_keeps_what_is_done(streams, here, stop):
    stream = shifted_stream(samples=100_000, classes=6, dim=16)
    write_stream(stream, here / "streams" / "c.safetensors")
    command = ["reproduce", *streams, "streams/c.safetensors", "--recipe", "entropy-range", "--out", "out"]
    process = subprocess.Popen([sys.executable, "-m", "acclimate", *command], stderr=subprocess.PIPE, text=True)
    done = here / "out" / "runs" / "b.json"
    wait_until(lambda: done.is_file() or process.poll() is not None)
    process.send_signal(stop)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "stopped; the rows that are done are in out/runs." in errors
    assert not (here / "out" / "README.md").exists()
    assert len(json.loads(done.read_text())) == 20


@pytest.mark.slow
def test_runs_of_datasets(invoke, embed, here):
    files = [*embed("imagenet", "imagenet-a", "eurosat"), *embed("imagenet-a", views=64)]
    output = invoke("reproduce", *files, "--out", "out")
    page = (here / "out" / "README.md").read_text()
    assert "| method | minutes for 50,000 images | times zero-shot | accuracy, % | gain | ms per image |" in page
    assert "Natural distribution shifts" in output.stdout
    training = "it needs a run of ImageNet's training images: `acclimate embed dataset:imagenet#train:20 --views 16`"
    assert f"ood: Tip-Adapter is not measured on imagenet, imagenet-a; {training}." in output.stderr
    assert f"- Tip-Adapter is not measured on imagenet, imagenet-a; {training}." in page
    assert "cross-domain: Tip-Adapter" not in output.stderr  # it has no row there
    assert "| CoOp | \N{EN DASH} / 71.51 |" in page
    results = {path.stem: json.loads(path.read_text()) for path in (here / "out" / "runs").iterdir()}
    assert set(results) == {"imagenet", "imagenet-a", "eurosat"}
    rows = {(each["method"], each["views"], each["views_kind"]) for each in results["imagenet-a"]}
    assert rows == {("zero-shot", 1, ""), ("tda", 64, "augmix")}
    assert {each["settings"] for each in results["imagenet-a"]} == {"paper", "authors-per-dataset", "custom"}
    assert all(each["cost"]["encode_s"] > 0 for each in results["imagenet"])
    assert {each["order"] for name in results for each in results[name]} == {"shuffled:1"}
    names = ("ood", "efficiency", "cross-domain", "caches", "early")
    assert {f"{name}.png" for name in names} <= {path.name for path in (here / "out").glob("*.png")}
    times = page.split("### Efficiency")[1].split("\n## ")[0].splitlines()
    (tda,) = [line.split("|") for line in times if line.startswith("| tda |")]
    recorded = 1000 * read_stream(here / "imagenet-1.run").encode_s / 6  # six images
    assert float(tda[6]) > recorded


def test_a_row_takes_the_run_with_its_views_or_the_image_itself(invoke, embed, here):
    """The first view of several is the image itself, but says nothing of the time that it took."""
    (few_views,) = embed("eurosat", views=3)
    options = ("--recipe", "cross-domain", "--method", "tda", "--method", "mta", "--out")
    invoke("reproduce", few_views, *options, "out")
    rows = {each["method"]: each for each in json.loads((here / "out" / "runs" / "eurosat.json").read_text())}
    assert {name: (each["views"], each["cost"]["encode_s"] is None) for name, each in rows.items()} == {
        "zero-shot": (1, True),
        "tda": (1, True),
        "mta": (3, False),
    }
    stream = read_stream(here / few_views)
    first = stream.head.observe(stream.features[:][:, 0]).logits.argmax(axis=1)
    assert rows["zero-shot"]["metrics"]["acc1"] == pytest.approx((first == stream.targets).mean(), abs=1e-6)
    single = embed("eurosat")
    invoke("reproduce", few_views, *single, *options, "both")
    rows = json.loads((here / "both" / "runs" / "eurosat.json").read_text())
    assert {each["file"] for each in rows if each["method"] != "mta"} == {"eurosat-1"}


def test_prompts_are_the_papers_where_the_model_is_given(invoke, embed, tiny_onnx, here):
    (run,) = embed("eurosat")
    options = ("--recipe", "cross-domain", "--method", "accord", "--set", "accord.rounds=0", "--out", "out")
    invoke("reproduce", run, "--model", f"onnx:{tiny_onnx}", *options)
    rows = json.loads((here / "out" / "runs" / "eurosat.json").read_text())
    assert {(each["method"], each["prompts"], each["settings"]) for each in rows} == {
        ("zero-shot", "openai-80", "paper"),
        ("accord", "dataset", "given"),
    }
    page = (here / "out" / "README.md").read_text()
    assert f"--model onnx:{tiny_onnx} --method accord --set accord.rounds=0 --out out\n" in page
    assert "- accord, rounds 0: prompts dataset; views per image 1." in page
    error = invoke("reproduce", run, "--model", "bundled", *options, exit_code=2).stderr
    assert f"was encoded with onnx:{tiny_onnx}, which is not the model of --model" in error
    refused = invoke("reproduce", run, "--recipe", "cross-domain", "--method", "tip-adapter", exit_code=2).stderr
    assert "tip-adapter in cross-domain needs the classes that it was fitted to" in refused


def test_the_ablation_on_the_real_streams(invoke, shared, here):
    files = sorted((shared / "streams").glob("*.safetensors"))
    if not files:
        pytest.skip("the real streams are not on this machine")
    invoke("reproduce", *files, "--recipe", "caches", "--out", "out")
    page = (here / "out" / "README.md").read_text()
    assert "**These are not the paper's datasets.**" in page  # though named so
    rows = [line.split("|") for line in page.split("### ")[1].splitlines()]
    average = {row[1].strip(): float(row[-3].split("/")[0]) for row in rows if len(row) > 2 and "." in row[-3]}
    assert average["both"] > average["positive"] > average["zero-shot"]
    assert average["both"] > average["negative"] > average["zero-shot"]


def test_the_papers_tables_from_the_real_features(invoke, shared, here):
    files = sorted((shared / "clip").glob("*.safetensors"))
    if not files:
        pytest.skip("the features of the paper's datasets are not on this machine")
    output = invoke("reproduce", *files, "--recipe", "ood", "--recipe", "cross-domain", "--out", "out")
    assert "does not stand for" not in output.stderr
    page = (here / "out" / "README.md").read_text()
    assert "**These are the paper's datasets.**" in page
    assert "| imagenet | 5,000 of 50,000 | 1,000 |" in page
    assert "| method | Aircraft | Caltech101 | EuroSAT | Pets | UCF101 | Average of 5 of 10 |" in page
    gains = page.split("Table 3): gain over zero-shot")[1]
    (tda,) = (line for line in gains.splitlines() if line.startswith("| tda |"))
    assert all(float(cell.split("/")[0]) > 0 for cell in tda.split("|")[2:-1])
