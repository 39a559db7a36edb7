"""What a forward of n tokens costs on this machine: the curve that budgets are planned with."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from time import perf_counter

import numpy as np

from echodraft.bench.rounding import read
from echodraft.core.backend import Backend, Request
from echodraft.core.budget import CostCurve
from echodraft.core.draft import Draft

ROWS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)


def measure(
    backend: Backend, contexts: Sequence[int], name: str, repeats: int = 5, told: Callable[[int, int], None] = lambda _, __: None
) -> tuple[CostCurve, list[list[float]]]:
    """The curve, and seconds by context and rows (medians of `repeats` rounds, rows interleaved within a round).

    What reading a context takes is the shorter of two readings, the first of which warms up.

    `told` hears how many of how many forwards are done.
    """
    random = np.random.default_rng(0)
    seconds: list[list[float]] = []
    reading: list[float] = []
    total, done = len(contexts) * len(ROWS) * (repeats + 1), 0
    for context in contexts:
        slot = backend.open()
        try:
            tokens = random.integers(0, backend.vocab_size, context).tolist()
            once = _timed(backend, slot, tokens)
            backend.rewind(slot, 0)
            reading.append(min(once, _timed(backend, slot, tokens)))
            times: list[list[float]] = [[] for _ in ROWS]
            for round_ in range(repeats + 1):
                for i, rows in enumerate(ROWS):
                    draft = Draft.chain(random.integers(0, backend.vocab_size, rows - 1).tolist())
                    start_time = perf_counter()
                    backend.score([Request(slot, tokens[:1], draft)], frozenset())[0].argmax()
                    if round_:  # the first round warms up
                        times[i].append(perf_counter() - start_time)
                    done += 1
                    told(done, total)
        finally:
            backend.close(slot)
        seconds.append([median(t) for t in times])
    cost = tuple(tuple(t / line[0] for t in line) for line in seconds)
    ones = tuple(line[0] for line in seconds)
    curve = CostCurve(ROWS, cost, tuple(contexts), name, ones, tuple(t / one for t, one in zip(reading, ones, strict=True)))
    return curve, seconds


def _timed(backend: Backend, slot: int, tokens: Sequence[int]) -> float:
    """Seconds that reading a prompt takes."""
    start = perf_counter()
    read(backend, slot, tokens)
    return perf_counter() - start
