"""The names of the package. `python tests/test_package.py` writes the stub that type checkers read."""

import re
from pathlib import Path

import pytest

import acclimate

STUB = Path(__file__).parents[1] / "src/acclimate/__init__.pyi"


def stub():
    """Return the stub of the package: every public name, imported from the module that defines it."""
    homes = acclimate._HOMES | {name: method.__module__ for name, method in acclimate._methods().items()}

    def order(name):
        return homes[name], not name.isupper(), not name[0].isupper(), name

    lines = [f"from {homes[name]} import {name} as {name}\n" for name in sorted(homes, key=order)]
    return "# Written by `make stub`.\n" + "".join(lines) + "\n__version__: str\n"


def test_every_public_name_is_there():
    for name in acclimate.__all__:
        assert getattr(acclimate, name) is not None
    assert {"TDA", "Accord", "CoOp", "Head", "create"} < set(acclimate.__all__)
    assert set(dir(acclimate)) == {*acclimate.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'TAD'"):
        acclimate.TAD  # noqa: B018


def test_type_checkers_see_the_same_names():
    assert STUB.read_text(encoding="utf-8") == stub(), "a public name was added or moved: run `make stub`"


def test_pages_name_the_version_of_the_library():
    for page in ("CITATION.cff", "README.md", "docs/own_method.md", "docs/cluster.md", "docs/serve.md"):
        text = (STUB.parents[2] / page).read_text(encoding="utf-8")
        named = re.findall(r"^ *version\W+([\d.]+)|\bacclimate-([\d.]+)-py3", text, re.MULTILINE)
        assert [cited or wheel for cited, wheel in named] == [acclimate.__version__], page


if __name__ == "__main__":
    STUB.write_text(stub(), encoding="utf-8")
