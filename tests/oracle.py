"""The oracle: a drafter that knows the right answer and drafts it with a chosen kind of error.

Ordinary drafts are short and mostly wrong, so most bugs of speculative decoding stay hidden behind them. An oracle makes blocks as long
as a test needs, and makes them wrong exactly where it wants.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.drafter import Context, Drafter

MANY = 1 << 20


def raw(tokens: Sequence[int], parents: Sequence[int]) -> Draft:
    """A draft of these arrays, however wrong they are."""
    n = len(tokens)
    return Draft(
        np.asarray(tokens, dtype=np.int64),
        np.asarray(parents, dtype=np.int64),
        np.full(n, 0.5),
        ("oracle",) * n,
        np.zeros(n, dtype=np.bool_),
    )


@dataclass(frozen=True, slots=True)
class Guess:
    """What an error is made from: the right tokens ahead, how many a block has, the vocabulary, and chance."""

    future: list[int]
    k: int
    vocab: int
    rng: np.random.Generator

    @property
    def block(self) -> list[int]:
        return self.future[: self.k]

    def wrong(self, token: int) -> int:
        """Any other token."""
        return (token + 1 + int(self.rng.integers(self.vocab - 1))) % self.vocab

    def any(self, n: int) -> list[int]:
        return self.rng.integers(0, self.vocab, n).tolist()

    def wrong_at(self, i: int) -> Draft:
        tokens = self.block
        tokens[i : i + 1] = map(self.wrong, tokens[i : i + 1])
        return Draft.chain(tokens)

    def beside(self, strays: Callable[[int, int, int], list[tuple[int, int]]]) -> Draft:
        """The right path, stray nodes before each of its nodes: `strays(right token, parent, own index)` gives (token, parent) pairs."""
        tokens, parents, last = [], [], ANCHOR
        for token in self.block:
            for stray, parent in [*strays(token, last, len(tokens)), (token, last)]:
                tokens.append(stray)
                parents.append(parent)
            last = len(tokens) - 1
        return raw(tokens, parents)

    def siblings(self, token: int, parent: int, _: int = 0) -> list[tuple[int, int]]:
        """Two wrong tokens (or one) beside the right one."""
        first = self.wrong(token)
        return [(stray, parent) for stray in (first, (first + 1) % self.vocab) if stray != token]


def random_tree(guess: Guess, n: int = 12) -> Draft:
    """Random shape; every other token is taken from what comes, so that some paths are right."""
    tokens = [t if i % 2 or not guess.future else guess.future[i % len(guess.future)] for i, t in enumerate(guess.any(n))]
    return raw(tokens, [int(guess.rng.integers(-1, i)) for i in range(n)])


def right_first(guess: Guess) -> Draft:
    """The right path in the first rows, wrong siblings of each of its nodes behind it."""
    n = len(guess.block)
    wrong = [pair for i, token in enumerate(guess.block) for pair in guess.siblings(token, i - 1)]
    return raw(guess.block + [t for t, _ in wrong], [*range(-1, n - 1), *(p for _, p in wrong)])


def huge(guess: Guess, n: int = 300) -> Draft:
    """Hundreds of wrong nodes before the right path."""
    tokens, parents = guess.any(n), [int(guess.rng.integers(-1, i)) for i in range(n)]
    for i in range(n):
        if parents[i] == ANCHOR and guess.future:
            tokens[i] = guess.wrong(guess.future[0])
    path = guess.block
    return raw(tokens + path, parents + [ANCHOR, *range(n, n + len(path) - 1)][: len(path)])


def out_of_range(guess: Guess) -> Draft:
    bad = (-1, -100, guess.vocab, guess.vocab + 1000, 1 << 40)
    return guess.beside(lambda _, parent, __: [(token, parent) for token in bad])


def malformed(guess: Guess) -> Draft:
    """Right tokens under a parent that is no node, that is the node itself, that comes later; and a child of such a node."""
    return guess.beside(lambda token, _, i: [(token, parent) for parent in (-2, i + 1, i + 3, i + 2, 1 << 40)])


def duplicates(guess: Guess) -> Draft:
    """The right path; every node is proposed a second time with a wrong child."""
    n = len(guess.block)
    tokens, parents = list(guess.block), list(range(-1, n - 1))
    for i, token in enumerate(guess.block):
        tokens += [token, guess.any(1)[0]]
        parents += [i - 1, len(tokens) - 2]
    return raw(tokens, parents)


def deep(guess: Guess) -> Draft:
    """Far beyond what may still be emitted."""
    return Draft.chain(guess.future + guess.any(200))


@dataclass(frozen=True, slots=True)
class Kind:
    """A way to be wrong, and how many tokens of each block of k are right (None = chance)."""

    draft: Callable[[Guess], Draft]
    right: Callable[[int], int | None]


KINDS: dict[str, Kind] = {
    "right": Kind(lambda g: Draft.chain(g.block), lambda k: k),
    "wrong-first": Kind(lambda g: g.wrong_at(0), lambda k: 0),
    "wrong-middle": Kind(lambda g: g.wrong_at(g.k // 2), lambda k: k // 2),
    "wrong-last": Kind(lambda g: g.wrong_at(g.k - 1), lambda k: k - 1),
    "right-first": Kind(right_first, lambda k: k),
    "right-last": Kind(lambda g: g.beside(g.siblings), lambda k: k),
    "random": Kind(random_tree, lambda k: None),
    "empty": Kind(lambda g: Draft.chain([]), lambda k: 0),
    "huge": Kind(huge, lambda k: k),
    "out-of-range": Kind(out_of_range, lambda k: k),
    "malformed": Kind(malformed, lambda k: k),
    "duplicates": Kind(duplicates, lambda k: k),
    "deep": Kind(deep, lambda k: MANY),
}


class Oracle(Drafter):
    """Drafts what the known `sequences` (prompt and output) say comes next, with an error of `kind`; the same for the same `seed`.

    Once a session has left all known sequences it drafts at random.
    """

    name = "oracle"

    def __init__(
        self,
        kind: str,
        sequences: Sequence[Sequence[int]],
        k: int = 4,
        vocab: int = 97,
        seed: int = 0,
        needs: frozenset[Need] = frozenset(),
    ) -> None:
        self.kind, self.sequences, self.k, self.vocab, self.needs = KINDS[kind], [list(s) for s in sequences], k, vocab, needs
        self._rng = np.random.default_rng(seed)

    @property
    def right(self) -> int | None:
        """Draft tokens of each full block that must be accepted."""
        return self.kind.right(self.k)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.kind.draft(Guess(self._future(s.tokens), self.k, self.vocab, self._rng)) for s in sessions]

    def _future(self, tokens: Sequence[int]) -> list[int]:
        n = len(tokens)
        for sequence in self.sequences:
            if sequence[:n] == tokens:
                return sequence[n:]
        return self._rng.integers(0, self.vocab, self.k).tolist()
