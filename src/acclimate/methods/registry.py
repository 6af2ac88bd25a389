"""The registry: methods by name, those of this library, of installed packages and of single files.

A method of this library is a module of its own in one of the `ROOMS`, of the method's name; it is imported when it is
first asked for, and `register` notes what it defines. A package offers methods as entry points of the group
`acclimate.methods`, name -> class; they are imported when they are needed. A file is imported with `load_plugin`.
"""

import sys
import traceback
import warnings
import zlib
from importlib import import_module
from importlib.machinery import SourceFileLoader
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from pkgutil import iter_modules
from types import ModuleType
from typing import Any, TypeVar

from acclimate.errors import AcclimateError, InputError, nearest
from acclimate.evidence import Head
from acclimate.methods.adapter import Adapter, check_settings, require

DEFAULT_METHOD = "accord"
PACKAGE = "acclimate.methods"  # name of this package, and of the group of entry points
ROOMS = tuple(f"{PACKAGE}.{room}" for room in ("paper", "own", "rivals"))
AnyAdapter = TypeVar("AnyAdapter", bound=type[Adapter])
_REGISTRY: dict[str, type[Adapter]] = {}
_PLUGINS: list[Path] = []


def register(method: AnyAdapter) -> AnyAdapter:
    """Class decorator: make a method known by its name to `create`, `load_state`, `evaluate` and `Classifier`.

    A class that is defined again, as in a notebook, takes the place of the old one.

    Raises:
        InputError: another class has that name.

    Examples:
        >>> from acclimate import TDA, list_methods, register
        >>> list_methods()["tda"] is register(TDA)
        True
    """
    if not _is_own(method):
        _import_own(method.name)
    known = _REGISTRY.get(method.name, method)
    taken = f"{known.__module__}.{known.__qualname__}"
    if taken != f"{method.__module__}.{method.__qualname__}":
        raise InputError(f"the name {method.name!r} is taken by {taken}; give the method another name.")
    _REGISTRY[method.name] = method
    return method


def list_methods() -> dict[str, type[Adapter]]:
    """Return every known method by name; one of another package that cannot be used is left out with a warning.

    Examples:
        >>> from acclimate import list_methods
        >>> list_methods()["tda"].summary
        'positive and negative caches of the most useful samples of the stream'
    """
    own_methods()
    for entry in entry_points(group=PACKAGE):  # none is imported yet
        try:
            _register_entry_point(entry)
        except InputError as error:
            warnings.warn(f"left out: {error}", stacklevel=2)
    return dict(sorted(_REGISTRY.items()))


def own_methods() -> list[type[Adapter]]:
    """Return the methods of this library."""
    _import_own()
    return [method for method in _REGISTRY.values() if _is_own(method)]


def find_class(name: str) -> type[Adapter] | None:
    """Return the method of this library whose class has that name."""
    _import_own(name)
    return next((method for method in _REGISTRY.values() if _is_own(method) and method.__name__ == name), None)


def find_method(name: str) -> type[Adapter]:
    """Return the method of that name; only its own module or package is imported."""
    if name not in _REGISTRY:
        _import_own(name)
    if name not in _REGISTRY:
        entry = next(iter(entry_points(group=PACKAGE, name=name)), None)
        if entry is None:
            own_methods()
            known = sorted({*_REGISTRY, *entry_points(group=PACKAGE).names})
            own = "A method of your own must be imported first; on the command line: --plugin FILE.py."
            raise InputError(f"unknown method {name!r:.80}; {nearest(name, known)} {own}")
        _register_entry_point(entry)
    return _REGISTRY[name]


def takes_kinds(method: type[Adapter]) -> bool:
    """Return True if broad labels may have kinds; few-shot methods and learned prompts have labels as they are."""
    return method.kind != "few-shot" and "text" not in method.needs


