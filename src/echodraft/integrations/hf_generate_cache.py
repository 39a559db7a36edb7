"""Keys and values between Hugging Face's `DynamicCache`, padded and shared by a batch, and the rows of a backend."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import DynamicCache, DynamicLayer, DynamicSlidingWindowLayer

from echodraft.integrations.hf_generate_rows import Row


def copies(cache: Any, rows: int) -> bool:
    """Whether `cache` is one that we can continue and fill: growing layers of keys and values, sliding or not, for this many rows."""
    return (
        type(cache) is DynamicCache
        and not cache.offloading
        and all(type(layer) in (DynamicLayer, DynamicSlidingWindowLayer) for layer in cache.layers)
        and not any(getattr(layer, "record_past", False) for layer in cache.layers)
        and all(not layer.is_initialized or layer.keys.numel() == 0 or len(layer.keys) == rows for layer in cache.layers)
    )


def load(backend: Any, row: Row, cache: DynamicCache) -> None:
    """Take over what the cache holds of a row, so that its session begins behind it."""
    n = cache.get_seq_length() - row.padding
    if n <= 0:
        return
    # A sliding layer has dropped the oldest columns; where it has not, the padding comes first and stays behind.
    layers = [(layer.keys[row.index, :, -n:], layer.values[row.index, :, -n:]) for layer in cache.layers]
    backend.load(row.session.slot, row.session.tokens[:n], layers)
    row.session.cached = n


def fill(backend: Any, rows: Sequence[Row], cache: DynamicCache) -> None:
    """Append what the cache lacks. Rows end at one column; columns of padding, which nothing attends to, are zero."""
    have = cache.get_seq_length()
    states = [backend.dump(row.session.slot) for row in rows]
    for index, layers in enumerate(zip(*states, strict=True)):
        keys = [_behind(have, row.padding, keys) for row, (keys, _) in zip(rows, layers, strict=True)]
        values = [_behind(have, row.padding, values) for row, (_, values) in zip(rows, layers, strict=True)]
        if keys[0].shape[1]:
            cache.update(torch.stack(keys), torch.stack(values), index)


def _behind(have: int, padding: int, states: Tensor) -> Tensor:
    """Columns `have`… of a row whose tokens' keys or values [heads, n, dim] stand behind its padding."""
    if padding > have:
        return torch.cat([states.new_zeros(states.shape[0], padding - have, states.shape[2]), states], dim=1)
    return states[:, have - padding :]
