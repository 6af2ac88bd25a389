"""One answer: the same images, labels and settings give it, whichever way they come in."""

import json
import subprocess
import sys
from importlib.resources import files
from importlib.util import find_spec
from io import BytesIO
from pathlib import Path
from zipfile import ZipFile

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from acclimate import Classifier, read_stream
from acclimate.bench.prequential import Variant, compare
from acclimate.cli import app
from acclimate.prompts import kinds_of
from service_process import service

pytestmark = [pytest.mark.slow, pytest.mark.untraced]

LABELS = {
    "broad": ["clock", "fish", "flower", "house", "sailing boat", "tree"],
    "plain": ["clock", "guitar", "dog", "house", "sailing boat", "car"],
}
IMAGES = 100


@pytest.fixture(scope="module")
def pictures(tmp_path_factory):
    """Return a folder with a hundred pictures of the demo."""
    folder = tmp_path_factory.mktemp("pictures")
    with ZipFile(BytesIO((files("acclimate.cli") / "pictures.zip").read_bytes())) as archive:
        names = np.random.default_rng(0).permutation(sorted(archive.namelist())).tolist()
        for number, name in enumerate(names[:IMAGES]):
            (folder / f"{number:03}.webp").write_bytes(archive.read(name))
    return folder


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    """Return the address of a service with the bundled model."""
    with service("", tmp_path_factory.mktemp("service") / "state", "--model", "bundled") as (_, address):
        yield address


def command(*arguments):
    """Run a command; an error of it is raised."""
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output


def options(labels, expand, reject=False):
    """Return the options of commands."""
    given = ["--labels", ", ".join(labels), *(["--none-of-these"] if reject else [])]
    return given + ([] if expand else ["--no-expand"])


def answers_of(rows):
    """Return the labels and scores of results, online and of the second pass."""
    names = (("online_label", "online_score"), ("label", "score"))
    return [[(row[label], row[score]) for row in rows] for label, score in names]


def by_python(folder, work, labels, reject=False, expand=True):
    found = Classifier(labels, reject=reject, expand=expand).classify(sorted(folder.iterdir()))
    return [(each.online.label, each.online.score) for each in found], [(each.label, each.score) for each in found]


def by_classify(folder, work, labels, reject=False, expand=True):
    command("classify", folder, *options(labels, expand, reject), "--order", "path", "--out", work / "rows.jsonl")
    return answers_of([json.loads(line) for line in (work / "rows.jsonl").read_text().splitlines()])


def by_embed_and_run(folder, work, labels, reject=False, expand=True):
    """Answer stored features as `acclimate run` does, which prints accuracies only."""
    command("embed", folder, *options(labels, expand), "--out", work / "features.safetensors")
    stream = read_stream(work / "features.safetensors")
    outcome = compare(stream, [Variant("accord")], passes=2)[1]
    names = stream.head.class_names
    return [
        [(names[best], score) for best, score in zip(run.predictions, run.confidence, strict=True)]
        for run in (outcome.runs["stored"], outcome.second_pass["stored"])
    ]


def by_http(folder, address, labels, reject=False, expand=True):
    setup = {"labels": labels, "reject": reject, "skip_duplicates": False, **({} if expand else {"expand": False})}
    with httpx.Client(base_url=f"{address}/v1/streams", timeout=180) as client:
        client.put("/shop", json=setup).raise_for_status()
        for path in sorted(folder.iterdir()):
            client.post("/shop/classify", files={"image": path.read_bytes()}).raise_for_status()
        rows = client.get("/shop/answers", params={"again": True}).json()["answers"]
        client.delete("/shop").raise_for_status()
    return [[(answer["label"], answer["score"]) for answer in each] for each in (rows, [row["now"] for row in rows])]


def by_cluster(folder, work, labels, reject=False, expand=True):
    """Answer in a process of its own: Ray listens on 127.0.0.1 alone if nobody has imported it before."""
    import pyarrow.dataset

    given = [*options(labels, expand, reject), "--order", "path", "--cpus", "0.5", "--out", str(work / "rows")]
    words = [sys.executable, "-m", "acclimate", "cluster", "classify", str(folder), *given]
    done = subprocess.run(words, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return answers_of(pyarrow.dataset.dataset(str(work / "rows")).to_table().sort_by("index").to_pylist())


def same(found, expected):
    """Compare labels, and scores to 1e-3, of both passes."""
    for pass_found, pass_expected in zip(found, expected, strict=True):
        assert len(pass_found) == len(pass_expected) == IMAGES
        assert [label for label, _ in pass_found] == [label for label, _ in pass_expected]
        scores = [score for _, score in pass_found]
        np.testing.assert_allclose(scores, [score for _, score in pass_expected], atol=1e-3)


@pytest.fixture(scope="module", params=[*LABELS, "not expanded"])
def labels(request):
    """Return the labels, and whether broad ones are expanded."""
    return LABELS.get(request.param, LABELS["broad"]), request.param != "not expanded"


@pytest.fixture(scope="module", params=[False, True], ids=["", "reject"])
def reject(request):
    return request.param


@pytest.fixture(scope="module")
def expected(pictures, labels, reject):
    """Return the answers of `Classifier`."""
    return by_python(pictures, None, labels[0], reject, labels[1])


def test_the_labels_are_broad_and_plain():
    assert {*kinds_of(LABELS["broad"])} >= {"fish", "flower", "tree"}
    assert not kinds_of(LABELS["plain"])


def test_expansion_and_rejection_change_answers(pictures, labels, reject, expected):
    others = by_python(pictures, None, labels[0], reject, not labels[1])
    assert (others == expected) == (labels[0] == LABELS["plain"])
    assert any(label == "none of these" for label, _ in expected[0]) == reject


def test_classify(pictures, labels, reject, expected, tmp_path):
    same(by_classify(pictures, tmp_path, labels[0], reject, labels[1]), expected)


def test_embed_and_run(pictures, labels, reject, expected, tmp_path):
    if reject:
        pytest.skip("`acclimate run` does not recognise images that belong to no label")
    same(by_embed_and_run(pictures, tmp_path, labels[0], expand=labels[1]), expected)


def test_http(pictures, labels, reject, expected, address):
    same(by_http(pictures, address, labels[0], reject, labels[1]), expected)


@pytest.mark.ray
@pytest.mark.skipif(find_spec("ray") is None, reason="a cluster needs Ray")
def test_the_cluster(pictures, labels, reject, expected, tmp_path):
    same(by_cluster(pictures, tmp_path, labels[0], reject, labels[1]), expected)


def test_labels_of_a_single_request(pictures, address):
    """The task of Hugging Face clients has no stream: its answers are those of a classifier that learns nothing."""
    path = sorted(Path(pictures).iterdir())[0]
    task = {"candidate_labels": LABELS["broad"], "hypothesis_template": "a photo of a {}."}
    for expand in (True, False):
        found = httpx.post(
            f"{address}/classify",
            params=task | {"expand": expand},
            content=path.read_bytes(),
            headers={"Content-Type": "image/webp"},
            timeout=180,
        )
        assert found.status_code == 200, found.text
        answers = Classifier(LABELS["broad"], expand=expand)(path, adapt=False)
        assert [each["label"] for each in found.json()] == [each["label"] for each in answers]
        scores = [each["score"] for each in found.json()]
        np.testing.assert_allclose(scores, [each["score"] for each in answers], atol=1e-3)
