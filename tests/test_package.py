import ast
from importlib import import_module
from pathlib import Path

import pytest

import acclimate

ROOT = Path(__file__).parents[1]


def test_every_public_name_is_there():
    for name in acclimate.__all__:
        assert getattr(acclimate, name) is not None
    assert set(dir(acclimate)) == {*acclimate.__all__, "__version__"}
    with pytest.raises(AttributeError, match="no attribute 'TAD'"):
        acclimate.TAD  # noqa: B018


def test_type_checkers_see_the_same_names():
    stub = ast.parse((ROOT / "src/acclimate/__init__.pyi").read_text(encoding="utf-8"))
    imported = {
        (node.module, name.name) for node in stub.body if isinstance(node, ast.ImportFrom) for name in node.names
    }
    assert sorted(name for _, name in imported) == acclimate.__all__
    for module, name in imported:
        assert getattr(import_module(module), name) is getattr(acclimate, name)
