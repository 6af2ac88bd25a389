"""Tiny random CLIPs, each for both sides from the same weights, and the images that they are shown."""

import gzip
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import torch
from PIL import Image

from acclimate import load_encoder
from acclimate.encoders import Encoder
from fidelity_parts.authors import Clones, can_import, single_precision

CLASSES = ("tench", "great white shark", "sea_lion", "T-shirt", "St. Bernard", "hen-of-the-woods", "Boeing 737-800")
CLASSES += ("red_and_white_circus_tent", "café", "forest", "Herbaceous Vegetation Land", "pot pie")
NEW_CLASSES = ("lighthouse", "F-16A/B", "sun_hat", "Yak-42", "industrial buildings")  # 5 others, for Table 3's use
TEMPLATES = ("itap of a {}.", "a bad photo of the {}.", "a origami {}.", "a photo of the large {}.")
TEMPLATES += ("a {} in a video game.", "art of the {}.", "a photo of the small {}.")
CONTEXT = 77
VOCABULARY = 49408
WIDTH = 128
DIM = 64
LAYERS = 3
SIZES = {"ViT": 224, "ResNet": 64}
PATCH = 32
MEAN = (0.48145466, 0.4578275, 0.40821073)
STD = (0.26862954, 0.26130258, 0.27577711)
SPREAD = 1.4
CENTRED = 0.98  # share of their mean that is taken off features, so that they point in different directions
START, END = "<|startoftext|>", "<|endoftext|>"
MERGES = 49152 - 256 - 2  # lines of the vocabulary's file that CLIP reads, behind its header


@dataclass(frozen=True)
class Pair:
    """A model for both sides.

    Attributes:
        name: what it is, for the page.
        size: width and height of its input.
        weights: file of its weights as OpenAI's code saves and loads them.
        encoder: the same weights in acclimate.
    """

    name: str
    size: int
    weights: Path
    encoder: Encoder

    def load(self, clip: ModuleType) -> Any:
        """Return the model that the authors' copy of OpenAI's code loads."""
        with single_precision():
            return clip.load(str(self.weights), device="cpu")[0]

    def pixels(self, count: int, seed: int) -> torch.Tensor:
        """Draw images as pixels (count, 3, size, size), normalised for CLIP."""
        return pixels(count, seed, self.size)


