"""The interface of an encoder, and how encoders are loaded by name."""

import hashlib
import warnings
from collections.abc import Callable, Sequence
from difflib import get_close_matches
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal, Protocol, cast, get_args, runtime_checkable

from PIL import Image

from acclimate.arrays import Array, HostArray, ordinary_tensors
from acclimate.errors import InputError, ModelError, missing, root_cause


@runtime_checkable
class Encoder(Protocol):
    """A model that maps images and texts to features in one space. Any object with these members can be used.

    Attributes:
        dim: length of a feature.
        logit_scale: the factor that the model was trained to multiply cosines with.
        logit_bias: the offset that the model was trained to add to logits; 0 for models without one.
        fingerprint: identifies the weights and the preprocessing; "" if unknown.

    Note:
        An encoder may also have these members, which are used where they are there:

        - `device`: the `torch.device` that it runs on; on a CUDA GPU, images can be prepared and adapted there.
        - `precision`: "float32", "float16" or "bfloat16", the type in which images are encoded.
        - `preprocess`: a `Preprocess`, if that is what `prepare` does: views can then be made without it, and images
          can be resized on a GPU.
        - `context`: the most tokens of a text that are read.
        - `text_tower()`: a `TextTower`, which methods that learn prompts need.
    """

    dim: int
    logit_scale: float
    logit_bias: float
    fingerprint: str

    def prepare(self, image: Image.Image) -> Any:
        """Turn an RGB image into an input of `encode_images`; called from several threads."""

    def encode_images(self, images: Sequence[Any]) -> Array:
        """Return the features (n, dim) of n prepared images: a NumPy array, or a tensor on the encoder's GPU."""

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Return the features (n, dim) of n texts."""


class Reopened:
    """Base of encoders: one that `load_encoder` has loaded is pickled as its name, and loaded again from there.

    Attributes:
        loaded_from: the arguments of `load_encoder`; empty for an encoder that was made otherwise.
    """

    loaded_from: tuple[Any, ...] = ()

    def __reduce_ex__(self, protocol: Any) -> Any:
        return (load_encoder, self.loaded_from) if self.loaded_from else super().__reduce_ex__(protocol)


Precision = Literal["auto", "float32", "float16", "bfloat16"]  # "auto": float16 on a CUDA GPU, float32 elsewhere
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
OBJECTS = (  # hint for a model that comes without the rest
    "; pass a model of transformers as (model, processor), and one of open_clip as (model, preprocess, tokenizer)"
)
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")  # exists on Linux with an NVIDIA driver
# prefix -> (module, class or function, description of what follows the prefix, example)
PREFIXES = {
    "onnx": ("onnx", "OnnxEncoder", "a folder made by `acclimate convert`; needs no PyTorch", "onnx:clip/"),
    "hf": ("transformers", "load", "a CLIP or SigLIP model on Hugging Face (downloaded)", KNOWN[0]),
    "local": ("transformers", "load_from_folder", "a folder saved with `save_pretrained`", "local:my-clip/"),
    "open_clip": ("open_clip", "load", "a model and its weights, NAME/TAG (downloaded)", "open_clip:ViT-B-16/openai"),
}


@ordinary_tensors()  # weights that are loaded in inference mode could never be differentiated through
def load_encoder(
    name: str = BUNDLED,
    device: str = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    threads: int = 0,
) -> Encoder:
    """Load an encoder by name.

    Args:
        name: "bundled", `onnx:DIR`, `hf:ID`, `local:DIR` or `open_clip:NAME/TAG`.
        device: "auto" (a GPU if there is one), "cpu", "cuda", "cuda:1"; for PyTorch models also "mps" and others that
            PyTorch knows. One that is not there is refused before anything is loaded.
        precision: precision of the image tower of a PyTorch model: "auto" (float16 on a CUDA GPU, float32 elsewhere),
            "float32", "float16" or "bfloat16". A model that overflows in float16 is run in bfloat16. Texts are encoded
            in float32.
        compile: compile the image tower of a PyTorch model with `torch.compile`: takes 20 s, and makes it up to 10 %
            faster.
        threads: threads of onnxruntime on a CPU; 0 for one per core. PyTorch has `torch.set_num_threads`.

    Raises:
        ModelError: the model is not available; the message says what is missing and how to get it.
        MissingExtraError: the model needs a package that is not installed.

    Examples:
        >>> from acclimate.encoders import load_encoder
        >>> encoder = load_encoder("bundled")
        >>> encoder.encode_text(["a photo of a cat.", "a photo of a dog."]).shape == (2, encoder.dim)
        True
    """
    loaded_from = (absolute_model(name), device, precision, compile, threads)
    if name == BUNDLED:
        name = f"onnx:{Path(__file__).with_name(BUNDLED)}"
    prefix, colon, what = name.partition(":")
    if not colon or prefix not in PREFIXES or not what:
        hint = f"write one of {', '.join([BUNDLED, *(example for *_, example in PREFIXES.values())])}."
        if Path(name).is_dir():
            hint = f"write a folder as onnx:{name} or local:{name}."
        elif near := get_close_matches(name, (BUNDLED, *KNOWN), n=2, cutoff=0.5):
            hint = f"did you mean {' or '.join(near)}?"
        raise ModelError(f"unknown model {name!r}; {hint}")
    if prefix == "onnx" and (compile or precision not in ("auto", "float32")):
        raise ModelError(
            "ONNX models run as they are; leave precision and compile out, or use hf:, local: or open_clip:."
        )
    module, function, *_ = PREFIXES[prefix]
    load: Callable[..., Any] = getattr(import_module(f"acclimate.encoders.{module}"), function)
    arguments = {"threads": threads} if prefix == "onnx" else {"precision": precision, "compile": compile}
    encoder = load(what, device, **arguments)
    encoder.loaded_from = loaded_from
    return cast(Encoder, encoder)


def as_encoder(encoder: Any, device: str, precision: Precision = "auto", compile: bool = False) -> Encoder:
    """Return the encoder of a name or of a model with what prepares its inputs, or an encoder as it is.

    A model is given as open_clip's (model, preprocess, tokenizer), transformers' (model, processor) or
    (model, image_processor, tokenizer), or as a pipeline of transformers.
    """
    if isinstance(encoder, str):
        return load_encoder(encoder, device, precision, compile)
    if all(hasattr(encoder, name) for name in ("model", "image_processor", "tokenizer", "task")):  # a pipeline
        encoder = (encoder.model, encoder.image_processor, encoder.tokenizer)
    if isinstance(encoder, tuple) and len(encoder) == 2 and hasattr(encoder[1], "image_processor"):
        encoder = (encoder[0], encoder[1].image_processor, encoder[1].tokenizer)
    if isinstance(encoder, tuple) and len(encoder) == 3:
        if hasattr(encoder[0], "config"):
            from acclimate.encoders.transformers import TransformersEncoder

            return TransformersEncoder(*encoder, precision=precision, compile=compile)
        if hasattr(encoder[0], "encode_text"):
            from acclimate.encoders.open_clip import OpenClipEncoder

            return OpenClipEncoder(*encoder, precision=precision, compile=compile)
    members = ("dim", "logit_scale", "logit_bias", "fingerprint", "prepare", "encode_images", "encode_text")
    if lacks := [name for name in members if not hasattr(encoder, name)]:
        hint = OBJECTS if isinstance(encoder, tuple) or hasattr(encoder, "parameters") else ""
        raise InputError(f"{type(encoder).__name__} is not an encoder: it lacks {', '.join(lacks)}{hint}.")
    return cast(Encoder, encoder)


def import_library(module: str, what: str, extra: str, otherwise: str = "") -> Any:
    """Import an optional library; `what` needs it, `extra` installs it, and `otherwise` says what else to do.

    Raises:
        MissingExtraError: it is not installed.
        ModelError: it is installed, and cannot be imported.
    """
    if find_spec(module) is None:
        raise missing(what, extra, otherwise)
    try:
        return import_module(module)
    except Exception as error:  # a library that does not fit another one fails in many ways
        raise ModelError(
            f"{what}, and {module} cannot be imported: {root_cause(error)}; see `acclimate doctor`."
        ) from error


def absolute_model(name: str) -> str:
    """Return the name of a model for processes that have another working directory: a folder in it is absolute.

    Examples:
        >>> absolute_model("onnx:/models/clip"), absolute_model("hf:openai/clip-vit-base-patch16")
        ('onnx:/models/clip', 'hf:openai/clip-vit-base-patch16')
    """
    prefix, _, folder = name.partition(":")
    return f"{prefix}:{Path(folder).absolute()}" if folder and prefix in ("onnx", "local") else name


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
    """Return the device to run a PyTorch model on: a GPU for "auto", if there is one that works."""
    import torch

    with warnings.catch_warnings(record=True) as said:  # PyTorch warns of a driver that it cannot use
        warnings.simplefilter("always")
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    gpus = ["cuda", *(f"cuda:{i}" for i in range(count))] if count else []
    if device == "auto":
        why = _cannot_compute("cuda") if gpus else str(said[0].message).splitlines()[0] if said else ""
        if not gpus and not torch.version.cuda and NVIDIA_DRIVER.exists():
            why = "this PyTorch was built without CUDA"
        if why:
            warnings.warn(f"there is a GPU that cannot be used, so the model runs on the CPU: {why}.", stacklevel=2)
        return "cuda" if gpus and not why else "cpu"
    if why := _cannot_compute(device):
        mps = ["mps"] if torch.backends.mps.is_available() else []
        there_are = ", ".join(["auto", "cpu", *gpus, *mps])
        raise ModelError(f"cannot use device {device!r}: {why}; choose from {there_are}.")
    return device


def _cannot_compute(device: str) -> str:
    """Return why PyTorch cannot compute on a device; "" if it can."""
    import torch

    try:
        torch.ones(1, device=device).add(1).item()
    except (RuntimeError, AssertionError) as error:  # an unknown device, a build of torch without it, a driver
        return str(error).splitlines()[0].rstrip(".")
    return ""


def check_precision(precision: str, device: str) -> Precision:
    """Return the precision of a model that runs on a device: "auto" is float16 on a CUDA GPU, float32 elsewhere."""
    if precision not in get_args(Precision):
        raise InputError(f"unknown precision {precision!r}; choose from {', '.join(get_args(Precision))}.")
    automatic: Precision = "float16" if device.startswith("cuda") else "float32"
    return automatic if precision == "auto" else cast(Precision, precision)
