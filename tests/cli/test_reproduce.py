"""`acclimate reproduce` and `acclimate tables`, as a user runs them."""

import json
import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from acclimate.bench.datasets import DATASETS
from acclimate.checks.synthetic import shifted_stream
from acclimate.stream import write_stream
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


def test_recipes_on_feature_files_in_one_command(invoke, streams, here):
    result = invoke("reproduce", "caches", "alpha-beta", "--streams", *streams, "--out", "out")
    assert "Caches: top-1 accuracy, % (measured / reported)" in result.stdout
    assert "a does not stand for a dataset of the paper: no dataset of the paper has this name." in result.stderr
    page = (here / "out" / "README.md").read_text()
    assert "acclimate reproduce caches alpha-beta --streams streams/*.safetensors --out out\n" in page
    assert "**These are not the paper's datasets.**" in page
    assert "In the paper each cache alone improves on zero-shot" in page
    for shown in (page, result.stdout):  # what the second figures are
        assert "(a) the model is not the paper's (OpenAI's CLIP RN50)." in shown
        assert "(b) the datasets and prompts are not the paper's." in shown
        assert "(c) the paper's figure is for Aircraft, Caltech101," in shown
    (both,) = (line for line in result.stdout.splitlines() if line.startswith("both "))
    assert " / 61.03 (a, b, c) " in both
    assert both.endswith(" \N{EN DASH} / 61.35")  # ImageNet was not measured
    assert {path.name for path in (here / "out").iterdir()} == {"README.md", "runs", "caches.png", "alpha-beta.png"}
    assert {path.name for path in (here / "out" / "runs").iterdir()} == {"a.json", "b.json"}
    with_orders = invoke("reproduce", "caches", "--streams", streams[0], "--orders", 3, "--out", "out2").stdout
    assert " ± " in with_orders
    assert f"--streams {streams[0]} --orders 3 --out out2" in (here / "out2" / "README.md").read_text()


def test_suites_on_feature_files_of_the_papers_datasets(invoke, streams, here):
    stream = shifted_stream(samples=200, classes=10, dim=16)
    stream = replace(stream, encoder="OpenAI CLIP ViT-B/16", prompts="words of our own")
    write_stream(stream, here / "eurosat.safetensors")
    files = ("--streams", "eurosat.safetensors", *streams)
    output = invoke("reproduce", "cross-domain", "caches", *files, "--out", "out")
    assert "b does not stand for a dataset of the paper: no dataset of the paper has this name." in output.stderr
    assert "not among the feature files: aircraft, caltech101, cars," in output.stderr
    assert "cross-domain: TPT is not measured; it needs the text tower of a model: --data." in output.stderr
    page = (here / "out" / "README.md").read_text()
    first = page.index("**These are the paper's datasets**")
    second = page.index("**These are not the paper's datasets.**")
    assert first < page.index("| eurosat | 200 of 8,100 | 10 | words of our own |") < second
    assert "- CoOp was not measured: it needs ImageNet's training images: --data." in page
    assert "| CoOp | \N{EN DASH} / 46.39 |" in page
    for shown in (page, output.stdout):
        assert "(a) 200 of 8,100 images." in shown
        assert "(b) prompts: words of our own; in the paper: openai-80." in shown
    authors = [line for line in output.stdout.splitlines() if line.startswith("tda, authors-per-dataset ")]
    assert " / 58.00 (a, " in authors[0]
    assert "| eurosat | imagenet |" in invoke("tables", "out").stdout  # the same groups from the JSON files


