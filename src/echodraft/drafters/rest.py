"""REST: what followed the end of the text in a corpus that was built beforehand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from echodraft.core.budget import Budget
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.drafter import Context, Drafter, Words
from echodraft.core.fill import Child, fill
from echodraft.errors import Unsupported, UsageError
from echodraft.stores.corpus import BREAK, DEPTH, load_corpus

State = tuple[int, int, int]
"""Rows that agree with a node and all above it: the first, the last + 1; and the node's depth."""


class Rest(Drafter):
    """The commonest continuations of the longest end of the text that occurs in a corpus of texts.

    Source: REST (arXiv 2311.08252). The corpus is a suffix array of token ids (`echodraft store build`), searched for the longest of the
    last 16 to 2 tokens; from up to 5000 places the next 10 tokens are read, and the commonest beginnings make the tree. As published:
    counts=true with --budget 64. Here a token is claimed with its share of the places times m / (m + 1) behind a match of m, so that the
    budget can tell long matches from short ones, and of more places than are read those evenly apart are, not the first. The corpus is the
    operator's file and serves all tenants alike; nothing of a request enters it, and nothing else is searched. Needs: tokens only.

    corpus    the folder that `echodraft store build` made
    longest   the longest end of the text that is searched
    shortest  the shortest
    hits      places that are read at most
    length    tokens that are read at each; at most 32 with the match
    counts    claim shares as they are
    """

    name = "rest"

    def __init__(
        self,
        corpus: str = "",
        longest: int = 16,
        shortest: int = 2,
        hits: int = 5000,
        length: int = 10,
        counts: bool = False,
        text: Words | None = None,
    ) -> None:
        if not 1 <= shortest <= longest or hits < 1 or length < 1 or longest + length > DEPTH:
            raise UsageError(
                f"rest: 1 <= shortest <= longest, hits >= 1, length >= 1 and longest + length <= {DEPTH} must hold, not "
                f"shortest={shortest}, longest={longest}, hits={hits}, length={length}."
            )
        if not corpus:
            raise Unsupported(
                "Drafter 'rest' needs a corpus. Build one: echodraft store build --corpus FILES -m MODEL --out DIR; then: -o corpus=DIR."
            )
        self.longest, self.shortest, self.hits, self.length, self.counts = longest, shortest, hits, length, counts
        self.corpus = load_corpus(corpus)
        about = self.corpus.about
        if text is not None and about.tokenizer and text.fingerprint and about.tokenizer != text.fingerprint:
            raise UsageError(f"The corpus {corpus} was built with another tokenizer ({about.name or 'unnamed'}). Build one for this model.")

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._draft(session.tokens, budget) for session, budget in zip(sessions, budgets, strict=True)]

    def _draft(self, tokens: Sequence[int], budget: Budget) -> Draft:
        found = self.corpus.find(tokens[-self.longest :], self.longest, self.shortest)
        match = found[0]
        if not match:
            return EMPTY
        rows = self.corpus.behind(found, self.length, self.hits)

        def children(state: State) -> list[Child[State]]:
            first, last, depth = state
            if depth == self.length:
                return []
            column = rows[first:last, depth]
            # The rows are ordered: equal tokens stand together.
            starts = [0, *(np.flatnonzero(column[1:] != column[:-1]) + 1).tolist(), last - first]
            worth = (1.0 if self.counts else (match + depth) / (match + depth + 1)) / (last - first)
            groups = [
                Child(token, (end - begin) * worth, self.name, (first + begin, first + end, depth + 1))
                for begin, end, token in zip(starts, starts[1:], column[starts[:-1]].tolist(), strict=False)
                if token != BREAK
            ]
            return sorted(groups, key=lambda child: -child.prob)

        return fill(budget, (0, len(rows), 0), children)
