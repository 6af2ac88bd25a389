"""Methods of adaptation, one per file, and the frame that they share.

The frame is what lies beside this file. The methods are in three rooms: `paper`, the systems of the TDA paper; `own`,
those of this library; `rivals`, those of others. `registry` finds them by name and imports no other.
"""

from acclimate.methods.adapter import (
    Adapter,
    Change,
    MethodKind,
    Step,
    ViewsKind,
    block_size,
    check_settings,
    observed,
    require,
)
from acclimate.methods.cache import Cache, affinities
from acclimate.methods.corrections import Correction
from acclimate.methods.few_shot import (
    MODEL,
    NOTE,
    FewShot,
    Labelled,
    Progress,
    describe_fit,
    fit_note,
    load_fitted,
)
from acclimate.methods.merging import MergeTree, merge_files, merge_states
from acclimate.methods.persist import (
    duplicate,
    load_state,
    load_with_notes,
    read_head,
    save_state,
    state_from_bytes,
    state_to_bytes,
)
from acclimate.methods.registry import (
    DEFAULT_METHOD,
    create,
    find_method,
    list_methods,
    load_plugin,
    loaded_plugins,
    register,
    takes_kinds,
)
from acclimate.methods.state import CLASSES, DIM, Entry, MergeRule, State, Sums, Tensors

__all__ = [
    "CLASSES",
    "DEFAULT_METHOD",
    "DIM",
    "MODEL",
    "NOTE",
    "Adapter",
    "Cache",
    "Change",
    "Correction",
    "Entry",
    "FewShot",
    "Labelled",
    "MergeRule",
    "MergeTree",
    "MethodKind",
    "Progress",
    "State",
    "Step",
    "Sums",
    "Tensors",
    "ViewsKind",
    "affinities",
    "block_size",
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
    "observed",
    "read_head",
    "register",
    "require",
    "save_state",
    "state_from_bytes",
    "state_to_bytes",
    "takes_kinds",
]
