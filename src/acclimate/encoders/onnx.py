"""Models converted to ONNX: a folder of `image.onnx`, `text.onnx`, `tokenizer.json` and `acclimate.json`."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from acclimate.arrays import HostArray, unit_rows
from acclimate.encoders.loading import Reopened, fingerprint_files
from acclimate.encoders.preprocess import Preprocess
from acclimate.errors import ModelError

CONFIG = "acclimate.json"
FILES = ("image.onnx", "text.onnx", "tokenizer.json", CONFIG)
PACKED = "image.safetensors"  # optional file: weights in 4 bits that image.onnx lacks
TEXT_INPUTS = {"ids": "ids", "mask": "attention_mask"}  # input of text.onnx -> attribute of a tokenizer's encoding
FORMAT = "acclimate-onnx"
VERSION = 1


class OnnxEncoder(Reopened):
    """A converted CLIP or SigLIP model, run with onnxruntime.

    What texts need is loaded when the first text is encoded: the vectors of a run's classes are usually cached.

    Args:
        folder: contains the files in `FILES`.
        device: "auto", "cpu", "cuda" or "cuda:N".
        threads: threads on a CPU; 0 for one per core.

    Attributes:
        prepare: maps an RGB image to pixels (3, h, w); also called `preprocess`.
    """

    def __init__(self, folder: str | Path, device: str = "auto", *, threads: int = 0) -> None:
        folder = Path(folder)
        packed = (folder / PACKED).is_file()
        # onnxruntime multiplies 8-bit integers on a CPU only, and would copy what it multiplies to and from a GPU.
        providers = _providers("cpu" if packed and device == "auto" else device)
        if missing := [name for name in FILES if not (folder / name).is_file()]:
            what = "no such folder" if not folder.is_dir() else f"{', '.join(missing)} missing"
            raise ModelError(f"no ONNX model in {folder} ({what}); make one with `acclimate convert`.")
        try:
            config = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
            if (config["format"], config["version"]) != (FORMAT, VERSION):
                raise ModelError(f"{folder} was written by another version of acclimate; convert the model again.")
            self.dim = int(config["dim"])
            self.context = int(config["context"])
            self.logit_scale = float(config["logit_scale"])
            self.logit_bias = float(config["logit_bias"])
            self.preprocess = Preprocess.from_json(config["preprocess"])
            # Earlier versions converted models of all families as they would CLIP, without a mask of the padding.
            self._unmasked = "padding" not in config and config["source"].startswith(("hf:", "local:"))
            self._padding = {
                "pad_id": int(config["pad_id"]),
                "direction": config.get("padding_side", "right"),
                "length": None if config.get("padding") == "longest" else self.context,
            }
        except (ValueError, KeyError, TypeError) as error:
            raise ModelError(f"{folder / CONFIG} is damaged ({error}); convert the model again.") from error
        self._folder = folder
        self._providers = providers
        self._threads = threads
        self.prepare = self.preprocess
        self._image = _session(folder / "image.onnx", providers, threads, folder / PACKED if packed else None)
        self._text: Any = None
        self._tokenizer: Any = None
        self._loading_text = Lock()
        self.fingerprint = fingerprint_files([folder / name for name in (*FILES, *[PACKED] * packed)])

    def encode_images(self, images: Sequence[HostArray]) -> HostArray:
        """Return the features (n, dim) of n prepared images."""
        return np.asarray(self._image.run(None, {"pixels": np.stack(images)})[0])

    def encode_text(self, texts: Sequence[str]) -> HostArray:
        """Return the features (n, dim) of n texts, truncated to the context length of the model."""
        with self._loading_text:
            if self._text is None:
                self._tokenizer = _tokenizer(self._folder / "tokenizer.json", self.context, self._padding)
                text = _session(self._folder / "text.onnx", self._providers, self._threads)
                if self._unmasked:
                    self._check_padding(text)
                self._text = text
        encodings = self._tokenizer.encode_batch(list(texts))
        names = [each.name for each in self._text.get_inputs()]
        tokens = {name: np.array([getattr(e, TEXT_INPUTS[name]) for e in encodings], np.int64) for name in names}
        return np.asarray(self._text.run(None, tokens)[0])

    def _check_padding(self, text: Any) -> None:
        """Refuse a model whose features depend on the padding, unless it was trained so, as SigLIP was."""
        encoding = self._tokenizer.encode("a")
        ids = np.array([encoding.ids, encoding.ids], np.int64)
        ids[1, np.array(encoding.attention_mask) == 0] = ids[0, 1]
        one, other = unit_rows(np.asarray(text.run(None, {"ids": ids})[0]), "features")
        if not self.logit_bias and not np.allclose(one, other, atol=1e-3):
            raise ModelError(f"{self._folder} lacks the mask that its texts need; convert the model again.")


def _providers(device: str) -> list[Any]:
    import onnxruntime

    has_cuda = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
    gpu = re.fullmatch("cuda(?::([0-9]+))?", device)
    if not gpu and device not in ("auto", "cpu"):
        gpus = ", cuda, cuda:N" if has_cuda else ""
        raise ModelError(f"cannot use device {device!r}; choose from auto, cpu{gpus}.")
    if gpu and not has_cuda:
        raise ModelError("this onnxruntime cannot use CUDA; pip install onnxruntime-gpu, or use the device 'cpu'.")
    cuda = ("CUDAExecutionProvider", {"device_id": (gpu and gpu[1]) or "0"})
    return [cuda, "CPUExecutionProvider"] if has_cuda and device != "cpu" else ["CPUExecutionProvider"]


def _session(path: Path, providers: list[Any], threads: int, packed: Path | None = None) -> Any:
    """Load a graph; weights that it does not have come from the file of packed ones."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = threads
    # Threads that spin while they wait would occupy the cores that read and prepare the next images.
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        weights = {} if packed is None else unpack_weights(packed)
        values = [onnxruntime.OrtValue.ortvalue_from_numpy(weight) for weight in weights.values()]
        if weights:
            options.add_external_initializers(list(weights), values)
        session = onnxruntime.InferenceSession(path, options, providers=providers)
        session.weights = values  # the session points to their memory
        return session
    except Exception as error:  # onnxruntime's exceptions have no common base class
        raise ModelError(f"{path} cannot be loaded: {str(error).splitlines()[0]} Convert the model again.") from error


