"""Distil MiniLM and the text head of the tower into one small text tower with its own tokenizer.

    python training/distil_text.py --names names.txt --minilm MINILM/ --head tower-int4.npz --to OUT/

The teacher maps a name c to normalise(h2(gelu(h1(t)))) with t = normalise(MiniLM("a photo of a {c}.") + MiniLM("{c}")).
The student reads c in one of many templates and is trained to give the same vector. Takes a few minutes on one GPU.
"""

import argparse
import json
import random
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import save_file
from torch.nn import functional as F

from text_model import TextModel, TextSize

TEMPLATES = Path(__file__).parents[1] / "src" / "acclimate" / "prompts" / "data" / "templates.json"
HELD_OUT = 2000


def teach(names: list[str], minilm: Path, head: Path, device: str) -> torch.Tensor:
    """Return the teacher's unit vectors (n, 512) of the names."""
    from transformers import AutoModel, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(minilm, local_files_only=True)
    model = AutoModel.from_pretrained(minilm, local_files_only=True).float().to(device).eval()
    weights = {
        name: torch.from_numpy(values.astype(np.float32)).to(device)
        for name, values in np.load(head).items()
        if name[0] == "h"
    }

    def embed(texts: list[str]) -> torch.Tensor:
        inputs = tokenizer(texts, padding=True, truncation=True, max_length=48, return_tensors="pt").to(device)
        hidden = model(**inputs).last_hidden_state
        mask = inputs["attention_mask"][:, :, None].float()
        return F.normalize((hidden * mask).sum(1) / mask.sum(1), dim=-1)

    vectors = []
    with torch.inference_mode():
        for start in range(0, len(names), 2048):
            part = names[start : start + 2048]
            t = F.normalize(embed([f"a photo of a {name}." for name in part]) + embed(part), dim=-1)
            hidden = F.gelu(t @ weights["h1.w"].T + weights["h1.b"])
            vectors.append(F.normalize(hidden @ weights["h2.w"].T + weights["h2.b"], dim=-1))
    return torch.cat(vectors).clone()


def train_tokenizer(names: list[str], templates: list[str], size: TextSize):
    """Train a word-piece tokenizer for lower-case text; id 0 is padding."""
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=60))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=size.vocabulary, special_tokens=["[PAD]", "[UNK]"], show_progress=False
    )
    tokenizer.train_from_iterator([*names, *templates * 20], trainer)
    return tokenizer


class Prompts:
    """Random prompts as padded ids: the pieces of a template around the pieces of a name."""

    def __init__(self, names: list[str], templates: list[str], tokenizer, size: TextSize) -> None:
        self.names = [each.ids for each in tokenizer.encode_batch(names)]
        halves = [tuple(tokenizer.encode(half).ids for half in template.split("{}")) for template in templates]
        plain = halves[templates.index("{}")]
        photo = halves[templates.index("a photo of a {}.")]
        self.halves = [*halves, *[photo] * len(halves), *[plain] * (len(halves) // 3)]
        self.size = size

    def draw(self, rows: np.ndarray, rng: random.Random) -> torch.Tensor:
        """Return the ids (n, context) of one prompt for each name."""
        ids = np.full((len(rows), self.size.context), self.size.pad, np.int64)
        for i, row in enumerate(rows.tolist()):
            before, after = rng.choice(self.halves)
            pieces = (before + self.names[row] + after)[: self.size.context]
            ids[i, : len(pieces)] = pieces
        return torch.from_numpy(ids)


def main() -> None:
    """Train the student, evaluate it on held-out names, and write it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--names", type=Path, required=True)
    parser.add_argument("--minilm", type=Path, required=True)
    parser.add_argument("--head", type=Path, required=True)
    parser.add_argument("--to", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=14_000)
    parser.add_argument("--batch", type=int, default=2048)
    options = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    rng = random.Random(0)
    numpy_rng = np.random.default_rng(0)
    size = TextSize()

    lines = options.names.read_text(encoding="utf-8").splitlines()
    classes = lines[: lines.index("--")]
    names = classes + lines[len(classes) + 1 :]
    targets = teach(names, options.minilm, options.head, device)
    print(f"{len(names)} names, {len(classes)} of them classes; teacher done", flush=True)
    described = json.loads(TEMPLATES.read_text(encoding="utf-8"))
    templates = sorted({"{}", *(each for about in described.values() for each in about.get("templates", []))})
    tokenizer = train_tokenizer(names, templates, size)
    size = TextSize(vocabulary=tokenizer.get_vocab_size())
    prompts = Prompts(names, templates, tokenizer, size)
    held_out = len(classes) + numpy_rng.choice(len(names) - len(classes), HELD_OUT, replace=False)
    seen = np.setdiff1d(np.arange(len(names)), held_out)
    # A quarter of each batch are class names, since most users ask for those.
    share = np.where(seen < len(classes), 0.25 / len(classes), 0.75 / (len(seen) - len(classes)))

    model = TextModel(size).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.02)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimiser, 2e-3, options.steps, pct_start=0.05)
    cumulative = np.cumsum(share)
    for step in range(options.steps):
        rows = seen[np.searchsorted(cumulative, numpy_rng.random(options.batch) * cumulative[-1])]
        ids = prompts.draw(rows, rng).to(device)
        target = targets[torch.from_numpy(rows).to(targets.device)]
        with torch.autocast(device, torch.bfloat16, enabled=device == "cuda"):
            features = model(ids)
        features = features.float()
        likeness = F.kl_div(
            (20 * features @ target.T).log_softmax(-1),
            (20 * target @ target.T).log_softmax(-1),
            log_target=True,
            reduction="batchmean",
        )
        loss = 4 * (1 - (features * target).sum(-1)).mean() + likeness
        optimiser.zero_grad(set_to_none=True)
        loss.backward()
        optimiser.step()
        schedule.step()
        if step % 1000 == 0 or step == options.steps - 1:
            scores = report(model, prompts, targets, held_out, len(classes), device)
            print(f"step {step}: loss {float(loss):.4f}, {scores}", flush=True)

    options.to.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: values.half().cpu().contiguous() for name, values in model.state_dict().items()},
        options.to / "text.safetensors",
    )
    tokenizer.save(str(options.to / "tokenizer.json"))
    (options.to / "text.json").write_text(json.dumps(vars(size)) + "\n")
    print(f"{sum(p.numel() for p in model.parameters()) / 1e6:.1f} M parameters -> {options.to}")


@torch.inference_mode()
def report(
    model: TextModel, prompts: Prompts, targets: torch.Tensor, held_out: np.ndarray, classes: int, device: str
) -> str:
    """Report the cosine to the teacher's vector and how often that is the nearest, for class and held-out names."""
    model.eval()
    texts = []
    for what, rows in (("classes", np.arange(classes)), ("held-out names", held_out)):
        target = targets[torch.from_numpy(rows).to(targets.device)]
        features = torch.cat(
            [model(prompts.draw(part, random.Random(1)).to(device)) for part in np.array_split(rows, 4)]
        ).float()
        cosine = float((features * target).sum(-1).mean())
        nearest = float(((features @ target.T).argmax(-1).cpu() == torch.arange(len(rows))).float().mean())
        texts.append(f"{what}: cosine {cosine:.3f}, nearest {100 * nearest:.1f} %")
    model.train()
    return "; ".join(texts)


if __name__ == "__main__":
    main()
