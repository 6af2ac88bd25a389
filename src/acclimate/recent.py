"""The images that were learnt from last, so that they can be corrected by their ids."""

from collections.abc import Sequence

import numpy as np

from acclimate.arrays import Array, HostArray, index, to_host
from acclimate.errors import InputError
from acclimate.predict import Adapted


class Recent:
    """Names and features of the last images that were learnt from.

    Args:
        most: how many of them.
    """

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        # id -> name, features of a batch (n, d) where they live, and row; the latest last
        self._images: dict[int, tuple[str, Array, int]] = {}

    def add(self, adapted: Adapted, names: Sequence[str]) -> None:
        """Remember the images of a batch of B that were learnt from; `names` are those of all."""
        if adapted.ids is None:
            return
        learnt = np.flatnonzero(adapted.ids >= 0)[-self.most :]
        features = adapted.evidence.plain
        features = features[index(learnt, features)]
        for row, place in enumerate(learnt.tolist()):
            id = int(adapted.ids[place])
            self._images.pop(id, None)
            self._images[id] = names[place], features, row
        for id in list(self._images)[: -self.most]:
            del self._images[id]

    def find(self, id: int) -> tuple[str, HostArray]:
        """The name and the feature (d,) of an image; InputError if it is not among the last."""
        if id not in self._images:
            raise InputError(f"no image with the id {id} was learnt from recently; pass the image instead.")
        name, features, row = self._images[id]
        return name, to_host(features[row])
