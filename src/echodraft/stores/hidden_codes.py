"""Vectors in two or four bits a dimension, and the search among them. Compiled by Numba.

A vector has two bands of dimensions (`hidden_keys` says which), the first in `FINE` bits a dimension, the second in `COARSE`. Within a
band it was rotated at random, which spreads what it holds evenly; each dimension is a step around 0, and one factor a band makes the
estimate of an inner product unbiased (as RaBitQ, arXiv 2405.12497 and 2409.09913). A code is stored in bit planes, the highest first, the
fine band before the coarse one.

What is coded is what is left of a key once its *base* is taken away: an earlier key, as its own code gives it, that lies near. What a code
is wrong by is a share of what it codes. Bases are places in a table; place 0 is no base. A place that no key uses is free.

The signs of a key's first dimensions are its *sketch*: the number in which two of them differ grows with the angle (Charikar 2002). A
search reads the sketches of all keys, 32 bytes each, and the codes of a few hundred.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic
from numpy.typing import NDArray

from echodraft.stores.compiled import compiler

Words = NDArray[np.uint64]
Bytes = NDArray[np.uint8]
Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Ints = NDArray[np.int32]
Sliced = tuple[Words, Words, Doubles]
"""A query in bit planes: those of either band, and their scales."""

WORD = 64
FINE, COARSE = 4, 2
"""Bits of a dimension in either band."""
FINE_STEP, COARSE_STEP = 0.3352, 0.9957
"""Widths of their steps, in standard deviations: best for 16 and for 4 steps of a normal variable (Max 1960)."""
QUERY = 8
"""Bits of a dimension of the query."""

compiled = compiler("hidden", Path(__file__))
summed = compiler("hidden", Path(__file__), fastmath={"reassoc", "contract"})
"""For sums that may be taken in any order, and so in vectors."""


def _ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are set: one instruction, of vectors too where the processor has it."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


ones: Any = intrinsic(_ones)


@compiled
def fill(target: NDArray[Any], values: NDArray[Any]) -> None:
    """target[:] = values, without the text of an error about shapes, which takes two seconds to compile."""
    for j in range(len(target)):
        target[j] = values[j]


@summed
def turn(vectors: Floats, mirror: Floats, order: Ints, signs: Floats, out: Floats) -> None:
    """out = v - M Mᵀv of each of `vectors` [n, width], M = `mirror` [width, fine]; then mixed, once for each row of `order` and `signs`.

    A round of mixing takes the dimensions in that order and with those signs, and each `WORD` of them through a Hadamard matrix.
    """
    width, fine = mirror.shape
    along, mixed = np.empty(fine, np.float32), np.empty(width, np.float32)
    for i in range(len(vectors)):
        along[:] = 0.0
        for j in range(width):
            for c in range(fine):
                along[c] += vectors[i, j] * mirror[j, c]
        for j in range(width):
            total = np.float32(0.0)
            for c in range(fine):
                total += mirror[j, c] * along[c]
            out[i, j] = vectors[i, j] - total
        for r in range(len(order)):
            for j in range(width):
                mixed[j] = out[i, order[r, j]] * signs[r, j] * np.float32(0.125)  # 1 / sqrt(WORD)
            gap = 1
            while gap < WORD:
                for begin in range(0, width, 2 * gap):
                    for j in range(begin, begin + gap):
                        mixed[j], mixed[j + gap] = mixed[j] + mixed[j + gap], mixed[j] - mixed[j + gap]
                gap *= 2
            fill(out[i], mixed)


@compiled
def square(values: Floats) -> float:
    """The inner product of values with themselves."""
    total = 0.0
    for value in values:
        total += value * value
    return total


@compiled
def pack(values: Floats, bits: int, step: float, code: Words) -> float:
    """Write `values` [n] in `bits` bits each into `code` [bits x n / 64]. Returns the gain.

    A number c of 0 … 2^bits - 1 stands for c - (2^bits - 1) / 2; the gain times that has the inner product of the values with themselves.
    """
    words, top, half = len(values) // WORD, 2**bits - 1, (2**bits - 1) / 2
    whole = square(values)
    inverse = 1.0 / (step * np.sqrt(whole / len(values))) if whole > 0.0 else 0.0
    product = 0.0
    code[:] = 0
    for j in range(len(values)):
        c = min(max(int(np.floor(values[j] * inverse)) + 2 ** (bits - 1), 0), top)
        product += (c - half) * values[j]
        for plane in range(bits):
            code[plane * words + j // WORD] |= np.uint64((c >> (bits - 1 - plane)) & 1) << np.uint64(j % WORD)
    return whole / product if product > 0.0 else 0.0


@compiled
def unpack(code: Words, bits: int, gain: float, values: Floats) -> None:
    """Take what a code stands for from `values` [n]."""
    words, half = len(values) // WORD, (2**bits - 1) / 2
    for j in range(len(values)):
        c = np.uint64(0)
        for plane in range(bits):
            c = (c << np.uint64(1)) | ((code[plane * words + j // WORD] >> np.uint64(j % WORD)) & np.uint64(1))
        values[j] -= gain * (1.0 * c - half)


@compiled
def pack_both(vector: Floats, fine: int, code: Words, gain: Floats) -> None:
    """Write the code of a vector [width], `fine` dimensions of which are in the first band, and its gains [2]."""
    words = fine // WORD * FINE
    gain[0] = pack(vector[:fine], FINE, FINE_STEP, code[:words])
    gain[1] = pack(vector[fine:], COARSE, COARSE_STEP, code[words:])


@compiled
def unpack_both(code: Words, gain: Floats, fine: int, vector: Floats) -> None:
    """Take what a code stands for from a vector [width]."""
    words = fine // WORD * FINE
    unpack(code[:words], FINE, gain[0], vector[:fine])
    unpack(code[words:], COARSE, gain[1], vector[fine:])


@compiled
def apart(sketch: Words, i: int, seen: Words) -> int:
    """In how many bits the sketch of row i differs from `seen`."""
    d = np.uint64(0)
    for j in range(len(seen)):
        d += ones(sketch[i, j] ^ seen[j])
    return int(d)


@compiled
def encode(
    vectors: Floats,
    sketches: Words,
    places: Ints,
    fine: int,
    far: int,
    sketch: Words,
    code: Words,
    gain: Floats,
    base: Ints,
    length: Floats,
    base_sketch: Words,
    base_code: Words,
    base_gain: Floats,
    uses: Ints,
) -> None:
    """Write the codes of `vectors` [n, width] at `places` [n]; `fine` dimensions are in the first band. `gain` [rows, 2].

    The base of a key is the one whose sketch is nearest; it becomes a base itself where that differs in more than `far` bits and a place
    is free. `uses` counts the keys of each base.
    """
    left = np.empty(vectors.shape[1], np.float32)
    for i in range(len(vectors)):
        at, vector = places[i], vectors[i]
        fill(sketch[at], sketches[i])
        nearest, least, free = 0, WORD * sketch.shape[1], 0
        for j in range(len(uses) - 1, 0, -1):
            if uses[j] == 0:
                free = j
                continue
            d = apart(base_sketch, j, sketches[i])
            if d <= least:
                nearest, least = j, d
        if free > 0 and least > far:
            nearest = free
            fill(base_sketch[free], sketches[i])
            pack_both(vector, fine, base_code[free], base_gain[free])
        fill(left, vector)
        unpack_both(base_code[nearest], base_gain[nearest], fine, left)
        whole = square(vector)
        if square(left) >= whole:
            nearest = 0
            fill(left, vector)
        pack_both(left, fine, code[at], gain[at])
        unpack_both(code[at], gain[at], fine, left)
        wrong = 0.0
        for j in range(len(left)):
            wrong += left[j] * vector[j]
        length[at] = np.sqrt(max(whole - 2.0 * wrong, 0.0))  # with what is kept, so that a key beside itself has a cosine of 1
        uses[nearest] += 1
        base[at] = nearest


@compiled
def inner(code: Words, bits: int, planes: Words, scale: Doubles) -> float:
    """The inner product of packed values, at gain 1, and a sliced query."""
    words, half = planes.shape[1], (2**bits - 1) / 2
    codes = both = np.uint64(0)
    for plane in range(bits):
        weight = bits - 1 - plane
        held = np.uint64(0)
        for j in range(words):
            held += ones(code[plane * words + j])
        codes += held << np.uint64(weight)
        for bit in range(QUERY):
            shared = np.uint64(0)
            for j in range(words):
                shared += ones(code[plane * words + j] & planes[bit, j])
            both += shared << np.uint64(weight + bit)
    low, step, total = scale[0], scale[1], scale[2]
    return float(low * (1.0 * codes - half * words * WORD) + step * (1.0 * both - half * total))


@compiled
def slices(query: Floats, planes: Words, scale: Doubles) -> None:
    """The query in `QUERY` bits a dimension: planes [QUERY, words], and `scale`: its least value, its step, the sum of its steps."""
    planes[:] = 0
    scale[:] = 0.0
    if len(query) == 0:
        return
    low, high = query[0], query[0]
    for value in query:
        low, high = min(low, value), max(high, value)
    step = (high - low) / (2**QUERY - 1)
    total = 0.0
    for j in range(len(query)):
        c = round((query[j] - low) / step) if step > 0.0 else 0
        total += c
        for bit in range(QUERY):
            planes[bit, j // WORD] |= np.uint64((c >> bit) & 1) << np.uint64(j % WORD)
    scale[0], scale[1], scale[2] = low, step, total


@compiled
def sliced(query: Floats, fine: int) -> Sliced:
    """A query [width] for `product`: the planes of both bands, and their scales."""
    first, second = np.empty((QUERY, fine // WORD), np.uint64), np.empty((QUERY, (len(query) - fine) // WORD), np.uint64)
    scales = np.empty((2, 3), np.float64)
    slices(query[:fine], first, scales[0])
    slices(query[fine:], second, scales[1])
    return first, second, scales


@compiled
def product(at: int, code: Words, gain: Floats, query: Sliced) -> float:
    """The inner product of what the code of row `at` stands for and a query, estimated."""
    first, second, scales = query
    words = first.shape[1] * FINE
    fine = gain[at, 0] * inner(code[at, :words], FINE, first, scales[0])
    return float(fine + gain[at, 1] * inner(code[at, words:], COARSE, second, scales[1]))


@compiled
def product_of_key(
    at: int, code: Words, gain: Floats, base: Ints, base_code: Words, base_gain: Floats, query: Sliced, known: Doubles
) -> float:
    """The inner product of a key, its base included, and a query, estimated. `known` [bases]: those of bases; NaN = not yet."""
    b = base[at]
    if np.isnan(known[b]):
        known[b] = product(b, base_code, base_gain, query)
    return float(known[b] + product(at, code, gain, query))


@compiled
def asking(vector: Floats, fine: int, bases: int) -> tuple[Sliced, Doubles]:
    """A query [width] for `product_of_key`, and its products with bases, none of which is known yet."""
    known = np.empty(bases, np.float64)
    known[:] = np.nan
    return sliced(vector, fine), known


@compiled
def nearest(
    used: int,
    following: Ints,
    sketch: Words,
    code: Words,
    gain: Floats,
    base: Ints,
    length: Floats,
    base_code: Words,
    base_gain: Floats,
    seen: Words,
    turned: Floats,
    fine: int,
    shift: float,
    most: int,
    differing: Bytes,
    rows: Ints,
    cosines: Floats,
) -> int:
    """The keys with the largest cosine to `turned` [width], best first, into rows and cosines [k]; returns how many.

    Of the first `used` rows those that something follows. The `most` whose sketch is nearest to `seen` are looked at closely: the product
    of what is kept of them and the query, `shift` added, over their `length`. The query's own length is 1.
    """
    counts = np.zeros(256, np.int64)
    for i in range(used):
        differing[i] = min(apart(sketch, i, seen), 255)
    for i in range(used):
        counts[differing[i]] += following[i] >= 0
    limit, total = 0, 0
    while limit < 255 and total + counts[limit] < most:
        total += counts[limit]
        limit += 1
    query, known = asking(turned, fine, len(base_code))
    spare = most - total  # places for those that differ in `limit` bits
    k, found = len(rows), 0
    for i in range(used):
        if differing[i] > limit or following[i] < 0:
            continue
        if differing[i] == limit:
            if spare == 0:
                continue
            spare -= 1
        if length[i] <= 0.0:
            continue
        cosine = (product_of_key(i, code, gain, base, base_code, base_gain, query, known) + shift) / length[i]
        if found == k and cosine <= cosines[k - 1]:
            continue
        at = found if found < k else k - 1
        while at > 0 and cosines[at - 1] < cosine:
            cosines[at], rows[at] = cosines[at - 1], rows[at - 1]
            at -= 1
        cosines[at], rows[at] = cosine, i
        found = min(found + 1, k)
    return found


@compiled
def recentre(
    places: Ints,
    code: Words,
    gain: Floats,
    base: Ints,
    length: Floats,
    base_code: Words,
    base_gain: Floats,
    moved: Floats,
    fine: int,
    along: float,
) -> None:
    """`length` of the keys at `places` once the centre has moved from c to c - `moved` [width]; `along`: `moved` times (origin - c).

    It is that of what is kept: what a code is wrong by then counts nearly the same above and below the line of a cosine near 1.
    """
    query, known = asking(moved, fine, len(base_code))
    further = square(moved)
    for i in places:
        beside = product_of_key(i, code, gain, base, base_code, base_gain, query, known) + along
        length[i] = np.sqrt(max(length[i] * length[i] + 2.0 * beside + further, 0.0))


@compiled
def chase(following: Ints, starts: Ints, out: Ints) -> None:
    """The rows that follow each start, the start first: out [n, steps], -1 behind the end."""
    for i in range(len(starts)):
        at = starts[i]
        for j in range(out.shape[1]):
            out[i, j] = at
            if at >= 0:
                at = following[at]
