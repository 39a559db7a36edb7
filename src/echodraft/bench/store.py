"""What the suffix store costs: time a token and a draft, bytes a token."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from time import perf_counter

import numpy as np
from numpy.typing import NDArray

from echodraft.stores.suffix import SuffixStore, warm

Ids = NDArray[np.int32]
DRAFT = 64
"""Nodes of a draft."""
ASKED = 2000
"""Drafts that are timed."""


@dataclass(frozen=True, slots=True)
class Costs:
    """A store of `tokens` tokens with tries of `depth`; times in microseconds, the call from Python included.

    build_seconds      to append all, text by text, and finish each
    append             a token of that
    append_one         one token appended alone to a growing text, as decoding does; median
    draft, draft_p99   a tree of up to 64 nodes behind the growing text; median and 99th percentile
    remove             a token, texts removed whole: a third of all, the oldest first
    bytes, bytes_kept  a token, with removal and without support for it
    """

    tokens: int
    depth: int
    texts: int
    build_seconds: float
    append: float
    append_one: float
    draft: float
    draft_p99: float
    remove: float
    bytes: float
    bytes_kept: float


def measure(texts: Sequence[Ids], tokens: int, depth: int, told: Callable[[str], None] = lambda _: None) -> Costs:
    """Fill a store with `texts`, in a new random order each time they are used up, until it holds `tokens`; then decode on in it."""
    warm()
    told("building")
    store, held, seconds = _filled(texts, tokens, depth, removable=True)
    size = store.nbytes
    told("drafting")
    appends, drafts = _decode(store, texts)
    told("removing")
    before, start = store.tokens, perf_counter()
    for seq in held[: max(1, len(held) // 3)]:
        store.remove(seq)
    removing, removed = perf_counter() - start, before - store.tokens
    told("building without removal")
    kept, *_ = _filled(texts, tokens, depth, removable=False)
    return Costs(
        tokens=tokens,
        depth=depth,
        texts=len(held),
        build_seconds=seconds,
        append=1e6 * seconds / tokens,
        append_one=1e6 * float(np.median(appends)),
        draft=1e6 * float(np.median(drafts)),
        draft_p99=1e6 * float(np.percentile(drafts, 99)),
        remove=1e6 * removing / removed,
        bytes=size / tokens,
        bytes_kept=kept.nbytes / tokens,
    )


def _filled(texts: Sequence[Ids], tokens: int, depth: int, removable: bool) -> tuple[SuffixStore, list[int], float]:
    """A store of so many tokens, its sequences, and the seconds that it took."""
    store, held, stream, start = SuffixStore(depth, removable), list[int](), shuffled(texts), perf_counter()
    while store.tokens < tokens:
        seq = store.begin()
        store.append(seq, next(stream)[: tokens - store.tokens])
        store.end(seq, 0.0)
        held.append(seq)
    return store, held, perf_counter() - start


def _decode(store: SuffixStore, texts: Sequence[Ids]) -> tuple[list[float], list[float]]:
    """Seconds of each append of one token and of each draft behind it."""
    appends: list[float] = []
    drafts: list[float] = []
    for text in shuffled(texts, seed=1):
        ids, seq = text.tolist(), store.begin()
        for i in range(min(len(ids), ASKED - len(drafts))):
            before = perf_counter()
            store.append(seq, ids[i : i + 1])
            between = perf_counter()
            store.speculate(ids[max(0, i + 1 - store.depth) : i + 1], DRAFT, seq=seq)
            appends.append(between - before)
            drafts.append(perf_counter() - between)
        store.end(seq, 0.0)
        if len(drafts) == ASKED:
            break
    return appends, drafts


def shuffled(texts: Sequence[Ids], seed: int = 0) -> Iterator[Ids]:
    """The texts for ever, each round in another order."""
    random = np.random.default_rng(seed)
    while True:
        for i in random.permutation(len(texts)).tolist():
            yield texts[i]


def synthetic(tokens: int, seed: int = 0) -> list[Ids]:
    """Texts of 50 to 1,000 tokens that look a little like language: ids by Zipf's law, half of all passages copied from before."""
    random = np.random.default_rng(seed)
    texts: list[Ids] = []
    all_, size = np.empty(tokens + 1200, np.int32), 0
    while size < tokens:
        begin = size
        for _ in range(int(random.integers(1, 11))):
            n = int(random.integers(50, 100))
            if begin > n and random.random() < 0.5:
                at = int(random.integers(0, begin - n))
                passage = all_[at : at + n]
            else:
                passage = np.minimum(random.zipf(1.2, n), 150_000).astype(np.int32)
            all_[size : size + n] = passage
            size += n
        texts.append(all_[begin:size].copy())
    return texts
