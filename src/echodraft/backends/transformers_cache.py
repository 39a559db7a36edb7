"""Keys and values of many sessions in one set of buffers, written at each row's own offset.

transformers asks a cache layer to `update` with the new keys and values and attends over what it returns. Here a layer writes them in
place and returns views: nothing is copied or concatenated as the context grows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache

STEP = 1024


@dataclass(frozen=True, slots=True)
class Placement:
    """Where one forward writes: rows `first`…`first + len(offsets) - 1`, `width` columns from each row's offset."""

    first: int
    offsets: Sequence[int]
    width: int

    @property
    def view(self) -> int:
        """Columns that the forward can see."""
        return max(self.offsets) + self.width

    def low(self, window: int | None) -> int:
        """First column that a layer with a sliding `window` can still see from any row."""
        return 0 if window is None else max(0, min(self.offsets) - window + 1)


class TreeLayer:
    """Keys and values of one layer, [rows, heads, capacity, dim], allocated on first use."""

    is_sliding = is_compileable = False
    is_croppable = is_initialized = True

    def __init__(self, owner: TreeCache, window: int | None) -> None:
        self.owner, self.window = owner, window
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def lazy_initialization(self, *_: Any, **__: Any) -> None:
        pass

    def update(self, key: Tensor, value: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        place = self.owner.place
        self.owner.touched += 1
        for i, offset in enumerate(place.offsets):
            keys, values = self.write(place.first + i, offset + place.width, key[i], value[i])
        rows, columns = slice(place.first, place.first + len(place.offsets)), slice(place.low(self.window), place.view)
        return keys[rows, :, columns], values[rows, :, columns]

    def write(self, row: int, end: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """Write keys and values [heads, n, dim] into the n columns of `row` before `end`. Returns the buffers."""
        if self.keys is None or self.values is None or self.keys.shape[0] < self.owner.rows or self.keys.shape[2] < self.owner.capacity:
            self.keys, self.values = self._grown(self.keys, key), self._grown(self.values, value)
        self.keys[row, :, end - key.shape[1] : end] = key
        self.values[row, :, end - value.shape[1] : end] = value
        return self.keys, self.values

    def _grown(self, old: Tensor | None, like: Tensor) -> Tensor:
        # Zeros, not garbage: a masked column still multiplies its value by zero, and zero times NaN is NaN.
        new = like.new_zeros(self.owner.rows, like.shape[0], self.owner.capacity, like.shape[2])
        if old is not None:
            new[: old.shape[0], :, : old.shape[2]] = old
        return new

    def buffers(self) -> list[Tensor]:
        return [buffer for buffer in (self.keys, self.values) if buffer is not None]

    def get_seq_length(self) -> int:
        return 0

    def get_mask_sizes(self, *_: Any) -> tuple[int, int]:
        return self.owner.place.view - self.owner.place.low(self.window), self.owner.place.low(self.window)

    def get_max_length(self) -> int:
        return self.owner.capacity

    get_max_cache_shape = get_max_length


class TreeCache(Cache):
    """All layers of one model. Open rows are kept contiguous from 0, so that a batch reads a view."""

    def __init__(self, windows: Sequence[int | None]) -> None:
        self.rows, self.capacity, self.touched = 1, 0, 0
        self.place = Placement(0, [0], 0)
        super().__init__(layers=[TreeLayer(self, window) for window in windows])  # type: ignore[misc]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before this forward in the longest row; models that are given positions only take it as a hint."""
        return max(self.place.offsets)

    def reserve(self, rows: int, columns: int) -> None:
        """Room for `rows` rows of `columns` columns; buffers grow in big steps, at the next forward."""
        if rows > self.rows:
            self.rows = max(rows, 2 * self.rows)
        if columns > self.capacity:
            self.capacity = -(-max(columns, self.capacity + self.capacity // 2) // STEP) * STEP

    def keep(self, row: int, start: int, columns: Sequence[int]) -> None:
        """Move `columns` of `row` to `start`, `start + 1`, …; ascending, none before its new place."""
        moved = [(start + i, column) for i, column in enumerate(columns) if column != start + i]
        if not moved:
            return
        for layer in self.layers:
            for buffer in layer.buffers():
                old = torch.tensor([column for _, column in moved], device=buffer.device)
                new = torch.tensor([place for place, _ in moved], device=buffer.device)
                buffer[row, :, new] = buffer[row, :, old]

    def move(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` columns of row `source` over row `target`."""
        for layer in self.layers:
            for buffer in layer.buffers():
                buffer[target, :, :length] = buffer[source, :, :length]
