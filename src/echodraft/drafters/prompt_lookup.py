"""Prompt lookup: copy what followed the last occurrence of the current n-gram."""

from __future__ import annotations

from collections.abc import Sequence

from echodraft.core.budget import Budget
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.errors import UsageError
from echodraft.stores.grams import Grams, continued


class PromptLookup(Drafter):
    """The text itself as the draft model: what followed the same n-gram before is likely to follow it again.

    Source: prompt lookup decoding (apoorvumang/prompt-lookup-decoding, 2023). Longest match first, as there; the latest occurrence by
    default, which may run on into what it copies (a match one period back repeats the period). Needs: tokens only.

    longest   the longest n-gram that is looked up
    shortest  the shortest; 1 also tries single tokens, which the budget drops where they do not pay
    latest    the latest occurrence, or the earliest
    """

    name = "prompt-lookup"
    # Chance that the next copied token is right, by match length; a prior that the budget corrects from counts.
    FOLLOW = (0.25, 0.45, 0.65, 0.75, 0.8, 0.85, 0.87, 0.9)

    def __init__(self, longest: int = 8, shortest: int = 1, latest: bool = True) -> None:
        if not 1 <= shortest <= longest:
            raise UsageError(f"prompt-lookup: 1 <= shortest <= longest must hold, not shortest={shortest}, longest={longest}.")
        self.longest, self.shortest, self.latest = longest, shortest, latest
        self._index: dict[int, Grams] = {}

    def open(self, session: Context) -> None:
        self._index[session.id] = Grams(self.longest)
        self._follow(session)

    def _follow(self, session: Context) -> Grams:
        """The session's text, with what of it stays and was not taken in."""
        index = self._index[session.id]
        index.extend(session.tokens[len(index) : session.settled])
        return index

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._chain(s, min(b.nodes, b.depth)) for s, b in zip(sessions, budgets, strict=True)]

    def _chain(self, session: Context, most: int) -> Draft:
        n, places = self._follow(session).find(session.tokens, self.shortest)
        if not n:
            return EMPTY
        copied = continued(session.tokens, int(places[-1 if self.latest else 0]), most)
        return Draft.chain(copied, self.claims(n, len(copied)), self.name)

    @classmethod
    def claims(cls, match: int, n: int) -> list[float]:
        """Path probabilities of n tokens copied behind a match of `match` tokens. Every copied token lengthens the match."""
        prob, path = [], 1.0
        for i in range(n):
            path *= cls.FOLLOW[min(match + i, len(cls.FOLLOW)) - 1]
            prob.append(path)
        return prob

    def rewind(self, session: Context, length: int) -> None:
        self._index[session.id].cut(length)

    def close(self, session: Context) -> None:
        self._index.pop(session.id, None)
