"""Intervals by the bootstrap: items are drawn again and again, with replacement, and what is asked for is worked out for each drawing."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

DRAWS = 2000
SEED = 0
LEVEL = 0.95


def ratio_interval(above: ArrayLike, below: ArrayLike) -> tuple[float, float] | None:
    """95 % interval of (sum above[:, 0] / sum above[:, 1]) / (sum below[:, 0] / sum below[:, 1]) over items, which stay paired.

    above, below  float [items, 2]

    None for fewer than two items, which tell nothing of each other.
    """
    a, b = np.asarray(above, dtype=np.float64), np.asarray(below, dtype=np.float64)
    if len(a) < 2:
        return None
    drawn = _draws(len(a))
    sums_a, sums_b = a[drawn].sum(axis=1), b[drawn].sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios = (sums_a[:, 0] / sums_a[:, 1]) / (sums_b[:, 0] / sums_b[:, 1])
    return _between(ratios[np.isfinite(ratios)])


def mean_interval(values: ArrayLike) -> tuple[float, float] | None:
    """95 % interval of the mean of one value an item, float [items]; None for fewer than two."""
    v = np.asarray(values, dtype=np.float64)
    return None if len(v) < 2 else _between(v[_draws(len(v))].mean(axis=1))


def _draws(items: int) -> NDArray[np.int64]:
    return np.random.default_rng(SEED).integers(0, items, (DRAWS, items))


def _between(values: NDArray[np.float64]) -> tuple[float, float] | None:
    if not len(values):
        return None
    low, high = np.quantile(values, [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)