def pairs(clones: Clones, folder: Path) -> list[Pair]:
    """Make the ViT and, where open_clip can be imported, the ResNet."""
    with clones.importing("tda") as module, single_precision():
        clip = module("clip.clip")
        architecture = module("clip.model").CLIP
    torch.manual_seed(0)
    text = (CONTEXT, VOCABULARY, WIDTH, WIDTH // 64, LAYERS)
    size = SIZES["ViT"]
    vit = _random(architecture(DIM, size, LAYERS, WIDTH, PATCH, *text), clip, size)
    vocabulary = clones.folders["tda"] / "clip/bpe_simple_vocab_16e6.txt.gz"
    _save_for_transformers(vit, vocabulary, folder / "vit")
    torch.save(vit.state_dict(), folder / "vit.pt")
    made = [Pair("ViT", size, folder / "vit.pt", load_encoder(f"local:{folder / 'vit'}", "cpu"))]
    if can_import("open_clip"):
        size = SIZES["ResNet"]
        resnet = _random(architecture(DIM, size, (1, 1, 1, 1), 8, None, *text), clip, size)
        torch.save(resnet.state_dict(), folder / "resnet.pt")
        made.append(Pair("ResNet", size, folder / "resnet.pt", _open_clip_encoder(resnet.state_dict(), size)))
    return made


def _random(model: Any, clip: ModuleType, size: int) -> Any:
    """Fill a model with random weights so that its answers differ between images: features are nearly centred."""
    model = model.float().eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "attnpool" not in name:
            torch.nn.init.normal_(parameter, std=SPREAD / float(np.prod(parameter.shape[1:])) ** 0.5)
        elif "ln_" in name or "bn" in name:
            parameter.data += 0.1 * torch.randn_like(parameter)
    for name, buffer in model.named_buffers():
        if name.endswith("running_mean"):
            buffer.normal_(std=0.1)
    model.logit_scale.data.fill_(np.log(100.0))
    shown = pixels(64, 1, size)
    pooled = getattr(model.visual, "attnpool", None)
    texts = clip.tokenize([f"a photo of a {name}." for name in CLASSES])
    with torch.no_grad():
        if pooled is None:
            _centre(model.visual.ln_post, model.visual.ln_post.bias, lambda: model.encode_image(shown))
        else:
            _centre(pooled, pooled.c_proj.bias, lambda: model.encode_image(shown))
        _centre(model.ln_final, model.ln_final.bias, lambda: model.encode_text(texts))
        for parameter in model.parameters():
            if parameter.ndim:  # as OpenAI's weights, which open_clip rounds to half precision anyway
                parameter.copy_(parameter.half().float())
    return model


def _centre(layer: Any, bias: torch.Tensor, run: Callable[[], Any]) -> None:
    """Take most of the mean of a layer's outputs off its bias."""
    outputs: list[torch.Tensor] = []
    hook = layer.register_forward_hook(lambda _, __, output: outputs.append(output))
    run()
    hook.remove()
    bias -= CENTRED * outputs[0].reshape(-1, outputs[0].shape[-1]).mean(dim=0)


def _open_clip_encoder(weights: dict[str, Any], size: int) -> Encoder:
    """Return acclimate's encoder of open_clip's own object with these weights."""
    import open_clip
    from open_clip.openai import build_model_from_openai_state_dict

    from acclimate.encoders.open_clip import OpenClipEncoder

    model = build_model_from_openai_state_dict(dict(weights), cast_dtype=torch.float32).float()
    preprocess = open_clip.image_transform(size, is_train=False, mean=MEAN, std=STD)
    return OpenClipEncoder(model, preprocess, open_clip.SimpleTokenizer(context_length=CONTEXT))


def _save_for_transformers(model: Any, vocabulary: Path, folder: Path) -> None:
    """Save a ViT of OpenAI's code, with CLIP's tokenizer, as transformers saves models."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    tower = {"hidden_size": WIDTH, "intermediate_size": 4 * WIDTH, "num_hidden_layers": LAYERS}
    tower |= {"num_attention_heads": WIDTH // 64, "hidden_act": "quick_gelu", "projection_dim": DIM}
    ends = {"bos_token_id": VOCABULARY - 2, "eos_token_id": VOCABULARY - 1, "pad_token_id": VOCABULARY - 1}
    config = transformers.CLIPConfig(
        text_config=tower | ends | {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT},
        vision_config=tower | {"image_size": SIZES["ViT"], "patch_size": PATCH},
        projection_dim=DIM,
    )
    saved = transformers.CLIPModel(config)
    missing, unexpected = saved.load_state_dict(_names_of_transformers(model.state_dict()), strict=False)
    if unexpected or [name for name in missing if not name.endswith("position_ids")]:
        raise RuntimeError(f"the weights do not fit: {missing} are missing, {unexpected} are unknown.")
    saved.save_pretrained(folder)
    _save_tokenizer(vocabulary, folder)
    processor = {"image_processor_type": "CLIPImageProcessor", "do_resize": True, "do_center_crop": True}
    size = SIZES["ViT"]
    processor |= {"size": {"shortest_edge": size}, "crop_size": {"height": size, "width": size}, "resample": 3}
    processor |= {"do_rescale": True, "rescale_factor": 1 / 255, "do_normalize": True, "do_convert_rgb": True}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor | {"image_mean": MEAN, "image_std": STD}))


def _names_of_transformers(weights: dict[str, Any]) -> dict[str, Any]:
    """Return weights of OpenAI's code under the names of transformers."""
    found = {
        "logit_scale": weights["logit_scale"],
        "visual_projection.weight": weights["visual.proj"].T,
        "text_projection.weight": weights["text_projection"].T,
        "vision_model.embeddings.class_embedding": weights["visual.class_embedding"],
        "vision_model.embeddings.patch_embedding.weight": weights["visual.conv1.weight"],
        "vision_model.embeddings.position_embedding.weight": weights["visual.positional_embedding"],
        "text_model.embeddings.token_embedding.weight": weights["token_embedding.weight"],
        "text_model.embeddings.position_embedding.weight": weights["positional_embedding"],
    }
    norms = {"visual.ln_pre": "vision_model.pre_layrnorm", "visual.ln_post": "vision_model.post_layernorm"}
    norms["ln_final"] = "text_model.final_layer_norm"
    inner = {"ln_1": "layer_norm1", "ln_2": "layer_norm2", "attn.out_proj": "self_attn.out_proj"}
    inner |= {"mlp.c_fc": "mlp.fc1", "mlp.c_proj": "mlp.fc2"}
    for layer in range(LAYERS):
        for ours, theirs in (("visual.transformer", "vision_model"), ("transformer", "text_model")):
            block = f"{theirs}.encoder.layers.{layer}"
            norms |= {f"{ours}.resblocks.{layer}.{old}": f"{block}.{new}" for old, new in inner.items()}
            for kind in ("weight", "bias"):
                parts = weights[f"{ours}.resblocks.{layer}.attn.in_proj_{kind}"].chunk(3)
                found |= {f"{block}.self_attn.{n}_proj.{kind}": part for n, part in zip("qkv", parts, strict=True)}
    for old, new in norms.items():
        found |= {f"{new}.{kind}": weights[f"{old}.{kind}"] for kind in ("weight", "bias")}
    return {name: value.contiguous() for name, value in found.items()}


def _save_tokenizer(vocabulary: Path, folder: Path) -> None:
    """Write CLIP's tokenizer as transformers reads it, from the file of merges beside OpenAI's code."""
    merges = gzip.decompress(vocabulary.read_bytes()).decode().split("\n")[1 : MERGES + 1]
    printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    letters = [chr(each) for each in printable]
    letters += [chr(256 + each) for each in range(256 - len(printable))]  # bytes that cannot be printed
    tokens = [*letters, *(f"{letter}</w>" for letter in letters), *("".join(line.split()) for line in merges)]
    ids = {token: number for number, token in enumerate([*tokens, START, END])}
    (folder / "vocab.json").write_text(json.dumps(ids))
    (folder / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]), encoding="utf-8")
    special = {"bos_token": START, "eos_token": END, "unk_token": END, "pad_token": END}
    (folder / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CLIPTokenizer", **special}))


def images(sizes: Sequence[tuple[int, int]], seed: int) -> list[Image.Image]:
    """Draw images of random coloured patches with noise, one of each size (width, height)."""
    rng = np.random.default_rng(seed)
    drawn = []
    for size in sizes:
        coarse = Image.fromarray(rng.integers(256, size=(5, 5, 3), dtype=np.uint8))
        smooth = np.asarray(coarse.resize(size, Image.Resampling.BICUBIC), np.float32)
        noisy = smooth + rng.normal(scale=12.0, size=smooth.shape)
        drawn.append(Image.fromarray(noisy.clip(0, 255).astype(np.uint8)))
    return drawn


def pixels(count: int, seed: int, size: int) -> torch.Tensor:
    """Draw images as pixels (count, 3, size, size), normalised for CLIP."""
    drawn = np.stack([np.asarray(each) for each in images([(size, size)] * count, seed)])
    normalised = (drawn / np.float32(255) - np.float32(MEAN)) / np.float32(STD)
    return torch.from_numpy(normalised.transpose(0, 3, 1, 2).copy())
