"""A tiny deterministic language model in NumPy: no weights, no download, any tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.core.backend import Need, Request, Shape
from echodraft.core.sampling import Rule, best, gumbel, pick
from echodraft.errors import NAN, EchodraftError

WIDTH = 16


@dataclass(frozen=True, slots=True)
class ArrayScores:
    """Scores held in NumPy arrays: `logits` [n + 1, vocab], `states` [fed + n, width]."""

    logits: NDArray[np.float64]
    states: NDArray[np.float16]

    def argmax(self) -> Sequence[int]:
        if np.isnan(self.logits).any():
            raise EchodraftError(NAN)
        best: list[int] = self.logits.argmax(axis=1).tolist()
        return best

    def top_k(self, k: int) -> NDArray[np.int64]:
        return np.argsort(-self.logits, axis=1, kind="stable")[:, :k]

    def row(self, i: int) -> NDArray[np.float32]:
        if np.isnan(self.logits[i]).any():
            raise EchodraftError(NAN)
        return self.logits[i].astype(np.float32)

    def pick(self, values: Any, rule: Rule, position: int) -> int:
        return pick(values, rule, position)

    def draw(self, i: int, rule: Rule, position: int) -> int:
        return self.pick(self.row(i), rule, position)

    def best(self, i: int, rule: Rule, position: int, k: int) -> tuple[list[int], list[float]]:
        return best(self.row(i), rule, position, k)

    def hidden(self) -> NDArray[np.float16]:
        return self.states


class ToyBackend:
    """A language model that mumbles and repeats itself.

    The score of a token is noise keyed by the last two tokens, a little noise keyed by the whole prefix (so a wrong path is noticed),
    and a bonus for what followed the last two tokens before (so there is something to look up).

    vocab_size  tokens; with the default 97 they are printable ASCII, newline and, last, an end token that it never prefers
    copy        the bonus for repetition
    context     the longest sequence
    """

    offers = frozenset({Need.TOP_K, Need.HIDDEN})
    shape = Shape.TREE

    def __init__(self, vocab_size: int = 97, copy: float = 3.0, context: int = 4096, seed: int = 0, chunk: int = 64) -> None:
        self.vocab_size, self.copy, self.context, self.seed, self.chunk = vocab_size, copy, context, seed, chunk
        self._ids = np.arange(vocab_size)
        self._slots: dict[int, list[int]] = {}
        self._last: dict[int, Request] = {}
        self.forwards = 0

    def open(self) -> int:
        slot = max(self._slots, default=-1) + 1
        self._slots[slot] = []
        return slot

    def room(self, slot: int, length: int) -> int:
        return self.context - length

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ArrayScores]:
        self.forwards += 1
        return [self._score(request) for request in requests]

    def _score(self, request: Request) -> ArrayScores:
        self._last[request.slot] = request
        prefix = self._slots[request.slot] + list(request.pending)
        fed = len(request.pending)
        paths = [prefix]
        for t, p in zip(request.draft.token.tolist(), request.draft.parent.tolist(), strict=True):
            paths.append([*paths[p + 1], t])
        context = [prefix[: len(prefix) - i] for i in range(fed - 1, 0, -1)]
        states = np.stack([self._state(path) for path in context + paths])
        logits = np.stack([self._logits(path) for path in paths]) if request.logits else np.empty((0, self.vocab_size))
        return ArrayScores(logits, states)

    def _logits(self, path: list[int]) -> NDArray[np.float64]:
        near = gumbel(Rule(seed=self.seed).key(hash(tuple(path[-2:])) & 0x7FFFFFFF), self._ids)
        far = gumbel(Rule(seed=self.seed, stream=1).key(hash(tuple(path)) & 0x7FFFFFFF), self._ids)
        logits = near + 0.2 * far
        tokens = np.asarray(path)
        hits = np.flatnonzero((tokens[:-2] == tokens[-2]) & (tokens[1:-1] == tokens[-1])) if len(path) > 2 else []
        if len(hits):
            logits[tokens[hits[-1] + 2]] += self.copy
        logits[-1] -= 20.0
        return logits

    def _state(self, path: list[int]) -> NDArray[np.float16]:
        """A vector that depends on the last three tokens. Shape [WIDTH]."""
        return gumbel(Rule(seed=self.seed, stream=2).key(hash(tuple(path[-3:])) & 0x7FFFFFFF), np.arange(WIDTH)).astype(np.float16)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        request = self._last.pop(slot)
        self._slots[slot] += [*request.pending, *(int(request.draft.token[i]) for i in path)]

    def rewind(self, slot: int, length: int) -> int:
        del self._slots[slot][length:]
        return len(self._slots[slot])

    def close(self, slot: int) -> None:
        del self._slots[slot]


class ToyTokenizer:
    """Printable ASCII, newline, and an end token: the toy model's alphabet."""

    eos_token_id = 96

    def encode(self, text: str) -> list[int]:
        return [95 if c == "\n" else min(max(ord(c) - 32, 0), 94) for c in text]

    def decode(self, ids: Sequence[int]) -> str:
        return "".join("\n" if i == 95 else chr(32 + i) for i in ids if i < 96)
