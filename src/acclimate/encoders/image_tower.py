"""The image tower of a PyTorch model: its precision, its way to compile, and the batches that fit into memory."""

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from acclimate.errors import ModelError

Tensor = Any  # torch.Tensor
PARTS = ("vision_model", "visual_projection", "visual")  # attributes of transformers' models; the last of open_clip's
QUICK_GELU = ("QuickGELU", "QuickGELUActivation")  # classes of open_clip and of transformers
QUICK_GELU_FACTOR = 1.702  # QuickGELU is x sigmoid(1.702 x)
MIN_CONVOLUTIONS = 9  # a tower with so many of them is a convolutional network


class ImageTower:
    """The image tower, which computes features of prepared images. On a GPU, calls only launch work.

    A batch that does not fit into the memory of the GPU is halved until it does, and no later one is larger.

    Args:
        model: contains the tower; a precision changes its weights in place. What reads texts stays as it is, unless
            the tower cannot be told from it.
        features: runs the model on pixels (n, 3, h, w).
        prepare: turns an RGB image into pixels (3, h, w).
        precision: "float32", "float16" or "bfloat16"; "auto" for the one that the weights have.
        compile: compile the tower now, for batches of any size.

    Attributes:
        precision: "float32", "float16" or "bfloat16", which replaces a float16 in which the tower overflows.
        max_batch: images that are encoded at once; None as long as every batch has fitted.

    Raises:
        ModelError: the model cannot be run or compiled so.
    """

    def __init__(
        self,
        model: Any,
        features: Callable[[Tensor], Tensor],
        prepare: Callable[[Image.Image], Any],
        precision: str = "auto",
        compile: bool = False,
    ) -> None:
        self._parts = [getattr(model, name) for name in PARTS if hasattr(model, name)] or [model]
        self._features = features
        self._compiled = False
        self.max_batch: int | None = None
        self.device = next(model.parameters()).device
        inner = [module for part in self._parts for module in part.modules()]
        convolutions = [module for module in inner if isinstance(module, torch.nn.Conv2d)]
        weights = [module.weight for module in convolutions] or [
            each for part in self._parts for each in part.parameters()
        ]
        self._dtype = weights[0].dtype
        self._layout = torch.contiguous_format
        if self.device.type == "cuda" and len(convolutions) >= MIN_CONVOLUTIONS:
            self._layout = torch.channels_last
            for part in self._parts:
                part.to(memory_format=self._layout)
        if precision not in ("auto", self.precision):
            self._choose(getattr(torch, precision), prepare)
        if compile:
            self._features = torch.compile(features)
            self._compiled = True
            self._try(prepare)  # compiles

    @property
    def precision(self) -> str:
        """Type of the weights."""
        return str(self._dtype).removeprefix("torch.")

    def __call__(self, images: Sequence[Any] | Tensor) -> Tensor:
        """Return the features (n, dim) of n prepared images (3, h, w), or of a tensor (n, 3, h, w) of them.

        Raises:
            ModelError: a single image does not fit into the memory of the GPU.
        """
        features: list[Tensor] = []
        start = 0
        before = self.max_batch
        while start < len(images):
            size = min(len(images) - start, self.max_batch or len(images))
            try:
                features.append(self._encode(images[start : start + size]))
                start += size
                continue
            except torch.cuda.OutOfMemoryError as error:
                if size <= 1:
                    why = str(error).splitlines()[0]
                    raise ModelError(
                        f"the GPU has too little memory for a single image ({why}); free some, or use the device 'cpu'."
                    ) from error
            # Outside of the handler, whose error keeps alive what the batch has allocated so far.
            self.max_batch = (size + 1) // 2
            torch.cuda.empty_cache()
        if self.max_batch != before:
            warnings.warn(f"the GPU ran out of memory; it is given {self.max_batch} images at once now.", stacklevel=3)
        return features[0] if len(features) == 1 else torch.cat(features)

    def _encode(self, images: Sequence[Any] | Tensor) -> Tensor:
        with torch.inference_mode():
            pixels = images if isinstance(images, torch.Tensor) else torch.stack([*map(torch.as_tensor, images)])
            pixels = pixels.to(self.device, self._dtype, non_blocking=True, memory_format=self._layout)
            if not self._compiled:
                return self._features(pixels)
            count = len(pixels)
            pixels = pixels if count > 1 else torch.cat([pixels, pixels])  # a size of 1 would be compiled again
            torch._dynamo.maybe_mark_dynamic(pixels, 0)
            return self._features(pixels)[:count]

    def _choose(self, dtype: torch.dtype, prepare: Callable[[Image.Image], Any]) -> None:
        """Run in this precision; in bfloat16 if float16 overflows."""
        if dtype != torch.float32:
            for part in self._parts:
                fold_quick_gelu(part)
        weights = [part.state_dict() for part in self._parts]
        self._convert(dtype, weights)
        if dtype != torch.float32 and not self._try(prepare).isfinite().all() and dtype == torch.float16:
            self._convert(torch.bfloat16, weights)

    def _convert(self, dtype: torch.dtype, weights: Sequence[Any]) -> None:
        """Convert the weights, all but those of batch normalisation: as in CLIP's own code, these stay in float32."""
        self._dtype = dtype
        for part, exact in zip(self._parts, weights, strict=True):
            part.to(dtype)
            for module in part.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm):
                    module.float()
            part.load_state_dict(exact)  # nothing is rounded twice

    def _try(self, prepare: Callable[[Image.Image], Any]) -> Tensor:
        """Return the features of a black, a white and a random image; ModelError if there are none."""
        noise = np.random.default_rng(0).integers(256, size=(256, 256, 3), dtype=np.uint8)
        images = [Image.new("RGB", (256, 256), "black"), Image.new("RGB", (256, 256), "white"), Image.fromarray(noise)]
        try:
            return self([prepare(image) for image in images])
        except Exception as error:  # compilers and kernels raise many kinds
            how = "compiled" if self._compiled else f"run in {self.precision}"
            why = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise ModelError(f"the image tower cannot be {how} on {self.device}: {why[:300]}") from error


def fold_quick_gelu(model: Any) -> None:
    """Replace QuickGELU, `x sigmoid(a x)`, by SiLU, `x sigmoid(x)`, in place; the factor moves into the layers around.

    The activations of a transformer are large, and this makes one kernel of three, a seventh of the time of a ViT.
    """
    for block in model.modules():
        linear = [child for child in block.children() if isinstance(child, torch.nn.Linear)]
        quick = [name for name, child in block.named_children() if type(child).__name__ in QUICK_GELU]
        if len(linear) == 2 and len(quick) == 1:
            before, after = linear
            with torch.no_grad():
                before.weight.mul_(QUICK_GELU_FACTOR)
                after.weight.div_(QUICK_GELU_FACTOR)
                if before.bias is not None:
                    before.bias.mul_(QUICK_GELU_FACTOR)
            setattr(block, quick[0], torch.nn.SiLU(inplace=True))
