"""How much rounding moves logits here, and whether that can explain a choice.

Forwards of different shapes run different kernels and sum in different orders, so one prefix has slightly different logits in each. What
they differ by is measured *without drafts*: the same text is fed one token at a time and in pieces, as prompts are read. So a fault of
drafting (a wrong mask, position or cache row) cannot widen the tolerance that it is judged by.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.core.backend import Backend, Request
from echodraft.core.sampling import Rule, gumbel, warp

PIECES = (2, 4, 8, 16, 33)
WINDOW = 64
"""The most tokens of a text that are fed in pieces; what is before them is read as a prompt."""

Row = NDArray[np.float32]
"""Logits [vocab] on the host."""


@dataclass(slots=True)
class Rounding:
    """The largest difference of a logit so far between one-row forwards and others of the same prefix.

    measured  one text alone: over the vocabulary, all positions and all shapes that were tried
    batched   several texts in one forward against each alone
    highest   the largest logit seen
    prefixes  how many were compared with their one-row forward, each shape counted
    """

    backend: Backend
    measured: float = 0.0
    batched: float = 0.0
    highest: float = 0.0
    prefixes: int = 0
    _known: dict[tuple[int, ...], Row] = field(default_factory=dict)

    @property
    def tolerance(self) -> float:
        """`measured`, and one unit in the last place of the highest logit: only a draft makes the last layer see several rows.

        A batch runs the kernels of as many rows, so it may widen this to twice at most. More than that is no rounding: a row depends on
        its neighbours.
        """
        return max(self.measured, min(self.batched, 2.0 * self.measured)) + spacing(dtype_of(self.backend), self.highest)

    def measure(self, prompts: Sequence[Sequence[int]], outputs: Sequence[Sequence[int]]) -> None:
        """Compare forwards at every position of `outputs`: each text alone in pieces, then all texts in one batch if there are several."""
        heads, tails = zip(*(_split(prompt, output) for prompt, output in zip(prompts, outputs, strict=True)), strict=True)
        slots = [self.backend.open() for _ in heads]
        try:
            ones = []
            for slot, head, tail in zip(slots, heads, tails, strict=True):
                one = {len(head): read(self.backend, slot, head)}
                one |= {length: row for _, length, row in _walk(self.backend, [slot], [head], [tail], 1)}
                for row in one.values():
                    self.highest = max(self.highest, abs(float(row.max())))
                self._known[(*head, *tail)] = one[len(head) + len(tail)]
                ones.append(one)
                for n in PIECES:
                    self.measured = max(self.measured, self._largest(_walk(self.backend, [slot], [head], [tail], n), [one]))
            if len(slots) > 1:
                for n in (1, *PIECES):
                    self.batched = max(self.batched, self._largest(_walk(self.backend, slots, heads, tails, n), ones))
        finally:
            for slot in slots:
                self.backend.close(slot)

    def _largest(self, rows: Iterator[tuple[int, int, Row]], ones: Sequence[dict[int, Row]]) -> float:
        largest = 0.0
        for text, length, row in rows:
            largest = max(largest, apart(row, ones[text][length]))
            self.prefixes += 1
        return largest

    def one_row(self, prompt: Sequence[int], output: Sequence[int]) -> Row:
        """The logits behind `prompt` and `output` by one-row forwards; forwards of other shapes are measured there as well."""
        key = (*prompt, *output)
        if key not in self._known:
            self.measure([prompt], [output])
        return self._known[key]


def _split(prompt: Sequence[int], output: Sequence[int]) -> tuple[list[int], list[int]]:
    """What is read at once, as a prompt is, and the last tokens, at most `WINDOW`, to feed in pieces."""
    cut = max(0, len(output) - WINDOW)
    return [*prompt, *output[:cut]], list(output[cut:])


def _walk(
    backend: Backend, slots: Sequence[int], heads: Sequence[list[int]], tails: Sequence[list[int]], n: int
) -> Iterator[tuple[int, int, Row]]:
    """Feed each tail behind its head, `n` tokens a forward, all texts in one batch: (text, length of the prefix, its logits).

    The slots hold the heads, and perhaps more, which is forgotten. The last piece of a text ends where the text ends. No piece crosses a
    place where the model changes sides (`Backend.room`).
    """
    for slot, head in zip(slots, heads, strict=True):
        kept = backend.rewind(slot, len(head))
        if kept < len(head):  # a state that cannot be rolled back
            read(backend, slot, head[kept:])
    at = [0] * len(heads)
    while live := [i for i, tail in enumerate(tails) if at[i] < len(tail)]:
        requests = []
        for i in live:
            left = len(tails[i]) - at[i]
            fits = 1 + backend.room(slots[i], len(heads[i]) + at[i] + 1)
            requests.append(Request(slots[i], tails[i][at[i] : at[i] + min(left % n or n, fits)]))
        found = [host(scores.row(0)) for scores in backend.score(requests, frozenset())]
        for i, request, row in zip(live, requests, found, strict=True):
            backend.commit(request.slot, [])
            at[i] += len(request.pending)
            yield i, len(heads[i]) + at[i], row


def read(backend: Backend, slot: int, tokens: Sequence[int]) -> Row:
    """Read `tokens` into a slot as the engine reads a prompt; the logits behind them."""
    for start in range(0, len(tokens), backend.chunk):
        part = tokens[start : start + backend.chunk]
        ahead = len(tokens) - start - len(part)
        scores = backend.score([Request(slot, part, logits=not ahead, ahead=ahead)], frozenset())[0]
        row = None if ahead else host(scores.row(0))
        backend.commit(slot, [])
    assert row is not None
    return row


def host(row: Any) -> Row:
    """A row of scores in NumPy."""
    return np.asarray(row.cpu() if hasattr(row, "cpu") else row, dtype=np.float32)


def apart(row: Row, other: Row) -> float:
    """The largest difference of a logit between two rows; what a model excludes (-inf) is no number to compare."""
    both = np.isfinite(row) & np.isfinite(other)
    return float(np.abs(row[both] - other[both]).max())


def dtype_of(backend: Backend) -> str:
    """What the backend computes in: "float32", "bfloat16", …"""
    return str(getattr(getattr(backend, "model", None), "dtype", "float64")).removeprefix("torch.")


def spacing(dtype: str, size: float) -> float:
    """One unit in the last place of a number of this size. Rows reach us in float32, so that is the finest."""
    bits = {"bfloat16": 7, "float16": 10}.get(dtype, 23)
    return float(2.0 ** (np.floor(np.log2(max(size, 1e-30))) - bits))


def processed(row: Row, rule: Rule, position: int) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """What a choice is made by, and the same without exclusions. Shapes [vocab], computed in float64.

    Greedy: the logits. Sampled: logit / temperature + the noise of (seed, position, token); -inf where top-k, top-p or min-p excludes.
    """
    exact = row.astype(np.float64)
    if rule.greedy:
        return exact, exact
    noise = gumbel(rule.key(position), np.arange(len(row)))
    return warp(exact, rule) + noise, exact / rule.temperature + noise


def reachable(row: Row, rule: Rule, position: int, token: int, tolerance: float) -> bool:
    """Whether rounding explains that `token` was chosen: False only if no row within `tolerance` of this one lets `rule` choose it.

    The chosen token and its rival may each move by the tolerance, towards each other: so a gap of twice the tolerance is explained, more is
    not (over the temperature where one is used). With exclusions, the token must be in where it is raised and all others are lowered, and
    a rival beyond the gap must be out where it is lowered and all others are raised: the best cases for being in and for being out.
    """
    kept, scores = processed(row, rule, position)
    slack = 2.0 * tolerance / (rule.temperature or 1.0)
    rivals = np.flatnonzero(kept > scores[token] + slack)
    if rule.greedy:
        return not len(rivals)
    if not _kept(row, rule, token, tolerance):
        return False
    best_first = rivals[np.argsort(-kept[rivals])].tolist()
    return not any(_kept(row, rule, rival, -tolerance) for rival in best_first)


def _kept(row: Row, rule: Rule, token: int, by: float) -> bool:
    """Whether `token` is a candidate where it is moved by `by` and all others by the opposite."""
    moved = row.astype(np.float64) - by
    moved[token] = row[token] + by
    return bool(warp(moved, rule)[token] > -np.inf)
