"""A tiny random model of every dual encoder in the installed transformers, saved with its tokenizer and processor."""

import json
import re
from pathlib import Path

from tiny_models import CORPUS, save_tokenizer

SIZE = 32  # pixels
SMALL = {
    "vocab_size": 300,
    "hidden_size": 32,
    "intermediate_size": 64,
    "ffn_dim": 64,
    "word_embed_proj_dim": 32,
    "encoder_hidden_size": 32,
    "num_hidden_layers": 1,
    "pooler_output_size": 32,
    "num_attention_heads": 4,
    "projection_dim": 24,
    "project_dim": 24,
    "projection_size": 32,
    "projection_intermediate_dim": 48,
    "image_text_hidden_size": 24,
    "num_query_tokens": 2,
    "image_size": SIZE,
    "patch_size": 8,
    "num_patches": 16,
    "depths": [1, 1, 1],
    "num_group_tokens": [4, 2, 0],
    "num_output_groups": [4, 2, 2],
    "extract_layers": [0],
    "width_coefficient": 0.25,
    "depth_coefficient": 0.25,
    "hidden_dim": 32,
    "bos_token_id": 0,
    "eos_token_id": 1,
    "sep_token_id": 1,
    "out_features": ["stage1"],
    "out_indices": [1],
    "stage_names": ["stem", "stage1"],
}
DERIVED = ("id2label", "label2id", "transformers_version", "architectures", "_name_or_path")
# Tokenizers of these send no mask, as the models were trained on texts of full length.
NO_MASK = ("siglip", "siglip2")
PAD_IS_START = ("align", "blip", "chinese_clip", "flava", "tipsv2", "vision-text-dual-encoder", "owlvit", "owlv2")


def discover():
    """Return the types of all models of transformers that have features of images and of texts."""
    import transformers
    from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

    models = Path(transformers.__file__).parent / "models"
    classes = set()
    for path in models.glob("*/modeling_*.py"):
        for part in re.split(r"^class ", path.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
            if "def get_image_features" in part and "def get_text_features" in part:
                classes.add(re.match(r"\w+", part)[0])
    return sorted(kind for kind, name in MODEL_MAPPING_NAMES.items() if name in classes)


def shrunk(settings, pad):
    """Return the settings of a configuration with small numbers."""
    small = {}
    for name, value in settings.items():
        if name in DERIVED:
            continue
        if isinstance(value, dict):
            small[name] = shrunk(value, pad)
        elif name == "pad_token_id":
            small[name] = pad
        else:
            small[name] = SMALL.get(name, value) if value is not None else None
    return small


def save_family(kind: str, folder: Path) -> Path:
    """Save a tiny model of a type, with a tokenizer and the image processor of the type."""
    import torch
    import transformers

    torch.manual_seed(0)
    transformers.utils.logging.disable_progress_bar()
    pad = 0 if kind in PAD_IS_START else 1
    config_class = transformers.CONFIG_MAPPING[kind]
    if kind == "vision-text-dual-encoder":
        vision = transformers.ViTConfig(**shrunk(transformers.ViTConfig().to_dict(), pad))
        text = transformers.BertConfig(**shrunk(transformers.BertConfig().to_dict(), pad))
        config = config_class.from_vision_text_configs(vision, text, projection_dim=24)
    else:
        config = config_class(**shrunk(config_class().to_dict(), pad))
    model = transformers.AutoModel.from_config(config).eval()
    for parameter in model.parameters():  # apart from each other, so that answers differ
        if parameter.ndim > 1:
            parameter.data.mul_(6.0)
    model.save_pretrained(folder)
    save_tokenizer(folder, CORPUS, 300, ["input_ids"] + ["attention_mask"] * (kind not in NO_MASK), pad)
    save_processor(kind, folder)
    return folder


def save_processor(kind, folder):
    """Save the image processor that transformers names for a type, for images of 32 pixels."""
    import transformers
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    names = IMAGE_PROCESSOR_MAPPING_NAMES.get(kind, ("CLIPImageProcessor",))
    names = list(names.values()) if isinstance(names, dict) else [name for name in names if name]
    name = min(names, key=len).removesuffix("Fast")
    processor = getattr(transformers, f"{name}Pil", None) or getattr(transformers, name)
    try:
        settings = processor().to_dict()
    except ImportError:  # it runs with torchvision only
        (folder / "preprocessor_config.json").write_text(json.dumps({"image_processor_type": name}))
        return
    sizes = {key: dict.fromkeys(settings[key], SIZE) for key in ("size", "crop_size") if key in settings}
    processor(**sizes).save_pretrained(folder)