def load_plugin(file: Path) -> None:
    """Import a Python file for the methods that it registers; it may import modules that lie beside it.

    Raises:
        InputError: there is no such file, it fails, or it registers no method.
    """
    if not file.is_file():
        raise InputError(f"no plugin at {file}; give a Python file that registers a method.")
    path = file.resolve()
    # The same in every process, so that its objects can be sent from one to another.
    name = f"acclimate_plugin_{path.stem}_{zlib.crc32(str(path).encode()):08x}"
    module = ModuleType(name)
    before = dict(_REGISTRY)
    module.__file__ = str(path)
    sys.modules[name] = module
    if str(path.parent) not in sys.path:
        sys.path.append(str(path.parent))
    try:
        SourceFileLoader(name, str(path)).exec_module(module)
    except (Exception, SystemExit) as error:
        own = {method.name: method for method in _REGISTRY.values() if _is_own(method)}
        _REGISTRY.clear()
        _REGISTRY.update(before | own)
        del sys.modules[name]
        what = error.msg if isinstance(error, SyntaxError) else str(error)
        kind = "" if isinstance(error, AcclimateError) else f"{type(error).__name__}: "
        lines = [each.lineno for each in traceback.extract_tb(error.__traceback__) if each.filename == str(path)]
        if isinstance(error, SyntaxError) and error.filename == str(path):
            lines.append(error.lineno)
        line = f", line {lines[-1]}" if lines and lines[-1] else ""
        raise InputError(f"the plugin {file}{line}: {kind}{what}") from error
    if all(_is_own(method) or before.get(method.name) is method for method in _REGISTRY.values()):
        raise InputError(f"the plugin {file} registers no method; put @acclimate.register above its class.")
    if path not in _PLUGINS:
        _PLUGINS.append(path)


def loaded_plugins() -> tuple[Path, ...]:
    """Return the files that were imported, for processes that need the same methods."""
    return tuple(_PLUGINS)


def create(name: str, head: Head, encoder: Any = None, origin: str = "", **settings: Any) -> Adapter:
    """Make an adapter by the name of its method.

    Args:
        name: the name of the method; see `list_methods`.
        head: the zero-shot classifier to start from.
        encoder: the model, for methods that need its text tower; others do not get it.
        origin: name of the stream; see `Adapter`.
        **settings: settings of the method.

    Examples:
        >>> import numpy as np
        >>> from acclimate import Head, create
        >>> create("tda", Head(np.eye(2), logit_scale=100.0), positive_capacity=5).settings["positive_capacity"]
        5
    """
    method = find_method(name)
    check_settings(method, settings)
    return method(head, origin=origin, **given_to(method, encoder), **settings)


def given_to(method: type[Adapter], encoder: Any) -> dict[str, Any]:
    """Return the arguments of a method that are no settings: the encoder, if it needs a text tower."""
    require(method, views=True, text=encoder is not None, labels=True)
    return {"encoder": encoder} if "text" in method.needs else {}


def _import_own(name: str | None = None) -> None:
    """Import the module of this library that is named like a method or its class, if there is one; None for all."""
    for room in ROOMS:
        for module in iter_modules(import_module(room).__path__):
            if name is None or _letters(module.name) == _letters(name):
                import_module(f"{room}.{module.name}")


def _letters(name: str) -> str:
    """Return a name for comparisons: that of a method ("free-tta"), its module (free_tta) or its class (FreeTTA)."""
    return name.replace("-", "").replace("_", "").lower()


def _is_own(method: type[Adapter]) -> bool:
    return method.__module__.startswith(ROOMS)


def _register_entry_point(entry: EntryPoint) -> None:
    of = f"the method {entry.name!r} of the package {entry.dist.name if entry.dist else entry.module!r} ({entry.value})"
    try:
        method = entry.load()
    except Exception as error:
        raise InputError(f"{of} cannot be imported: {type(error).__name__}: {error}") from error
    if not (isinstance(method, type) and issubclass(method, Adapter) and getattr(method, "name", "") == entry.name):
        raise InputError(f"{of} is not a subclass of acclimate.Adapter with that name.")
    try:
        register(method)
    except InputError as error:
        raise InputError(f"{of}: {error}") from None
