"""The images that were learnt from last, so that they can be corrected by their ids."""

from collections.abc import Sequence

from acclimate.arrays import HostArray, to_host
from acclimate.errors import InputError
from acclimate.predict import Adapted


class Recent:
    """Names and features of the last images that were learnt from.

    Args:
        most: how many of them.
    """

    def __init__(self, most: int = 1000) -> None:
        self.most = most
        self._images: dict[int, tuple[str, HostArray]] = {}  # id -> name and feature (d,), the latest last

    def add(self, adapted: Adapted, names: Sequence[str]) -> None:
        """Remember the images of a batch of B that were learnt from; `names` are those of all."""
        if adapted.ids is None:
            return
        features = to_host(adapted.evidence.plain)
        for id, name, feature in zip(adapted.ids.tolist(), names, features, strict=True):
            if id >= 0:
                self._images.pop(id, None)
                self._images[id] = name, feature.copy()
        for id in list(self._images)[: -self.most]:
            del self._images[id]

    def find(self, id: int) -> tuple[str, HostArray]:
        """The name and the feature (d,) of an image; InputError if it is not among the last."""
        if id not in self._images:
            raise InputError(f"no image with the id {id} was learnt from recently; pass the image instead.")
        return self._images[id]
