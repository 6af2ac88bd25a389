"""Test-time adaptation of vision-language models: no labels, no training, no backpropagation."""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

# The public names by module. They are imported when they are first used, so that `acclimate --help` answers at once;
# type checkers and editors read `__init__.pyi`.
_MODULES = {
    "bench.evaluation": ("Evaluation", "evaluate"),
    "classifier": ("Classifier",),
    "encoders": ("load_encoder",),
    "errors": ("AcclimateError",),
    "evidence": ("Evidence", "Head"),
    "methods": (
        "BCA",
        "DMN",
        "DOTA",
        "MTA",
        "OGA",
        "SCA",
        "TDA",
        "TPT",
        "BoostAdapter",
        "CoCoOp",
        "CoOp",
        "DiffTPT",
        "FreeTTA",
        "Accord",
        "OnZeta",
        "Prior",
        "TipAdapter",
        "TipAdapterF",
        "Zero",
        "ZeroShot",
    ),
    "methods.adapter": ("Adapter", "Step"),
    "methods.corrections": ("Correction",),
    "methods.few_shot": ("FewShot",),
    "methods.merging": ("merge_states",),
    "methods.persist": ("load_state", "save_state", "state_from_bytes", "state_to_bytes"),
    "methods.registry": ("DEFAULT_METHOD", "create", "list_methods", "register"),
    "methods.second_pass": ("refine",),
    "methods.state": ("Sums", "Tensors"),
    "predict": ("Prediction",),
    "prompts": ("build_head",),
    "methods.reject": ("Rejector",),
    "stream": ("FeatureStream", "read_stream", "write_stream"),
}
_HOMES = {name: module for module, names in _MODULES.items() for name in names}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'acclimate' has no attribute {name!r}")
    value = getattr(import_module(f"acclimate.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
