"""A GPU that runs out of memory gets smaller batches."""

import warnings
from collections.abc import Callable
from typing import Any

from acclimate.errors import ModelError

Tensor = Any  # torch.Tensor


class Halving:
    """Does the work on a batch in pieces that fit into the memory of the GPU.

    At first a piece is the whole batch. A piece that does not fit is halved, and no later one is larger.

    Attributes:
        largest: size of a piece; None as long as everything has fitted.
    """

    def __init__(self) -> None:
        self.largest: int | None = None

    def __call__(self, work: Callable[[slice], Tensor], count: int) -> Tensor:
        """The results of `work` for slices of `range(count)`, in order, as one tensor.

        Raises:
            ModelError: a single item does not fit.
        """
        import torch

        found: list[Tensor] = []
        start = 0
        before = self.largest
        while start < count:
            size = min(count - start, self.largest or count)
            try:
                found.append(work(slice(start, start + size)))
                start += size
                continue
            except torch.cuda.OutOfMemoryError as error:
                if size <= 1:
                    why = str(error).splitlines()[0]
                    raise ModelError(
                        f"the GPU has too little memory for a single image ({why}); free some, or use the device 'cpu'."
                    ) from error
            # Outside of the handler, whose error keeps alive what the piece has allocated so far.
            self.largest = (size + 1) // 2
            torch.cuda.empty_cache()
        if self.largest != before:
            warnings.warn(f"the GPU ran out of memory; it is given {self.largest} images at once now.", stacklevel=2)
        return found[0] if len(found) == 1 else torch.cat(found)
