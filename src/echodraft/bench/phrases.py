"""What the phrase pool costs: time to add and to look up, bytes a phrase, and whether a long life changes that."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from echodraft.bench.store import ASKED, Ids, shuffled
from echodraft.stores.phrases import PhrasePool, warm

LATER = 10_000
"""Requests after which the pool is looked at again."""
REQUEST = 128
"""Tokens of a request."""


@dataclass(frozen=True, slots=True)
class PhraseCosts:
    """A pool of so many `phrases`, full; times in microseconds, the call from Python included.

    add            a phrase, added as part of a text while the pool fills
    best, best_p99  the three best phrases of a token of the text; median and 99th percentile
    credit         the feedback for one phrase; median
    bytes          a phrase
    later_best, later_add, later_bytes  the same after 10,000 more requests of 128 tokens, one call a step of 4 tokens
    """

    phrases: int
    add: float
    best: float
    best_p99: float
    credit: float
    bytes: float
    later_best: float
    later_add: float
    later_bytes: float


def measure_phrases(texts: Sequence[Ids], phrases: int, told: Callable[[str], None] = lambda _: None) -> PhraseCosts:
    """Fill a pool with `texts`, in a new random order each time they are used up; texts must hold enough different phrases."""
    warm()
    told("filling")
    pool, stream, start, read = PhrasePool(most=phrases), shuffled(texts), perf_counter(), 0
    while len(pool) < phrases and read < 50 * phrases:
        text = next(stream)
        pool.read(text)
        read += len(text)
    seconds, bytes_ = perf_counter() - start, pool.nbytes / max(1, len(pool))
    told("looking up")
    best = _times([lambda key=key: pool.best(key, 3) for key in _keys(texts)])
    credit = _times([lambda ids=entry["ids"]: pool.credit(ids, 1, 2) for entry, _ in zip(pool.entries(), range(ASKED), strict=False)])
    told("living on")
    again, steps = perf_counter(), 0
    for _ in range(LATER):
        text = next(stream)[:REQUEST]
        for end in range(4, len(text) + 1, 4):
            pool.read(text[:end], end - 4)
            steps += 4
    lived = perf_counter() - again
    afterwards = _times([lambda key=key: pool.best(key, 3) for key in _keys(texts)])
    return PhraseCosts(
        phrases=len(pool),
        add=1e6 * seconds / max(1, read),
        best=float(np.median(best)),
        best_p99=float(np.percentile(best, 99)),
        credit=float(np.median(credit)),
        bytes=bytes_,
        later_best=float(np.median(afterwards)),
        later_add=1e6 * lived / max(1, steps),
        later_bytes=pool.nbytes / max(1, len(pool)),
    )


def _keys(texts: Sequence[Ids]) -> list[int]:
    random = np.random.default_rng(1)
    return [int(text[random.integers(len(text))]) for text, _ in zip(shuffled(texts, 1), range(ASKED), strict=False)]


def _times(calls: Sequence[Callable[[], object]]) -> list[float]:
    """Microseconds of each call."""
    found = []
    for call in calls:
        before = perf_counter()
        call()
        found.append(1e6 * (perf_counter() - before))
    return found
