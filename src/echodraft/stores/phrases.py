"""The phrase pool of Ouroboros: for a token the phrases that may follow it, the most useful kept."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from time import time
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from echodraft.stores import phrases_table as table
from echodraft.stores.checked import checked
from echodraft.stores.compiled import once
from echodraft.stores.phrases_table import CLOCK, FREE, HAND, KEPT, LIVE, TOKENS, TRIED, USED

FIRST = 64
"""Places of a new pool."""
SHARE = 8
"""The worth of a use halves while an eighth of a full pool is added."""
MOST_LENGTH = 64


class Phrase(NamedTuple):
    """What may follow a token: `tokens` without that token; `chance` that one of them is right if those before it were, by counts."""

    tokens: tuple[int, ...]
    chance: float


class PhrasePool:
    """Phrases by the token they begin with, each at most once.

    Source: Ouroboros (arXiv 2402.13720), section 3; the released code keeps the latest phrases of a key and any number of keys. Here the
    pool is bounded, and worth decides what stays: a phrase that is added or proves right is worth 1, or the tokens that were right, and
    worth halves with age, counted in new phrases (LRFU, Lee et al. 2001). A key that has all its phrases gives up its worst one, a
    full pool the worst of the next 16 places. A phrase that begins another is part of it, so text that repeats itself fills nothing.

    length   tokens behind the key that are kept, at most
    per_key  phrases of one key
    most     phrases in all
    """

    kind: ClassVar[str] = "phrases"

    def __init__(self, length: int = 6, per_key: int = 20, most: int = 100_000) -> None:
        for name, value in (("length", length), ("per_key", per_key), ("most", most)):
            if value < 1:
                raise ValueError(f"{name} of a phrase pool is at least 1, not {value}.")
        if length > MOST_LENGTH:
            raise ValueError(f"A phrase has at most {MOST_LENGTH} tokens behind its key, not {length}.")
        self.length, self.per_key, self.most = length, per_key, most
        self._table = table.empty(min(FIRST, most), length)

    def __len__(self) -> int:
        return int(self._table.meta[LIVE])

    @property
    def tokens(self) -> int:
        """Tokens of all phrases, keys included."""
        return int(self._table.meta[TOKENS])

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._table)

    def add(self, phrase: Sequence[int] | NDArray[Any]) -> None:
        """Keep a phrase, its key first; what is longer than `length` is cut off. One without a token behind the key says nothing."""
        ids = self._ids(phrase)
        if len(ids) > 1:
            self._insert(ids[None, :], 0.0)

    def read(self, text: Sequence[int] | NDArray[Any], begin: int = 0) -> None:
        """Keep every phrase of full length that ends at place `begin` of a text or later. One of its tokens counts as right."""
        width = self.length + 1
        ids = np.asarray(text[max(0, begin - self.length) :], np.int32)
        if len(ids) >= width:
            windows = np.lib.stride_tricks.sliding_window_view(ids, width)
            self._insert(np.ascontiguousarray(windows), 1.0)

    def best(self, key: int, k: int) -> list[Phrase]:
        """The `k` phrases of the key that are worth most, the best first. Shared beginnings are not merged."""
        tokens, sizes, chances = table.best(self._table, key, k)
        return [Phrase(tuple(row[1:n]), chance) for row, n, chance in zip(tokens.tolist(), sizes.tolist(), chances.tolist(), strict=True)]

    def credit(self, phrase: Sequence[int], right: int, tried: int) -> None:
        """`tried` tokens behind the key of a phrase (its key first) met the text that really came; the first `right` of them were right."""
        table.credit(self._table, self._ids(phrase), right, tried, self._half)

    def correct(self, phrase: Sequence[int], better: Sequence[int]) -> None:
        """`better`, which begins with the same key, takes the place and the worth of `phrase`.

        It stands beside a phrase that was right before, and nowhere if `phrase` is there no more.
        """
        ids = self._ids(better)
        if len(ids) > 1 and not table.correct(self._table, self._ids(phrase), ids, time()):
            self._insert(ids[None, :], 0.0)

    def reach(self, length: int) -> None:
        """Make room for longer phrases."""
        if length > self.length:
            old, self.length = self._table, length
            token = np.zeros((len(old.size), length + 1), np.int32)
            token[:, : old.token.shape[1]] = old.token
            self._table = old._replace(token=token)

    @property
    def _half(self) -> float:
        return max(1.0, self.most / SHARE)

    def _ids(self, phrase: Sequence[int] | NDArray[Any]) -> NDArray[np.int32]:
        return np.asarray(phrase[: self.length + 1], np.int32)

    def _insert(self, phrases: NDArray[np.int32], proven: float) -> None:
        now, done = time(), 0
        while (done := table.insert(self._table, phrases, done, proven, self.per_key, self.most, self._half, now)) < len(phrases):
            self._grow()

    def _grow(self) -> None:
        """By a quarter, since what is unused counts as well."""
        places = len(self._table.size)
        self._table = table.longer(self._table, min(self.most, places + max(places // 4, FIRST)))

    def prune(self, tokens: int, before: float = 0.0) -> None:
        """The least worthy phrases go first."""
        if self.tokens <= tokens and before <= 0.0:
            return
        held = self._held()
        order = held[np.argsort(self._table.score[held], kind="stable")]
        table.prune(self._table, held if before > 0.0 else held[:0], order, tokens, before)

    def _held(self) -> NDArray[np.int64]:
        return np.flatnonzero(self._table.size)

    def entries(self) -> Iterator[dict[str, Any]]:
        """One entry a phrase: `ids`, the key first, how often it was `tried` and its tokens `kept`, with age, and when it was `written`."""
        for place in self._held().tolist():
            row = self._table.token[place, : self._table.size[place]].tolist()
            tried, kept = self._table.tally[place].tolist()
            yield {"ids": row, "tried": tried, "kept": kept, "written": float(self._table.when[place])}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """token int32 [n, length + 1], size int32 [n], score, when float64 [n], tally float32 [n, 2], limits int64 [4]."""
        held = self._held()
        t = self._table
        limits = np.asarray([self.length, self.per_key, self.most, t.meta[CLOCK]], np.int64)
        return {name: getattr(t, name)[held] for name in ("token", "size", "score", "when", "tally")} | {"limits": limits}

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        held = partial(checked, arrays, "A phrase pool")
        limits = held("limits", np.int64, 4)
        length, per_key, most, clock = limits.tolist()
        store = cls(length, per_key, most)
        size = held("size", np.int32)
        n = len(size)
        parts = {
            "token": held("token", np.int32, n, length + 1),
            "size": size,
            "score": held("score", np.float64, n),
            "when": held("when", np.float64, n),
            "tally": held("tally", np.float32, n, 2),
        }
        if n > most or clock < 0:
            raise ValueError("A phrase pool holds no more phrases than its limit.")
        if (parts["tally"] < 0).any() or (parts["tally"][:, KEPT] > parts["tally"][:, TRIED]).any():
            raise ValueError("A phrase cannot have been kept more often than it was tried.")
        used = np.arange(length + 1) < size[:, None]
        if n and (size.min() < 2 or size.max() > length + 1 or parts["token"][used].min() < 0):
            raise ValueError("A phrase has a key and at least one token behind it; ids begin at 0.")
        made = table.longer(store._table, n) if n > len(store._table.size) else store._table
        for name, values in parts.items():
            getattr(made, name)[:n] = values
        made.meta[[LIVE, USED, TOKENS, CLOCK]] = n, n, size.sum(), clock
        made.meta[[HAND, FREE]] = 0, -1
        table.link(made)
        if not table.proper(made, per_key):
            raise ValueError("A phrase pool holds a phrase once, and no more of a key than its limit.")
        store._table = made
        return store


@once
def warm() -> None:
    """Bring in the compiled code, so that no request waits for it."""
    pool = PhrasePool(2, 2, 4)
    pool.read(list(range(9)))
    pool.credit([6, 7, 8], 1, 2)
    pool.correct([6, 7, 8], [6, 5])
    pool.best(6, 2)
    pool.prune(3)
    pool.restore(pool.arrays())
