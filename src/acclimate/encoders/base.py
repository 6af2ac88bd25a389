"""What an encoder is, and how one is found by name."""

import hashlib
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from PIL import Image

from acclimate.arrays import HostArray
from acclimate.errors import ModelError


@runtime_checkable
class Encoder(Protocol):
    """Turns images and texts into features of one space. Any object with these members will do.

    Attributes:
        dim: length of a feature.
        logit_scale: the model's own factor on cosines.
        logit_bias: the model's own offset on logits; 0 for models without one.
        fingerprint: names the model's weights and preprocessing for good; "" if it cannot be told.
    """

    dim: int
    logit_scale: float
    logit_bias: float
    fingerprint: str

    def prepare(self, image: Image.Image) -> Any:
        """What `encode_images` takes for one upright RGB image; called from several threads."""

    def encode_images(self, images: Sequence[Any]) -> HostArray:
        """Features (n, dim) of n prepared images."""

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Features (n, dim) of n texts."""


# prefix -> (module, function, what follows the prefix, an example)
PREFIXES = {
    "onnx": ("onnx", "load", "a folder made by `acclimate convert`; needs no PyTorch", "onnx:clip/"),
    "hf": (
        "transformers",
        "load_from_hub",
        "a CLIP or SigLIP model of the hub (downloaded)",
        "hf:openai/clip-vit-base-patch16",
    ),
    "local": ("transformers", "load_from_folder", "a folder saved with `save_pretrained`", "local:my-clip/"),
    "open_clip": ("open_clip", "load", "a model and its weights, NAME/TAG (downloaded)", "open_clip:ViT-B-16/openai"),
}
BUNDLED = "bundled"  # the model that comes with acclimate: an ONNX folder beside this file
KNOWN = (
    "hf:openai/clip-vit-base-patch16",
    "hf:openai/clip-vit-base-patch32",
    "hf:openai/clip-vit-large-patch14",
    "hf:google/siglip-base-patch16-224",
    "hf:google/siglip2-base-patch16-224",
    "open_clip:ViT-B-16/openai",
    "open_clip:ViT-B-32/laion2b_s34b_b79k",
    "open_clip:ViT-L-14/openai",
)


def load_encoder(name: str = BUNDLED, device: str = "auto") -> Encoder:
    """Load an encoder by name.

    Args:
        name: "bundled", or PREFIX:WHAT, one of `onnx:DIR`, `hf:ID`, `local:DIR`, `open_clip:NAME/TAG`.
        device: "auto" (a GPU where there is one), "cpu", "cuda", ...

    Raises:
        ModelError: there is no such model here; the message says what is missing and how to get it.
    """
    if name == BUNDLED:
        name = f"onnx:{Path(__file__).with_name(BUNDLED)}"
    prefix, colon, what = name.partition(":")
    if not colon or prefix not in PREFIXES or not what:
        forms = ", ".join([BUNDLED, *(example for *_, example in PREFIXES.values())])
        near = get_close_matches(name, (BUNDLED, *KNOWN), n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"a model is named like {forms}."
        if Path(name).is_dir():
            hint = f"for a folder, write onnx:{name} or local:{name}."
        raise ModelError(f"unknown model {name!r}; {hint}")
    module, function, *_ = PREFIXES[prefix]
    load: Callable[[str, str], Encoder] = getattr(import_module(f"acclimate.encoders.{module}"), function)
    return load(what, device)


def fingerprint_files(paths: Sequence[Path]) -> str:
    """Name the content of files: their names, sizes, first and last mebibyte; fast for weights of any size."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(2**20))
            file.seek(max(0, size - 2**20))
            digest.update(file.read())
    return digest.hexdigest()[:32]
