"""`acclimate labels check`, and the same notes before a run."""

from PIL import Image

LABELS = "dgo, Equus caballus, animal, red color"


def test_labels_are_checked_alone_and_with_images(invoke, tmp_path):
    alone = invoke("labels", "check", LABELS)
    assert alone.stdout == ""
    assert "note: did you mean 'dog' for 'dgo'?" in alone.stderr
    assert "try 'horse' for 'Equus caballus'" in alone.stderr
    assert "answered through the nouns below them (animal 326)" in alone.stderr
    assert "note:" not in invoke("labels", "check", "cat, guitar").stderr
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    Image.new("RGB", (64, 64), "black").save(tmp_path / "black.png")
    seen = invoke("labels", "check", LABELS, tmp_path)
    rows = {line.rsplit(None, 2)[0].strip(): line.split()[-2:] for line in seen.stdout.splitlines()[1:]}
    assert list(rows) == LABELS.split(", ")
    assert rows["red color"] == ["2", "1"]
    assert sum(int(nearest) for nearest, _ in rows.values()) == 2
    assert "% of 2 images are much nearer to a noun than to any label." in seen.stderr
    assert "No image is nearest to" in seen.stderr


def test_classify_says_the_same_before_a_run(invoke, tmp_path):
    Image.new("RGB", (64, 64), "red").save(tmp_path / "red.png")
    report = tmp_path / "report.html"
    said = invoke("classify", tmp_path, "--labels", LABELS, "--report", report).stderr
    assert "did you mean 'dog' for 'dgo'?" in said
    assert "(animal 326); --no-expand leaves that out" in said
    assert "animal (326 kinds)" in report.read_text("utf-8")
    assert "below them" not in invoke("classify", tmp_path, "--labels", LABELS, "--no-expand").stderr
