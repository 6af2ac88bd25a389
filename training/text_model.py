"""The text tower of the bundled model: a small transformer over word pieces, with mean pooling."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file
from tokenizers import Tokenizer
from torch import Tensor, nn
from torch.nn import functional as F


@dataclass(frozen=True)
class TextSize:
    """Sizes of the text model; `pad` is the id of padding, which is masked."""

    vocabulary: int = 10_240
    context: int = 32
    width: int = 256
    layers: int = 4
    heads: int = 4
    dim: int = 512
    pad: int = 0


class Block(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.heads = size.heads
        self.norm1 = nn.LayerNorm(size.width)
        self.norm2 = nn.LayerNorm(size.width)
        self.qkv = nn.Linear(size.width, 3 * size.width)
        self.out = nn.Linear(size.width, size.width)
        self.up = nn.Linear(size.width, 4 * size.width)
        self.down = nn.Linear(4 * size.width, size.width)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """Map (n, t, width) to (n, t, width); `mask` (n, 1, 1, t) is added to the attention scores."""
        n, t, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(n, t, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5 + mask
        x = x + self.out((scores.softmax(-1) @ v).transpose(1, 2).reshape(n, t, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class TextModel(nn.Module):
    """A text tower: ids (n, t), padded -> unit text features (n, dim)."""

    def __init__(self, size: TextSize) -> None:
        super().__init__()
        self.size = size
        self.tokens = nn.Embedding(size.vocabulary, size.width)
        self.positions = nn.Parameter(0.02 * torch.randn(size.context, size.width))
        self.blocks = nn.ModuleList(Block(size) for _ in range(size.layers))
        self.norm = nn.LayerNorm(size.width)
        self.project = nn.Linear(size.width, size.dim)

    def forward(self, ids: Tensor) -> Tensor:
        """Return features (n, dim)."""
        present = (ids != self.size.pad).to(self.positions.dtype)
        x = self.tokens(ids) + self.positions[: ids.shape[1]]
        mask = (present - 1.0)[:, None, None, :] * 1e4
        for block in self.blocks:
            x = block(x, mask)
        pooled = (self.norm(x) * present[:, :, None]).sum(1) / present.sum(1, keepdim=True).clamp(min=1.0)
        return F.normalize(self.project(pooled), dim=-1)


def load_text_model(folder: Path) -> TextModel:
    """Load the model written by `distil_text.py`."""
    model = TextModel(TextSize(**json.loads((folder / "text.json").read_text(encoding="utf-8"))))
    model.load_state_dict({name: values.float() for name, values in load_file(folder / "text.safetensors").items()})
    return model.eval()


def read_text_encoder(folder: Path) -> Callable[[Sequence[str]], Tensor]:
    """Load the model with its tokenizer, as a function from prompts to unit features (n, dim)."""
    model = load_text_model(folder)
    size = model.size
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.enable_truncation(size.context)
    tokenizer.enable_padding(length=size.context, pad_id=size.pad)

    @torch.inference_mode()
    def encode(prompts: Sequence[str]) -> Tensor:
        parts = [tokenizer.encode_batch(list(prompts[i : i + 1024])) for i in range(0, len(prompts), 1024)]
        return torch.cat([model(torch.tensor([each.ids for each in part])) for part in parts]).clone()

    return encode
