"""What the store of hidden states costs, and how much of the truth its search finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.bench.recording import Recording
from echodraft.errors import UsageError
from echodraft.stores.hidden import HiddenStore, warm

K = 8
QUERIES = 200
STEP = 4
"""Keys appended at once, about what a decoding step brings."""
BLOCK = 512
MADE_UP = 1536
"""Width of states that are made up."""
MOST_MADE_UP = 100_000
"""States that are made up at most: more keys are mixtures of these."""
MIXED = (0.1, 0.5)
"""How much of a mixture is the second state."""
TIE = 1e-6
"""Cosines that differ by less are equal, which float32 cannot tell apart."""

States = NDArray[np.float16]


@dataclass(frozen=True, slots=True)
class HiddenCosts:
    """A store of `keys` keys of `width`: `real` states as they were given, of which `distinct` differ from each other; the rest are
    mixtures of two of these. What is searched for is not among them, unless a text was repeated.

    recall            of the 8 nearest by exact cosine, the share that a search finds, ties counted as found
    gap               exact cosine of the nearest key less that of the eighth, median: how far apart they lie
    query, query_p99  microseconds of a search for one state: median and 99th percentile
    append            microseconds a key, four at once; median
    remove            microseconds a key
    bytes             a key in memory
    """

    keys: int
    real: int
    distinct: int
    width: int
    recall: float
    gap: float
    query: float
    query_p99: float
    append: float
    remove: float
    bytes: float


def states_of(recordings: Sequence[Path], most: int, distinct: bool = False) -> tuple[States, str]:
    """Up to `most` hidden states in the order of the recordings, prompts included, and where they are from; made up without recordings.

    Texts that repeat have the same states; `distinct` takes each once. Raises `UsageError`.
    """
    if not recordings:
        random, most = np.random.default_rng(0), min(most, MOST_MADE_UP)
        kinds = random.standard_normal((max(64, most // 50), MADE_UP), np.float32)
        made = np.empty((most, MADE_UP), np.float16)
        for i in range(0, most, BLOCK):
            n = len(made[i : i + BLOCK])
            apart = random.uniform(0.2, 2.0, (n, 1)).astype(np.float32)
            made[i : i + n] = kinds[random.integers(0, len(kinds), n)] + apart * random.standard_normal((n, MADE_UP), np.float32) + 4.0
        return made, "made up"
    parts: list[States] = []
    seen, held = set[bytes](), 0
    for folder in recordings:
        recording = Recording(folder)
        if not recording.width:
            raise UsageError(f"{folder} holds no hidden states. Record without --no-hidden.")
        for entry in recording.entries:
            if held >= most:
                break
            states = recording.hidden(entry)
            if parts and parts[0].shape[1] != states.shape[1]:
                raise UsageError(f"{folder} is of another model: its states have another width.")
            if distinct:
                new = {digest: i for i, digest in enumerate(_digests(states)) if digest not in seen}
                states = states[list(new.values())]
                seen.update(new)
            parts.append(states)
            held += len(states)
    if held < 2:
        raise UsageError("The recordings hold too few states to search among. Record more requests.")
    return np.concatenate(parts)[:most], ", ".join(folder.name for folder in recordings)


def _digests(states: States) -> list[bytes]:
    return [blake2b(state.tobytes(), digest_size=16).digest() for state in states]


def measure_hidden(states: States, keys: int, told: Callable[[str], None] = lambda _: None) -> HiddenCosts:
    """Fill a store with `states`, then with mixtures of them until it holds `keys`, in sequences of 512; then search, append and remove."""
    warm()
    told("filling")
    store, random = HiddenStore(), np.random.default_rng(0)
    asked = random.permutation(min(len(states), keys))[: max(1, min(QUERIES, len(states) // 10))]
    queries, states = states[asked].astype(np.float32), np.delete(states, asked, axis=0)
    centre, held = np.zeros(states.shape[1]), list[int]()
    for block in _blocks(states, keys):
        seq = store.begin()
        store.append(seq, range(store.tokens, store.tokens + len(block)), block)
        store.end(seq, 0.0)
        held.append(seq)
        centre += block.sum(axis=0, dtype=np.float64)
    size = store.nbytes / keys
    told("searching")
    seconds, found = [], np.full((len(queries), K), -1)
    for query, row in zip(queries, found, strict=True):
        before = perf_counter()
        (near,) = store.search(query[None], K)
        seconds.append(perf_counter() - before)
        row[: len(near.row)] = store.token(near.row)
    told("searching exactly")
    exact = _Exact(queries, (centre / keys).astype(np.float32), found)
    for block in _blocks(states, keys):
        exact.add(block)
    told("appending and removing")
    seq, appends = store.begin(), []
    for i in range(0, min(len(states), 4 * QUERIES) - STEP + 1, STEP):
        before = perf_counter()
        store.append(seq, range(STEP), states[i : i + STEP])
        appends.append((perf_counter() - before) / STEP)
    before, several = perf_counter(), held[: max(1, len(held) // 10)]
    tokens = store.tokens
    for seq in several:
        store.remove(seq)
    removing = perf_counter() - before
    return HiddenCosts(
        keys=keys,
        real=min(len(states), keys),
        distinct=len(set(_digests(states[:keys]))),
        width=states.shape[1],
        recall=exact.recall(),
        gap=exact.gap(),
        query=1e6 * float(np.median(seconds)),
        query_p99=1e6 * float(np.percentile(seconds, 99)),
        append=1e6 * float(np.median(appends)) if appends else 0.0,
        remove=1e6 * removing / max(1, tokens - store.tokens),
        bytes=size,
    )


def _blocks(states: States, keys: int) -> Iterator[States]:
    """The keys, the same each time: the states as they are, then mixtures of each with another."""
    random, given = np.random.default_rng(1), 0
    while given < keys:
        for start in range(0, len(states), BLOCK):
            block = states[start : start + min(BLOCK, keys - given)]
            if given >= len(states):
                share = random.uniform(*MIXED, (len(block), 1)).astype(np.float32)
                block = ((1 - share) * block + share * states[random.integers(0, len(states), len(block))]).astype(np.float16)
            given += len(block)
            if len(block):
                yield block


class _Exact:
    """The k largest cosines of each query around `centre`, and those of what was `found` [queries, k], -1 = nothing. Block by block."""

    def __init__(self, queries: NDArray[np.float32], centre: NDArray[np.float32], found: NDArray[Any]) -> None:
        around = queries - centre
        self.queries, self.centre, self.found = around / np.linalg.norm(around, axis=1, keepdims=True), centre, found
        self.best = np.full(found.shape, -1.0, np.float32)
        self.cosine, self.keys = np.full(found.shape, -1.0, np.float32), 0

    def add(self, block: States) -> None:
        keys = block - self.centre
        length = np.linalg.norm(keys, axis=1)
        cosine = (self.queries @ keys.T) / np.where(length > 0, length, 1.0)
        cosine[:, -1] = -1.0  # the last of a sequence, which nothing follows
        self.best = -np.partition(-np.concatenate([self.best, cosine], axis=1), K - 1, axis=1)[:, :K]
        which, place = np.nonzero((self.found >= self.keys) & (self.found < self.keys + len(block)))
        self.cosine[which, place] = cosine[which, self.found[which, place] - self.keys]
        self.keys += len(block)

    def recall(self) -> float:
        least = np.maximum(self.best.min(axis=1), -1.0 + 2 * TIE)[:, None]
        return float((self.cosine >= least - TIE).sum() / (self.best >= least).sum())

    def gap(self) -> float:
        return float(np.median(self.best.max(axis=1) - self.best.min(axis=1)))
