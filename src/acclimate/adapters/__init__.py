"""Adapters: one method a file. Importing this package makes every method known to the registry."""

from acclimate.adapters.base import Adapter, create, methods, register
from acclimate.adapters.persist import load, merge, save
from acclimate.adapters.tda import TDA, TDAConfig
from acclimate.adapters.zero_shot import ZeroShot

__all__ = ["TDA", "Adapter", "TDAConfig", "ZeroShot", "create", "load", "merge", "methods", "register", "save"]
