import importlib
import pickle
import subprocess
import sys

import pytest

from acclimate import TDA, create, list_methods, register
from acclimate.checks import check_adapter
from acclimate.errors import InputError
from acclimate.methods import find_method, load_plugin, loaded_plugins, registry
from own_methods import SHARPEN, install

pytestmark = pytest.mark.usefixtures("own_registry")


@pytest.fixture
def site(tmp_path, monkeypatch):
    """Return a folder of installed packages."""
    monkeypatch.syspath_prepend(tmp_path)
    importlib.invalidate_caches()
    return tmp_path


@pytest.mark.parametrize(
    ("code", "modules"),
    [
        ("import acclimate.methods", set()),
        ("acclimate.create('tda', acclimate.Head(np.eye(2), logit_scale=1.0))", {"paper.tda"}),
        ("acclimate.DOTA", {"rivals.dota"}),
        ("acclimate.Classifier(['cat', 'dog'])", {"own.accord", "own.two_views"}),
    ],
)
def test_no_method_is_imported_that_was_not_asked_for(code, modules):
    rooms = tuple(f"{room}." for room in registry.ROOMS)
    show = f"print(*[name for name in sys.modules if name.startswith({rooms})])"
    script = f"import sys\nimport numpy as np\nimport acclimate\n{code}\n{show}"
    found = subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout
    assert set(found.split()) == {f"acclimate.methods.{module}" for module in modules}


def test_the_methods_of_this_library_are_named_as_their_modules():
    for method in registry.own_methods():
        stem = method.__module__.rpartition(".")[2]
        assert method.name == stem.replace("_", "-")
        assert method.__name__.lower() == stem.replace("_", "")
        assert registry.find_class(method.__name__) is find_method(method.name) is method
    assert registry.find_class("TwoViews") is None


def test_the_method_of_an_installed_package_is_imported_when_it_is_needed(site, stream):
    install(site)
    assert find_method("tda") is TDA
    with pytest.raises(InputError, match="did you mean 'sharpen'"):
        find_method("sharpem")
    assert "own_sharpen" not in sys.modules
    assert create("sharpen", stream.head, factor=3.0).settings == {"factor": 3.0}
    assert sys.modules["own_sharpen"].Sharpen is list_methods()["sharpen"]


def test_methods_of_installed_packages_are_listed(site):
    install(site)
    check_adapter(list_methods()["sharpen"])


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (
            {"code": "import nothing_of_the_kind"},
            r"'own-sharpen' \(own_sharpen:Sharpen\) cannot be imported: Mod",
        ),
        (
            {"value": "own_sharpen:acclimate", "code": "import acclimate"},
            "is not a subclass of acclimate.Adapter",
        ),
        ({"name": "blunt"}, "is not a subclass of acclimate.Adapter"),
    ],
)
def test_a_broken_package_is_left_out_and_refused_by_name(site, broken, message):
    install(site, **broken)
    with pytest.warns(UserWarning, match=message):
        assert "tda" in list_methods()
    with pytest.raises(InputError, match=message):
        find_method(broken.get("name", "sharpen"))


def test_a_package_cannot_take_the_name_of_a_method(site):
    install(site, name="tda", code=SHARPEN.replace("@acclimate.register", "").replace('"sharpen"', '"tda"'))
    with pytest.warns(UserWarning, match="the name 'tda' is taken by"):
        assert list_methods()["tda"] is TDA


def test_a_class_may_be_defined_again_but_not_replaced_by_another():
    def define(base):
        class Mine(base):
            name = "mine"

        return Mine

    first = define(TDA)
    second = define(TDA)
    register(first)
    assert find_method("mine") is first
    assert register(second) is find_method("mine") is second
    with pytest.raises(InputError, match="the name 'tda' is taken by"):

        @register
        class Other(TDA):
            pass


def test_a_file_is_imported_with_what_lies_beside_it(tmp_path, stream):
    (tmp_path / "beside_sharpen.py").write_text("FACTOR = 7.0")
    path = tmp_path / "sharpen.py"
    path.write_text("from beside_sharpen import FACTOR\n" + SHARPEN.replace("= 2.0", "= FACTOR"))
    load_plugin(path)
    load_plugin(path)
    assert loaded_plugins() == (path,)
    adapter = create("sharpen", stream.head)
    assert adapter.factor == 7.0
    assert pickle.loads(pickle.dumps(adapter)).factor == 7.0


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n\ny = x / 0\n", "plugin .*mine.py, line 3: ZeroDivisionError: division by zero"),
        ("x = 1\ny = (\n", r"mine.py, line 2: SyntaxError: '\(' was never closed"),
        ("import sys\nsys.exit()\n", "mine.py, line 2: SystemExit"),
        ("x = 1\0\n", "mine.py(, line 1)?: SyntaxError: source code .*null bytes"),
        ("x = 1\n", "mine.py registers no method; put @acclimate.register above its class"),
        (
            SHARPEN.replace('"sharpen"', '"tda"'),
            "mine.py, line 6: the name 'tda' is taken by acclimate.methods.paper.tda.TDA",
        ),
        (SHARPEN + "\n1 / 0\n", "mine.py, line 20: ZeroDivisionError"),
    ],
)
def test_a_file_that_cannot_be_used_changes_nothing(tmp_path, code, message):
    path = tmp_path / "mine.py"
    path.write_text(code)
    before = dict(registry._REGISTRY)
    with pytest.raises(InputError, match=message):
        load_plugin(path)
    assert before == registry._REGISTRY
    assert loaded_plugins() == ()


def test_no_file(tmp_path):
    for path in (tmp_path / "nowhere.py", tmp_path):
        with pytest.raises(InputError, match="no plugin at"):
            load_plugin(path)
