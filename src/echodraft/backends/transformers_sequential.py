"""Models that cannot hold a token tree: one sequence a forward, through Hugging Face's own cache."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache

from echodraft.backends.transformers import CHUNK
from echodraft.backends.transformers_sampling import Forward, TorchScores
from echodraft.core.backend import Need, Request, Shape


@dataclass(slots=True)
class Slot:
    """One sequence and its Hugging Face cache; None where the state is lost and the tokens are to be read again."""

    cache: Any
    tokens: list[int] = field(default_factory=list)


class SequentialBackend:
    """Chains, or single tokens, by the model's own masks and positions.

    A rejected tail is cropped from the cache. Where the state cannot be rolled back (`Shape.NONE`) nothing is drafted, and a rewind
    reads the sequence again.
    """

    offers = frozenset({Need.TOP_K, Need.HIDDEN})

    def __init__(self, model: Any, shape: Shape, chunk: int = CHUNK) -> None:
        config = model.config.get_text_config(decoder=True)
        self.model, self.config, self.shape = model, config, shape
        # Many recurrent layers start from an empty state whenever they read more than one token: context is read in one piece.
        self.chunk = 1 << 30 if shape == Shape.NONE else chunk
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self._positions = self.context  # no draft goes beyond, also where a caller lifts `context` to let sessions do so
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.forwards = 0
        self._parameters = inspect.signature(model.forward).parameters
        self._cache_name = next(name for name in ("cache", "past_key_values", "cache_params") if name in self._parameters)
        self._slots: dict[int, Slot] = {}
        self._last: dict[int, Request] = {}

    def open(self) -> int:
        slot = max(self._slots, default=-1) + 1
        self._slots[slot] = Slot(self._new_cache())
        return slot

    def _new_cache(self) -> Any:
        # Without a config every layer keeps all keys and is cropped freely; sliding is done by the mask. State layers need the config.
        return DynamicCache() if self.shape == Shape.CHAIN else DynamicCache(config=self.config)

    def close(self, slot: int) -> None:
        del self._slots[slot]

    def room(self, slot: int, length: int) -> int:
        return 1 << 30 if self._positions is None else self._positions - length

    def rewind(self, slot: int, length: int) -> int:
        held = self._slots[slot]
        if length < len(held.tokens):
            if self.shape == Shape.NONE:
                held.cache, held.tokens = self._new_cache(), []
            else:
                held.cache.crop(length - len(held.tokens))
                del held.tokens[length:]
        return len(held.tokens)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        held, request = self._slots[slot], self._last.pop(slot)
        rejected = len(request.draft) - len(path)
        if rejected:
            held.cache.crop(-rejected)
        held.tokens += [*request.pending, *(int(request.draft.token[node]) for node in path)]

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[TorchScores]:
        return [self._score(request, Need.HIDDEN in want) for request in requests]

    def _score(self, request: Request, want_hidden: bool) -> TorchScores:
        held = self._slots[request.slot]
        self._undo(request.slot)
        fed = len(request.pending)
        ids = [*request.pending, *request.draft.token.tolist()]
        start = len(held.tokens)
        if self.shape == Shape.NONE and (held.cache is None or (start and fed > 1)):
            held.cache, ids, start = self._new_cache(), [*held.tokens, *ids], 0
        kept = len(request.draft) + 1
        options: dict[str, Any] = {self._cache_name: held.cache, "use_cache": True}
        if "attention_mask" in self._parameters and self.shape == Shape.CHAIN:
            options["attention_mask"] = torch.ones(1, start + len(ids), dtype=torch.long, device=self.device)
        if "position_ids" in self._parameters:
            options["position_ids"] = torch.arange(start, start + len(ids), device=self.device)[None]
        if "logits_to_keep" in self._parameters:
            options["logits_to_keep"] = kept
        found: list[Tensor] = []
        decoder = self.model.get_decoder()
        hook = decoder.register_forward_hook(lambda _, __, out: found.append(out[0])) if want_hidden else None
        try:
            with torch.inference_mode():
                out = self.model(input_ids=torch.tensor([ids], device=self.device), **options)
        finally:
            if hook is not None:
                hook.remove()
        self.forwards += 1
        self._last[request.slot] = request
        logits, end = out.logits[:, -kept:], fed + len(request.draft)
        return TorchScores(Forward(logits, found[0][:, -end:] if found else None), 0, 0, kept, end)

    def _undo(self, slot: int) -> None:
        """Drop what an interrupted step left behind: a forward that was never committed."""
        stale = self._last.pop(slot, None)
        if stale is not None:
            held = self._slots[slot]
            if self.shape == Shape.NONE:
                held.cache = None  # read again by the next forward
            else:
                held.cache.crop(-(len(stale.pending) + len(stale.draft)))
