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
    refine,
    register,
    save_state,
    state_from_bytes,
    state_to_bytes,
)
from acclimate.predict import Prediction
from acclimate.prompts import build_head
from acclimate.stream import FeatureStream, read_stream, write_stream

__version__: str
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
    "refine",
    "register",
    "save_state",
    "state_from_bytes",
    "state_to_bytes",
    "write_stream",
]
