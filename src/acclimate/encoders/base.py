"""The interface of an encoder, and how encoders are loaded by name."""

import hashlib
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from difflib import get_close_matches
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from PIL import Image

from acclimate.arrays import HostArray
from acclimate.errors import InputError, ModelError


@runtime_checkable
class Encoder(Protocol):
    """Maps images and texts to features in one space. Any object with these members can be used.

    Attributes:
        dim: length of a feature.
        logit_scale: the factor that the model was trained to multiply cosines with.
        logit_bias: the offset that the model was trained to add to logits; 0 for models without one.
        fingerprint: identifies the weights and the preprocessing; "" if unknown.
    """

    dim: int
    logit_scale: float
    logit_bias: float
    fingerprint: str

    def prepare(self, image: Image.Image) -> Any:
        """Turn an RGB image into an input of `encode_images`; called from several threads."""

    def encode_images(self, images: Sequence[Any]) -> HostArray:
        """Return the features (n, dim) of n prepared images."""

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Return the features (n, dim) of n texts."""


BUNDLED = "bundled"  # the model that comes with acclimate: an ONNX folder next to this file
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
# prefix -> (module, class or function, description of what follows the prefix, example)
PREFIXES = {
    "onnx": ("onnx", "OnnxEncoder", "a folder made by `acclimate convert`; needs no PyTorch", "onnx:clip/"),
    "hf": ("transformers", "TransformersEncoder", "a CLIP or SigLIP model on Hugging Face (downloaded)", KNOWN[0]),
    "local": ("transformers", "load_from_folder", "a folder saved with `save_pretrained`", "local:my-clip/"),
    "open_clip": ("open_clip", "load", "a model and its weights, NAME/TAG (downloaded)", "open_clip:ViT-B-16/openai"),
}

_ahead: dict[tuple[str, str], "Future[Encoder]"] = {}  # the model that `load_ahead` loads


def load_encoder(name: str = BUNDLED, device: str = "auto") -> Encoder:
    """Load an encoder by name.

    Args:
        name: "bundled", `onnx:DIR`, `hf:ID`, `local:DIR` or `open_clip:NAME/TAG`.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"; for PyTorch models also "mps" and others that
            PyTorch knows. One that is not there is refused before anything is loaded.

    Raises:
        ModelError: the model is not available; the message says what is missing and how to get it.
        MissingExtraError: the model needs a package that is not installed.

    Examples:
        >>> from acclimate.encoders import load_encoder
        >>> encoder = load_encoder("bundled")
        >>> encoder.encode_text(["a photo of a cat.", "a photo of a dog."]).shape == (2, encoder.dim)
        True
    """
    ahead = _ahead.pop((name, device), None)
    return _load(name, device) if ahead is None else ahead.result()


def load_ahead(name: str, device: str = "auto") -> None:
    """Begin to load an ONNX model in a thread; the next `load_encoder` with the same arguments waits for it.

    onnxruntime loads a model while Python goes on, for instance with its imports. Other models are not loaded ahead:
    Python is what takes the time there, and a download may begin only when nothing else can be wrong.
    """
    _ahead.clear()
    if name == BUNDLED or name.startswith("onnx:"):
        loader = ThreadPoolExecutor(1, "acclimate-load")
        _ahead[name, device] = loader.submit(_load, name, device)
        loader.shutdown(wait=False)


def _load(name: str, device: str) -> Encoder:
    if name == BUNDLED:
        name = f"onnx:{Path(__file__).with_name(BUNDLED)}"
    prefix, colon, what = name.partition(":")
    if not colon or prefix not in PREFIXES or not what:
        forms = ", ".join([BUNDLED, *(example for *_, example in PREFIXES.values())])
        near = get_close_matches(name, (BUNDLED, *KNOWN), n=2, cutoff=0.5)
        hint = f"did you mean {' or '.join(near)}?" if near else f"write one of {forms}."
        if Path(name).is_dir():
            hint = f"write a folder as onnx:{name} or local:{name}."
        raise ModelError(f"unknown model {name!r}; {hint}")
    module, function, *_ = PREFIXES[prefix]
    load: Callable[[str, str], Encoder] = getattr(import_module(f"acclimate.encoders.{module}"), function)
    return load(what, device)


def as_encoder(encoder: Any, device: str) -> Encoder:
    """An encoder from a model's name, from open_clip's (model, preprocess, tokenizer), or as it is; else InputError."""
    if isinstance(encoder, str):
        return load_encoder(encoder, device)
    if isinstance(encoder, tuple) and len(encoder) == 3:
        from acclimate.encoders.open_clip import OpenClipEncoder

        return OpenClipEncoder(*encoder)
    if isinstance(encoder, Encoder):
        return encoder
    members = ("dim", "logit_scale", "logit_bias", "fingerprint", "prepare", "encode_images", "encode_text")
    missing = [name for name in members if not hasattr(encoder, name)]
    raise InputError(f"{type(encoder).__name__} is not an encoder: it lacks {', '.join(missing)}.")


def fingerprint_files(paths: Sequence[Path]) -> str:
    """Hash the names, sizes, and first and last mebibyte of files: fast for weights of any size."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        size = path.stat().st_size
        digest.update(f"{path.name}\0{size}\0".encode())
        with path.open("rb") as file:
            digest.update(file.read(2**20))
            file.seek(max(0, size - 2**20))
            digest.update(file.read())
    return digest.hexdigest()[:32]


def torch_device(device: str) -> str:
    """The device to run a PyTorch model on: a GPU for "auto", if there is one."""
    import torch

    gpus = ["cuda", *(f"cuda:{i}" for i in range(torch.cuda.device_count()))] if torch.cuda.is_available() else []
    if device == "auto":
        return "cuda" if gpus else "cpu"
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # raised for an unknown device or a build of torch without it
        why = str(error).splitlines()[0].rstrip(".")
        mps = ["mps"] if torch.backends.mps.is_available() else []
        raise ModelError(cannot_use(device, [*gpus, *mps], f": {why}")) from error
    return device


def cannot_use(device: str, found: Sequence[str], why: str = "") -> str:
    """Why a device is refused, and which there are beside the CPU."""
    return f"cannot use device {device!r}{why}; choose from {', '.join(['auto', 'cpu', *found])}."
