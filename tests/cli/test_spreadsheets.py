"""Results for spreadsheets: times and folders, the style of csv files, Excel files."""

import csv
import json
from datetime import datetime

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from acclimate.classify.table import MARK, Table, read_results, sheet_rows, write_results, write_xlsx
from acclimate.encoders import load_encoder
from acclimate.errors import InputError
from acclimate.images.opening import date_taken, open_image
from acclimate.predict import Answer, Prediction
from acclimate.reading.walk import Preparer, ReadImage

openpyxl = pytest.importorskip("openpyxl")
TAKEN = "2024-05-12T07:33:10"


def predictions():
    names = ["north/a.jpg", "=b, c;d.jpg", "north/broken.jpg", "süd/d.jpg"]
    top = (Answer("cat", 0.75), Answer("=SUM(1)", 0.25))
    found = [Prediction(i, top, top[1], 0.5, name, online=top[0], taken=TAKEN) for i, name in enumerate(names)]
    found[2] = Prediction(2, name=names[2], error="not an image")
    return found


def written(path):
    Table(path, 2).write([predictions()])
    return path


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet", ".xlsx"])
def test_every_format_has_the_same_rows_before_and_after_they_are_rewritten(tmp_path, suffix):
    path = written(tmp_path / f"r{suffix}")
    for _ in range(2):
        found = read_results(path)
        assert [each["file"] for each in found] == [each.name for each in predictions()]
        assert [each["folder"] for each in found] == ["north", ".", "north", "süd"]
        assert [each["taken"] or None for each in found] == [TAKEN, TAKEN, None, TAKEN]
        assert [each["label"] or None for each in found] == ["cat", "cat", None, "cat"]
        assert found[0]["predictions"][1]["label"] == "=SUM(1)"
        assert float(found[0]["score"]) == 0.75
        assert [each["error"] or None for each in found] == [None, None, "not an image", None]
        write_results(path, found)
    assert [each.name for each in tmp_path.iterdir()] == [path.name]


def test_an_excel_file_has_times_numbers_and_no_formulas(tmp_path):
    sheet = openpyxl.load_workbook(written(tmp_path / "r.xlsx")).active
    header = [cell.value for cell in sheet[1]]
    row = dict(zip(header, sheet[3], strict=True))
    assert row["taken"].value == datetime.fromisoformat(TAKEN)
    assert (row["score"].value, row["changed"].value, row["index"].value) == (0.75, True, 1)
    assert (row["file"].value, row["label_2"].value) == ("=b, c;d.jpg", "=SUM(1)")
    assert row["file"].data_type == row["label_2"].data_type == "s"


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=30))
def test_any_text_comes_back_from_an_excel_file(tmp_path_factory, text):
    path = tmp_path_factory.mktemp("sheet") / "r.xlsx"
    with path.open("wb") as file:
        write_xlsx(file, [{"file": text, "other": "x", "predictions": []}], ["file", "other"])
    assert list(sheet_rows(path))[1] == [text or None, "x"]


def test_files_that_are_no_sheets_are_refused(tmp_path):
    (tmp_path / "r.xlsx").write_bytes(b"PK\x03\x04 not a sheet")
    with pytest.raises(InputError, match=r"r\.xlsx cannot be read as an Excel file .*; save it again, or as \.csv"):
        read_results(tmp_path / "r.xlsx")


@pytest.mark.parametrize("separator", [",", ";", "\t"])
@pytest.mark.parametrize("mark", ["", MARK])
def test_csv_keeps_the_style_of_a_spreadsheet(tmp_path, separator, mark):
    path = written(tmp_path / "r.csv")
    with path.open(encoding="utf-8-sig", newline="") as file:
        rows = list(csv.reader(file))
    rows = [[*row, "mine" if number == 0 else "seen; twice"] for number, row in enumerate(rows)]
    with path.open("w", encoding="utf-8", newline="") as file:
        file.write(mark)
        csv.writer(file, delimiter=separator, lineterminator="\n").writerows(rows)
    records = read_results(path)
    records[0]["correct_label"] = "dog"
    write_results(path, records)
    again = path.read_text("utf-8")
    assert again.startswith(f"{mark}file{separator}label{separator}score{separator}")
    found = read_results(path)
    assert found == records
    assert found[1]["mine"] == "seen; twice"


