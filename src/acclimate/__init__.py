"""Test-time adaptation of vision-language models: no labels, no training, no backpropagation."""

from importlib import import_module
from typing import Any

__version__ = "1.0.0"

# The public names by module; the methods are public, too, under the names of their classes. They are imported when they
# are first used, so that `acclimate --help` answers at once. Type checkers and editors read `__init__.pyi`, which
# `make stub` writes.
_MODULES = {
    "bench.evaluation": ("Evaluation", "evaluate"),
    "classifier": ("Classifier",),
    "encoders": ("load_encoder",),
    "errors": ("AcclimateError",),
    "evidence": ("Evidence", "Head"),
    "methods.adapter": ("Adapter", "Step"),
    "methods.corrections": ("Correction",),
    "methods.few_shot": ("FewShot",),
    "methods.gates": ("Rejector",),
    "methods.merging": ("merge_states",),
    "methods.persist": ("load_state", "save_state", "state_from_bytes", "state_to_bytes"),
    "methods.registry": ("DEFAULT_METHOD", "create", "list_methods", "register"),
    "methods.state": ("Sums", "Tensors"),
    "predict": ("Prediction",),
    "prompts": ("build_head",),
    "stream": ("FeatureStream", "read_stream", "write_stream"),
}
_HOMES = {name: f"acclimate.{module}" for module, names in _MODULES.items() for name in names}


def _methods() -> dict[str, Any]:
    from acclimate.methods.registry import own_methods

    return {method.__name__: method for method in own_methods()}


def _find_class(name: str) -> Any:
    from acclimate.methods.registry import find_class

    return find_class(name)


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return sorted([*_HOMES, *_methods()])
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif not name[:1].isupper() or (value := _find_class(name)) is None:
        raise AttributeError(f"module 'acclimate' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__getattr__("__all__"), "__version__"]
