"""The arrays of a phrase pool and the operations on them, compiled by Numba.

A place holds one phrase. The phrases whose keys share a hash are a linked list that begins in `head`. No phrase of a key begins another.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from echodraft.stores.suffix_nodes import compiled, hashed

LIVE, USED, FREE, HAND, TOKENS, CLOCK = range(6)
"""Places in `meta`: phrases, places ever used, first free place, where eviction goes on, tokens, new phrases so far."""
TRIED, KEPT = range(2)
"""Columns of `tally`."""
LOOKED = 16
"""Places among which a full pool looks for the worst phrase."""
AGED = 16.0
"""Counts of tokens that were tried are halved beyond this."""

Ints = NDArray[np.int32]
Longs = NDArray[np.int64]
Floats = NDArray[np.float64]


class Table(NamedTuple):
    """All arrays of a pool.

    token  int32 [places, length + 1]  the key, then what follows it
    size   int32 [places]              tokens with the key; 0 = free
    score  float64 [places]            log2 of the worth, as if all worth were counted at the beginning of time
    when   float64 [places]            last added or corrected, seconds since the epoch
    tally  float32 [places, 2]         tokens that were tried behind a right prefix, and those of them that were right; old ones count less
    next   int32 [places]              the next of the list; -1 ends it. Free places are linked by it too
    head   int32 [power of two]        first phrase of a hash, or -1
    meta   int64 [6]                   counts
    """

    token: Ints
    size: Ints
    score: Floats
    when: Floats
    tally: NDArray[np.float32]
    next: Ints
    head: Ints
    meta: Longs


def empty(places: int, length: int) -> Table:
    """A pool without phrases."""
    meta = np.zeros(6, np.int64)
    meta[FREE] = -1
    return Table(
        np.zeros((places, length + 1), np.int32),
        np.zeros(places, np.int32),
        np.zeros(places),
        np.zeros(places),
        np.zeros((places, 2), np.float32),
        np.full(places, -1, np.int32),
        np.full(1 << max(1, (places - 1).bit_length()), -1, np.int32),
        meta,
    )


def longer(old: Table, places: int) -> Table:
    """The same phrases in more places."""
    new = empty(places, old.token.shape[1] - 1)
    n = len(old.size)
    for name in ("token", "size", "score", "when", "tally", "next"):
        getattr(new, name)[:n] = getattr(old, name)
    new.meta[:] = old.meta
    link(new)
    return new


@compiled
def bucket(t: Table, key: int) -> int:
    return int(hashed(0, key) & np.uint64(len(t.head) - 1))


@compiled
def link(t: Table) -> None:
    """Make all lists anew."""
    t.head[:] = -1
    t.meta[FREE] = -1
    for place in range(t.meta[USED]):
        if t.size[place] > 0:
            at = bucket(t, t.token[place, 0])
            t.next[place], t.head[at] = t.head[at], place
        else:
            t.next[place], t.meta[FREE] = t.meta[FREE], place


@compiled
def same(t: Table, place: int, phrase: Ints, n: int) -> bool:
    """Whether the first `n` tokens are equal."""
    for i in range(n):  # noqa: SIM110 - Numba knows no all
        if t.token[place, i] != phrase[i]:
            return False
    return True


@compiled
def find(t: Table, phrase: Ints, size: int) -> int:
    """The most worthy phrase that begins `phrase` or that `phrase` begins; -1 if there is none."""
    found = -1
    place = t.head[bucket(t, phrase[0])]
    while place >= 0:
        if same(t, place, phrase, min(size, t.size[place])) and (found < 0 or t.score[place] > t.score[found]):
            found = place
        place = t.next[place]
    return int(found)


@compiled
def drop(t: Table, place: int) -> None:
    """Forget the phrase at a place."""
    at = bucket(t, t.token[place, 0])
    other = t.head[at]
    if other == place:
        t.head[at] = t.next[place]
    else:
        while t.next[other] != place:
            other = t.next[other]
        t.next[other] = t.next[place]
    t.meta[TOKENS] -= t.size[place]
    t.meta[LIVE] -= 1
    t.size[place] = 0
    t.next[place], t.meta[FREE] = t.meta[FREE], place


@compiled
def write(t: Table, place: int, phrase: Ints, size: int, now: float) -> None:
    """Put the tokens of a phrase in a place that is linked already."""
    t.meta[TOKENS] += size - t.size[place]
    t.token[place, :size] = phrase[:size]
    t.size[place] = size
    t.when[place] = now


@compiled
def evict(t: Table) -> None:
    """Forget the worst phrase of the next places of a full pool."""
    worst = -1
    for _ in range(min(LOOKED, len(t.size))):
        place = t.meta[HAND]
        t.meta[HAND] = (place + 1) % len(t.size)
        if t.size[place] > 0 and (worst < 0 or t.score[place] < t.score[worst]):
            worst = place
    if worst >= 0:
        drop(t, worst)


@compiled
def insert(t: Table, phrases: Ints, done: int, proven: float, per_key: int, most: int, half: float, now: float) -> int:
    """Add phrases [n, tokens] from number `done` on; how many are in. Fewer than all: the arrays must grow for the next one.

    Of what is new `proven` tokens count as tried and right.
    """
    size = phrases.shape[1]
    for i in range(done, len(phrases)):
        phrase = phrases[i]
        place = find(t, phrase, size)
        if place >= 0:
            if size > t.size[place]:
                write(t, place, phrase, size, now)
            t.when[place] = now
            t.score[place] = max(t.score[place], t.meta[CLOCK] / half)
            continue
        at = bucket(t, phrase[0])
        count, worst = 0, -1
        other = t.head[at]
        while other >= 0:
            if t.token[other, 0] == phrase[0]:
                count += 1
                if worst < 0 or t.score[other] < t.score[worst]:
                    worst = other
            other = t.next[other]
        if count >= per_key:
            place = worst
        else:
            if t.meta[LIVE] == len(t.size):
                if t.meta[LIVE] < most:
                    return i
                evict(t)
            place = t.meta[FREE]
            if place >= 0:
                t.meta[FREE] = t.next[place]
            else:
                place = t.meta[USED]
                t.meta[USED] += 1
            t.next[place], t.head[at] = t.head[at], place
            t.meta[LIVE] += 1
        write(t, place, phrase, size, now)
        t.tally[place] = proven
        t.meta[CLOCK] += 1
        t.score[place] = t.meta[CLOCK] / half
    return len(phrases)


@compiled
def best(t: Table, key: int, k: int) -> tuple[Ints, Ints, Floats]:
    """The `k` phrases of a key that are worth most, the best first: tokens with the key [n, length + 1], sizes [n], chances [n]."""
    found, n = np.empty(k, np.int64), 0
    place = t.head[bucket(t, key)]
    while place >= 0:
        if t.token[place, 0] == key:
            at = n
            while at > 0 and t.score[found[at - 1]] < t.score[place]:
                at -= 1
            if at < k:
                n = min(n + 1, k)
                for i in range(n - 1, at, -1):
                    found[i] = found[i - 1]
                found[at] = place
        place = t.next[place]
    tokens, sizes, chances = np.empty((n, t.token.shape[1]), np.int32), np.empty(n, np.int32), np.empty(n)
    for i in range(n):
        place = found[i]
        tokens[i], sizes[i] = t.token[place], t.size[place]
        chances[i] = (t.tally[place, KEPT] + 1.0) / (t.tally[place, TRIED] + 2.0)
    return tokens, sizes, chances


@compiled
def credit(t: Table, phrase: Ints, right: int, tried: int, half: float) -> None:
    """Of the first `tried` tokens behind the key the first `right` were right."""
    place = find(t, phrase, len(phrase))
    if place < 0:
        return
    t.tally[place, TRIED] += tried
    t.tally[place, KEPT] += right
    if t.tally[place, TRIED] > AGED:
        t.tally[place] /= 2
    if right > 0:
        old, new = t.score[place], t.meta[CLOCK] / half + np.log2(right)
        high, low = max(old, new), min(old, new)
        t.score[place] = high + np.log2(1.0 + 2.0 ** (low - high))


@compiled
def correct(t: Table, phrase: Ints, better: Ints, now: float) -> bool:
    """Another phrase of the same key in the place of this one. False where this one must stay beside the other: it was right before."""
    place = find(t, phrase, len(phrase))
    if place < 0 or better[0] != phrase[0] or same(t, place, better, min(len(better), t.size[place])):
        return True
    if t.tally[place, KEPT] > 0:
        return False
    there = find(t, better, len(better))
    if there >= 0:
        # It is known already; two would say the same.
        t.score[there] = max(t.score[there], t.score[place])
        if len(better) > t.size[there]:
            write(t, there, better, len(better), now)
        drop(t, place)
        return True
    write(t, place, better, len(better), now)
    t.tally[place] = 0.0
    return True


@compiled
def prune(t: Table, held: Longs, order: Longs, tokens: int, before: float) -> None:
    """Forget what was written before a time, then, in this order, what is beyond so many tokens."""
    for place in held:
        if t.when[place] < before:
            drop(t, place)
    for place in order:
        if t.meta[TOKENS] <= tokens:
            return
        if t.size[place] > 0:
            drop(t, place)


@compiled
def proper(t: Table, per_key: int) -> bool:
    """Whether no phrase begins another of its key and no key has too many; for pools from files."""
    for place in range(t.meta[USED]):
        count = 0
        other = t.head[bucket(t, t.token[place, 0])]
        while other >= 0:
            if t.token[other, 0] == t.token[place, 0]:
                count += 1
                if count > per_key:
                    return False
                if other != place and same(t, other, t.token[place], min(t.size[place], t.size[other])):
                    return False
            other = t.next[other]
    return True
