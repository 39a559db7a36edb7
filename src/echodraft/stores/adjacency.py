"""What a model said behind each token: the adjacency matrix of Token Recycling (arXiv 2408.08696, section 3.1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from time import time
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

WIDTH = 8
"""Successors kept for one token, as published."""
EMPTY = -1


class AdjacencyStore:
    """The last best successors of every token that was ever scored.

    `rows[token]` is int32 [WIDTH], best first; -1 marks what is not known, which the published matrix fills with token 0. There is no
    row beyond the largest id seen: the size of the vocabulary need not be known, and bounds the store.
    """

    kind: ClassVar[str] = "adjacency"

    def __init__(self) -> None:
        self.rows: NDArray[np.int32] = np.empty((0, WIDTH), dtype=np.int32)
        self.written = 0.0

    def learn(self, tokens: Sequence[int], best: NDArray[np.int64]) -> None:
        """`best[i]` are the target's best ids behind `tokens[i]`, [n, up to WIDTH]. The last row of a token that comes twice counts.

        A row of -1 says nothing.
        """
        # NumPy does not say which of two rows an indexed assignment keeps.
        last = {token: i for i, (token, first) in enumerate(zip(tokens, best[:, 0].tolist(), strict=True)) if first != EMPTY}
        if not last:
            return
        most = max(last)
        if most >= len(self.rows):
            # By a fourth at least, so that growing costs each row a bounded number of copies.
            rows = np.full((max(most + 1, len(self.rows) * 5 // 4), WIDTH), EMPTY, dtype=np.int32)
            rows[: len(self.rows)] = self.rows
            self.rows = rows
        self.rows[list(last), : best.shape[1]] = best[list(last.values())]
        self.written = time()

    def successors(self, token: int) -> list[int]:
        """What followed `token`, best first; empty if it was never scored."""
        if token >= len(self.rows):
            return []
        found: list[int] = self.rows[token].tolist()
        return found if found[-1] != EMPTY else found[: found.index(EMPTY)]

    @property
    def tokens(self) -> int:
        return 0

    @property
    def nbytes(self) -> int:
        return self.rows.nbytes

    def prune(self, tokens: int, before: float = 0.0) -> None:
        if self.written < before:
            self.rows = self.rows[:0].copy()

    def entries(self) -> Iterator[dict[str, Any]]:
        """One entry a token that was scored: `token`, `successors`."""
        for token in np.flatnonzero(self.rows[:, 0] != EMPTY).tolist():
            yield {"token": token, "successors": self.successors(token)}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """rows int32 [n, WIDTH]; written float64 [1], seconds since the epoch."""
        return {"rows": self.rows, "written": np.asarray([self.written])}

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        rows, written = arrays.get("rows"), arrays.get("written")
        if rows is None or rows.dtype != np.int32 or rows.ndim != 2 or rows.shape[1] != WIDTH:
            raise ValueError(f"An adjacency store holds rows of int32 [n, {WIDTH}].")
        if written is None or written.dtype != np.float64 or written.shape != (1,) or not np.isfinite(written[0]):
            raise ValueError("An adjacency store holds the time when it was written, float64 [1].")
        known = rows != EMPTY
        if (rows < EMPTY).any() or (known[:, 1:] & ~known[:, :-1]).any():
            raise ValueError("The rows of an adjacency store hold ids from 0 on, then -1.")
        ordered = np.sort(rows, axis=1)
        if ((ordered[:, 1:] == ordered[:, :-1]) & (ordered[:, 1:] != EMPTY)).any():
            raise ValueError("A row of an adjacency store holds an id once.")
        store = cls()
        store.rows, store.written = rows.copy(), float(written[0])
        return store


class DraftAdjacency(AdjacencyStore):
    """The same of a draft model, apart from what the target says."""

    kind: ClassVar[str] = "draft-adjacency"
