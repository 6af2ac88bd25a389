"""A row of the results: a prediction and the name of its image."""

from dataclasses import dataclass

from acclimate.classifier import Prediction


@dataclass(frozen=True)
class Row(Prediction):
    """A prediction that carries the name of its image."""

    name: str = ""
