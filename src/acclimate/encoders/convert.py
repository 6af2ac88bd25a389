"""Convert a PyTorch model to ONNX, so that classifying and serving need no PyTorch."""

import json
import logging
import shutil
import tempfile
import warnings
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from acclimate.arrays import to_host, unit_rows
from acclimate.encoders.loading import import_library, load_encoder
from acclimate.encoders.onnx import CONFIG, FORMAT, VERSION, OnnxEncoder
from acclimate.encoders.open_clip import OpenClipEncoder
from acclimate.encoders.transformers import TransformersEncoder
from acclimate.errors import InputError, ModelError, root_cause

LARGEST_GAP = 1e-3  # unit features of a converted model may differ by that much


def convert(encoder: Any, folder: Path) -> float:
    """Write an encoder as an ONNX folder, completely or not at all.

    Args:
        encoder: loaded from `hf:` or `local:`, or its name.
        folder: must not exist.

    Returns:
        The largest difference between the normalised features of the two models on random images and a few texts.
    """
    if encoder.startswith("open_clip:") if isinstance(encoder, str) else type(encoder) is OpenClipEncoder:
        raise InputError(
            "open_clip models cannot be converted: their tokenizer and preprocessing are Python code, which an ONNX "
            "folder does not hold. A ViT can be converted from hf:; transformers has no CLIP with a ResNet."
        )
    if folder.exists():
        raise InputError(f"{folder} exists; choose another folder, or remove it first.")
    for package in ("torch", "transformers", "onnx", "onnxscript"):
        import_library(package, f"converting needs {package}", "convert", "the converted model does not")
    if isinstance(encoder, str):
        encoder = load_encoder(encoder, "cpu")
    if not isinstance(encoder, TransformersEncoder):
        raise InputError("only models loaded from hf: or local: can be converted.")
    if encoder.precision != "float32":
        raise InputError(f"the model was loaded in {encoder.precision}; load it in float32 to convert it.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        try:
            _export(encoder, work)
        except Exception as error:  # torch and onnxscript raise many kinds
            raise ModelError(f"{encoder.source} cannot be converted: {root_cause(error)}") from error
        backend = getattr(encoder.tokenizer, "backend_tokenizer", None)
        if backend is None:
            raise ModelError(f"{encoder.source} cannot be converted: its tokenizer runs in Python; use another model.")
        backend.save(str(work / "tokenizer.json"))
        config = {
            "format": FORMAT,
            "version": VERSION,
            "source": encoder.source,
            "dim": encoder.dim,
            "context": encoder.context,
            "pad_id": encoder.tokenizer.pad_token_id,
            "padding": encoder.padding,
            "padding_side": encoder.tokenizer.padding_side,
            "logit_scale": encoder.logit_scale,
            "logit_bias": encoder.logit_bias,
            "preprocess": asdict(encoder.preprocess),
        }
        (work / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        gap = _largest_gap(encoder, OnnxEncoder(work, "cpu"))
        if not gap < LARGEST_GAP:
            raise ModelError(f"{encoder.source} cannot be converted: its features would differ by {gap:.1e}.")
        work.rename(folder)
        return gap
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _export(encoder: TransformersEncoder, folder: Path) -> None:
    import torch

    class Tower(torch.nn.Module):  # type: ignore[misc]
        def __init__(self, forward: Any) -> None:
            super().__init__()
            self.model = encoder.model.to("cpu")
            self.forward = forward

    pixels = torch.zeros(2, 3, encoder.preprocess.height, encoder.preprocess.width)
    tokens = encoder.tokens(["a photo of a cat", "dog"], encoder.padding)
    batch = {0: torch.export.Dim("batch", max=2**16)}
    text = batch if encoder.padding == "max_length" else batch | {1: torch.export.Dim("length", max=encoder.context)}
    exporter = logging.getLogger("torch.onnx")
    level = exporter.level
    exporter.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            for tower, example, name, labels, sizes in (
                (Tower(encoder.image_features), (pixels,), "image.onnx", ["pixels"], batch),
                (Tower(encoder.text_features), tuple(tokens), "text.onnx", ["ids", "mask"], text),
            ):
                torch.onnx.export(
                    tower.eval(),
                    example,
                    folder / name,
                    input_names=labels[: len(example)],
                    output_names=["features"],
                    dynamic_shapes=(sizes,) * len(example),
                    dynamo=True,
                    external_data=False,
                    verbose=False,
                )
    finally:
        exporter.setLevel(level)
        encoder.model.to(encoder.device)


def _largest_gap(one: TransformersEncoder, other: OnnxEncoder) -> float:
    shape = (4, 3, one.preprocess.height, one.preprocess.width)
    images = list(np.random.default_rng(0).standard_normal(shape, dtype=np.float32))
    texts = ["a photo of a cat.", "dog", "a very long description of something that is hard to describe " * 20]
    ours, theirs = (
        unit_rows(np.concatenate([to_host(side.encode_images(images)), side.encode_text(texts)]), "features")
        for side in (one, other)
    )
    return float(np.abs(ours - theirs).max())
