"""Prompt lookup: copy what followed the last occurrence of the current n-gram."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from echodraft.core.budget import Budget
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.step import Step
from echodraft.errors import UsageError


@dataclass(slots=True)
class NgramIndex:
    """Where every n-gram of one sequence was followed by something, for n = 1…longest. Grows with the text; nothing is rescanned.

    `at[n - 1]` maps an n-gram to the position of the token behind its latest (or earliest) occurrence.
    """

    longest: int
    latest: bool
    at: list[dict[tuple[int, ...], int]] = field(default_factory=list)
    length: int = 0

    def __post_init__(self) -> None:
        self.at = [{} for _ in range(self.longest)]

    def extend(self, tokens: Sequence[int]) -> None:
        """Index `tokens` up to its end; what is indexed already is taken as known."""
        for end in range(max(self.length, 1), len(tokens)):
            # The gram before `end` is known to be followed by tokens[end] only now.
            window = tuple(tokens[max(0, end - self.longest) : end])
            for n in range(1, len(window) + 1):
                gram = window[-n:]
                if self.latest or gram not in self.at[n - 1]:
                    self.at[n - 1][gram] = end
        self.length = len(tokens)

    def find(self, tokens: Sequence[int], shortest: int) -> tuple[int, int] | None:
        """Longest match of the end of `tokens`: (n, position of the token that followed), or None."""
        window = tuple(tokens[-self.longest :])
        for n in range(len(window), shortest - 1, -1):
            position = self.at[n - 1].get(window[-n:])
            if position is not None:
                return n, position
        return None


def continued(tokens: Sequence[int], position: int, n: int) -> list[int]:
    """The `n` tokens from `position` on; where the text ends it goes on with what was copied, as a text that repeats itself does."""
    copied = list(tokens[position : position + n])
    while len(copied) < n:
        copied.append(copied[len(copied) - (len(tokens) - position)])
    return copied


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
        self._index: dict[int, NgramIndex] = {}

    def open(self, session: Context) -> None:
        self._index[session.id] = NgramIndex(self.longest, self.latest)
        self._index[session.id].extend(session.tokens[: session.settled])

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._chain(s, min(b.nodes, b.depth)) for s, b in zip(sessions, budgets, strict=True)]

    def _chain(self, session: Context, most: int) -> Draft:
        index, tokens = self._index[session.id], session.tokens
        index.extend(tokens[: session.settled])
        found = index.find(tokens, self.shortest)
        if found is None:
            return EMPTY
        n, position = found
        copied = continued(tokens, position, most)
        return Draft.chain(copied, self.claims(n, len(copied)), self.name)

    @classmethod
    def claims(cls, match: int, n: int) -> list[float]:
        """Path probabilities of n tokens copied behind a match of `match` tokens. Every copied token lengthens the match."""
        prob, path = [], 1.0
        for i in range(n):
            path *= cls.FOLLOW[min(match + i, len(cls.FOLLOW)) - 1]
            prob.append(path)
        return prob

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            self._index[step.session.id].extend(step.session.tokens[: step.session.settled])

    def rewind(self, session: Context, length: int) -> None:
        if self._index[session.id].length > length:
            self.open(session)

    def close(self, session: Context) -> None:
        self._index.pop(session.id, None)
