"""The image tower of a PyTorch model: in which precision it runs, and how pixels reach it."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from PIL import Image

from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ModelError

Tensor = Any  # torch.Tensor
PARTS = ("vision_model", "visual_projection", "visual")  # of a model in transformers; the last one in open_clip
# in open_clip and transformers
QUICK_GELU = ("QuickGELU", "QuickGELUActivation")
FACTOR = 1.702
CONVOLUTIONS = 8  # a tower with more of them is a convolutional network


class ImageTower:
    """Computes features of prepared images. On a GPU, calls only launch work: nobody waits for it here.

    Args:
        model: contains the tower; a precision changes its weights in place. What reads texts stays as it is, unless
            the tower cannot be told from it.
        features: runs the model on pixels (n, 3, h, w).
        prepare: turns an RGB image into pixels (3, h, w).
        precision: "float32", "float16" or "bfloat16"; "auto" for the one that the weights have.
        compile: compile the tower now, for batches of any size.

    Attributes:
        precision: "float32", "float16" or "bfloat16", which replaces a float16 in which the tower overflows.

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
        self.device = next(model.parameters()).device
        inner = [module for part in self._parts for module in part.modules()]
        convolutions = [module for module in inner if isinstance(module, torch.nn.Conv2d)]
        weights = [module.weight for module in convolutions] or [
            each for part in self._parts for each in part.parameters()
        ]
        self._dtype = weights[0].dtype
        self._layout = torch.contiguous_format
        self._scale: tuple[Tensor, Tensor] | None = None
        if isinstance(preprocess := getattr(prepare, "preprocess", prepare), Preprocess):
            gain, offset = (torch.tensor(x[:, None, None]) for x in (preprocess.gain, preprocess.offset))
            self._scale = gain.to(self.device), offset.to(self.device)
        if self.device.type == "cuda" and len(convolutions) > CONVOLUTIONS:
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
        """The type of the weights."""
        return str(self._dtype).removeprefix("torch.")

    def __call__(self, images: Sequence[Any] | Tensor) -> Tensor:
        """Features (n, dim) of n prepared images (3, h, w), floats or bytes, or of a tensor (n, 3, h, w) of such."""
        with torch.inference_mode():
            pixels = self._on_device(images)
            if pixels.dtype == torch.uint8 and self._scale is not None:
                gain, offset = self._scale
                pixels = torch.addcmul(offset, pixels, gain)
            pixels = pixels.to(self._dtype, memory_format=self._layout)
            if not self._compiled:
                return self._features(pixels)
            count = len(pixels)
            pixels = pixels if count > 1 else torch.cat([pixels, pixels])  # a size of 1 would be compiled again
            torch._dynamo.maybe_mark_dynamic(pixels, 0)
            return self._features(pixels)[:count]

    def _on_device(self, images: Sequence[Any] | Tensor) -> Tensor:
        """Pixels (n, 3, h, w) on the device; from the host they travel through pinned memory."""
        if isinstance(images, torch.Tensor):
            return images.to(self.device, non_blocking=True)
        tensors = [torch.as_tensor(image) for image in images]
        if self.device.type != "cuda" or tensors[0].device.type == "cuda":
            return torch.stack(tensors).to(self.device)
        shape = (len(tensors), *tensors[0].shape)
        pinned = torch.stack(tensors, out=torch.empty(shape, dtype=tensors[0].dtype, pin_memory=True))
        return pinned.to(self.device, non_blocking=True)

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
        """Features of a black, a white and a random image; ModelError if there are none."""
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
                before.weight.mul_(FACTOR)
                after.weight.div_(FACTOR)
                if before.bias is not None:
                    before.bias.mul_(FACTOR)
            setattr(block, quick[0], torch.nn.SiLU(inplace=True))