def test_images_say_when_they_were_taken(tmp_path):
    pytest.importorskip("torch")
    from acclimate.reading.gpu import ImageReader

    def photo(name, original="", changed="", turned=1, size=(900, 700), **options):
        exif = Image.Exif()
        exif[0x0112] = turned
        exif[0x0132] = changed
        exif.get_ifd(0x8769)[0x9003] = original
        pixels = np.zeros((*size, 3), np.uint8)
        Image.fromarray(pixels).convert(options.pop("mode", "RGB")).save(tmp_path / name, exif=exif, **options)
        return date_taken(open_image(tmp_path / name))

    colon = "2024:05:12 07:33:10"
    assert photo("a.jpg", colon, "2025:01:01 00:00:00") == TAKEN
    assert photo("turned.jpg", colon, turned=6) == TAKEN
    assert photo("grey.jpg", colon, mode="L") == TAKEN
    assert photo("changed.jpg", "", colon) == TAKEN
    reader = ImageReader(Preparer(load_encoder()))  # it keeps a plain JPEG for a GPU, and decodes others
    for keep in (True, False):
        read = reader.read(ReadImage(0, "a", None, source=(tmp_path / "a.jpg").read_bytes()), keep)
        assert (read.jpeg is not None, read.taken) == (keep, TAKEN)
    assert photo("a.webp", colon) == photo("a.png", colon) == TAKEN
    assert photo("zero.jpg", "0000:00:00 00:00:00") is None
    assert photo("none.jpg") is None
    assert photo("odd.jpg", "yesterday; \x00") is None


def test_a_run_writes_times_and_folders(invoke, tmp_path):
    exif = Image.Exif()
    exif[0x0132] = "2024:05:12 07:33:10"
    (tmp_path / "north").mkdir()
    Image.new("RGB", (40, 40), "red").save(tmp_path / "north/a.jpg", exif=exif)
    Image.new("RGB", (40, 40), "blue").save(tmp_path / "b.png")
    for out in ("a.csv", "r.jsonl", "b.xlsx"):
        invoke("classify", tmp_path, "--labels", "red, blue", "--out", tmp_path / out)
        found = {each["file"].rsplit("/")[-1]: each for each in read_results(tmp_path / out)}
        assert found["a.jpg"]["taken"] == TAKEN
        assert found["a.jpg"]["folder"] == f"{tmp_path}/north"
        assert not found["b.png"]["taken"]
    assert json.loads((tmp_path / "r.jsonl").read_text().splitlines()[0])["folder"]


def save_photos(folder):
    """Save photos of two places and two days, of which one cannot be read, and one says no day."""
    for name, colour, day in (("a", "red", 12), ("b", "blue", 12), ("c", "red", 13)):
        exif = Image.Exif()
        exif[0x0132] = f"2024:05:{day} 07:33:10"
        for place in ("north", "south"):
            (folder / place).mkdir(exist_ok=True)
            Image.new("RGB", (40, 40), colour).save(folder / place / f"{name}.jpg", exif=exif)
    Image.new("RGB", (40, 40), "red").save(folder / "south/d.png")
    (folder / "south/broken.jpg").write_bytes(b"no image")


