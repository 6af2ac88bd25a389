import json
import sys

import pytest

from acclimate.errors import MissingExtraError, install_command, missing


@pytest.fixture
def installed_from(tmp_path, monkeypatch):
    """Return a function that makes this process believe that acclimate was installed in a certain way."""
    monkeypatch.setattr("sys.executable", "/opt/tool/bin/python")
    place = tmp_path / "site-packages" / "acclimate-9.dist-info"
    place.mkdir(parents=True)
    (place / "METADATA").write_text("Metadata-Version: 2.1\nName: acclimate\nVersion: 9\n")
    monkeypatch.syspath_prepend(place.parent)

    def install(origin):
        (place / "direct_url.json").write_text(json.dumps(origin))

    return install


def test_an_extra_is_installed_from_where_the_package_came_from(installed_from, tmp_path, monkeypatch):
    pip = "/opt/tool/bin/python -m pip install"
    checkout = tmp_path / "a checkout"
    assert install_command("plot") == f'{pip} "acclimate[plot]"'
    installed_from({"url": checkout.as_uri(), "dir_info": {"editable": True}})
    assert install_command("plot") == f'{pip} "acclimate[plot]"', "the checkout is gone"
    checkout.mkdir()
    assert install_command("plot") == f'{pip} -e "{checkout}[plot]"'
    monkeypatch.chdir(checkout)
    assert install_command("plot") == f'{pip} -e ".[plot]"'
    installed_from({"url": checkout.as_uri(), "dir_info": {}})  # pipx install .
    assert install_command("plot") == f'{pip} ".[plot]"'


@pytest.mark.usefixtures("installed_from")
def test_it_is_installed_into_the_environment_that_runs(monkeypatch):
    monkeypatch.setattr("shutil.which", lambda name: sys.executable)
    assert install_command("serve") == 'python -m pip install "acclimate[serve]"'
    monkeypatch.setattr("sys.executable", "/home/my name/python")
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    monkeypatch.setattr("shutil.which", lambda name: None)
    assert install_command("serve") == 'uv pip install --python "/home/my name/python" "acclimate[serve]"'


def test_the_error_says_what_needs_which_and_what_else_to_do():
    error = missing("plots need matplotlib", "plot", "or leave out --plot")
    assert isinstance(error, MissingExtraError)
    assert str(error).startswith("plots need matplotlib: ")
    assert str(error).endswith('[plot]"; or leave out --plot.')
