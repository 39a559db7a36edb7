"""Speculative decoding: a smaller model drafts."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from echodraft.core.backend import Need
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.draft_model import DraftEngine, DraftModel, Guess
from echodraft.core.drafter import Context, Drafter
from echodraft.drafters.none import NoDrafter
from echodraft.errors import UsageError


class Speculative(Drafter):
    """A smaller model says what comes next, token by token; the target checks all of it in one forward.

    Source: speculative decoding (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). The draft model chooses as the target
    does: greedily, or with the same noise where the target samples, so that equal models agree on every token (Daliri et al., arXiv
    2408.07978). Needs: a draft model.

    gamma   tokens a draft at most; 0 leaves it to the budget
    """

    name = "speculative"
    needs = frozenset({Need.MODEL})

    def __init__(self, gamma: int = 0, draft_model: DraftModel | None = None) -> None:
        if gamma < 0:
            raise UsageError(f"speculative: gamma is a number of tokens, or 0 for as many as pay, not {gamma}.")
        self.gamma = gamma
        self.inner = None if draft_model is None else DraftEngine(draft_model, NoDrafter(), Fixed(0))
        self._open: set[int] = set()

    def open(self, session: Context) -> None:
        self._open.add(session.id)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        if self.inner is None:
            return [EMPTY] * len(sessions)
        most = [min(b.nodes, b.depth, self.gamma or b.nodes) for b in budgets]
        return [self._draft(guess) for guess in self.inner.guess(sessions, most, lambda _, __: False)]

    def _draft(self, guess: Guess) -> Draft:
        path = [prod(guess.probs[: i + 1]) for i in range(len(guess.probs))]
        return Draft.chain(guess.tokens, path, self.name)

    def close(self, session: Context) -> None:
        self._open.discard(session.id)
        if self.inner is not None:
            self.inner.close(session)