@pytest.mark.parametrize("out", ["r.csv", "r.xlsx"])
def test_images_are_counted_by_day_folder_and_label(invoke, tmp_path, here, out):
    save_photos(tmp_path)
    options = ("--labels", "red, blue", "--out", out, "--counts", "folder, day,label", "--report", "r.html")
    said = invoke("classify", tmp_path, *options).stderr
    assert "Counts: r.counts.csv." in said
    with (here / "r.counts.csv").open(encoding="utf-8", newline="") as file:
        header, *rows = list(csv.reader(file))
    assert header == ["folder", "day", "label", "images"]
    assert sum(int(row[3]) for row in rows) == 7
    assert {(row[0].rsplit("/")[-1], row[1]) for row in rows} == {
        (place, day) for place in ("north", "south") for day in ("2024-05-12", "2024-05-13")
    } | {("south", "")}
    assert rows == sorted(rows)
    page = (here / "r.html").read_text("utf-8")
    assert "Images that could be read, by folder, day, label." in page
    records = read_results(here / out)
    records[0]["correct_label"] = "blue"
    write_results(here / out, records)
    invoke("correct", out)
    invoke("classify", *options[2:4], "--counts", "label", "--resume")
    corrected = sum((each["correct_label"] or each["label"]) == "blue" for each in read_results(here / out))
    assert f"blue,{corrected}\n" in (here / "r.counts.csv").read_text("utf-8")
    for wrong in ("species", "day,day", ""):
        assert "--counts takes some of day" in invoke("classify", tmp_path, *options[:5], wrong, exit_code=2).stderr


@pytest.mark.parametrize("name", ["labels.csv", "labels.xlsx"])
def test_a_table_of_labels_may_name_their_parents(invoke, tmp_path, here, name):
    save_photos(tmp_path)
    rows = [("Species", "Genus"), ("red", "warm"), ("orange", "warm"), ("blue", "cold"), ("green", None)]
    if name.endswith("csv"):
        (here / name).write_text("\n".join(";".join(cell or "" for cell in row) for row in rows), "utf-8")
    else:
        book = openpyxl.Workbook()
        for row in rows:
            book.active.append(row)
        book.save(here / name)
    options = ("--labels", name, "--out", "r.jsonl", "--report", "r.html", "--counts", "group")
    invoke("classify", tmp_path, *options)
    found = read_results(here / "r.jsonl")
    assert {each["group"] for each in found if not each["error"]} <= {"warm", "cold", "green"}
    assert all(0 < each["group_score"] <= 1 for each in found if not each["error"])
    assert found[-1]["group"] is found[-1]["group_score"] is None or not found[-1]["error"]
    assert "Images per group" in (here / "r.html").read_text("utf-8")
    assert (here / "r.counts.csv").read_text("utf-8").startswith("group,images\n")
    (here / "other.csv").write_text("label,colour\nred,warm\nblue,cold\n")
    said = invoke("classify", tmp_path, "--labels", "other.csv", "--out", "other.jsonl").stderr
    assert "note: of other.csv, only 'label' is used; name another column 'parent' to group." in said
    (here / "two.csv").write_text("label,parent\nred,warm\nblue,cold\nred,hot\n")
    said = invoke("classify", tmp_path, "--labels", "two.csv", exit_code=2).stderr
    assert "gives 'red' two parents: 'warm' and 'hot'" in said


def test_new_images_are_added_to_an_excel_file_that_a_person_has_extended(invoke, tmp_path, here):
    save_photos(tmp_path)
    options = ("--labels", "red, blue", "--out", "r.xlsx")
    invoke("classify", tmp_path, *options)
    before = read_results(here / "r.xlsx")
    book = openpyxl.load_workbook(here / "r.xlsx")
    book.active.cell(1, book.active.max_column + 1, "seen at")
    book.active.cell(2, book.active.max_column, datetime(2024, 5, 12, 7, 33).time())
    book.save(here / "r.xlsx")
    Image.new("RGB", (40, 40), "blue").save(tmp_path / "north/z.jpg")
    invoke("classify", tmp_path, *options, "--resume")
    after = read_results(here / "r.xlsx")
    assert [row["file"] for row in after[:-1]] == [row["file"] for row in before]
    assert after[-1]["file"].endswith("north/z.jpg")
    assert after[0]["seen at"] == "07:33:00"
    assert sorted(path.name for path in here.glob("r.*")) == ["r.run", "r.xlsx"]
