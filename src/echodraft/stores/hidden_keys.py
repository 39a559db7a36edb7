"""Rows of vectors that are searched by cosine: as they are while they are few, as codes when they are many."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from echodraft.stores import hidden_codes as codes
from echodraft.stores.checked import checked
from echodraft.stores.hidden_codes import WORD, Bytes, Doubles, Floats, Ints, Words
from echodraft.stores.product import product

EXACT = 1024
"""Up to so many keys are kept and compared as they are."""
FINE = 128
"""Dimensions in which the first keys differ most, which get more bits than the others."""
FRONT = 4
"""Words of the sketch."""
FIRST, SHARE = 2048, 28
"""Places for bases, the one that stands for none included: so many in any store, and one more for so many keys."""
FAR = 30
"""A key becomes a base where its sketch differs in more than so many of `FRONT` words of bits from those of all bases."""
CLOSE = 768
"""Keys that are compared closely once the sketch has chosen them."""
GROWTH = 128
"""Arrays grow by so small a part: in place, so that it costs little."""
SEED = 2608
WHAT = "A hidden store"
MEANS, WHOLE, CODES, BASES = (
    ("sum", "origin", "centre", "mirror"),
    ("whole", "length"),
    ("sketch", "code", "gain", "base", "length"),
    ("base_sketch", "base_code", "base_gain"),
)
"""Names of arrays: all keys together, a key as it is, a key that is a code, a base."""


class Neighbours(NamedTuple):
    """The nearest keys of one query, best first. Shapes [found]; `row` int64, `cosine` float32."""

    row: NDArray[np.int64]
    cosine: Floats


class Keys:
    """Vectors [width] in rows. The cosine is around the mean of all that were ever put here; `centred` False: around 0, to compare with.

    The first `EXACT` are kept whole. Then the `FINE` directions in which these differ most are found, and from there on a key is a code
    (`hidden_codes`): 4 bits in each of these directions, 2 in each of the others, of what is left of it around the mean of the first and
    the base next to it. The mean that the cosine is around moves each time the keys have doubled; the codes stay, their lengths are
    computed anew from them.
    """

    def __init__(self, width: int = 0, centred: bool = True) -> None:
        self.width, self._centred = width, centred
        self.seen = 0  # vectors that were ever put here
        self._coded_at = 0  # seen when the mean was last taken; 0 = all are whole
        padded = -(-width // WORD) * WORD
        self._fine = min(FINE, padded)
        front, words = min(FRONT, padded // WORD), (self._fine * codes.FINE + (padded - self._fine) * codes.COARSE) // WORD
        random = np.random.default_rng(SEED)
        self._signs: Floats = random.choice(np.asarray([-1, 1], np.float32), (2, padded))
        bands = ((0, self._fine), (self._fine, padded))
        self._order: Ints = np.stack(
            [np.concatenate([begin + random.permutation(end - begin) for begin, end in bands]) for _ in range(2)]
        ).astype(np.int32)
        self._mirror: Floats = np.empty((padded, 0), np.float32)
        self._sum: Doubles = np.zeros(padded)
        self._origin: Floats = np.zeros(padded, np.float32)  # what keys are kept around: near their mean, for the sake of precision
        self._centre: Floats = np.zeros(padded, np.float32)  # what the cosine is around
        self._aside: Floats = np.zeros(padded, np.float32)  # the origin around the centre, turned
        self._whole: Floats = np.empty((0, padded), np.float32)
        self._sketch: Words = np.empty((0, front), np.uint64)
        self._code: Words = np.empty((0, words), np.uint64)
        self._gain: Floats = np.empty((0, 2), np.float32)
        self._base: Ints = np.empty(0, np.int32)
        self._length: Floats = np.empty(0, np.float32)  # around the centre; of whole keys around the origin
        self._base_sketch, self._base_code, self._base_gain = self._sketch.copy(), self._code.copy(), self._gain.copy()
        self._uses: Ints = np.empty(0, np.int32)  # keys of each base
        self._differing: Bytes = np.empty(0, np.uint8)

    @property
    def coded(self) -> bool:
        """Whether keys are codes."""
        return self._coded_at > 0

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in vars(self).values() if isinstance(array, np.ndarray))

    @property
    def centred(self) -> bool:
        return self._centred

    @centred.setter
    def centred(self, centred: bool) -> None:
        if centred != self._centred:
            self._centred = centred
            if self.coded:
                self._recentre(len(self._length))

    def grow(self, rows: int, bases: int = 0) -> None:
        """Make room for so many rows, and at least so many bases."""
        for name in (*CODES, "differing") if self.coded else WHOLE:
            longer(getattr(self, f"_{name}"), rows)
        if self.coded:
            places = max(FIRST + rows // SHARE, bases, len(self._uses))
            for name in (*BASES, "uses"):
                longer(getattr(self, f"_{name}"), places)

    def put(self, rows: NDArray[np.int64], states: NDArray[Any], used: int) -> None:
        """Write states [n, width] into rows; `used` rows are in use then. What is no number is 0."""
        vectors = self._padded(states)
        if not self.seen:
            self._origin = vectors.mean(axis=0)
        self._sum += vectors.sum(axis=0)
        self.seen += len(rows)
        if self.coded:
            self._encode(vectors, rows)
            if self.seen >= 2 * self._coded_at:
                self._recentre(used)
            return
        self._whole[rows] = vectors - self._origin
        self._length[rows] = np.linalg.norm(self._whole[rows], axis=1)
        if used > EXACT:
            self._begin_codes(used)

    def drop(self, rows: NDArray[np.int64]) -> None:
        """Rows are free: a base that no other key has goes with them."""
        if self.coded:
            np.subtract.at(self._uses, self._base[rows], 1)
            self._base[rows] = 0

    def nearest(self, states: NDArray[Any], k: int, following: Ints, used: int) -> list[Neighbours]:
        """The k keys with the largest cosine to each of `states` [n, width], of the first `used` rows those that something follows."""
        find = self._by_code if self.coded else self._by_all
        return [find(query, k, following, used) for query in self._padded(states)]

    def arrays(self, rows: NDArray[np.int64]) -> dict[str, NDArray[Any]]:
        """What these rows are made of: `WHOLE`, or `CODES` and the `BASES` that they have; `MEANS`; `shape` int64 [4]."""
        bases, base = np.unique(np.append(0, self._base[rows] if self.coded else 0), return_inverse=True)
        out = {
            "shape": np.asarray([self.width, self.seen, self._coded_at, len(bases)], np.int64),
            **{name: getattr(self, f"_{name}") for name in MEANS},
            **{name: getattr(self, f"_{name}")[rows] for name in (CODES if self.coded else WHOLE)},
        }
        if self.coded:
            out |= {"base": base[1:].astype(np.int32), **{name: getattr(self, f"_{name}")[bases] for name in BASES}}
        return out

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]], n: int) -> Self:
        """The keys that gave these arrays, in rows 0 … n - 1. Raises `ValueError`."""
        width, seen, coded_at, bases = checked(arrays, WHAT, "shape", np.int64, 4).tolist()
        if not 0 <= width <= 1 << 20 or coded_at < 0 or seen < max(n, coded_at) or (n and not width) or not 1 <= bases <= n + 1:
            raise ValueError(f"{WHAT} of {n} keys cannot be of shape {(width, seen, coded_at, bases)}.")
        keys = cls(width)
        keys.seen, keys._coded_at = seen, coded_at
        if keys.coded:
            keys._mirror = np.empty((len(keys._sum), keys._fine), np.float32)
        for name in MEANS:
            held = getattr(keys, f"_{name}")
            setattr(keys, f"_{name}", checked(arrays, WHAT, name, held.dtype, *held.shape).copy())
        keys.grow(n, bases)
        held = {name: (getattr(keys, f"_{name}"), n) for name in (CODES if keys.coded else WHOLE)}
        held |= {name: (getattr(keys, f"_{name}"), bases) for name in (BASES if keys.coded else ())}
        for name, (array, m) in held.items():
            array[:m] = checked(arrays, WHAT, name, array.dtype, m, *array.shape[1:])
        if keys.coded:
            if keys._base.min(initial=0) < 0 or keys._base.max(initial=0) >= bases or keys._base_gain[0].any():
                raise ValueError(f"{WHAT} has keys whose base is missing.")  # the first one stands for none
            keys._uses += np.bincount(keys._base, minlength=len(keys._uses)).astype(np.int32)
            keys._aim(keys._centre)
            if not keys._centre.any():
                keys._recentre(n)  # saved by somebody who did not centre
        return keys

    def _padded(self, states: NDArray[Any]) -> Floats:
        """States as rows of float32, 0 for what is no number. Shape [n, padded width]."""
        out: Floats = np.zeros((len(states), len(self._origin)), np.float32)
        out[:, : self.width] = states
        if not np.isfinite(out).all():
            out[~np.isfinite(out)] = 0.0
        return out

    def _turned(self, vectors: Floats) -> Floats:
        """Vectors with the directions in which keys differ most in the first band, and either band mixed."""
        out: Floats = np.empty_like(vectors)
        # Two rounds mix 64 x 64 dimensions: as good as any for the widths of models.
        codes.turn(vectors, self._mirror, self._order, self._signs, out)
        return out

    def _sketches(self, turned: Floats) -> Words:
        """The signs of the first dimensions. Shape [n, words]."""
        signs = np.packbits(turned[:, : self._sketch.shape[1] * WORD] >= 0, axis=1, bitorder="little")
        return signs.view(np.uint64)

    def _mean(self) -> Floats:
        """What the cosine is to be around."""
        out: Floats = (self._sum / self.seen if self._centred else 0.0 * self._sum).astype(np.float32)
        return out

    def _begin_codes(self, used: int) -> None:
        """Whole keys become codes around their mean."""
        whole, room = self._whole[:used] + self._origin, len(self._length)
        self._origin = (self._sum / self.seen).astype(np.float32)
        self._whole = np.empty((0, whole.shape[1]), np.float32)
        self._mirror = mirror(directions(whole - self._origin, self._fine))
        self._coded_at = self.seen
        self._aim(self._mean())
        self.grow(room)
        self._encode(whole, np.arange(used))

    def _aim(self, centre: Floats) -> None:
        """The cosine is around this centre."""
        self._centre, self._aside = centre, self._turned((self._origin - centre)[None])[0]

    def _encode(self, vectors: Floats, rows: NDArray[np.int64]) -> None:
        turned, places = self._turned(vectors - self._origin), rows.astype(np.int32)
        bases = (self._base_sketch, self._base_code, self._base_gain, self._uses)
        held = (self._sketch, self._code, self._gain, self._base, self._length)
        codes.encode(turned, self._sketches(turned), places, self._fine, FAR * self._sketch.shape[1] // FRONT, *held, *bases)
        self._move(places, self._aside, 0.0)

    def _recentre(self, used: int) -> None:
        """The mean of all keys so far becomes the centre."""
        old = self._aside
        self._coded_at = self.seen
        self._aim(self._mean())
        moved = self._aside - old
        self._move(np.arange(used, dtype=np.int32), moved, float(old @ moved))

    def _move(self, places: Ints, moved: Floats, along: float) -> None:
        """Lengths become those around a centre that lies `moved` (turned) before the one that they are around; `along`: see `recentre`."""
        if moved.any():
            keys = (self._code, self._gain, self._base, self._length, self._base_code, self._base_gain)
            codes.recentre(places, *keys, moved, self._fine, along)

    def _by_code(self, query: Floats, k: int, following: Ints, used: int) -> Neighbours:
        """By sketch, then by codes."""
        (around,) = self._turned((query - self._centre)[None])
        direction = unit(around)
        (seen,) = self._sketches((around - self._aside)[None])
        rows, cosines = np.empty(k, np.int32), np.empty(k, np.float32)
        keys = (self._sketch, self._code, self._gain, self._base, self._length, self._base_code, self._base_gain)
        shift = float(self._aside @ direction)
        found = codes.nearest(used, following, *keys, seen, direction, self._fine, shift, CLOSE, self._differing, rows, cosines)
        return Neighbours(rows[:found].astype(np.int64), cosines[:found])

    def _by_all(self, query: Floats, k: int, following: Ints, used: int) -> Neighbours:
        """By all keys as they are."""
        centre = self._mean() - self._origin
        direction = unit(query - self._origin - centre)
        whole = self._whole[:used]  # no copy of the keys around the centre
        square = self._length[:used] ** 2 - 2.0 * product(whole, centre) + centre @ centre
        valid = (following[:used] >= 0) & (square > 0.0)
        cosine = np.full(used, -np.inf, np.float32)
        cosine[valid] = (product(whole, direction)[valid] - centre @ direction) / np.sqrt(square[valid])
        best = np.argsort(-cosine, kind="stable")[: min(k, int(valid.sum()))]
        return Neighbours(best, cosine[best])


def directions(vectors: Floats, n: int) -> Floats:
    """`n` orthonormal directions in which `vectors` [rows, width] reach furthest, nearly: two rounds of subspace iteration. [width, n]."""
    found: Floats = np.random.default_rng(SEED).standard_normal((vectors.shape[1], n), np.float32)
    for _ in range(2):
        found = np.linalg.qr(vectors.T @ (vectors @ found))[0]
    return found


def mirror(basis: Floats) -> Floats:
    """B [width, n] such that v - B Bᵀv is v mirrored, so that its first n dimensions span what the orthonormal `basis` [width, n] spans.

    A block reflection: between -basis, turned within its span until its first n rows are symmetric, and the first n unit vectors.
    """
    n = basis.shape[1]
    left, _, right = np.linalg.svd(basis[:n])
    apart = -basis @ (right.T @ left.T)
    apart[:n] -= np.eye(n, dtype=np.float32)
    out: Floats = np.sqrt(np.float32(2)) * np.linalg.qr(apart)[0]
    return out


def unit(vector: Floats) -> Floats:
    length = float(np.linalg.norm(vector))
    return vector / np.float32(length) if length > 0 else vector


def longer(array: NDArray[Any], rows: int) -> None:
    """Lengthen an array in place, which copies little: the system moves its pages. Nobody may hold a view of it."""
    array.resize((rows, *array.shape[1:]), refcheck=False)
