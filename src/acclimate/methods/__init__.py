"""Methods: one per file. Importing this package registers every method."""

from acclimate.methods.base import (
    DEFAULT_METHOD,
    Adapter,
    Step,
    create,
    find_method,
    list_methods,
    refine,
    register,
    require,
)
from acclimate.methods.dota import DOTA
from acclimate.methods.mta import MTA
from acclimate.methods.persist import (
    duplicate,
    load_state,
    load_with_notes,
    merge_states,
    save_state,
    state_from_bytes,
    state_to_bytes,
)
from acclimate.methods.prior import Prior
from acclimate.methods.settings import check_settings
from acclimate.methods.state import CLASSES, DIM, Entry, State, Sums
from acclimate.methods.tda import TDA
from acclimate.methods.zero import Zero
from acclimate.methods.zero_shot import ZeroShot

__all__ = [
    "CLASSES",
    "DEFAULT_METHOD",
    "DIM",
    "DOTA",
    "MTA",
    "TDA",
    "Adapter",
    "Entry",
    "Prior",
    "State",
    "Step",
    "Sums",
    "Zero",
    "ZeroShot",
    "check_settings",
    "create",
    "duplicate",
    "find_method",
    "list_methods",
    "load_state",
    "load_with_notes",
    "merge_states",
    "refine",
    "register",
    "require",
    "save_state",
    "state_from_bytes",
    "state_to_bytes",
]
