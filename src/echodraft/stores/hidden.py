"""Hidden states as keys: what followed the moments that looked like this one to the model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from echodraft.stores import hidden_codes as codes
from echodraft.stores.hidden_codes import WORD, Floats, Ints, Words

EXACT = 1024
"""Up to so many keys are kept and compared as they are."""
FRONT = 4
"""Words of the sketch."""
CLOSE = 512
"""Keys that are compared closely once the sketch has chosen them."""
SEED = 2608
END = -1


class Neighbours(NamedTuple):
    """The nearest keys of one query, best first. Shapes [found]; `row` int64, `cosine` float32."""

    row: NDArray[np.int64]
    cosine: Floats


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
    and what follows it in its sequence. Similarity is the cosine around the mean of all keys so far.

    The first `EXACT` keys are kept whole and compared exactly. Beyond that a key is two bits a dimension around the mean of the first
    (`hidden_codes`; 404 bytes at width 1536), and a search looks at a sketch of all keys, then closely at `CLOSE` of them. The mean that
    the cosine is taken around moves each time the number of keys has doubled; the codes stay, the lengths are computed anew.
    """

    kind: ClassVar[str] = "hidden"

    def __init__(self) -> None:
        self.survival: NDArray[np.float64] = np.zeros(0)  # what a drafter counted of its guesses from here; kept and forgotten with it
        self._growing: dict[int, Run] = {}
        self._finished: dict[int, Run] = {}  # the oldest first
        self._next = 0
        self._centred = True
        self._clear()

    def _clear(self) -> None:
        """No pairs, of any width."""
        self.tokens = self._used = self._seen = 0
        self._free: list[int] = []
        self._coded_at = 0  # keys seen when the mean was last taken; 0 = all keys are kept whole
        self._allocate(0)

    def _allocate(self, width: int) -> None:
        """Empty arrays for states of this width."""
        self.width, padded = width, -(-width // WORD) * WORD
        words, front = padded // WORD, min(FRONT, padded // WORD)
        random = np.random.default_rng(SEED)
        self._signs: Floats = random.choice(np.asarray([-1, 1], np.float32), (2, padded))
        self._order: Ints = np.stack([random.permutation(padded) for _ in range(2)]).astype(np.int32)
        self._token: Ints = np.empty(0, np.int32)  # -1 = a free row
        self._following: Ints = np.empty(0, np.int32)
        self._whole: Floats = np.empty((0, padded), np.float32)
        self._sketch: Words = np.empty((0, front), np.uint64)
        self._rest: Words = np.empty((0, 2 * words - front), np.uint64)
        self._gain, self._size, self._length = (np.empty(0, np.float32) for _ in range(3))
        self._differing: NDArray[np.uint16] = np.empty(0, np.uint16)
        self._sum = np.zeros(padded)
        self._origin: Floats = np.zeros(padded, np.float32)  # what keys are kept around: near their mean, for the sake of precision
        self._centre: Floats = np.zeros(padded, np.float32)  # what the cosine is around

    @property
    def coded(self) -> bool:
        """Whether keys are kept as codes."""
        return self._coded_at > 0

    @property
    def nbytes(self) -> int:
        return sum(a.nbytes for a in vars(self).values() if isinstance(a, np.ndarray)) + 8 * len(self._free)

    @property
    def centred(self) -> bool:
        """Whether the cosine is around the mean; otherwise around 0, to compare with. Not saved."""
        return self._centred

    @centred.setter
    def centred(self, centred: bool) -> None:
        if centred != self._centred:
            self._centred = centred
            if self.coded:
                self._recentre()

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
            self._allocate(states.shape[1])
        turned = self._turned(states)
        if not self._seen:
            self._origin = turned.mean(axis=0)
        rows = self._rows(len(new))
        self._token[rows] = new
        self._following[rows[:-1]] = rows[1:]
        self._following[rows[-1]] = END
        if run.last == END:
            run.first = int(rows[0])
        else:
            self._following[run.last] = rows[0]
        run.last, run.pairs, self.tokens = int(rows[-1]), run.pairs + len(new), self.tokens + len(new)
        self._sum += turned.sum(axis=0)
        self._seen += len(new)
        if self.coded:
            self._encode(turned, rows)
        else:
            self._whole[rows] = turned - self._origin
            self._size[rows] = np.linalg.norm(self._whole[rows], axis=1)
        if self._seen >= 2 * self._coded_at if self.coded else self._used > EXACT:
            self._recentre()

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
        queries = self._turned(states)
        return [self._near(query, k) if self.coded else self._nearest(query, k) for query in queries]

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
        """The finished sequences, the oldest first: `tokens` int32 [n], `lengths` int64, `times` float64; their keys: `size` and `whole`,
        or `sketch`, `rest` and `gain`; the means; `width`, `seen` and `coded_at` int64 [3] as `shape`; `survival`.
        """
        runs = list(self._finished.values())
        rows = np.concatenate([np.empty(0, np.int64), *(self._run(run) for run in runs)]).astype(np.int64)
        keys = ("sketch", "rest", "gain", "size") if self.coded else ("whole", "size")
        return {
            "tokens": self._token[rows],
            "lengths": np.asarray([run.pairs for run in runs], np.int64),
            "times": np.asarray([run.when for run in runs], np.float64),
            "shape": np.asarray([self.width, self._seen, self._coded_at], np.int64),
            "sum": self._sum,
            "origin": self._origin,
            "centre": self._centre,
            "survival": self.survival,
            **{name: getattr(self, f"_{name}")[rows] for name in keys},
        }

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        store = cls()
        width, seen, coded_at = _checked(arrays, "shape", np.int64, 3).tolist()
        tokens, lengths, times = (_checked(arrays, *what) for what in (("tokens", np.int32), ("lengths", np.int64), ("times", np.float64)))
        if not 0 <= width <= 1 << 20 or min(seen, coded_at) < 0 or len(lengths) != len(times) or tokens.min(initial=0) < 0:
            raise ValueError("The arrays of a hidden store do not fit together.")
        if (
            lengths.min(initial=1) < 0
            or lengths.max(initial=0) > len(tokens)
            or lengths.sum() != len(tokens)
            or (len(tokens) and not width)
        ):
            raise ValueError("The sequences of a hidden store are not as long as its tokens.")
        store._allocate(width)
        store._seen, store._coded_at = seen, coded_at
        store.survival = _checked(arrays, "survival", np.float64)
        if store.survival.min(initial=0.0) < 0.0:
            raise ValueError("A hidden store counts less than nothing.")
        keys = ("sketch", "rest", "gain", "size") if store.coded else ("whole", "size")
        for name in ("sum", "origin", "centre"):
            held = getattr(store, f"_{name}")
            setattr(store, f"_{name}", _checked(arrays, name, held.dtype, *held.shape).copy())
        rows = store._rows(len(tokens))
        for name in keys:
            held = getattr(store, f"_{name}")
            held[rows] = _checked(arrays, name, held.dtype, len(tokens), *held.shape[1:])
        store._token[rows], store._following[rows] = tokens, rows + 1
        at = 0
        for length, when in zip(lengths.tolist(), times.tolist(), strict=True):
            seq = store.begin()
            run = store._growing[seq]
            if length:
                run.first, run.last, run.pairs = at, at + length - 1, length
                store._following[run.last] = END
            store.end(seq, when)
            at += length
        store.tokens = len(tokens)
        if store.coded:
            store._measure()
        return store

    def _turned(self, states: NDArray[Any]) -> Floats:
        """States as rotated rows of float32, 0 for what is no number. Shape [n, padded width]."""
        out: Floats = np.zeros((len(states), len(self._origin)), np.float32)
        out[:, : self.width] = states
        if not np.isfinite(out).all():
            out[~np.isfinite(out)] = 0.0
        # Two rounds mix 64 x 64 dimensions: as good as any for the widths of models, and two small products of matrices.
        for signs, order in zip(self._signs, self._order, strict=True):
            out = ((out[:, order] * signs).reshape(-1, WORD) @ MIXED).reshape(out.shape)
        return out

    def _rows(self, n: int) -> NDArray[np.int64]:
        """`n` free rows; arrays grow by an eighth."""
        reused = [self._free.pop() for _ in range(min(n, len(self._free)))]
        fresh = n - len(reused)
        if self._used + fresh > len(self._token):
            size = max(self._used + fresh, len(self._token) * 9 // 8, 64)
            kept = ("sketch", "rest", "gain", "size", "length", "differing") if self.coded else ("whole", "size")
            for name in ("token", "following", *kept):
                setattr(self, f"_{name}", _longer(getattr(self, f"_{name}"), size))
        rows = np.asarray([*reused, *range(self._used, self._used + fresh)], np.int64)
        self._used += fresh
        return rows

    def _release(self, rows: NDArray[np.int64]) -> None:
        self._token[rows] = self._following[rows] = END
        self._free += rows.tolist()
        self.tokens -= len(rows)

    def _run(self, run: Run) -> NDArray[np.int64]:
        """The rows of a sequence in order."""
        if not run.pairs:
            return np.empty(0, np.int64)
        rows: NDArray[np.int64] = self.follow(np.asarray([run.first]), run.pairs)[0].astype(np.int64)
        return rows

    def _mean(self) -> Floats:
        """What the cosine is to be around."""
        return (self._sum / self._seen if self._centred else 0.0 * self._sum).astype(np.float32)

    def _recentre(self) -> None:
        """The mean of all keys so far becomes the centre. The first time the keys become codes around it."""
        self._centre = self._mean()
        if not self.coded:
            whole, size = self._whole + self._origin, len(self._token)
            self._origin, self._whole = (self._sum / self._seen).astype(np.float32), self._whole[:0].copy()
            for name in ("sketch", "rest", "gain", "length", "differing"):
                setattr(self, f"_{name}", _longer(getattr(self, f"_{name}"), size))
            self._coded_at = self._seen
            self._encode(whole[: self._used], np.arange(self._used))
        self._coded_at = self._seen
        self._measure()

    def _encode(self, turned: Floats, rows: NDArray[Any]) -> None:
        codes.encode(turned - self._origin, np.asarray(rows, np.int32), self._sketch, self._rest, self._gain, self._size)
        self._length[rows] = np.linalg.norm(turned - self._centre, axis=1)

    def _measure(self) -> None:
        codes.recentre(self._used, self._sketch, self._rest, self._gain, self._size, self._length, self._origin - self._centre)

    def _near(self, query: Floats, k: int) -> Neighbours:
        """By sketch, then by codes."""
        around = query - self._origin
        seen = np.packbits(around[: self._sketch.shape[1] * WORD] >= 0, bitorder="little").view(np.uint64)
        rows, cosines = np.empty(k, np.int32), np.empty(k, np.float32)
        found = codes.nearest(
            self._used,
            self._following,
            self._sketch,
            self._rest,
            self._gain,
            self._length,
            seen,
            direction := _unit(query - self._centre),
            float((self._origin - self._centre) @ direction),
            CLOSE,
            self._differing,
            rows,
            cosines,
        )
        return Neighbours(rows[:found].astype(np.int64), cosines[:found])

    def _nearest(self, query: Floats, k: int) -> Neighbours:
        """By all keys as they are."""
        used = self._used
        centre = self._mean() - self._origin
        direction = _unit(query - self._origin - centre)
        along = self._whole[:used] @ np.stack([direction, centre], axis=1)  # no copy of the keys around the centre
        square = self._size[:used] ** 2 - 2.0 * along[:, 1] + centre @ centre
        valid = (self._following[:used] != END) & (square > 0.0)
        cosine = np.full(used, -np.inf, np.float32)
        cosine[valid] = (along[valid, 0] - centre @ direction) / np.sqrt(square[valid])
        best = np.argsort(-cosine, kind="stable")[: min(k, int(valid.sum()))]
        return Neighbours(best, cosine[best])


def _hadamard(size: int) -> Floats:
    """`size` (a power of two) orthonormal rows of equal magnitudes."""
    rows: Floats = np.ones((1, 1), np.float32)
    while len(rows) < size:
        rows = np.asarray(np.block([[rows, rows], [rows, -rows]]) / np.sqrt(2), np.float32)
    return rows


MIXED = _hadamard(WORD)


def _unit(vector: Floats) -> Floats:
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length > 0 else vector


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    out = np.zeros((length, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


def _checked(arrays: Mapping[str, NDArray[Any]], name: str, dtype: Any, *shape: int) -> NDArray[Any]:
    """A finite array from a file, of one dimension of any length where no shape is asked for. Raises `ValueError`."""
    array = arrays.get(name)
    if not isinstance(array, np.ndarray) or array.dtype != dtype or (array.shape != shape if shape else array.ndim != 1):
        raise ValueError(f"A hidden store needs an array '{name}' of {np.dtype(dtype)}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"The array '{name}' of a hidden store holds what is no number.")
    return array


def warm() -> None:
    """Bring in the compiled code, so that no request waits for it."""
    store = HiddenStore()
    seq = store.begin()
    store.append(seq, [1] * (EXACT + 2), np.random.default_rng(0).standard_normal((EXACT + 2, WORD)).astype(np.float32))
    store.follow(store.search(np.ones((1, WORD), np.float32), 1)[0].row, 2)
