"""Test-time adaptation of vision-language models: no labels, no training, no backpropagation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from acclimate.classifier import Classifier, Prediction
    from acclimate.errors import AcclimateError
    from acclimate.evidence import Evidence, observe, observe_views
    from acclimate.methods import TDA, Adapter, ZeroShot, create, list_methods, load, merge, register, save
    from acclimate.stream import FeatureStream, read_stream, write_stream

__all__ = [
    "TDA",
    "AcclimateError",
    "Adapter",
    "Classifier",
    "Evidence",
    "FeatureStream",
    "Prediction",
    "ZeroShot",
    "create",
    "list_methods",
    "load",
    "merge",
    "observe",
    "observe_views",
    "read_stream",
    "register",
    "save",
    "write_stream",
]

# Names are imported when they are first used, so that `acclimate --help` answers at once.
_HOMES = {
    "AcclimateError": "errors",
    "Classifier": "classifier",
    "Evidence": "evidence",
    "FeatureStream": "stream",
    "Prediction": "classifier",
    "observe": "evidence",
    "observe_views": "evidence",
    "read_stream": "stream",
    "write_stream": "stream",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'acclimate' has no attribute {name!r}")
    value = getattr(import_module(f"acclimate.{_HOMES.get(name, 'methods')}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
