"""SuffixDecoding: what followed the longest ends of the text before, here and in other answers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.step import Step
from echodraft.drafters.written import Written
from echodraft.errors import UsageError
from echodraft.memory import Memory
from echodraft.stores.suffix import MOST_DEPTH, Expected, SuffixStore, warm
from echodraft.stores.suffix_nodes import SHARE


@dataclass(slots=True)
class Known:
    """What is kept for a session: a store of its own text, the memory it shares, and which of its output lies there."""

    own: SuffixStore
    shared: SuffixStore
    output: Written


class Suffix(Drafter):
    """The likeliest continuations of the longest ends of the text, from this text and from the answers to earlier requests.

    Source: SuffixDecoding (arXiv 2411.04975). Two suffix tries with counts: one of prompt and output of the request, one of the outputs
    (never the prompts) of all requests of the tenant, past and running. The draft with the larger expected number of accepted tokens wins,
    the request's own on a tie. Needs: tokens only. As published: tree=false.

    tree      a tree of the likeliest tokens; otherwise the path along the likeliest one
    depth     of the tries: longest match and draft together
    factor    a draft has at most match x factor + offset tokens: 1 and 0 as published, the default of paths; 2 and 8 for trees, because
    offset    the budget cuts better than the length of the match does (docs/adr/0007-suffix-store.md)
    min_prob  no token whose path is less likely, by counts; 1/16 at least
    """

    name = "suffix"

    def __init__(
        self,
        tree: bool = True,
        depth: int = 64,
        factor: float | None = None,
        offset: float | None = None,
        min_prob: float = 0.1,
        memory: Memory | None = None,
    ) -> None:
        factor = (2.0 if tree else 1.0) if factor is None else factor
        offset = (8.0 if tree else 0.0) if offset is None else offset
        for wrong, what in (
            (not 2 <= depth <= MOST_DEPTH, f"depth lies between 2 and {MOST_DEPTH}, not {depth}"),
            (not _number(factor) or factor < 0, f"factor is a number from 0 on, not {factor}"),
            (not _number(offset), f"offset is a number, not {offset}"),
            (not 1 / SHARE <= min_prob <= 1.0, f"min_prob lies between 1/{SHARE} and 1, not {min_prob}"),
        ):
            if wrong:
                raise UsageError(f"suffix: {what}.")
        self.tree, self.depth, self.factor, self.offset, self.min_prob = tree, depth, factor, offset, min_prob
        self.memory = Memory() if memory is None else memory
        self._known: dict[int, Known] = {}
        warm()

    def open(self, session: Context) -> None:
        shared = self.memory.store(session.tenant, SuffixStore, lambda: SuffixStore(self.depth))
        self._known[session.id] = Known(self._index(session), shared, Written(shared))

    def _index(self, session: Context) -> SuffixStore:
        own = SuffixStore(self.depth, removable=False)
        own.append(own.begin(), session.tokens[: session.settled])
        return own

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.behind(session, (), budget) for session, budget in zip(sessions, budgets, strict=True)]

    def behind(self, session: Context, more: Sequence[int], budget: Budget) -> Draft:
        """What is expected behind the session's text and the tokens `more`, which are no part of it (a guess) and are not remembered."""
        known = self._known[session.id]
        self._follow(session, known)
        whole = not more and known.own.tokens == len(session.tokens)
        context = [*session.tokens[-MOST_DEPTH:], *more][-MOST_DEPTH:] if known.shared.tokens or not whole else ()
        found, source = self._ask(known.own, () if whole else context, 0 if whole else None, budget), "suffix"
        if known.shared.tokens:
            other = self._ask(known.shared, context, None if more else known.output.at_end(len(session.tokens)), budget)
            if other.score > found.score:
                found, source = other, "suffix-memory"
        n = len(found.tokens)
        return Draft(found.tokens, found.parents, self._claims(found), (source,) * n, np.zeros(n, dtype=np.bool_))

    def _claims(self, found: Expected) -> NDArray[np.float64]:
        """What is claimed of each node. Of a path: what the counts say, as published.

        In a tree each token behind a match of m is claimed with m / (m + 1) of what its count says, and lengthens the match: a long match
        is worth more than a short one, and the budget, which corrects claims by counts, can tell them apart.
        """
        if not self.tree:
            return found.probs
        reach: list[int] = []  # how long the match is with the node
        for parent in found.parents.tolist():
            reach.append((reach[parent] if parent >= 0 else found.match) + 1)
        return found.probs * found.match / np.asarray(reach, np.float64)

    def _ask(self, store: SuffixStore, context: Sequence[int], seq: int | None, budget: Budget) -> Expected:
        return store.speculate(
            context,
            budget.nodes,
            seq=seq,
            factor=self.factor,
            offset=self.offset,
            min_prob=self.min_prob,
            tree=self.tree,
            depth=budget.depth,
            branching=budget.branching,
        )

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            session, known = step.session, self._known[step.session.id]
            self._follow(session, known)
            if session.settled == len(session.tokens):
                self._remember(known, session.tokens, len(session.tokens) - len(step.verdict.tokens))

    def _follow(self, session: Context, known: Known) -> None:
        """Take in what stays of the session and its own store has not."""
        known.own.append(0, session.tokens[known.own.tokens : session.settled])

    def _remember(self, known: Known, tokens: Sequence[int], begin: int) -> None:
        """tokens[begin:] are output: they go into the memory, behind the output before them if there is nothing between."""
        known.shared.append(known.output.place(begin, len(tokens)), tokens[begin:])

    def rewind(self, session: Context, length: int) -> None:
        known = self._known[session.id]
        if known.own.tokens > length:
            known.own = self._index(session)
        if (across := known.output.rewind(length)) is not None:  # what is left of it is written anew
            known.output.drop()
            self._remember(known, session.tokens[:length], across.begin)

    def close(self, session: Context) -> None:
        known = self._known.pop(session.id, None)
        if known is not None:
            known.output.close()
            self.memory.settle(session.tenant)


def _number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and isfinite(value)