def test_without_matplotlib_the_pictures_are_left_out(invoke, streams, here, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    result = invoke("reproduce", "caches", "--streams", streams[0])
    assert "the pictures are left out; plots need matplotlib: " in result.stderr
    assert ".png" not in (here / "results" / "README.md").read_text()
    assert not list((here / "results").glob("*.png"))


def test_tables_from_results(invoke, streams, here):
    invoke("reproduce", "caches", "--streams", *streams, "--out", "out")
    page = invoke("tables", "out").stdout
    assert page.startswith("### Caches: top-1 accuracy, %")
    assert "| zero-shot |" in page
    (both,) = (line for line in page.splitlines() if line.startswith("| both |"))
    (measured,) = (
        result["metrics"]["acc1"]
        for result in json.loads((here / "out" / "runs" / "a.json").read_text())
        if result["method"] == "tda" and result["settings"] == "paper"
    )
    assert both.startswith(f"| both | {100 * measured:.2f} | ")
    invoke("tables", "out", "-f", "latex", "-o", "page.tex")
    assert r"\caption{Caches" in (here / "page.tex").read_text()
    invoke("tables", "out", "-f", "csv", "-o", "page.csv", "--plot", "gains.svg")
    lines = (here / "page.csv").read_text().splitlines()
    assert lines[0] == "table,context,row,column,measured,sd,reported,why"
    assert any(",both,a," in line and f",{round(100 * measured, 6)},,," in line for line in lines)
    assert "<!-- Caches -->" in (here / "gains.svg").read_text()
    assert "cannot draw gains.txt" in invoke("tables", "out", "--plot", "gains.txt", exit_code=2).stderr
    assert (
        "'html' is not one of 'markdown', 'latex', 'csv'" in invoke("tables", "out", "-f", "html", exit_code=2).stderr
    )


def test_tables_of_a_plain_run(invoke, streams):
    invoke("run", *streams, "--method", "zero-shot", "--method", "tda", "--json", "results.json")
    page = invoke("tables", "results.json").stdout
    assert "### Other streams and settings" in page
    assert "| method | a | b |" in page


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["cache", "--streams", "x.safetensors"], "unknown recipe 'cache'; choose from ood, efficiency"),
        (["caches", "x.safetensors"], "unknown recipe 'x.safetensors'"),
        (["caches"], "name recipes, and either --streams"),
        (["caches", "--data", "data"], "or --data with a folder and --model"),
        (["caches", "--streams", "x.safetensors", "--data", "data"], "either --streams"),
        (["caches", "--streams", "x.safetensors"], "no feature file at x.safetensors"),
        (
            ["ood", "--streams", "streams/a.safetensors"],
            "no feature file stands for a dataset of ood (a: no dataset of the paper has this name).",
        ),
        (["efficiency", "--streams", "streams/a.safetensors"], "efficiency measures the time from the image"),
        (["caches", "--streams", "streams/a.safetensors", "--method", "dota"], "--method and --set are for ood,"),
        (["ood", "--data", "data", "--model", "onnx:x"], "data contains none of imagenet, imagenet-adversarial"),
        (["caches", "--streams", "streams/a.safetensors", "--shots", "4"], "--shots and --generated are for --data"),
    ],
)
def test_invalid_recipes_and_options_are_refused(invoke, streams, arguments, message):
    result = invoke("reproduce", *arguments, exit_code=2)
    assert message in result.stderr


def test_results_that_cannot_be_written_or_read(invoke, streams, here):
    (here / "taken").write_text("")
    assert (
        "cannot write taken/runs: Not a directory"
        in invoke("reproduce", "caches", "--streams", streams[0], "--out", "taken", exit_code=1).stderr
    )
    (here / "out" / "README.md").mkdir(parents=True)
    assert (
        "cannot write out/README.md"
        in invoke("reproduce", "caches", "--streams", streams[0], "--out", "out", exit_code=1).stderr
    )
    assert "no results in" in invoke("tables", "streams", exit_code=2).stderr
    stream = shifted_stream(samples=20, classes=3, dim=8)
    write_stream(replace(stream, labels=None), here / "x.safetensors")
    invoke("run", "x.safetensors", "--json", "x.json")
    assert "have no labels" in invoke("tables", "x.json", exit_code=2).stderr


@pytest.mark.slow
def test_a_stopped_run_keeps_what_is_done(streams, here):
    stream = shifted_stream(samples=100_000, classes=6, dim=16)
    write_stream(stream, here / "streams" / "c.safetensors")
    command = ["reproduce", "entropy-range", "--streams", *streams, "streams/c.safetensors", "--out", "out"]
    process = subprocess.Popen([sys.executable, "-m", "acclimate", *command], stderr=subprocess.PIPE, text=True)
    done = here / "out" / "runs" / "b.json"
    wait_until(lambda: done.is_file() or process.poll() is not None)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate()
    assert process.returncode == 130, errors
    assert "stopped; the results so far are in" in errors
    assert not (here / "out" / "README.md").exists()
    assert len(json.loads(done.read_text())) == 21


