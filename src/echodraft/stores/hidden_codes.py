"""Vectors in two or four bits a dimension, and the search among them. Compiled by Numba.

A vector has two bands of dimensions (`hidden_keys` says which), the first in `FINE` bits a dimension, the second in `COARSE`. Within a
band it was rotated at random, which spreads what it holds evenly; each dimension is a step around 0, and one factor a band makes the
estimate of an inner product unbiased (as RaBitQ, arXiv 2405.12497 and 2409.09913). A code is stored in bit planes, the highest first, the
fine band before the coarse one. The highest bits of the first dimensions, the *sketch*, are signs of projections: the number in which two
of them differ grows with the angle (Charikar 2002). They lie apart, so that a search reads 32 bytes a key, and the rest of a few hundred.
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

WORD = 64
FINE, COARSE = 4, 2
"""Bits of a dimension in either band."""
FINE_STEP, COARSE_STEP = 0.3352, 0.9957
"""Widths of their steps, in standard deviations: best for 16 and for 4 steps of a normal variable (Max 1960)."""
QUERY = 8
"""Bits of a dimension of the query."""

compiled = compiler("hidden", Path(__file__))


def _ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are set: one instruction, of vectors too where the processor has it."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


ones: Any = intrinsic(_ones)


@compiled
def fill(target: Words, values: Words) -> None:
    """target[:] = values, without the text of an error about shapes, which takes two seconds to compile."""
    for j in range(len(target)):
        target[j] = values[j]


@compiled
def pack(values: Floats, bits: int, step: float, code: Words) -> float:
    """Write `values` [n] in `bits` bits each into `code` [bits x n / 64]. Returns the gain.

    A number c of 0 … 2^bits - 1 stands for c - (2^bits - 1) / 2; the gain times that has the inner product of the values with themselves.
    """
    words, top, half = len(values) // WORD, 2**bits - 1, (2**bits - 1) / 2
    square = 0.0
    for value in values:
        square += value * value
    inverse = 1.0 / (step * np.sqrt(square / len(values))) if square > 0.0 else 0.0
    product = 0.0
    code[:] = 0
    for j in range(len(values)):
        c = min(max(int(np.floor(values[j] * inverse)) + 2 ** (bits - 1), 0), top)
        product += (c - half) * values[j]
        for plane in range(bits):
            code[plane * words + j // WORD] |= np.uint64((c >> (bits - 1 - plane)) & 1) << np.uint64(j % WORD)
    return square / product if product > 0.0 else 0.0


@compiled
def encode(vectors: Floats, places: Ints, fine: int, sketch: Words, rest: Words, gain: Floats) -> None:
    """Write the codes of `vectors` [n, width] at `places` [n]; `fine` dimensions are in the first band. `gain` [rows, 2]."""
    front = sketch.shape[1]
    code = np.empty(front + rest.shape[1], np.uint64)
    words = fine // WORD * FINE
    for i in range(len(vectors)):
        at = places[i]
        gain[at, 0] = pack(vectors[i, :fine], FINE, FINE_STEP, code[:words])
        gain[at, 1] = pack(vectors[i, fine:], COARSE, COARSE_STEP, code[words:])
        fill(sketch[at], code[:front])
        fill(rest[at], code[front:])


@compiled
def unpack(code: Words, bits: int, planes: Words, scale: Doubles) -> float:
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
def sliced(query: Floats, fine: int) -> tuple[Words, Words, Doubles]:
    """A query [width] for `product`: the planes of both bands, and their scales."""
    first, second = np.empty((QUERY, fine // WORD), np.uint64), np.empty((QUERY, (len(query) - fine) // WORD), np.uint64)
    scales = np.empty((2, 3), np.float64)
    slices(query[:fine], first, scales[0])
    slices(query[fine:], second, scales[1])
    return first, second, scales


@compiled
def product(at: int, sketch: Words, rest: Words, gain: Floats, code: Words, first: Words, second: Words, scales: Doubles) -> float:
    """The inner product of a coded vector and a sliced query, estimated. `code`: room for one."""
    front, words = sketch.shape[1], first.shape[1] * FINE
    fill(code[:front], sketch[at])
    fill(code[front:], rest[at])
    fine = gain[at, 0] * unpack(code[:words], FINE, first, scales[0])
    return float(fine + gain[at, 1] * unpack(code[words:], COARSE, second, scales[1]))


@compiled
def nearest(
    used: int,
    following: Ints,
    sketch: Words,
    rest: Words,
    gain: Floats,
    length: Floats,
    seen: Words,
    query: Floats,
    fine: int,
    shift: float,
    most: int,
    differing: Bytes,
    rows: Ints,
    cosines: Floats,
) -> int:
    """The keys with the largest cosine to `query` [width], best first, into rows and cosines [k]; returns how many.

    Of the first `used` rows those that something follows. The `most` whose sketch is nearest to `seen` are looked at closely: the product
    of their codes and the query, `shift` added, over their `length`. The query's own length is 1.
    """
    front = sketch.shape[1]
    counts = np.zeros(256, np.int64)
    for i in range(used):
        d = np.uint64(0)
        for j in range(front):
            d += ones(sketch[i, j] ^ seen[j])
        differing[i] = min(d, np.uint64(255))
    for i in range(used):
        counts[differing[i]] += following[i] >= 0
    limit, total = 0, 0
    while limit < 255 and total + counts[limit] < most:
        total += counts[limit]
        limit += 1
    first, second, scales = sliced(query, fine)
    code = np.empty(front + rest.shape[1], np.uint64)
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
        cosine = (product(i, sketch, rest, gain, code, first, second, scales) + shift) / length[i]
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
def recentre(places: Ints, sketch: Words, rest: Words, gain: Floats, length: Floats, moved: Floats, fine: int, along: float) -> None:
    """`length` of the keys at `places` once the centre has moved from c to c - `moved` [width]; `along`: `moved` times (origin - c).

    It is that of the coded vector: what a code is wrong by then counts nearly the same above and below the line of a cosine near 1.
    """
    first, second, scales = sliced(moved, fine)
    code = np.empty(sketch.shape[1] + rest.shape[1], np.uint64)
    square = 0.0
    for value in moved:
        square += value * value
    for i in places:
        beside = product(i, sketch, rest, gain, code, first, second, scales) + along
        length[i] = np.sqrt(max(length[i] * length[i] + 2.0 * beside + square, 0.0))


@compiled
def chase(following: Ints, starts: Ints, out: Ints) -> None:
    """The rows that follow each start, the start first: out [n, steps], -1 behind the end."""
    for i in range(len(starts)):
        at = starts[i]
        for j in range(out.shape[1]):
            out[i, j] = at
            if at >= 0:
                at = following[at]
