"""The encoders that `gpu.py` measures with, of the size of ViT-B/16 and ResNet-50.

The weights are random, which changes no time. The features of a random tower are nearly the same for all images, and no
cache would behave as it does on photos. So the last layer is set from the features of some photos: their mean is
subtracted, and the directions in which they differ are weighted to differ alike. The same is done for the texts.
"""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers

from acclimate.encoders.preprocess import Preprocess
from acclimate.images.opening import open_image
from tiny_models import MEANS, STDS, save_model, save_tokenizer

LOGIT_SCALE = 140.0  # makes about half of the photos uncertain enough for the negative cache
DIRECTIONS = 64  # dimension of the space in which features differ
GROWTH = 2.0  # factor on the random weights, without which a tower sees little more than the mean colour


def preprocess(size: int) -> Preprocess:
    """Return the preprocessing of CLIP."""
    mean = tuple(MEANS["clip"])
    std = tuple(STDS["clip"])
    return Preprocess(size, size, size, "bicubic", mean, std, crop="round")


def save_vit(folder: Path, photos: Sequence[Path], labels: Sequence[str], device: str, tiny: bool) -> Path:
    """Save a CLIP with the image tower of ViT-B/16 and a small text tower; a tiny one of 32 pixels for trials."""
    torch.manual_seed(0)
    text = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1, "max_position_embeddings": 16}
    text |= {"hidden_size": 512, "intermediate_size": 512, "num_hidden_layers": 1, "vocab_size": 2048}
    vision: dict[str, int] = {"patch_size": 16, "image_size": 224}
    if tiny:
        vision = {"patch_size": 8, "image_size": 32, "hidden_size": 64, "intermediate_size": 128}
        vision |= {"num_hidden_layers": 2, "num_attention_heads": 4}
    config = transformers.CLIPConfig(text_config=text, vision_config=vision, projection_dim=512)
    model = transformers.CLIPModel(config).eval()
    model.logit_scale.data.fill_(np.log(LOGIT_SCALE))
    for parameter in model.vision_model.parameters():
        if parameter.ndim > 1:
            parameter.data.mul_(GROWTH)
    save_tokenizer(folder, labels, text["vocab_size"], ["input_ids", "attention_mask"])
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model.to(device)
    pixels = _pixels(photos, vision["image_size"], device)
    options = {"padding": "max_length", "truncation": True, "max_length": 16, "return_tensors": "pt"}
    ids = tokenizer([f"a photo of a {label}." for label in labels], **options)["input_ids"].to(device)
    with torch.inference_mode():
        seen = torch.cat([model.vision_model(pixel_values=part).pooler_output for part in pixels.split(64)])
        read = torch.cat([model.text_model(input_ids=part).pooler_output for part in ids.split(64)])
    _spread(model.vision_model.post_layernorm, model.visual_projection, seen)
    _spread(model.text_model.final_layer_norm, model.text_projection, read)
    save_model(model.cpu(), folder, "clip", vision["image_size"], labels, text["vocab_size"])
    return folder


class ResNetClip(torch.nn.Module):
    """A ResNet-50 with features of 1024 numbers, and texts that are sums over their letters; or a tiny one."""

    def __init__(self, tiny: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = {"embedding_size": 8, "hidden_sizes": [16, 32, 64, 128], "depths": [1, 1, 1, 1]} if tiny else {}
        config = transformers.ResNetConfig(**sizes)
        project = torch.nn.Linear(config.hidden_sizes[-1], 1024)
        self.visual = torch.nn.ModuleDict({"tower": transformers.ResNetModel(config).eval(), "project": project})
        self.letters = torch.nn.EmbeddingBag(32 * 128, 1024, mode="sum")
        self.logit_scale = torch.nn.Parameter(torch.tensor(float(np.log(LOGIT_SCALE))))

    def pooled(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return the input of the projection."""
        return self.visual["tower"](pixel_values=pixels).pooler_output.flatten(1)

    def encode_image(self, pixels: torch.Tensor) -> torch.Tensor:
        """Return features (n, 1024) of pixels (n, 3, h, w)."""
        return self.visual["project"](self.pooled(pixels))

    def encode_text(self, ids: torch.Tensor) -> torch.Tensor:
        """Return features (n, 1024) of token ids (n, 32)."""
        return self.letters(ids)


def resnet(photos: Sequence[Path], device: str, tiny: bool) -> tuple[ResNetClip, Preprocess, Callable[..., Any]]:
    """Return a CLIP of the size of ResNet-50 as model, preprocessing and tokenizer."""

    def tokenizer(texts: Sequence[str]) -> torch.Tensor:
        """Return ids (n, 32) of letters at their positions."""
        return torch.tensor([[32 * (ord(x) % 128) + i for i, x in enumerate(f"{text:32.32}")] for text in texts])

    size = 64 if tiny else 224
    model = ResNetClip(tiny).to(device)
    with torch.inference_mode():
        seen = torch.cat([model.pooled(part) for part in _pixels(photos, size, device).split(64)])
    _spread(None, model.visual["project"], seen)
    return model, preprocess(size), tokenizer


def _pixels(photos: Sequence[Path], size: int, device: str) -> torch.Tensor:
    prepare = preprocess(size)
    return torch.as_tensor(np.stack([prepare(open_image(path)) for path in photos]), device=device)


def _spread(norm: Any, projection: torch.nn.Linear, seen: torch.Tensor) -> None:
    """Set the last layer so that the features that follow from `seen` (n, d) differ from each other."""
    mean = seen.mean(0)
    _, lengths, directions = torch.linalg.svd((seen - mean).double(), full_matrices=False)
    kept = min(DIRECTIONS, len(seen) - 1)
    weights = lengths[:kept].clamp(min=1e-4 * lengths[0]) ** -0.5
    turn = torch.linalg.qr(torch.randn(len(projection.weight), kept, dtype=torch.float64)).Q.to(seen.device)
    weight = turn @ (weights[:, None] * directions[:kept])
    with torch.no_grad():
        projection.weight.copy_(weight * np.sqrt(len(weight)) / (weight @ (seen - mean).double().T).norm(dim=0).mean())
        if norm is not None:
            norm.bias -= mean
        else:
            projection.bias.copy_(-projection.weight @ mean)
