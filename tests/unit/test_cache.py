"""The cache buffers: growth in steps, rows that move, accepted columns brought into place."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from echodraft.backends import transformers_cache
from echodraft.backends.transformers_cache import Placement, TreeCache

HEADS, DIM = 2, 3


def filled(rows: int, columns: int, windows: tuple[int | None, ...] = (None, None)) -> TreeCache:
    """A cache whose every value is different."""
    cache = TreeCache(windows)
    cache.reserve(rows, columns)
    cache.place = Placement(0, [0] * rows, columns)
    for i, layer in enumerate(cache.layers):
        values = torch.arange(rows * HEADS * columns * DIM, dtype=torch.float64).reshape(rows, HEADS, columns, DIM)
        layer.update(values + 1000 * i, -values - 1000 * i)
    return cache


def snapshot(cache: TreeCache) -> list[torch.Tensor]:
    return [buffer.clone() for layer in cache.layers for buffer in layer.buffers()]


@given(st.data())
def test_kept_columns_come_into_place_and_nothing_else_moves(data: st.DataObject) -> None:
    columns = 16
    row, start = data.draw(st.integers(0, 2)), data.draw(st.integers(0, columns))
    path = sorted(data.draw(st.sets(st.integers(start, columns - 1)))) if start < columns else []
    cache = filled(3, columns)
    before = snapshot(cache)
    cache.keep(row, start, path)
    for old, new in zip(before, snapshot(cache), strict=True):
        expected = old.clone()
        expected[row, :, start : start + len(path)] = old[row, :, path]
        end = start + len(path)
        assert torch.equal(new[row, :, :end], expected[row, :, :end])
        others = [r for r in range(3) if r != row]
        assert torch.equal(new[others], old[others])


def test_a_row_is_moved_over_another() -> None:
    cache = filled(3, 10)
    before = snapshot(cache)
    cache.move(2, 0, 7)
    for old, new in zip(before, snapshot(cache), strict=True):
        assert torch.equal(new[0, :, :7], old[2, :, :7])
        assert torch.equal(new[0, :, 7:], old[0, :, 7:])
        assert torch.equal(new[1:], old[1:])


def test_buffers_grow_in_steps_and_keep_what_they_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_cache, "STEP", 8)
    cache = filled(2, 5)
    before = snapshot(cache)
    assert (cache.rows, cache.capacity) == (2, 8)
    cache.reserve(2, 8)
    assert cache.capacity == 8
    cache.reserve(3, 9)
    assert cache.rows >= 3
    assert cache.capacity == 16
    cache.place = Placement(2, [0], 1)
    for layer in cache.layers:
        layer.update(torch.ones(1, HEADS, 1, DIM, dtype=torch.float64), torch.ones(1, HEADS, 1, DIM, dtype=torch.float64))
    for old, new in zip(before, snapshot(cache), strict=True):
        assert torch.equal(new[:2, :, :5], old[:, :, :5])
        assert torch.equal(new[2, :, 0], torch.ones(HEADS, DIM, dtype=torch.float64))
        assert not new[:2, :, 8:].any()


def test_rows_are_written_at_their_own_offsets_and_read_from_the_window_on() -> None:
    cache = filled(2, 10, (None, 4))
    cache.place = Placement(0, [3, 8], 2)
    new = torch.full((2, HEADS, 2, DIM), -1.0, dtype=torch.float64)
    seen = [layer.update(new, new)[0] for layer in cache.layers]
    assert [s.shape[2] for s in seen] == [10, 10]
    cache.place = Placement(1, [8], 2)
    seen = [layer.update(new[:1], new[:1])[0] for layer in cache.layers]
    assert [s.shape[2] for s in seen] == [10, 5]
    assert [cache.place.low(w) for w in (None, 4)] == [0, 5]
    keys = cache.layers[0].keys
    assert (keys[0, :, 3:5] == -1).all()
    assert (keys[1, :, 8:10] == -1).all()
    assert (keys[0, :, 5:10] >= 0).all()
    assert seen[0].data_ptr() == keys[1].data_ptr(), "a view, not a copy"
