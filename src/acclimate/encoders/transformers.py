"""CLIP and SigLIP models of Hugging Face transformers, versions 4 and 5: `hf:ID` and `local:DIR`."""

import contextlib
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from acclimate.encoders.loading import Precision, check_precision, fingerprint_files, torch_device
from acclimate.encoders.open_clip import OpenClipEncoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ModelError, missing


def load_from_folder(
    folder: str, device: str = "auto", precision: Precision = "auto", compile: bool = False
) -> "TransformersEncoder":
    """Load a model saved with `save_pretrained`, without network access."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        what = "it holds no config.json" if path.is_dir() else "there is no such folder"
        raise ModelError(f"no transformers model in {folder}: {what}; save one there with `save_pretrained`.")
    return TransformersEncoder(folder, device, precision, compile, local=True)


class TransformersEncoder(OpenClipEncoder):
    """A CLIP or SigLIP model of transformers.

    Args:
        name: id on the Hugging Face Hub, or a folder. A model that is not in the cache is downloaded.
        device: "auto", "cpu", "cuda", "mps", ...
        precision: precision of the image tower; see `load_encoder`.
        compile: compile the image tower.
        local: whether `name` is a folder; nothing is downloaded then.
    """

    preprocess: Preprocess

    def __init__(
        self,
        name: str,
        device: str = "auto",
        precision: Precision = "auto",
        compile: bool = False,
        *,
        local: bool = False,
    ) -> None:
        try:
            import torch  # noqa: F401
            import transformers
        except ImportError as error:
            raise missing(
                f"{name} needs PyTorch and transformers",
                "hf",
                "or convert the model with `acclimate convert` on a machine that has them, and load it as onnx:DIR",
            ) from error
        device = torch_device(device)
        precision = check_precision(precision, device)
        with _loading(transformers, name, local):
            model = transformers.AutoModel.from_pretrained(name, local_files_only=local)
            tokenizer = transformers.AutoTokenizer.from_pretrained(name, local_files_only=local)
            preprocess = Preprocess.from_processor(_processor_config(name, local))
        if not (hasattr(model, "get_image_features") and hasattr(model, "logit_scale")):
            raise ModelError(
                f"{name} is a {type(model).__name__}, which does not encode images and texts; "
                "use a CLIP or SigLIP model."
            )
        self.context = int(model.config.text_config.max_position_embeddings)
        self.source = f"{'local' if local else 'hf'}:{name}"
        commit = getattr(model.config, "_commit_hash", None)
        fingerprint = f"{name}@{commit}" if commit else ""
        if local:
            suffixes = (".json", ".safetensors", ".bin", ".txt")
            fingerprint = fingerprint_files([path for path in Path(name).iterdir() if path.suffix in suffixes])
        model = model.float().to(device)  # some weights are stored in half precision
        super().__init__(model, preprocess, tokenizer, fingerprint, precision, compile)

    def token_ids(self, texts: Sequence[str]) -> Any:
        """Return the token ids of n texts, padded (as SigLIP requires) or truncated to the context length."""
        options = {"padding": "max_length", "truncation": True, "max_length": self.context, "return_tensors": "pt"}
        with self.tokenizing:
            return self.tokenizer(list(texts), **options)["input_ids"]

    def image_features(self, pixels: Any) -> Any:
        """Run the model on a tensor of pixels (n, 3, h, w)."""
        output = self.model.get_image_features(pixel_values=pixels)
        return getattr(output, "pooler_output", output)  # transformers 5 returns an object that contains the tensor

    def text_features(self, ids: Any) -> Any:
        """Run the model on a tensor of token ids."""
        output = self.model.get_text_features(input_ids=ids)
        return getattr(output, "pooler_output", output)


def _processor_config(name: str, local: bool) -> dict[str, Any]:
    from transformers.image_processing_utils import BaseImageProcessor

    combined = Path(name) / "processor_config.json"
    if local and not (Path(name) / "preprocessor_config.json").is_file() and combined.is_file():
        return dict(json.loads(combined.read_text(encoding="utf-8"))["image_processor"])
    config, _ = BaseImageProcessor.get_image_processor_dict(name, local_files_only=local)
    return dict(config)


@contextlib.contextmanager
def _loading(transformers: Any, name: str, local: bool) -> Iterator[None]:
    """Keep transformers quiet, and report what it raises in one line that says what is missing and how to get it."""
    logging = transformers.utils.logging
    level = logging.get_verbosity()
    bars = logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    except (OSError, ValueError, KeyError, TypeError, ImportError) as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if local:
            how = "the folder must contain config.json, the weights, the tokenizer and preprocessor_config.json"
        else:
            offline = os.environ.get("HF_HUB_OFFLINE", "") not in ("", "0")
            how = "unset HF_HUB_OFFLINE to download it" if offline else "check the name and the network"
            how += f"; or download it elsewhere (`hf download {name}`), copy the folder and load it as local:DIR"
        raise ModelError(f"cannot load {name}: {reason} ({how}).") from error
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()
