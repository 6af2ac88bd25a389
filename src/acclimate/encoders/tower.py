"""The text tower of a PyTorch model, fed with embeddings in place of words, for prompts that are learned."""

import re
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from threading import local
from typing import Any

import torch

from acclimate.errors import InputError, ModelError

Tensor = Any  # torch.Tensor
SECOND_CLASS = re.compile(r" \(2\)$")  # the benchmark's mark of the second class of one name
SAME_COSINE = 0.999  # two features above it are the same up to rounding, in half precision as well
CACHED_PROMPTS = 8  # sets of prompts that are kept


class TextTower:
    """An encoder of prompts whose first words are given as vectors: gradients reach these vectors and nothing else.

    While it encodes, the model's table of token embeddings answers with the given ones, in this thread alone. The
    parameters of the model are frozen; nothing else about it changes.

    Args:
        model: has a CLIP text tower, whose table of embeddings is called `token_embedding`.
        token_ids: maps n texts to token ids (n, context): a start, the words, an end, padding.
        text_features: maps token ids to features (n, d).

    Attributes:
        table: the model's own table of embeddings.
        width: length of an embedding.
        shortens: whether prompts are cut to the longest one; padding is never looked at, and costs time.

    Raises:
        ModelError: the tower cannot take embeddings; the message says which models can.
    """

    def __init__(
        self, model: Any, token_ids: Callable[[Sequence[str]], Tensor], text_features: Callable[[Tensor], Tensor]
    ) -> None:
        tables = [each for name, each in model.named_modules() if name.rpartition(".")[2] == "token_embedding"]
        if not tables:
            raise ModelError(_cannot(model, "it has no table named token_embedding"))
        self.table = tables[0]
        self._token_ids = token_ids
        self._text_features = text_features
        self._given = local()
        self.table.register_forward_hook(lambda *_: getattr(self._given, "embeddings", None))
        self._prompts = lru_cache(CACHED_PROMPTS)(partial(Prompts, self))
        self.width = int(self.table.weight.shape[1])
        self.device = self.table.weight.device
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        self.end = int(token_ids([""])[0, 1])  # the token that ends a text
        self.shortens = self._can_shorten(model)

    def words(self, text: str) -> Tensor:
        """Return the embeddings (M, width) of the words of a text."""
        ids = self._token_ids([text]).to(self.device)
        with torch.no_grad():
            return self.table(ids[0, 1 : self._ends(ids)[0]]).float()

    def prompts(self, class_names: Sequence[str], context: int) -> "Prompts":
        """Return the prompts of K classes that begin with `context` vectors; the most recent are kept."""
        with torch.inference_mode(False):  # kept prompts must also serve callers that differentiate
            return self._prompts(tuple(class_names), context, self.shortens)

    def _ends(self, ids: Tensor) -> list[int]:
        return [1 + int(index) for index in (ids[:, 1:] == self.end).int().argmax(dim=1)]

    def encode(self, embeddings: Tensor, ids: Tensor) -> Tensor:
        """Encode prompts with embeddings (n, length, width) to features (n, d); the ids say where each prompt ends."""
        self._given.embeddings = embeddings.to(self.table.weight.dtype)
        try:
            return self._text_features(ids)
        finally:
            self._given.embeddings = None

    def read(self, texts: Sequence[str], before: int = 0, shorten: bool = False) -> tuple[Tensor, list[int]]:
        """Return token ids (n, length) of texts with room for `before` tokens after the start, and their ends.

        A text that is too long is cut before its end. With `shorten`, the ids are as short as the longest text.
        """
        ids = self._token_ids(list(texts)).to(self.device)
        length = ids.shape[1]
        ends = self._ends(ids)
        if before > length - 3:
            raise InputError(f"a context of {before} tokens does not fit; the model reads {length - 3} at most.")
        filler = ids[:, 1:2].expand(-1, before)  # ordinary tokens: their embeddings are replaced
        ids = torch.cat([ids[:, :1], filler, ids[:, 1:]], dim=1)[:, :length].clone()
        ends = [min(end + before, length - 1) for end in ends]
        ids[torch.arange(len(ids)), ends] = self.end
        return (ids[:, : max(ends) + 1] if shorten else ids), ends

    def _can_shorten(self, model: Any) -> bool:
        """Return True if padding can be left out, as in a causal tower; refuse a tower that looks ahead."""
        whole, ends = self.read(["a"])
        with torch.no_grad():
            expected = self._text_features(whole)
            own = self.table(whole)
            same, moved = (
                torch.allclose(self.encode(each, whole), expected, atol=1e-4) for each in (own, own.flip(-1))
            )
            if moved or not same:
                raise ModelError(_cannot(model, "it does not read its table of embeddings"))
            try:
                found = self._text_features(whole[:, : ends[0] + 1])
            except (RuntimeError, ValueError, IndexError):  # some towers take prompts of full length only
                return False
        cosine = torch.nn.functional.cosine_similarity(found.float(), expected.float())
        if float(cosine) < SAME_COSINE:
            raise ModelError(_cannot(model, "it reads a text in both directions"))
        return True


class Prompts:
    """The prompts "START context name . END" of K classes, for any context.

    Args:
        tower: text tower that reads them.
        class_names: K names.
        context: number M of vectors before the name.
        shorten: leave out the padding behind the longest prompt.
    """

    def __init__(self, tower: TextTower, class_names: Sequence[str], context: int, shorten: bool) -> None:
        self.tower = tower
        self.context = context
        names = [f"{SECOND_CLASS.sub('', name).replace('_', ' ')}." for name in class_names]
        self.ids, _ = tower.read(names, context, shorten)
        with torch.no_grad():
            embedded = tower.table(self.ids)
        self._start = embedded[:, :1]
        self._rest = embedded[:, 1 + context :]

    def vectors(self, context: Tensor) -> Tensor:
        """Return unit class vectors (K, d), float32, for a context (M, width), or (K, M, width) with one per class.

        On a GPU the tower runs in mixed precision.
        """
        context = context.to(self._start.dtype)
        if context.ndim == 2:
            context = context.expand(len(self.ids), -1, -1)
        embeddings = torch.cat([self._start, context, self._rest], dim=1)
        device = self.tower.device.type
        with torch.autocast(device, torch.float16, enabled=device == "cuda"):
            features = self.tower.encode(embeddings, self.ids)
        return torch.nn.functional.normalize(features.float(), dim=-1)


def _cannot(model: Any, why: str) -> str:
    return (
        f"the text tower of {type(model).__name__} cannot take embeddings: {why}; prompts are learned with CLIP models "
        "of hf:, local: or open_clip:."
    )
