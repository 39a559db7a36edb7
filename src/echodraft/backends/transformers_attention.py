"""Masks of token trees, and an attention function that runs grouped queries without expanding keys and values."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from echodraft.backends.transformers_cache import Placement
from echodraft.core.draft import Draft

NAME = "echodraft_tree"
WIDE = 64  # above this many rows of queries, repeating the mask for each group would cost more than it saves


def positions(place: Placement, fed: Sequence[int], drafts: Sequence[Draft], pad: int | None = None) -> NDArray[np.int64]:
    """Absolute position of every column of a forward: context in order, then each node at its depth. Shape [rows, width].

    Padding stands at the anchor's position, or at `pad`.
    """
    out = np.empty((len(fed), place.width), dtype=np.int64)
    for row, (offset, n, draft) in enumerate(zip(place.offsets, fed, drafts, strict=True)):
        out[row] = offset + n - 1 if pad is None else pad
        out[row, :n] = np.arange(offset, offset + n)
        out[row, n : n + len(draft)] = offset + n - 1 + draft.depth
    return out


def visible(place: Placement, fed: Sequence[int], drafts: Sequence[Draft], window: int | None) -> NDArray[np.bool_]:
    """What each column of a forward attends to. Shape [rows, width, view - low]; True = attend.

    Context sees all before it; a node sees the context and its ancestors; padding sees itself. Windows count positions, not slots.
    """
    low, view = place.low(window), place.view
    out = np.zeros((len(fed), place.width, view), dtype=np.bool_)
    where = positions(place, fed, drafts)
    for row, (offset, n, draft) in enumerate(zip(place.offsets, fed, drafts, strict=True)):
        m = len(draft)
        out[row, :, :offset] = True
        out[row, :n, offset : offset + n] = np.tri(n, dtype=np.bool_)
        out[row, n : n + m, offset : offset + n] = True
        out[row, n : n + m, offset + n : offset + n + m] = draft.ancestors
        if window is not None:
            column = np.arange(view)
            column[offset : offset + place.width] = where[row]
            out[row] &= column[None, :] > where[row][:, None] - window
        padding = np.arange(n + m, place.width)
        out[row, padding] = False
        out[row, padding, offset + padding] = True
    return out[:, :, low:]


def additive(mask: NDArray[np.bool_], dtype: torch.dtype, device: torch.device) -> Tensor:
    """`visible` as an additive mask [rows, 1, width, columns]; without columns if nothing is hidden."""
    if mask.all():
        return torch.empty(mask.shape[0], 1, mask.shape[1], 0, dtype=dtype, device=device)
    seen = torch.from_numpy(mask).to(device)[:, None]
    return torch.zeros(seen.shape, dtype=dtype, device=device).masked_fill_(~seen, torch.finfo(dtype).min)


def tree_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """Scaled dot-product attention over a tree: query [rows, heads, n, dim], key and value [rows, kv heads, columns, dim].

    Queries that share a key head become rows of one head, so that keys and values are read once and not copied.
    A mask without columns hides nothing. Returns [rows, n, heads, dim].
    """
    mask = attention_mask if attention_mask is not None and attention_mask.shape[-1] else None
    if kwargs.get("position_bias") is not None:
        return sdpa_attention_forward(module, query, key, value, mask, 0.0, scaling, is_causal=False, **kwargs)
    rows, heads, n, dim = query.shape
    groups = heads // key.shape[1]
    if groups > 1 and n <= WIDE:
        grouped = query.reshape(rows, key.shape[1], groups * n, dim)
        if mask is not None:
            mask = _repeated(mask, groups)
        out = torch.nn.functional.scaled_dot_product_attention(grouped, key, value, attn_mask=mask, scale=scaling)
        out = out.reshape(rows, heads, n, value.shape[-1])
    else:
        out = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scaling, enable_gqa=groups > 1)
    return out.transpose(1, 2), None


def _repeated(mask: Tensor, groups: int) -> Tensor:
    """`mask` for `groups` queries a row; computed once for all layers that share it."""
    cached: Tensor | None = getattr(mask, "repeated", None)
    if cached is None or cached.shape[-2] != groups * mask.shape[-2]:
        cached = mask.repeat(1, 1, groups, 1)
        mask.repeated = cached  # type: ignore[attr-defined]
    return cached


AttentionInterface.register(NAME, tree_attention)


@contextmanager
def attention(config: Any) -> Iterator[None]:
    """Let a model that attends by sdpa attend by `tree_attention` inside the block; its config is as before afterwards."""
    before = config._attn_implementation_internal
    if before == "sdpa":
        config._attn_implementation_internal = NAME
    try:
        yield
    finally:
        config._attn_implementation_internal = before
