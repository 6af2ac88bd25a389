"""Test-time adaptation of vision-language models: no labels, no training, no backpropagation."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from acclimate.classifier import Classifier
    from acclimate.encoders import load_encoder
    from acclimate.errors import AcclimateError
    from acclimate.evidence import Evidence, Head
    from acclimate.methods import (
        DEFAULT_METHOD,
        DOTA,
        MTA,
        TDA,
        Adapter,
        Prior,
        Step,
        Sums,
        Zero,
        ZeroShot,
        create,
        list_methods,
        load_state,
        merge_states,
        register,
        save_state,
        state_from_bytes,
        state_to_bytes,
    )
    from acclimate.predict import Prediction
    from acclimate.prompts import build_head
    from acclimate.stream import FeatureStream, read_stream, write_stream

__all__ = [
    "DEFAULT_METHOD",
    "DOTA",
    "MTA",
    "TDA",
    "AcclimateError",
    "Adapter",
    "Classifier",
    "Evidence",
    "FeatureStream",
    "Head",
    "Prediction",
    "Prior",
    "Step",
    "Sums",
    "Zero",
    "ZeroShot",
    "build_head",
    "create",
    "list_methods",
    "load_encoder",
    "load_state",
    "merge_states",
    "read_stream",
    "register",
    "save_state",
    "state_from_bytes",
    "state_to_bytes",
    "write_stream",
]

# Names are imported when they are first used, so that `acclimate --help` answers at once.
_HOMES = {
    "AcclimateError": "errors",
    "Classifier": "classifier",
    "Evidence": "evidence",
    "FeatureStream": "stream",
    "Head": "evidence",
    "Prediction": "predict",
    "build_head": "prompts",
    "load_encoder": "encoders",
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
