"""Tiny random CLIP and SigLIP models with real tokenizers, saved as transformers saves them."""

import json
from collections.abc import Sequence
from pathlib import Path

CORPUS = [
    "a photo of a cat. a photo of a dog. a photo of a bird.",
    "red green blue square circle triangle stripes dots a photo of the large small",
]
MEANS = {"clip": [0.48145466, 0.4578275, 0.40821073], "siglip": [0.5, 0.5, 0.5]}
STDS = {"clip": [0.26862954, 0.26130258, 0.27577711], "siglip": [0.5, 0.5, 0.5]}


def save_tiny_model(
    kind: str,
    folder: Path,
    size: int = 32,
    width: int = 32,
    layers: int = 2,
    patch: int = 8,
    text_width: int = 32,
    text_layers: int = 2,
) -> Path:
    """Save a random model, tiny unless told otherwise; `kind` is "clip" or "siglip"."""
    import torch
    import transformers

    torch.manual_seed(0)
    tower = {"hidden_size": text_width, "intermediate_size": 2 * text_width, "num_hidden_layers": text_layers}
    tower["num_attention_heads"] = 4
    text = {"vocab_size": 300, "max_position_embeddings": 16, "bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    vision = {"image_size": size, "patch_size": patch}
    vision |= {
        "hidden_size": width,
        "intermediate_size": 2 * width,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
    }
    if kind == "clip":
        config = transformers.CLIPConfig(
            text_config=text | tower | {"projection_dim": 24},
            vision_config=vision | {"projection_dim": 24},
            projection_dim=24,
            logit_scale_init_value=2.5,
        )
        model = transformers.CLIPModel(config)
    else:
        config = transformers.SiglipConfig(text_config=text | tower, vision_config=vision)
        model = transformers.SiglipModel(config)
        model.logit_scale.data.fill_(2.0)
        model.logit_bias.data.fill_(-3.0)
    for parameter in model.parameters():  # apart from each other, so that answers differ
        if parameter.ndim > 1:
            parameter.data.mul_(6.0)
    save_model(model, folder, kind, size)
    return folder


def save_random_clip(folder: Path, names: Sequence[str]) -> Path:
    """Save a CLIP of the size of ViT-B/16 with random weights, whose tokens are mostly words of the names."""
    import torch
    import transformers

    torch.manual_seed(0)
    text = {"bos_token_id": 0, "eos_token_id": 1, "pad_token_id": 1}
    config = transformers.CLIPConfig(text_config=text, vision_config={"patch_size": 16}, projection_dim=512)
    corpus = [f"a photo of a {name}." for name in names]
    save_model(transformers.CLIPModel(config), folder, "clip", 224, corpus, config.text_config.vocab_size)
    return folder


def save_model(model, folder, kind, size, corpus=CORPUS, vocabulary=300):
    import transformers

    transformers.utils.logging.disable_progress_bar()
    model.eval().save_pretrained(folder)
    # SigLIP's tokenizers send no mask: the model was trained on texts of full length.
    save_tokenizer(folder, corpus, vocabulary, ["input_ids"] + ["attention_mask"] * (kind == "clip"))
    processor = {
        "image_processor_type": "CLIPImageProcessor" if kind == "clip" else "SiglipImageProcessor",
        "do_resize": True,
        "do_rescale": True,
        "do_normalize": True,
        "do_convert_rgb": True,
        "do_center_crop": kind == "clip",
        "size": {"shortest_edge": size} if kind == "clip" else {"height": size, "width": size},
        "resample": 3,
        "rescale_factor": 1 / 255,
        "image_mean": MEANS[kind],
        "image_std": STDS[kind],
    }
    if kind == "clip":
        processor["crop_size"] = {"height": size, "width": size}
    (folder / "preprocessor_config.json").write_text(json.dumps(processor))


def save_tokenizer(folder: Path, corpus: Sequence[str], vocabulary: int, inputs: Sequence[str], pad: int = 1) -> None:
    """Save a tokenizer with the tokens <start> (id 0) and <end> (1), one of which also pads."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer(models.BPE(unk_token="<end>"))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary,
        special_tokens=["<start>", "<end>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(corpus, trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<start> $A <end>", special_tokens=[("<start>", 0), ("<end>", 1)]
    )
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<start>",
        eos_token="<end>",
        pad_token=["<start>", "<end>"][pad],
        model_input_names=list(inputs),
    )
    fast.save_pretrained(folder)
