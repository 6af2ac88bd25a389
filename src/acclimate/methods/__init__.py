"""Adapters: one method a file. Importing this package makes every method known to the registry."""

from acclimate.methods.base import Adapter, create, list_methods, register
from acclimate.methods.persist import load, merge, save
from acclimate.methods.tda import TDA, TDAConfig
from acclimate.methods.zero_shot import ZeroShot

__all__ = ["TDA", "Adapter", "TDAConfig", "ZeroShot", "create", "list_methods", "load", "merge", "register", "save"]
