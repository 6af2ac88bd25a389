"""The tables of docs/scale.md are those that the recorded figures lead to."""

import sys
from pathlib import Path

import pytest

pytest.importorskip("pyarrow")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "docs" / "results"


@pytest.fixture
def parts(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    from cluster_parts import figures, paper

    yield figures, paper
    for name in [name for name in sys.modules if name.partition(".")[0] in ("cluster_parts", "adapter_speed")]:
        del sys.modules[name]


def test_the_computed_tables_follow_from_the_recorded_figures(parts, tmp_path, capsys):
    figures, paper = parts
    recorded = figures.Figures.read(RESULTS / "cluster.csv")
    page = tmp_path / "scale.md"
    page.write_text((ROOT / "docs" / "scale.md").read_text())
    paper.put_into(page, paper.paper(recorded, RESULTS))
    assert page.read_text() == (ROOT / "docs" / "scale.md").read_text()


def test_every_state_of_an_exchange_is_counted(parts):
    paper = parts[1]
    assert [paper.states_moved(shards) for shards in (1, 2, 8, 9)] == [1, 2 + 1 + 2, 8 + 1 + 8, 8 + 1 + 2 + 1 + 9]
    assert [paper.levels(shards) for shards in (1, 2, 8, 9, 64, 65)] == [0, 1, 1, 2, 2, 3]
