"""Methods: one per file. Importing this package registers every method."""

from acclimate.methods.accord import Accord
from acclimate.methods.adapter import Adapter, Step, require
from acclimate.methods.bca import BCA
from acclimate.methods.boost import BoostAdapter
from acclimate.methods.corrections import Correction
from acclimate.methods.dmn import DMN
from acclimate.methods.dota import DOTA
from acclimate.methods.few_shot import FewShot
from acclimate.methods.fitted import MODEL, NOTE, describe_fit, fit_note, load_fitted
from acclimate.methods.free_tta import FreeTTA
from acclimate.methods.gradient import TPT, CoCoOp, CoOp, DiffTPT
from acclimate.methods.merging import MergeTree, merge_files, merge_states
from acclimate.methods.mta import MTA
from acclimate.methods.oga import OGA
from acclimate.methods.onzeta import OnZeta
from acclimate.methods.persist import (
    duplicate,
    load_state,
    load_with_notes,
    save_state,
    state_from_bytes,
    state_to_bytes,
)
from acclimate.methods.prior import Prior
from acclimate.methods.registry import (
    DEFAULT_METHOD,
    create,
    find_method,
    list_methods,
    load_plugin,
    loaded_plugins,
    register,
)
from acclimate.methods.sca import SCA
from acclimate.methods.second_pass import refine
from acclimate.methods.settings import check_settings
from acclimate.methods.state import CLASSES, DIM, Entry, Moments, State, Sums, Tensors
from acclimate.methods.tda import TDA
from acclimate.methods.tip_adapter import TipAdapter
from acclimate.methods.tip_adapter_f import TipAdapterF
from acclimate.methods.zero import Zero
from acclimate.methods.zero_shot import ZeroShot

__all__ = [
    "BCA",
    "CLASSES",
    "DEFAULT_METHOD",
    "DIM",
    "DMN",
    "DOTA",
    "MODEL",
    "MTA",
    "NOTE",
    "OGA",
    "SCA",
    "TDA",
    "TPT",
    "Accord",
    "Adapter",
    "BoostAdapter",
    "CoCoOp",
    "CoOp",
    "Correction",
    "DiffTPT",
    "Entry",
    "FewShot",
    "FreeTTA",
    "MergeTree",
    "Moments",
    "OnZeta",
    "Prior",
    "State",
    "Step",
    "Sums",
    "Tensors",
    "TipAdapter",
    "TipAdapterF",
    "Zero",
    "ZeroShot",
    "check_settings",
    "create",
    "describe_fit",
    "duplicate",
    "find_method",
    "fit_note",
    "list_methods",
    "load_fitted",
    "load_plugin",
    "load_state",
    "load_with_notes",
    "loaded_plugins",
    "merge_files",
    "merge_states",
    "refine",
    "register",
    "require",
    "save_state",
    "state_from_bytes",
    "state_to_bytes",
]
