"""open_clip models: `open_clip:NAME/TAG`, or the (model, preprocess, tokenizer) a program already has."""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray
from acclimate.errors import MissingExtraError, ModelError


def load(name: str, device: str = "auto") -> "OpenClipEncoder":
    """Load a model by its name and tag; downloads the weights if they are not in the cache yet."""
    try:
        import open_clip
        import torch
    except ImportError as error:
        raise MissingExtraError(f"open_clip:{name} needs open_clip: pip install 'acclimate[open-clip]'.") from error
    model_name, slash, tag = name.rpartition("/")
    if not slash or not model_name or not tag:
        raise ModelError(f"open_clip models are named NAME/TAG, for instance open_clip:ViT-B-16/openai; got {name!r}.")
    tags = open_clip.list_pretrained_tags_by_model(model_name)
    if tag not in tags:
        known = f"its tags are {', '.join(tags)}" if tags else "see open_clip.list_pretrained()"
        raise ModelError(f"open_clip has no weights {tag!r} for {model_name!r}; {known}.")
    # Weights trained with QuickGELU give wrong answers without it, and open_clip only warns.
    quick = tag == "openai" or bool((open_clip.get_pretrained_cfg(model_name, tag) or {}).get("quick_gelu"))
    device = ("cuda" if torch.cuda.is_available() else "cpu") if device == "auto" else device
    try:
        model, _, preprocess = open_clip.create_model_and_transforms(
            model_name, pretrained=tag, force_quick_gelu=quick, device=device
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"cannot load open_clip:{name}: {error}. Check the network, or use a local model.") from error
    tokenizer = open_clip.get_tokenizer(model_name)
    return OpenClipEncoder(model, preprocess, tokenizer, fingerprint=f"open_clip:{name}")


class OpenClipEncoder:
    """Wraps open_clip's objects, and any others of that shape.

    Args:
        model: with encode_image, encode_text and logit_scale (its logarithm, as open_clip keeps it).
        preprocess: Pillow image -> tensor (3, h, w).
        tokenizer: list of texts -> ids.
        fingerprint: names the weights; without it texts are not cached on disk.
    """

    def __init__(
        self, model: Any, preprocess: Callable[[Any], Any], tokenizer: Callable[[Any], Any], fingerprint: str = ""
    ) -> None:
        import torch

        self._torch = torch
        self.model = model.eval()
        self.preprocess, self.tokenizer = preprocess, tokenizer
        self.device = next(model.parameters()).device
        self.logit_scale = float(model.logit_scale.detach().exp())
        bias = getattr(model, "logit_bias", None)
        self.logit_bias = 0.0 if bias is None else float(bias.detach())
        self.fingerprint = fingerprint
        self.dim = int(self.encode_text(["a"]).shape[1])

    def prepare(self, image: Image.Image) -> Any:
        """A tensor (3, h, w)."""
        return self.preprocess(image)

    def encode_images(self, images: Sequence[Any]) -> HostArray:
        """Features (n, dim)."""
        with self._torch.inference_mode():
            return _host(self.model.encode_image(self._torch.stack(list(images)).to(self.device)))

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Features (n, dim)."""
        with self._torch.inference_mode():
            return _host(self.model.encode_text(self.tokenizer(list(texts)).to(self.device)))


def _host(tensor: Any) -> HostArray:
    return np.asarray(tensor.float().cpu().numpy())
