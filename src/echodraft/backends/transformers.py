"""Hugging Face causal language models that can score token trees, many sessions in one forward."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from echodraft.backends.transformers_attention import additive, attention, positions, visible
from echodraft.backends.transformers_cache import Placement, TreeCache
from echodraft.backends.transformers_linear import PackedLinears
from echodraft.backends.transformers_sampling import Forward, TorchScores
from echodraft.core.backend import Need, Request, Shape
from echodraft.core.draft import EMPTY, Draft
from echodraft.errors import UsageError

CHUNK = 512


@dataclass(slots=True)
class Slot:
    """One row of the cache: the tokens that it holds, and which side of a longrope switch they were computed on."""

    row: int
    tokens: list[int] = field(default_factory=list)
    long: bool = False


class TransformersBackend:
    """Scores token trees with a `PreTrainedModel` through a `TreeCache` and explicit masks and positions.

    Works for models whose memory is keys and values that attend by position (`transformers_support.support` says which).
    The model is not changed: attention function and packed weights are in place only during a forward.

    model   the model, in eval mode, on its device
    packed  prepacked linear weights, or None
    """

    offers = frozenset({Need.TOP_K, Need.HIDDEN})
    shape = Shape.TREE

    def __init__(self, model: Any, packed: PackedLinears | None = None, chunk: int = CHUNK) -> None:
        config = model.config.get_text_config(decoder=True)
        self.model, self.config, self.packed, self.chunk = model, config, packed, chunk
        self.vocab_size: int = model.get_output_embeddings().weight.shape[0]
        self.context: int | None = getattr(config, "max_position_embeddings", None)
        self._positions = self.context  # no draft goes beyond, also where a caller lifts `context` to let sessions do so
        self.device: torch.device = model.get_input_embeddings().weight.device
        self.dtype: torch.dtype = (None if packed is None else packed.dtype) or model.dtype  # of activations
        self.forwards = 0
        self._also: tuple[int, ...] = ()
        self._types = layer_types(config)
        self._windows = {kind: window_of(config, kind) for kind in set(self._types)}
        self._cache = TreeCache([self._windows[kind] for kind in self._types])
        parameters = inspect.signature(model.forward).parameters
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._keeps_logits = "logits_to_keep" in parameters
        self._per_type = getattr(config, "layer_types", None) is not None
        self._switch, self._recomputes = longrope_switch(model, config)
        self._slots: dict[int, Slot] = {}
        self._last: dict[int, tuple[int, Request]] = {}

    def show(self, layers: Sequence[int]) -> None:
        """From now on `hidden` holds, beside the final norm's states, those behind so many decoder layers, side by side in this order.

        Raises `UsageError` for a number that is not one of the model's layers, from 1 on.
        """
        for layer in layers:
            if not 1 <= layer <= len(self._types):
                raise UsageError(f"There is no layer {layer}: the model has layers 1 to {len(self._types)}, and the final norm.")
        self._also = tuple(layers)

    def _taps(self) -> list[Any]:
        """The modules whose outputs are the hidden states."""
        decoder = self.model.get_decoder()
        stacks = (module for module in decoder.modules() if isinstance(module, torch.nn.ModuleList) and len(module) == len(self._types))
        layers = next(stacks) if self._also else ()
        return [decoder, *(layers[layer - 1] for layer in self._also)]

    # Slots: rows stay contiguous from 0, so a batch reads a view.

    def open(self) -> int:
        slot = max(self._slots, default=-1) + 1
        self._slots[slot] = Slot(len(self._slots))
        return slot

    def close(self, slot: int) -> None:
        freed = self._slots.pop(slot)
        last = len(self._slots)
        for other in self._slots.values():
            if other.row == last:
                if other.tokens:  # a row that was never written may lie beyond the buffers
                    with torch.inference_mode():
                        self._cache.move(last, freed.row, len(other.tokens))
                other.row = freed.row

    def rewind(self, slot: int, length: int) -> int:
        held = self._slots[slot]
        del held.tokens[length:]
        return len(held.tokens)

    def room(self, slot: int, length: int) -> int:
        room = 1 << 30 if self._positions is None else self._positions - length
        if self._switch is not None and length <= self._switch:
            room = min(room, self._switch - length)
        return room

    def load(self, slot: int, tokens: Sequence[int], layers: Sequence[tuple[Tensor, Tensor]]) -> None:
        """Fill an empty slot with `tokens` that were read elsewhere: keys and values [heads, n, dim] of their last n, for every layer.

        n may be smaller than the number of tokens where a layer slides; it must reach back over the window.
        """
        held = self._slots[slot]
        self._cache.reserve(len(self._slots), len(tokens))
        with torch.inference_mode():
            for layer, (keys, values) in zip(self._cache.layers, layers, strict=True):
                layer.write(held.row, len(tokens), keys, values)
        held.tokens, held.long = list(tokens), self._switch is not None and len(tokens) > self._switch

    def dump(self, slot: int) -> list[tuple[Tensor, Tensor]]:
        """Keys and values [heads, n, dim] of a slot's n tokens, layer by layer: views that the next forward may change."""
        row, n = self._slots[slot].row, len(self._slots[slot].tokens)
        return [(layer.keys[row, :, :n], layer.values[row, :, :n]) for layer in self._cache.layers]

    def commit(self, slot: int, path: Sequence[int]) -> None:
        held = self._slots[slot]
        start, request = self._last.pop(slot)
        fed = start + len(request.pending)
        with torch.inference_mode():
            self._cache.keep(held.row, fed, [fed + node for node in path])
        held.tokens += [*request.pending, *(int(request.draft.token[node]) for node in path)]

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[TorchScores]:
        for request in requests:
            self._switch_sides(request)
        scores: dict[int, TorchScores] = {}
        for group in self._groups(requests):
            scores |= self._forward(group, want)
        return [scores[request.slot] for request in requests]

    def _groups(self, requests: Sequence[Request]) -> list[list[Request]]:
        """Requests that may share a forward: neighbouring rows, on one side of the longrope switch."""
        groups: list[list[Request]] = []
        for request in sorted(requests, key=lambda r: self._slots[r.slot].row):
            slot = self._slots[request.slot]
            before = self._slots[groups[-1][-1].slot] if groups else None
            if before is not None and before.row + 1 == slot.row and before.long == slot.long:
                groups[-1].append(request)
            else:
                groups.append([request])
        return groups

    def _switch_sides(self, request: Request) -> None:
        """Longrope rotates by another factor once the sequence is longer than the switch; what was cached before is computed again.

        So is what was cached beyond the switch and is now, after a rewind, short of it.
        """
        slot = self._slots[request.slot]
        if self._switch is None:
            return
        long = len(slot.tokens) + len(request.pending) + request.ahead > self._switch
        if long != slot.long and (self._recomputes or slot.long):
            again, slot.tokens, slot.long = slot.tokens, [], long
            for i in range(0, len(again), self.chunk):
                part = Request(request.slot, again[i : i + self.chunk], logits=False)
                self._forward([part], frozenset())
                self.commit(request.slot, [])
        slot.long = long

    def _forward(self, requests: list[Request], want: frozenset[Need]) -> dict[int, TorchScores]:
        slots = [self._slots[request.slot] for request in requests]
        fed = [len(request.pending) for request in requests]
        drafts: list[Draft] = [request.draft if len(request.draft) else EMPTY for request in requests]
        width = max(n + len(draft) for n, draft in zip(fed, drafts, strict=True))
        # A column at the switch makes the model take the long factor for a chunk that ends before it.
        forced = slots[0].long and max(len(s.tokens) + n for s, n in zip(slots, fed, strict=True)) <= (self._switch or 0)
        offsets = [len(slot.tokens) for slot in slots]
        place = Placement(slots[0].row, offsets, width + forced)
        self._cache.reserve(len(self._slots), place.view)
        self._cache.place, self._cache.touched = place, 0

        ids = np.zeros((len(requests), place.width), dtype=np.int64)
        for row, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            ids[row, : fed[row]] = request.pending
            ids[row, fed[row] : fed[row] + len(draft)] = draft.token
        where = positions(place, fed, drafts, self._switch if forced else None)
        kept = place.width - min(fed) + 1 if any(request.logits for request in requests) else 1
        hidden, out = self._call(ids, where, self._masks(place, fed, drafts), kept, Need.HIDDEN in want)
        if not self._keeps_logits:
            out = out[:, -kept:]
        forward = Forward(out, hidden)
        scores = {}
        for row, (request, draft) in enumerate(zip(requests, drafts, strict=True)):
            self._last[request.slot] = (offsets[row], request)
            first = fed[row] - 1 - (place.width - kept)
            scores[request.slot] = TorchScores(forward, row, first, len(draft) + 1, fed[row] + len(draft))
        return scores

    def _masks(self, place: Placement, fed: Sequence[int], drafts: Sequence[Draft]) -> Any:
        """One additive mask, or one for each type of layer."""
        eager = self.config._attn_implementation == "eager"
        masks: dict[int | None, Tensor] = {}
        for window in set(self._windows.values()):
            mask = additive(visible(place, fed, drafts, window), self.dtype, self.device)
            if eager and not mask.shape[-1]:
                mask = mask.new_zeros(*mask.shape[:-1], place.view - place.low(window))
            masks[window] = mask
        if self._per_type:
            return {kind: masks[window] for kind, window in self._windows.items()}
        return masks[self._windows[self._types[0]]]

    def _call(self, ids: Any, where: Any, masks: Any, kept: int, want_hidden: bool) -> tuple[Tensor | None, Tensor]:
        """One forward of the model: hidden states [rows, width, size] if wanted, logits [rows, kept, vocab]."""
        found: dict[int, Tensor] = {}
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            stack.enter_context(attention(self.config))
            if hasattr(self.model, "_optimize_model_for_decode"):
                stack.enter_context(self.model._optimize_model_for_decode())
            if self.packed is not None:
                stack.enter_context(self.packed.active())
            if want_hidden:
                for i, module in enumerate(self._taps()):
                    hook = module.register_forward_hook(
                        lambda _, __, out, i=i: found.update({i: out if isinstance(out, Tensor) else out[0]})
                    )
                    stack.callback(hook.remove)
            out = self.model(
                input_ids=torch.from_numpy(ids).to(self.device),
                attention_mask=masks,
                position_ids=torch.from_numpy(where).to(self.device),
                use_cache=True,
                **{self._cache_name: self._cache},
                **({"logits_to_keep": kept} if self._keeps_logits else {}),
            )
        self.forwards += 1
        if self._cache.touched != len(self._types):
            raise RuntimeError(
                f"{type(self.model).__name__} wrote {self._cache.touched} of {len(self._types)} cache layers; it keeps state elsewhere."
            )
        states = [found[i] for i in range(len(found))]
        return (torch.cat(states, dim=-1) if len(states) > 1 else states[0] if states else None), out.logits


def layer_types(config: Any) -> list[str]:
    """The attention type of every layer."""
    types = getattr(config, "layer_types", None)
    if types is not None:
        return list(types)
    slides = getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True)
    return ["sliding_attention" if slides else "full_attention"] * config.num_hidden_layers


def window_of(config: Any, kind: str) -> int | None:
    """How many positions a layer of this type sees, itself included; None = all."""
    return int(config.sliding_window) if kind == "sliding_attention" else None


def longrope_switch(model: Any, config: Any) -> tuple[int | None, bool]:
    """The length beyond which longrope takes its long factor, and whether `generate` then computes the cache again."""
    rope = getattr(config, "rope_parameters", None) or {}
    if rope.get("rope_type") != "longrope":
        return None, False
    switch = rope.get("original_max_position_embeddings") or config.original_max_position_embeddings
    from transformers import GenerationMixin

    recomputes = type(model).prepare_inputs_for_generation is not GenerationMixin.prepare_inputs_for_generation
    return int(switch), recomputes
