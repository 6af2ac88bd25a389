"""Doctests leave nothing behind: they run in an empty folder and do not use the user's cache."""

import pytest


@pytest.fixture(autouse=True)
def _isolated_doctests(request, tmp_path_factory, monkeypatch):
    if isinstance(request.node, pytest.DoctestItem):
        folder = tmp_path_factory.mktemp("doctest")
        monkeypatch.chdir(folder)
        monkeypatch.setenv("ACCLIMATE_CACHE", str(folder / "cache"))
