"""The towers of a PyTorch model: that of images, and that of texts, fed with embeddings where prompts are learned."""

import re
import warnings
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from threading import local
from typing import Any

import numpy as np
import torch
from PIL import Image

from acclimate.errors import InputError, ModelError

Tensor = Any  # torch.Tensor
PARTS = ("vision_model", "visual_projection", "visual")  # attributes of transformers' models; the last of open_clip's
QUICK_GELU = ("QuickGELU", "QuickGELUActivation")  # classes of open_clip and of transformers
QUICK_GELU_FACTOR = 1.702  # QuickGELU is x sigmoid(1.702 x)
MIN_CONVOLUTIONS = 9  # a tower with so many of them is a convolutional network
SECOND_CLASS = re.compile(r" \(2\)$")  # the benchmark's mark of the second class of one name
SAME_COSINE = 0.999  # two features above it are the same up to rounding, in half precision as well
CACHED_PROMPTS = 8  # sets of prompts that are kept


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
            dtype = getattr(torch, precision)
            if dtype != torch.float32:
                for part in self._parts:
                    fold_quick_gelu(part)
            exact = [part.state_dict() for part in self._parts]
            self._convert(dtype, exact)
            if dtype != torch.float32 and not self._try(prepare).isfinite().all() and dtype == torch.float16:
                self._convert(torch.bfloat16, exact)  # float16 overflows
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
                    raise ModelError(
                        f"the GPU has too little memory for a single image ({str(error).splitlines()[0]}); "
                        "free some, or use the device 'cpu'."
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


class TextTower:
    """An encoder of prompts whose first words are given as vectors: gradients reach these vectors and nothing else.

    While it encodes, the model's table of token embeddings answers with the given ones, in this thread alone. The
    parameters of the model are frozen; nothing else about it changes.

    Args:
        model: has a CLIP text tower, whose table of embeddings is called `token_embedding`.
        token_ids: maps n texts to token ids (n, context): a start, the words, an end, padding.
        text_features: maps token ids (n, length), and a mask that is 0 for their padding, to features (n, d).

    Attributes:
        table: the model's own table of embeddings.
        width: length of an embedding.
        shortens: whether prompts are cut to the longest one; padding is never looked at, and costs time.

    Raises:
        ModelError: the tower cannot take embeddings; the message says which models can.
    """

    def __init__(
        self,
        model: Any,
        token_ids: Callable[[Sequence[str]], Tensor],
        text_features: Callable[[Tensor, Tensor], Tensor],
    ) -> None:
        tables = [each for name, each in model.named_modules() if name.rpartition(".")[2] == "token_embedding"]
        if not tables:
            raise ModelError(_cannot(model, "it has no table named token_embedding"))
        if any(each.is_inference() for each in model.parameters()):
            raise ModelError(_cannot(model, "it was made under torch.inference_mode(), so make it outside of it"))
        self.table = tables[0]
        self._token_ids = token_ids
        self._text_features = text_features
        self._given = local()
        self.table.register_forward_hook(lambda *_: getattr(self._given, "embeddings", None))
        self._prompts = lru_cache(CACHED_PROMPTS)(partial(Prompts, self))
        self.width = int(self.table.weight.shape[1])
        self.device = self.table.weight.device
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.end = int(token_ids([""])[0, 1])  # the token that ends a text
        self.shortens = self._can_shorten(model)

    def words(self, text: str) -> Tensor:
        """Return the embeddings (M, width) of the words of a text."""
        ids = self._token_ids([text]).to(self.device)
        with torch.no_grad():
            return self.table(ids[0, 1 : self._ends(ids)[0]]).float()

    def prompts(self, class_names: Sequence[str], context: int) -> "Prompts":
        """Return the prompts of K classes that begin with `context` vectors; the most recent are kept."""
        with torch.inference_mode(False):  # kept prompts must also serve callers that differentiate
            return self._prompts(tuple(class_names), context, self.shortens)

    def _ends(self, ids: Tensor) -> list[int]:
        return [1 + int(index) for index in (ids[:, 1:] == self.end).int().argmax(dim=1)]

    def encode(self, embeddings: Tensor, ids: Tensor) -> Tensor:
        """Encode prompts with embeddings (n, length, width) to features (n, d); the ids say where each prompt ends."""
        self._given.embeddings = embeddings.to(self.table.weight.dtype)
        try:
            return self._features(ids)
        finally:
            self._given.embeddings = None

    def _features(self, ids: Tensor) -> Tensor:
        ends = torch.tensor(self._ends(ids), device=ids.device)
        mask = torch.arange(ids.shape[1], device=ids.device) <= ends[:, None]
        return self._text_features(ids, mask.long())

    def read(self, texts: Sequence[str], before: int = 0, shorten: bool = False) -> tuple[Tensor, list[int]]:
        """Return token ids (n, length) of texts with room for `before` tokens after the start, and their ends.

        A text that is too long is cut before its end. With `shorten`, the ids are as short as the longest text.
        """
        ids = self._token_ids(list(texts)).to(self.device)
        length = ids.shape[1]
        ends = self._ends(ids)
        if before > length - 3:
            raise InputError(f"a context of {before} tokens does not fit; the model reads {length - 3} at most.")
        filler = ids[:, 1:2].expand(-1, before)  # ordinary tokens: their embeddings are replaced
        ids = torch.cat([ids[:, :1], filler, ids[:, 1:]], dim=1)[:, :length].clone()
        ends = [min(end + before, length - 1) for end in ends]
        ids[torch.arange(len(ids)), ends] = self.end
        return (ids[:, : max(ends) + 1] if shorten else ids), ends

    def _can_shorten(self, model: Any) -> bool:
        """Return True if padding can be left out, as in a causal tower; refuse a tower that looks ahead."""
        whole, ends = self.read(["a"])
        with torch.no_grad():
            expected = self._features(whole)
            own = self.table(whole)
            same, moved = (
                torch.allclose(self.encode(each, whole), expected, atol=1e-4) for each in (own, own.flip(-1))
            )
            if moved or not same:
                raise ModelError(_cannot(model, "it does not read its table of embeddings"))
            try:
                found = self._features(whole[:, : ends[0] + 1])
            except (RuntimeError, ValueError, IndexError):  # some towers take prompts of full length only
                return False
        cosine = torch.nn.functional.cosine_similarity(found.float(), expected.float())
        if float(cosine) < SAME_COSINE:
            raise ModelError(_cannot(model, "it reads a text in both directions"))
        return True


class Prompts:
    """The prompts "START context name . END" of K classes, for any context.

    Args:
        tower: text tower that reads them.
        class_names: K names.
        context: number M of vectors before the name.
        shorten: leave out the padding behind the longest prompt.
    """

    def __init__(self, tower: TextTower, class_names: Sequence[str], context: int, shorten: bool) -> None:
        self.tower = tower
        self.context = context
        names = [f"{SECOND_CLASS.sub('', name).replace('_', ' ')}." for name in class_names]
        self.ids, _ = tower.read(names, context, shorten)
        with torch.no_grad():
            embedded = tower.table(self.ids)
        self._start = embedded[:, :1]
        self._rest = embedded[:, 1 + context :]

    def vectors(self, context: Tensor) -> Tensor:
        """Return unit class vectors (K, d), float32, for a context (M, width), or (K, M, width) with one per class.

        On a GPU the tower runs in mixed precision.
        """
        context = context.to(self._start.dtype)
        if context.ndim == 2:
            context = context.expand(len(self.ids), -1, -1)
        embeddings = torch.cat([self._start, context, self._rest], dim=1)
        device = self.tower.device.type
        with torch.autocast(device, torch.float16, enabled=device == "cuda"):
            features = self.tower.encode(embeddings, self.ids)
        return torch.nn.functional.normalize(features.float(), dim=-1)


def _cannot(model: Any, why: str) -> str:
    return (
        f"the text tower of {type(model).__name__} cannot take embeddings: {why}; prompts are learned with CLIP models "
        "of hf:, local: or open_clip:."
    )
