"""open_clip models: `open_clip:NAME/TAG`, or a model, its preprocessing and its tokenizer as objects."""

from collections.abc import Callable, Sequence
from typing import Any

from PIL import Image

from acclimate.arrays import HostArray, to_host
from acclimate.encoders.base import logit_parameters, torch_device
from acclimate.errors import MissingExtraError, ModelError


def load_open_clip(name: str, device: str = "auto") -> "OpenClipEncoder":
    """Load a model by its name and tag; downloads the weights if they are not in the cache."""
    try:
        import open_clip
    except ImportError as error:
        raise MissingExtraError(f"open_clip:{name} needs open_clip: pip install 'acclimate[open-clip]'.") from error
    model_name, slash, tag = name.rpartition("/")
    if not slash or not model_name or not tag:
        raise ModelError(f"open_clip models are named NAME/TAG, for instance open_clip:ViT-B-16/openai; got {name!r}.")
    tags = open_clip.list_pretrained_tags_by_model(model_name)
    if tag not in tags:
        known = f"its tags are {', '.join(tags)}" if tags else "see open_clip.list_pretrained()"
        raise ModelError(f"open_clip has no weights {tag!r} for {model_name!r}; {known}.")
    # Weights trained with QuickGELU give wrong features without it, and open_clip only warns.
    quick = tag == "openai" or bool((open_clip.get_pretrained_cfg(model_name, tag) or {}).get("quick_gelu"))
    try:
        model, _, preprocess = open_clip.create_model_and_transforms(
            model_name, pretrained=tag, force_quick_gelu=quick, device=torch_device(device)
        )
    except (OSError, RuntimeError, ValueError) as error:
        raise ModelError(f"cannot load open_clip:{name}: {error}. Check the network, or use a local model.") from error
    tokenizer = open_clip.get_tokenizer(model_name)
    return OpenClipEncoder(model, preprocess, tokenizer, fingerprint=f"open_clip:{name}")


class OpenClipEncoder:
    """Wraps the objects of open_clip, or others with the same interface.

    Args:
        model: has encode_image, encode_text and logit_scale (the logarithm of the scale, as in open_clip).
        preprocess: maps a Pillow image to a tensor (3, h, w).
        tokenizer: maps a list of texts to token ids.
        fingerprint: identifies the weights; without it, text features are not cached on disk.
    """

    def __init__(
        self, model: Any, preprocess: Callable[[Any], Any], tokenizer: Callable[[Any], Any], fingerprint: str = ""
    ) -> None:
        import torch

        self._torch = torch
        self.model = model.eval()
        self.preprocess, self.tokenizer = preprocess, tokenizer
        self.device = next(model.parameters()).device
        self.logit_scale, self.logit_bias = logit_parameters(model)
        self.fingerprint = fingerprint
        self.dim = int(self.encode_text(["a"]).shape[1])

    def prepare(self, image: Image.Image) -> Any:
        """Return a tensor (3, h, w)."""
        return self.preprocess(image)

    def encode_images(self, images: Sequence[Any]) -> HostArray:
        """Return the features (n, dim) of n prepared images."""
        with self._torch.inference_mode():
            return to_host(self.model.encode_image(self._torch.stack(list(images)).to(self.device)).float())

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Return the features (n, dim) of n texts."""
        with self._torch.inference_mode():
            return to_host(self.model.encode_text(self.tokenizer(list(texts)).to(self.device)).float())