@pytest.mark.slow
def test_recipes_on_datasets(invoke, tiny_onnx, here, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(here / "texts"))
    for key in ("imagenet", "imagenet-a", "eurosat"):
        draw_dataset(here / "data", DATASETS[key], few(3, 2))
    recipes = ("ood", "efficiency", "cross-domain", "caches", "mask-threshold")
    options = ("--data", "data", "--model", f"onnx:{tiny_onnx}", "--limit", 3, "--out", "out")
    output = invoke("reproduce", *recipes, *options)
    page = (here / "out" / "README.md").read_text()
    assert "| method | minutes for 50,000 images | times zero-shot | accuracy, % | gain | ms per image | MB |" in page
    assert page.count("Hardware: ") == 2  # batch size 1 and batches
    assert "Natural distribution shifts" in output.stdout
    assert "skipped, not in data: imagenet-v2, imagenet-r, imagenet-sketch, aircraft," in output.stderr
    training = "needs ImageNet's training images in data/imagenet/images/train."
    tower = "needs a text tower that takes embeddings: a CLIP model of hf:, local: or open_clip:."
    for row, needs in (("CoOp", training), ("Tip-Adapter", training), ("TPT", tower)):
        assert f"ood: {row} is not measured; it {needs}" in output.stderr
        assert f"- {row} was not measured: it {needs}" in page
    assert "cross-domain: DiffTPT is not measured; it needs generated images: --generated." in output.stderr
    assert "cross-domain: Tip-Adapter" not in output.stderr  # it has no row there
    assert "| CoOp | \N{EN DASH} / 71.51 |" in page
    results = {path.stem: json.loads(path.read_text()) for path in (here / "out" / "runs").iterdir()}
    assert set(results) == {"imagenet", "imagenet-a", "eurosat", "imagenet-times"}
    rows = {(each["method"], each["prompts"], each["views"], each["views_kind"]) for each in results["imagenet-a"]}
    assert rows == {("zero-shot", "openai-80", 1, ""), ("tda", "dataset", 64, "augmix")}
    assert {each["settings"] for each in results["imagenet-a"]} == {"paper", "authors-per-dataset"}
    assert all(result["cost"]["encode_s"] > 0 for result in results["imagenet"])
    times = {(each["method"], each["batch_size"]): each for each in results["imagenet-times"]}
    assert set(times) == {(method, size) for method in ("zero-shot", "tda") for size in (1, 64)}
    assert all(each["end_to_end"] and each["n"] == 3 and each["cost"]["wall_s"] > 0 for each in times.values())
    assert {path.name for path in (here / "out").glob("*.png")} == {f"{name}.png" for name in recipes}


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--method", "tad"], "unknown method 'tad'; did you mean 'tda'"),
        (["--generated", "nowhere"], "no folder of generated images at nowhere; make one with `acclimate generate`"),
        (["--method", "difftpt"], "difftpt in cross-domain needs generated images: --generated."),
        (["--method", "coop"], "coop in cross-domain needs ImageNet's training images in data/imagenet/images/train."),
        (["--method", "tip-adapter"], "tip-adapter in cross-domain needs the classes that it was fitted to"),
        (["--method", "tpt"], "tpt in cross-domain needs a text tower that takes embeddings"),
        (["--set", "accord.rounds=1"], "'accord' is not among the methods of this run"),
        (["--method", "tda", "--set", "alpha=1"], "alpha"),
    ],
)
def test_rows_that_cannot_be_run_are_refused_before_anything_is_encoded(invoke, tiny_onnx, here, options, message):
    draw_dataset(here / "data", DATASETS["eurosat"], few(3, 2))
    command = ("reproduce", "cross-domain", "--data", "data", "--model", f"onnx:{tiny_onnx}")
    assert message in invoke(*command, *options, exit_code=2).stderr
    assert {path.name for path in here.iterdir()} == {"data"}


def test_methods_of_ours_stand_beside_the_papers_rows(invoke, tiny_onnx, here, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_CACHE", str(here / "texts"))
    draw_dataset(here / "data", DATASETS["eurosat"], few(3, 2))
    options = ("--method", "accord", "--method", "mta", "--set", "accord.rounds=0")
    invoke("reproduce", "cross-domain", "--data", "data", "--model", f"onnx:{tiny_onnx}", *options, "--out", "out")
    rows = json.loads((here / "out" / "runs" / "eurosat.json").read_text())
    assert {
        (each["method"], each["prompts"], each["views"], each["views_kind"], each["settings"]) for each in rows
    } == {
        ("zero-shot", "openai-80", 1, "", "paper"),
        ("accord", "dataset", 1, "", "given"),
        ("mta", "dataset", 64, "crop", "paper"),
    }
    page = (here / "out" / "README.md").read_text()
    assert "--method accord --method mta --set accord.rounds=0 --out out\n" in page
    assert (
        "- accord, rounds 0: prompts dataset; views per image 1.\n- mta: prompts dataset; views per image 64 crop."
        in page
    )


def test_the_ablation_on_the_real_streams(invoke, shared, here):
    files = sorted((shared / "streams").glob("*.safetensors"))
    if not files:
        pytest.skip("the real streams are not on this machine")
    invoke("reproduce", "caches", "--streams", *files, "--out", "out")
    assert "**These are not the paper's datasets.**" in (here / "out" / "README.md").read_text()  # though named so
    rows = [line.split("|") for line in invoke("tables", "out").stdout.split("### ")[1].splitlines()]
    average = {row[1].strip(): float(row[-3].split("/")[0]) for row in rows if len(row) > 2 and "." in row[-3]}
    assert average["both"] > average["positive"] > average["zero-shot"]
    assert average["both"] > average["negative"] > average["zero-shot"]


def test_the_papers_tables_from_the_real_features(invoke, shared, here):
    files = sorted((shared / "clip").glob("*.safetensors"))
    if not files:
        pytest.skip("the features of the paper's datasets are not on this machine")
    output = invoke("reproduce", "ood", "cross-domain", "--streams", *files, "--out", "out")
    assert "does not stand for" not in output.stderr
    page = (here / "out" / "README.md").read_text()
    assert "**These are the paper's datasets**" in page
    assert "| imagenet | 5,000 of 50,000 | 1,000 |" in page
    assert "| method | Aircraft | Caltech101 | EuroSAT | Pets | UCF101 | Average of 5 of 10 |" in page
    gains = page.split("Table 3): gain over zero-shot")[1]
    (tda,) = (line for line in gains.splitlines() if line.startswith("| tda |"))
    assert all(float(cell.split("/")[0]) > 0 for cell in tda.split("|")[2:-1])
