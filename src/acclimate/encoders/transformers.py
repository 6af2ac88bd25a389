"""Dual encoders of Hugging Face transformers, versions 4 and 5: `hf:ID`, `local:DIR`, or a model as an object."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from acclimate.arrays import HostArray, to_host, unit_rows
from acclimate.encoders.loading import Precision, check_precision, fingerprint_files, import_library, torch_device
from acclimate.encoders.open_clip import OpenClipEncoder
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import InputError, ModelError, root_cause

WITHOUT_TORCH = "or convert the model with `acclimate convert` on a machine that has them, and load it as onnx:DIR"


def load_from_folder(
    folder: str, device: str = "auto", precision: Precision = "auto", compile: bool = False
) -> "TransformersEncoder":
    """Load a model saved with `save_pretrained`, without network access."""
    path = Path(folder)
    if not (path / "config.json").is_file():
        what = "it holds no config.json" if path.is_dir() else "there is no such folder"
        raise ModelError(f"no transformers model in {folder}: {what}; save one there with `save_pretrained`.")
    return load(folder, device, precision, compile, local=True)


def load(
    name: str,
    device: str = "auto",
    precision: Precision = "auto",
    compile: bool = False,
    *,
    local: bool = False,
) -> "TransformersEncoder":
    """Load a model by its id on the Hugging Face Hub, or from a folder; one that is not in the cache is downloaded."""
    what = f"{name} needs PyTorch and transformers"
    import_library("torch", what, "hf", WITHOUT_TORCH)
    transformers = import_library("transformers", what, "hf", WITHOUT_TORCH)
    device = torch_device(device)
    precision = check_precision(precision, device)
    with _loading(transformers, name, local):
        model = transformers.AutoModel.from_pretrained(name, local_files_only=local)
        tokenizer = transformers.AutoTokenizer.from_pretrained(name, local_files_only=local)
        processor = transformers.AutoImageProcessor.from_pretrained(name, local_files_only=local)
        commit = getattr(model.config, "_commit_hash", None)
        fingerprint = f"{name}@{commit}" if commit else ""
        if local:
            suffixes = (".json", ".safetensors", ".bin", ".txt")
            fingerprint = fingerprint_files([path for path in Path(name).iterdir() if path.suffix in suffixes])
        model = model.float().to(device)  # some weights are stored in half precision
        encoder = TransformersEncoder(model, processor, tokenizer, fingerprint, precision, compile)
    encoder.source = f"{'local' if local else 'hf'}:{name}"
    return encoder


class TransformersEncoder(OpenClipEncoder):
    """A dual encoder of transformers, such as CLIP or SigLIP, on the device of its parameters.

    Args:
        model: has get_image_features, get_text_features, logit_scale (the logarithm of the scale) and possibly
            logit_bias.
        image_processor: what it does to an image is read from its settings; it is not called for each image.
        tokenizer: the tokenizer of transformers that belongs to the model.
        fingerprint: identifies the weights; without it, text features are not cached on disk.
        precision: precision of the image tower, whose weights are converted in place; "auto" for the present one.
        compile: compile the image tower; see `load_encoder`.

    Raises:
        ModelError: the model does not encode images and texts in one space, or prepares them as acclimate cannot.
    """

    preprocess: Preprocess

    def __init__(
        self,
        model: Any,
        image_processor: Any,
        tokenizer: Any,
        fingerprint: str = "",
        precision: Precision = "auto",
        compile: bool = False,
    ) -> None:
        self.source = type(model).__name__
        wanted = ("get_image_features", "get_text_features", "logit_scale")
        if lacks := [name for name in wanted if not hasattr(model, name)]:
            raise ModelError(
                f"{self.source} does not encode images and texts as CLIP does: it lacks {', '.join(lacks)}; "
                "use a CLIP or SigLIP model."
            )
        if not hasattr(image_processor, "to_dict") or not hasattr(tokenizer, "pad_token_id"):
            raise InputError("give a model of transformers as (model, image_processor, tokenizer), in this order.")
        if tokenizer.pad_token_id is None:
            raise ModelError(
                "the tokenizer has no padding token; set tokenizer.pad_token, for instance to its eos_token."
            )
        config = image_processor.to_dict()
        preprocess = Preprocess.from_processor(config)
        _check_pixels(preprocess, image_processor)
        self.context = min(tokenizer.model_max_length, _positions(model))
        # Models of this kind were trained on texts of full length, and their tokenizers choose whether to mask it.
        self.padding = "max_length" if "siglip" in model.config.model_type else "longest"
        super().__init__(model, preprocess, tokenizer, fingerprint, precision, compile)
        earlier = tuple(config["image_mean"] or ()), tuple(config["image_std"] or ())
        if fingerprint and (earlier != (preprocess.mean, preprocess.std) or self._mask_matters()):
            self.fingerprint += "+mask"  # earlier versions had other features

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Return the features (n, dim) of n texts, truncated to the context length of the model."""
        import torch

        with torch.inference_mode():
            tokens = [tokens.to(self.device) for tokens in self.tokens(texts, self.padding)]
            return to_host(self.text_features(*tokens).float())

    def tokens(self, texts: Sequence[str], padding: str) -> list[Any]:
        """Return the token ids (n, length) of n texts, and the mask (n, length) that is 0 for padding, if one is used.

        Texts go the way of transformers' own pipeline for zero-shot classification.
        """
        mask = None if self.padding == "max_length" else True  # None: as the tokenizer was configured
        options = {"truncation": True, "max_length": self.context, "return_tensors": "pt"}
        with self.tokenizing:
            found = self.tokenizer(list(texts), padding=padding, return_attention_mask=mask, **options)
        return [found[name] for name in ("input_ids", "attention_mask") if name in found]

    def token_ids(self, texts: Sequence[str]) -> Any:
        """Return the token ids of n texts as a tensor (n, context), padded."""
        return self.tokens(texts, "max_length")[0]

    def image_features(self, pixels: Any) -> Any:
        """Run the model on a tensor of pixels (n, 3, h, w)."""
        return self._features(self.model.get_image_features(pixel_values=pixels))

    def text_features(self, ids: Any, mask: Any = None) -> Any:
        """Run the model on token ids (n, length), and on a mask (n, length) that is 0 for padding."""
        return self._features(self.model.get_text_features(input_ids=ids, attention_mask=mask))

    def _features(self, output: Any) -> Any:
        """Return the features (n, d), which transformers 5 wraps in an object."""
        features = getattr(output, "pooler_output", output)
        if getattr(features, "ndim", 0) != 2:
            raise ModelError(f"{self.source} has no single vector per image and text; use a CLIP or SigLIP model.")
        return features

    def _mask_matters(self) -> bool:
        """Return True if a text has other features without the mask, which earlier versions left out."""
        import torch

        with torch.inference_mode():
            earlier = self.text_features(self.token_ids(["a"]).to(self.device)).float()
        return not np.allclose(unit_rows(to_host(earlier), "f"), unit_rows(self.encode_text(["a"]), "f"), atol=1e-3)


