"""The quick ones of the attacks that `benchmarks/attacks.py` runs, each on a service or a command of its own."""

import pytest

from attacks import on_disk, on_files, on_service  # noqa: F401 (they register their attacks)
from attacks.cases import CASES

QUICK = (
    "aspect_bombs",
    "formulas",
    "hostile_folder",
    "loopback_hosts",
    "surrogates",
    "terminal_escapes",
    "tiff_tile",
    "tiny_large_images",
)


@pytest.mark.parametrize("name", QUICK)
def test_attack_is_held(name, tmp_path):
    seen = CASES[name].run(tmp_path)
    assert seen.tries
    assert not seen.problems
