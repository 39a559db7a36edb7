"""Whole answers by what they answer: the history of ToolSpec (arXiv 2604.13519)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from echodraft.stores.checked import check_text, checked
from echodraft.stores.product import product

MOST = 4096
"""Answers kept, whatever the limits allow: every request compares its key with all of them."""
NONE: NDArray[np.int32] = np.empty(0, np.int32)


class OutputStore:
    """Finished answers, each under one vector of its request, found by cosine. The oldest go first.

    The vector is float16 [width], scaled to length 1 (or 0, which is like nothing); all of one width.
    """

    kind: ClassVar[str] = "outputs"

    def __init__(self) -> None:
        self.tokens = 0
        self._keys: NDArray[np.float16] = np.empty((0, 0), np.float16)
        self._ids: list[NDArray[np.int32]] = []  # the oldest first, in the order of the keys
        self._times: list[float] = []

    def __len__(self) -> int:
        return len(self._ids)

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + 4 * self.tokens

    def add(self, key: NDArray[Any], ids: Sequence[int] | NDArray[Any], when: float) -> None:
        """An answer, finished at `when` (seconds since the epoch). Raises `ValueError` for a key of another width, ids that are none."""
        key, held = _unit(key), np.asarray(ids, np.int32)
        if len(held) and held.min() < 0:
            raise ValueError("A token id is negative.")
        if not len(self):
            self._keys = np.empty((0, len(key)), np.float16)
        elif len(key) != self._keys.shape[1]:
            raise ValueError(f"The keys of these answers have {self._keys.shape[1]} values, not {len(key)}.")
        n = len(self)
        if n == len(self._keys):  # by a fourth at least, so that growing costs each key a bounded number of copies
            room = np.empty((max(8, n + n // 4), len(key)), np.float16)
            room[:n] = self._keys
            self._keys = room
        self._keys[n] = key
        self._ids.append(held)
        self._times.append(when)
        self.tokens += len(held)
        self._keep(range(max(0, len(self) - MOST), len(self)))

    def similar(self, key: NDArray[Any], most: int) -> list[NDArray[np.int32]]:
        """The answers to the requests that are most like `key`, the likest first, of equal ones the latest."""
        if not len(self) or len(key) != self._keys.shape[1]:
            return []
        like = product(self._keys[: len(self)].astype(np.float32), _unit(key).astype(np.float32))
        return [self._ids[len(self) - 1 - i] for i in np.argsort(-like[::-1], kind="stable")[:most].tolist()]

    def prune(self, tokens: int, before: float = 0.0) -> None:
        young, left = [i for i, when in enumerate(self._times) if when >= before], 0
        kept = []
        for i in reversed(young):
            left += len(self._ids[i])
            if left > tokens:
                break
            kept.append(i)
        self._keep(kept[::-1])

    def _keep(self, kept: Sequence[int]) -> None:
        """Forget all others, and the room that they took."""
        if len(kept) < len(self):
            self._keys = self._keys[list(kept)]
            self._ids, self._times = [self._ids[i] for i in kept], [self._times[i] for i in kept]
            self.tokens = sum(map(len, self._ids))

    def entries(self) -> Iterator[dict[str, Any]]:
        for ids, when in zip(self._ids, self._times, strict=True):
            yield {"ids": ids.tolist(), "finished": when}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The answers, the oldest first: `keys` float16 [n, width], `lengths` int64 [n], `times` float64 [n], all their `ids` int32."""
        return {
            "keys": self._keys[: len(self)].copy(),
            "lengths": np.asarray([len(ids) for ids in self._ids], np.int64),
            "times": np.asarray(self._times, np.float64),
            "ids": np.concatenate([NONE, *self._ids]),
        }

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        what = "A store of answers"
        ids, lengths, times = (checked(arrays, what, *each) for each in (("ids", np.int32), ("lengths", np.int64), ("times", np.float64)))
        check_text(what, ids, lengths, times)
        shape = arrays["keys"].shape[1:] if "keys" in arrays else ()
        keys = checked(arrays, what, "keys", np.float16, len(lengths), *(shape or (0,)))
        store, at = cls(), 0
        for key, length, when in zip(keys, lengths.tolist(), times.tolist(), strict=True):
            store.add(key, ids[at : at + length], when)
            at += length
        return store


def _unit(key: NDArray[Any]) -> NDArray[np.float16]:
    """`key` at length 1; what has no direction is like nothing."""
    wide = np.nan_to_num(np.asarray(key, np.float64), posinf=0.0, neginf=0.0)
    length = float(np.linalg.norm(wide))
    return (wide / length if length > 0.0 else wide).astype(np.float16)
