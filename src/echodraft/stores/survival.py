"""What came of guesses: chances by counts, in bins, with a prior for bins that have seen little."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

HALF = 200.0
"""Counts are halved beyond this many, so that old ones fade."""


class Survival:
    """Chances of bins: (hits + weight x prior) / (seen + weight).

    counts  float64 [*bins, 2], hits and seen, changed in place: whoever owns the array keeps what was learned
    prior   float64 [*bins]
    weight  how many observations the prior is worth
    """

    def __init__(self, counts: NDArray[np.float64], prior: NDArray[np.float64], weight: float) -> None:
        self.counts, self.prior, self.weight = counts, prior, weight

    def chances(self) -> NDArray[np.float64]:
        """The chance of every bin. Shape [*bins]."""
        hits, seen = self.counts[..., 0], self.counts[..., 1]
        out: NDArray[np.float64] = (hits + self.weight * self.prior) / (seen + self.weight)
        return out

    def count(self, which: tuple[int, ...], hit: bool) -> None:
        """A guess of this bin came true or did not."""
        count = self.counts[which]
        count += (hit, 1.0)
        if count[1] > HALF:
            count /= 2.0