def _positions(model: Any) -> int:
    """Return the longest text that a model reads; RoBERTa counts positions from that of its padding."""
    tables = [table for name, table in model.named_modules() if name.endswith("position_embeddings")]
    padding = [table.padding_idx for table in tables if getattr(table, "padding_idx", None) is not None]
    return int(model.config.text_config.max_position_embeddings) - max(padding, default=-1) - 1


def _check_pixels(preprocess: Preprocess, image_processor: Any) -> None:
    """Refuse an image processor that prepares images otherwise than by what is read from its settings."""
    ramp = np.linspace(0, 255, 300)
    red, green = np.meshgrid(ramp, ramp[:200])
    image = Image.fromarray(np.stack([red, green, red[:, ::-1] / 2], axis=-1).astype(np.uint8))
    expected = np.asarray(image_processor(images=image, return_tensors="pt")["pixel_values"][0])
    found = preprocess(image)
    # Smooth images are hardly changed by another rounding, or by a crop that begins one pixel later.
    if expected.shape != found.shape or (np.abs(expected - found).mean(axis=(1, 2)) * preprocess.std).max() > 0.01:
        name = type(image_processor).__name__
        raise ModelError(f"{name} prepares images otherwise than by resizing, cropping and normalising; use another.")


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
    except ModelError:
        raise
    except ImportError as error:
        raise ModelError(
            f"cannot load {name}: transformers cannot import what it needs ({root_cause(error)}); "
            "see `acclimate doctor`."
        ) from error
    except Exception as error:  # transformers and tokenizers raise many kinds
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
