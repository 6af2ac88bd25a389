"""All text encoding of the service: in one thread, a batch of prompts at a time, in turns."""

import asyncio
from pathlib import Path
from typing import Any

from acclimate.arrays import HostArray
from acclimate.errors import InputError
from acclimate.evidence import Head
from acclimate.prompts import LearnedPrompts
from acclimate.prompts.head import TextEncoder, head_steps, negative_steps
from acclimate.prompts.templates import LEARNED_PREFIX
from acclimate.serve.limits import Limits
from acclimate.serve.queues import FairPool

MAX_RECENT_HEADS = 32  # heads of single requests' labels that are kept in memory


class Texts:
    """An encoder of labels into heads, and of the nouns of "none of these".

    Only one thread encodes, as tokenizers are not thread-safe. Clients take turns after each batch of prompts, so that
    few labels do not wait for many, and a request that is cancelled stops after the batch that is running. BusyError is
    raised if too much is waiting.

    Args:
        encoder: the model.
        limits: `texts` is the number of sets of labels of one client that may wait.
        cache: the folder of the vectors of streams' labels; None for the default.
        prompts: the learned prompts that streams may name as their templates.
    """

    def __init__(
        self, encoder: TextEncoder, limits: Limits, cache: Path | None = None, prompts: LearnedPrompts | None = None
    ) -> None:
        self._encoder = encoder
        self._cache = cache
        self._prompts = prompts
        self.pool = FairPool("acclimate-text", 1, limits.texts)
        self._recent: dict[tuple[tuple[str, ...], str, bool], Head] = {}  # the least recently used first
        self._negatives: asyncio.Task[HostArray] | None = None

    async def head(
        self,
        labels: tuple[str, ...],
        templates: Any,
        client: str = "",
        *,
        expand: bool = True,
        known: Head | None = None,
    ) -> Head:
        """Return the head of a stream's labels; their vectors are stored on disk, or in the head that is `known`.

        Learned prompts are given by their name. New labels need those that the service was started with.
        """
        if isinstance(templates, str) and templates.startswith(LEARNED_PREFIX):
            if self._prompts is None or self._prompts.name != templates:
                if known is not None and {*labels} <= {*known.class_names}:
                    return known.remove({*known.class_names}.difference(labels))
                raise InputError(
                    "the stream has learned prompts, which this service was not started with; start it with "
                    '`templates = "learned:FILE"` in [streams] of its settings to add labels.'
                )
            templates = self._prompts
        steps = head_steps(self._encoder, labels, templates, self._cache, expand=expand, known=known)
        return await self.pool.run_steps(client, steps)

    async def negatives(self) -> HostArray:
        """Return the vectors (M, d) of nouns that stand for all else; they are encoded once.

        That may take longer than a request, and goes on when one is cancelled.
        """
        if self._negatives is None or (self._negatives.done() and self._negatives.exception()):
            self._negatives = asyncio.create_task(self.pool.run_steps("", negative_steps(self._encoder, self._cache)))
        return await asyncio.shield(self._negatives)

    async def head_for_request(
        self, labels: tuple[str, ...], template: str, client: str = "", *, expand: bool = True
    ) -> Head:
        """Return the head of the labels of a single request; only the most recent are kept, in memory."""
        key = (labels, template, expand)
        head = self._recent.pop(key, None)
        if head is None:
            steps = head_steps(self._encoder, labels, template, False, expand=expand)
            head = await self.pool.run_steps(client, steps)
        self._recent[key] = head
        if len(self._recent) > MAX_RECENT_HEADS:
            del self._recent[next(iter(self._recent))]
        return head
