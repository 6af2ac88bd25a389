"""Methods that back-propagate through a text tower. PyTorch is imported where they run, not where they are listed."""

from acclimate.methods.gradient.cocoop import CoCoOp
from acclimate.methods.gradient.coop import CoOp
from acclimate.methods.gradient.difftpt import DiffTPT
from acclimate.methods.gradient.tpt import TPT

__all__ = ["TPT", "CoCoOp", "CoOp", "DiffTPT"]
