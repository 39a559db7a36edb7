"""What the store of hidden states costs, and how much of the truth its search finds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
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
MOST_MADE_UP = 100_000
"""States that are made up at most: more keys are these, moved a little."""
"""Width of states that are made up."""
TIE = 1e-5
"""Cosines that differ by less are equal: texts that repeat have the same states."""

States = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class HiddenCosts:
    """A store of `keys` keys of `width`, of which `distinct` are real; the rest are real ones, each moved a little at random. What is
    searched for is not among them.

    recall            of the 8 nearest by exact cosine, the share that a search finds, ties counted as found
    query, query_p99  microseconds of a search for one state: median and 99th percentile
    append            microseconds a key, four at once; median
    remove            microseconds a key
    bytes             a key in memory
    """

    keys: int
    distinct: int
    width: int
    recall: float
    query: float
    query_p99: float
    append: float
    remove: float
    bytes: float


def states_of(recordings: Sequence[Path], most: int) -> tuple[States, str]:
    """Up to `most` hidden states, prompts included, and where they are from. Made up without recordings. Raises `UsageError`."""
    if not recordings:
        random, most = np.random.default_rng(0), min(most, MOST_MADE_UP)
        kinds = random.standard_normal((max(64, most // 50), MADE_UP), np.float32)
        apart = random.uniform(0.2, 2.0, (most, 1)).astype(np.float32)
        made = kinds[random.integers(0, len(kinds), most)] + apart * random.standard_normal((most, MADE_UP), np.float32) + 4.0
        return made, "made up"
    parts: list[NDArray[np.float16]] = []
    held = 0
    for folder in recordings:
        recording = Recording(folder)
        if not recording.width:
            raise UsageError(f"{folder} holds no hidden states. Record without --no-hidden.")
        for entry in recording.entries:
            states = recording.hidden(entry)
            if parts and parts[0].shape[1] != states.shape[1]:
                raise UsageError(f"{folder} is of another model: its states have another width.")
            parts.append(states[: most - held])
            held += len(parts[-1])
            if held == most:
                break
    if held < 2:
        raise UsageError("The recordings hold too few states to search among. Record more requests.")
    return np.concatenate(parts).astype(np.float32), ", ".join(folder.name for folder in recordings)


def measure_hidden(states: States, keys: int, told: Callable[[str], None] = lambda _: None) -> HiddenCosts:
    """Fill a store with `states`, again and again until it holds `keys`, in sequences of 512; then search, append and remove."""
    warm()
    told("filling")
    store, random = HiddenStore(), np.random.default_rng(0)
    queries, states = _apart(states, random)
    spread = np.float32(0.05) * states.std(axis=0)
    exact = _Exact(K)
    centre, held = np.zeros(states.shape[1]), list[int]()
    for block in _blocks(states, keys, spread):
        seq = store.begin()
        store.append(seq, range(store.tokens, store.tokens + len(block)), block)
        store.end(seq, 0.0)
        held.append(seq)
        centre += block.sum(axis=0, dtype=np.float64)
    size = store.nbytes / keys
    told("searching")
    seconds, found = [], []
    for query in queries:
        before = perf_counter()
        (near,) = store.search(query[None], K)
        seconds.append(perf_counter() - before)
        found.append(store.token(near.row))
    told("searching exactly")
    middle = (centre / keys).astype(np.float32)
    for block in _blocks(states, keys, spread):
        exact.add(block - middle, queries - middle)
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
        distinct=min(len(states), keys),
        width=states.shape[1],
        recall=exact.recall(found),
        query=1e6 * float(np.median(seconds)),
        query_p99=1e6 * float(np.percentile(seconds, 99)),
        append=1e6 * float(np.median(appends)) if appends else 0.0,
        remove=1e6 * removing / max(1, tokens - store.tokens),
        bytes=size,
    )


def _blocks(states: States, keys: int, spread: States) -> Iterator[States]:
    """The keys, the same each time: the states as they are, then moved."""
    random, given = np.random.default_rng(1), 0
    while given < keys:
        for start in range(0, len(states), BLOCK):
            block = states[start : start + min(BLOCK, keys - given)]
            if given >= len(states):
                block = block + spread * random.standard_normal(block.shape, np.float32)
            given += len(block)
            if len(block):
                yield block


def _apart(states: States, random: Any) -> tuple[States, States]:
    """Some of the states to ask for, and the others, to be kept."""
    asked = random.permutation(len(states))[: max(1, min(QUERIES, len(states) // 10))]
    return states[asked], np.delete(states, asked, axis=0)


class _Exact:
    """The k largest cosines of each query so far, and the cosines of all keys to ask for those of what was found."""

    def __init__(self, k: int) -> None:
        self.k, self._all = k, list[NDArray[np.float32]]()

    def add(self, keys: States, queries: States) -> None:
        length = np.linalg.norm(keys, axis=1)
        cosine = (queries / np.linalg.norm(queries, axis=1, keepdims=True)) @ (keys / np.where(length > 0, length, 1.0)[:, None]).T
        cosine[:, -1] = -1.0  # the last of a sequence, which nothing follows
        self._all.append(cosine.astype(np.float32))

    def recall(self, found: Sequence[NDArray[Any]]) -> float:
        cosines = np.concatenate(self._all, axis=1)
        k = min(self.k, cosines.shape[1])
        least = np.partition(cosines, -k, axis=1)[:, -k]
        return float(np.mean([(cosines[i, which] >= least[i] - TIE).sum() / k for i, which in enumerate(found)]))
