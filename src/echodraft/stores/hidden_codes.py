"""Vectors in two bits a dimension, and the search among them. Compiled by Numba.

A vector is rotated at random first, which spreads what it holds evenly over all dimensions; then each dimension is one of four steps
around a centre (as RaBitQ, arXiv 2405.12497 and 2409.09913: the estimate of an inner product is unbiased, its error falls with the root of
the width). The upper bits of the first dimensions, the *sketch*, are signs of random projections: the number in which two of them differ
grows with the angle (Charikar 2002). They lie apart, so that a search reads 32 bytes a key and 384 of a few hundred.
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
Floats = NDArray[np.float32]
Ints = NDArray[np.int32]

WORD = 64
STEP = 0.9957
"""Width of a step, in standard deviations: best for four steps of a normal variable (Max 1960)."""
FINE = 8
"""Bits of a dimension of the query."""

compiled = compiler("hidden", Path(__file__))


def _ones(typing: Any, word: Any) -> Any:
    """How many bits of a word are set: one instruction, of vectors too where the processor has it."""
    return types.uint64(types.uint64), lambda context, builder, signature, arguments: builder.ctpop(arguments[0])


ones: Any = intrinsic(_ones)


@compiled
def encode(vectors: Floats, places: Ints, sketch: Words, rest: Words, gain: Floats, size: Floats) -> None:
    """Write the codes of `vectors` [n, width] at `places` [n].

    A code c of 0…3 a dimension stands for c - 1.5; `gain` times that has the vector's own inner product with the vector. `size` is its
    length. The upper bits fill `sketch`, then `rest`; the lower bits follow.
    """
    n, width = vectors.shape
    front = sketch.shape[1]
    words = width // WORD
    for i in range(n):
        at = places[i]
        square = 0.0
        for j in range(width):
            square += vectors[i, j] * vectors[i, j]
        inverse = 1.0 / (STEP * np.sqrt(square / width)) if square > 0.0 else 0.0
        product = 0.0
        for word in range(words):
            upper, lower = np.uint64(0), np.uint64(0)
            for bit in range(WORD):
                value = vectors[i, word * WORD + bit]
                code = min(max(int(np.floor(value * inverse)) + 2, 0), 3)
                product += (code - 1.5) * value
                upper |= np.uint64(code >> 1) << np.uint64(bit)
                lower |= np.uint64(code & 1) << np.uint64(bit)
            if word < front:
                sketch[at, word] = upper
            else:
                rest[at, word - front] = upper
            rest[at, words - front + word] = lower
        gain[at] = square / product if product > 0.0 else 0.0
        size[at] = np.sqrt(square)


@compiled
def slices(query: Floats, planes: Words) -> tuple[float, float, float]:
    """The query in `FINE` bits a dimension, bit by bit: planes [FINE, words]. Returns its least value, its step, the sum of its steps."""
    low, high = query[0], query[0]
    for value in query:
        low, high = min(low, value), max(high, value)
    step = (high - low) / (2**FINE - 1)
    total = 0.0
    planes[:] = 0
    for j in range(len(query)):
        fine = round((query[j] - low) / step) if step > 0.0 else 0
        total += fine
        for bit in range(FINE):
            planes[bit, j // WORD] |= np.uint64((fine >> bit) & 1) << np.uint64(j % WORD)
    return low, step, total


@compiled
def product(at: int, sketch: Words, rest: Words, gain: Floats, planes: Words, low: float, step: float, total: float) -> float:
    """The inner product of a coded vector and a sliced query, estimated."""
    front = sketch.shape[1]
    words = planes.shape[1]
    upper = lower = np.uint64(0)  # how many of the bits are set
    for j in range(front):
        upper += ones(sketch[at, j])
    for j in range(words - front):
        upper += ones(rest[at, j])
    for j in range(words):
        lower += ones(rest[at, words - front + j])
    both = np.uint64(0)
    for bit in range(FINE):
        over = under = np.uint64(0)
        for j in range(front):
            over += ones(sketch[at, j] & planes[bit, j])
        for j in range(words - front):
            over += ones(rest[at, j] & planes[bit, front + j])
        for j in range(words):
            under += ones(rest[at, words - front + j] & planes[bit, j])
        both += (np.uint64(2) * over + under) << np.uint64(bit)
    codes = 2.0 * upper + 1.0 * lower
    return float(gain[at] * (low * (codes - 1.5 * words * WORD) + step * (both - 1.5 * total)))


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
    shift: float,
    most: int,
    differing: NDArray[np.uint16],
    rows: Ints,
    cosines: Floats,
) -> int:
    """The keys with the largest cosine to `query` [width], best first, into rows and cosines [k]; returns how many.

    Of the first `used` rows those that something follows. The `most` whose sketch is nearest to `seen` are looked at closely: the product
    of their codes and the query, `shift` added, over their `length`. The query's own length is 1.
    """
    front = sketch.shape[1]
    counts = np.zeros(front * WORD + 2, np.int64)
    for i in range(used):
        d = np.uint64(0)
        for j in range(front):
            d += ones(sketch[i, j] ^ seen[j])
        differing[i] = d
    for i in range(used):
        counts[differing[i]] += following[i] >= 0
    limit, total = 0, 0
    while limit < front * WORD and total + counts[limit] < most:
        total += counts[limit]
        limit += 1
    planes = np.empty((FINE, len(query) // WORD), np.uint64)
    low, step, whole = slices(query, planes)
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
        cosine = (product(i, sketch, rest, gain, planes, low, step, whole) + shift) / length[i]
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
def recentre(used: int, sketch: Words, rest: Words, gain: Floats, size: Floats, length: Floats, moved: Floats) -> None:
    """`length` of every key once the centre has moved: of the coded vector + `moved` [width]."""
    planes = np.empty((FINE, len(moved) // WORD), np.uint64)
    low, step, whole = slices(moved, planes)
    square = 0.0
    for value in moved:
        square += value * value
    for i in range(used):
        along = product(i, sketch, rest, gain, planes, low, step, whole)
        length[i] = np.sqrt(max(size[i] * size[i] + 2.0 * along + square, 0.0))


@compiled
def chase(following: Ints, starts: Ints, out: Ints) -> None:
    """The rows that follow each start, the start first: out [n, steps], -1 behind the end."""
    for i in range(len(starts)):
        at = starts[i]
        for j in range(out.shape[1]):
            out[i, j] = at
            if at >= 0:
                at = following[at]
