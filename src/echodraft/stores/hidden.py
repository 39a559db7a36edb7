"""Hidden states as keys: what followed the moments that looked like this one to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from echodraft.stores import hidden_codes as codes
from echodraft.stores.checked import check_text, checked
from echodraft.stores.compiled import once
from echodraft.stores.hidden_codes import WORD, Ints
from echodraft.stores.hidden_keys import EXACT, GROWTH, WHAT, Keys, Neighbours, longer

END = -1
FORMAT = 3
"""Of its arrays."""


@dataclass(slots=True)
class Run:
    """One sequence: the rows of its first and its last pair, how many, and when it was finished."""

    first: int = END
    last: int = END
    pairs: int = 0
    when: float = 0.0


class HiddenStore:
    """Pairs (hidden state, the token that the model said there), in sequences that may be removed one by one.

    Source: the store of Oilbird (see docs/oilbird.md): a key is the final-norm state at a position, its value the token that came next,
    and what follows it in its sequence. Similarity is the cosine around the mean of all keys so far (`hidden_keys`). A pair is a row; a
    sequence is a linked list of rows, so that the rows of what is removed are used again.
    """

    kind: ClassVar[str] = "hidden"

    def __init__(self) -> None:
        self.survival: NDArray[np.float64] = np.zeros(0)  # what a drafter counted of its guesses from here; kept and forgotten with it
        self._growing: dict[int, Run] = {}
        self._finished: dict[int, Run] = {}  # the oldest first
        self._next = 0
        self._keys = Keys()
        self._clear()

    def _clear(self) -> None:
        """No pairs, of any width."""
        self.tokens = self._used = 0
        self._free: list[int] = []
        self._token: Ints = np.empty(0, np.int32)  # -1 = a free row
        self._following: Ints = np.empty(0, np.int32)
        self._keys = Keys(0, self.centred)

    @property
    def width(self) -> int:
        """Numbers in a state; 0 = none is here yet."""
        return self._keys.width

    @property
    def coded(self) -> bool:
        """Whether keys are kept as codes."""
        return self._keys.coded

    @property
    def nbytes(self) -> int:
        return self._keys.nbytes + self._token.nbytes + self._following.nbytes + 8 * len(self._free)

    @property
    def centred(self) -> bool:
        """Whether the cosine is around the mean; otherwise around 0, to compare with. Not saved."""
        return self._keys.centred

    @centred.setter
    def centred(self, centred: bool) -> None:
        self._keys.centred = centred

    def begin(self) -> int:
        """A new growing sequence; its id."""
        self._next += 1
        self._growing[self._next] = Run()
        return self._next

    def append(self, seq: int, tokens: Sequence[int] | NDArray[Any], states: NDArray[Any]) -> None:
        """Lengthen a growing sequence: states [n, width], and `tokens` [n], each said where the state of its row was computed.

        Raises `ValueError` for another width or a negative id, `KeyError` for any other sequence.
        """
        run, new = self._growing[seq], np.asarray(tokens, np.int32)
        if states.ndim != 2 or len(states) != len(new) or (self.width and states.shape[1] != self.width):
            raise ValueError(f"{len(new)} tokens need as many states of width {self.width or 'any'}, not an array of {states.shape}.")
        if len(new) == 0:
            return
        if new.min() < 0:
            raise ValueError("A token id is negative.")
        if not self.width:
            self._keys = Keys(states.shape[1], self.centred)
        rows = self._rows(len(new))
        self._token[rows] = new
        self._following[rows[:-1]] = rows[1:]
        self._following[rows[-1]] = END
        if run.last == END:
            run.first = int(rows[0])
        else:
            self._following[run.last] = rows[0]
        run.last, run.pairs, self.tokens = int(rows[-1]), run.pairs + len(new), self.tokens + len(new)
        self._keys.put(rows, states, self._used)

    def end(self, seq: int, when: float) -> None:
        """A growing sequence is finished, at a time in seconds since the epoch: from now on it can be forgotten."""
        run = self._growing.pop(seq)
        run.when = when
        self._finished[seq] = run

    def remove(self, seq: int) -> bool:
        """Forget a sequence, growing or finished. False if it is not there."""
        run = self._growing.pop(seq, None) or self._finished.pop(seq, None)
        if run is None:
            return False
        if run.pairs == self.tokens:
            self._clear()  # the mean goes as well
            return True
        self._release(self._run(run))
        return True

    def cut(self, seq: int, pairs: int) -> None:
        """Forget all but the first `pairs` of a sequence, if it is there: limits may have taken a finished one."""
        run = self._growing.get(seq) or self._finished.get(seq)
        if run is None:
            return
        rows = self._run(run)
        if pairs < len(rows):
            self._release(rows[pairs:])
            run.pairs, run.last = pairs, int(rows[pairs - 1]) if pairs else END
            if pairs:
                self._following[run.last] = END

    def prune(self, tokens: int, before: float = 0.0) -> None:
        old = [seq for seq, run in self._finished.items() if run.when < before] if before > 0.0 else []
        for seq in old:
            self.remove(seq)
        while self.tokens > tokens and self._finished:
            self.remove(next(iter(self._finished)))

    def search(self, states: NDArray[Any], k: int) -> list[Neighbours]:
        """The k keys nearest to each of `states` [n, width] that something follows, those with the largest centred cosine first."""
        if not self.tokens:
            return [Neighbours(np.empty(0, np.int64), np.empty(0, np.float32)) for _ in states]
        return self._keys.nearest(states, k, self._following, self._used)

    def token(self, rows: NDArray[Any]) -> Ints:
        """The tokens of rows."""
        out: Ints = self._token[rows]
        return out

    def follow(self, rows: NDArray[Any], steps: int) -> Ints:
        """The rows from each of `rows` on along its sequence, `rows` first. Shape [n, steps]; -1 behind the end."""
        out: Ints = np.empty((len(rows), steps), np.int32)
        codes.chase(self._following, np.asarray(rows, np.int32), out)
        return out

    def entries(self) -> Iterator[dict[str, Any]]:
        for run in self._finished.values():
            yield {"ids": self._token[self._run(run)].tolist(), "finished": run.when}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The finished sequences, the oldest first: `tokens` int32 [n], `lengths` int64, `times` float64; their keys (`Keys.arrays`);
        `survival`; `format` int64 [1].
        """
        runs = list(self._finished.values())
        rows = np.concatenate([np.empty(0, np.int64), *(self._run(run) for run in runs)]).astype(np.int64)
        return {
            "format": np.asarray([FORMAT], np.int64),
            "tokens": self._token[rows],
            "lengths": np.asarray([run.pairs for run in runs], np.int64),
            "times": np.asarray([run.when for run in runs], np.float64),
            "survival": self.survival,
            **self._keys.arrays(rows),
        }

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        if arrays.get("format", np.zeros(1)).tolist() != [FORMAT]:
            raise ValueError(f"{WHAT} of another format: this version reads format {FORMAT}")
        store = cls()
        tokens, lengths, times = (
            checked(arrays, WHAT, *each) for each in (("tokens", np.int32), ("lengths", np.int64), ("times", np.float64))
        )
        check_text(WHAT, tokens, lengths, times)
        store.survival = checked(arrays, WHAT, "survival", np.float64)
        if store.survival.min(initial=0.0) < 0.0:
            raise ValueError(f"{WHAT} counts less than nothing.")
        store._keys = Keys.restore(arrays, len(tokens))
        store._used = store.tokens = len(tokens)
        store._token = tokens.copy()
        store._following = np.arange(1, len(tokens) + 1, dtype=np.int32)
        at = 0
        for length, when in zip(lengths.tolist(), times.tolist(), strict=True):
            seq = store.begin()
            run = store._growing[seq]
            if length:
                run.first, run.last, run.pairs = at, at + length - 1, length
                store._following[run.last] = END
            store.end(seq, when)
            at += length
        return store

    def _rows(self, n: int) -> NDArray[np.int64]:
        """`n` free rows."""
        reused = [self._free.pop() for _ in range(min(n, len(self._free)))]
        fresh = n - len(reused)
        if self._used + fresh > len(self._token):
            room = max(self._used + fresh, len(self._token) + max(len(self._token) // GROWTH, WORD))
            longer(self._token, room)
            longer(self._following, room)
            self._keys.grow(room)
        rows = np.asarray([*reused, *range(self._used, self._used + fresh)], np.int64)
        self._used += fresh
        return rows

    def _release(self, rows: NDArray[np.int64]) -> None:
        self._token[rows] = self._following[rows] = END
        self._keys.drop(rows)
        self._free += rows.tolist()
        self.tokens -= len(rows)

    def _run(self, run: Run) -> NDArray[np.int64]:
        """The rows of a sequence in order."""
        if not run.pairs:
            return np.empty(0, np.int64)
        rows: NDArray[np.int64] = self.follow(np.asarray([run.first]), run.pairs)[0].astype(np.int64)
        return rows


@once
def warm() -> None:
    """Bring in the compiled code, so that no request waits for it."""
    store = HiddenStore()
    seq = store.begin()
    store.append(seq, [1] * (EXACT + 2), np.random.default_rng(0).standard_normal((EXACT + 2, WORD)).astype(np.float32))
    store.centred = False  # which moves the centre, as later keys will
    store.follow(store.search(np.ones((1, WORD), np.float32), 1)[0].row, 2)