def _tokenizer(path: Path, context: int, padding: dict[str, Any]) -> Any:
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_file(str(path))
    except Exception as error:  # tokenizers raises bare Exception
        raise ModelError(f"{path} cannot be read ({error}); convert the model again.") from error
    tokenizer.enable_truncation(context)
    tokenizer.enable_padding(**padding, pad_token=tokenizer.id_to_token(padding["pad_id"]) or "")
    return tokenizer


def unpack_weights(path: Path) -> dict[str, HostArray]:
    """Return the 8-bit weights `k.w` (inputs, outputs), with which onnxruntime multiplies, of a file of 4-bit weights.

    A layer `k` of the file, with a weight (inputs, outputs) in groups of inputs, consists of

    - `k.q` (inputs, outputs / 2): codes, the first half of the outputs in the low bits, the second in the high bits;
    - `k.z` (groups, outputs) and `k.s` (groups, outputs): zero points and scales, so that weight = (q - z) * s;
    - `k.m` (inputs,): factors by which the graph has divided the inputs, where possible in the layer before;
    - `k.ws` (outputs,): the scales of the outputs.

    The weight times the factors over the scales is rounded to whole numbers of 8 bits. CPUs without instructions for
    8-bit products add those of inputs 2j and 2j + 1 in 16 bits; the scales are such that this cannot overflow, so that
    all CPUs get the same sums. The rounded weights are the same everywhere, too: they result from one float32 operation
    after another.
    """
    from safetensors.numpy import load_file

    arrays = load_file(path)
    weights = {}
    for key in [name.removesuffix(".q") for name in arrays if name.endswith(".q")]:
        codes, zeros, scales, factors, outputs = (arrays[f"{key}.{part}"] for part in ("q", "z", "s", "m", "ws"))
        values = np.concatenate([codes & 15, codes >> 4], axis=1).astype(np.float32)
        groups = values.reshape(len(zeros), -1, values.shape[1])  # (groups, inputs of a group, outputs)
        groups -= zeros[:, None].astype(np.float32)
        groups *= scales[:, None].astype(np.float32)
        values *= factors[:, None].astype(np.float32)
        values /= outputs
        weights[f"{key}.w"] = np.rint(values).astype(np.int8)
    return weights
