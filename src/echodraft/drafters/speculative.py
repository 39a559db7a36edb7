"""Speculative decoding: a smaller model drafts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod

from echodraft.core.backend import Need
from echodraft.core.budget import Budget, Fixed, Policy
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.draft_model import DraftEngine, DraftModel
from echodraft.core.drafter import Context, Drafter
from echodraft.core.fill import Child, fill
from echodraft.core.guess import Guess, Path
from echodraft.core.step import Step
from echodraft.drafters.none import NoDrafter
from echodraft.errors import UsageError

START = 5
"""Tokens that the heuristic rule begins with, as Hugging Face's did."""


@dataclass(slots=True)
class Known:
    """What is kept for a session: how long its next draft may be (the heuristic rule), and how long the last one was."""

    gamma: int
    drafted: int = 0


class Speculative(Drafter):
    """A smaller model says what comes next, token by token; the target checks all of it in one forward.

    Source: speculative decoding (Leviathan et al., arXiv 2211.17192; Chen et al., arXiv 2302.01318). The draft model chooses as the target
    does: greedily, or with the same noise where the target samples, so that equal models agree on every token (Daliri et al., arXiv
    2408.07978). By default it goes on while one more token, as likely as counts say, is worth its forward. Needs: a draft model.
    As published: gamma=4, top_k=1 and a fixed budget of 4.

    gamma       tokens along the draft at most; 0 leaves it to the budget
    top_k       candidates for each token: the second best and so on become siblings, the likeliest first; 1 is a chain
    confidence  end the draft behind a token that the draft model gives less than this; 0.4 in Hugging Face's assisted generation
    width       siblings behind which each forward of the draft model also goes on, where rows are cheap and nodes are left;
                0 = they all end where they are
    heuristic   two tokens more after a draft that was accepted in full, one less otherwise, from gamma (or 5) on: Hugging Face's older rule
    """

    name = "speculative"
    needs = frozenset({Need.MODEL})

    def __init__(
        self,
        gamma: int = 0,
        top_k: int = 3,
        confidence: float = 0.0,
        heuristic: bool = False,
        width: int = 3,
        draft_model: DraftModel | None = None,
    ) -> None:
        for wrong, what in (
            (gamma < 0, f"gamma is a number of tokens, or 0 for as many as pay, not {gamma}"),
            (top_k < 1, f"top_k is 1 (a chain) or more, not {top_k}"),
            (width < 0, f"width is a number of siblings from 0 on, not {width}"),
            (not 0.0 <= confidence <= 1.0, f"confidence lies between 0 and 1, not {confidence}"),
        ):
            if wrong:
                raise UsageError(f"{self.name}: {what}.")
        self.gamma, self.candidates, self.confidence, self.heuristic = gamma, top_k, confidence, heuristic
        self.inner: DraftEngine | None = None
        if draft_model is not None:
            self.cost = draft_model.cost
            self.inner = DraftEngine(draft_model, *self.under(draft_model), top_k, width)
        self._known: dict[int, Known] = {}
        self._next = 0.8  # how likely the next token of a draft is, given those before: a running mean

    def under(self, model: DraftModel) -> tuple[Drafter, Policy]:
        """The drafter of the draft model, and its budget."""
        return NoDrafter(), Fixed(0)

    def open(self, session: Context) -> None:
        self._known[session.id] = Known(self.gamma or START)

    def price(self, session: Context) -> float:
        return 0.0 if self.inner is None else self.inner.price(session)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        if self.inner is None or not any(budget.forwards for budget in budgets):
            return [EMPTY] * len(sessions)
        most = [self._most(session, budget) for session, budget in zip(sessions, budgets, strict=True)]
        guesses = self.inner.guess(sessions, most, budgets, lambda i, guess: self._enough(guess, budgets[i]))
        for session, guess in zip(sessions, guesses, strict=True):
            self._known[session.id].drafted = len(guess.claims)
        return [self._tree(guess, n, budget) for guess, n, budget in zip(guesses, most, budgets, strict=True)]

    def _most(self, session: Context, budget: Budget) -> int:
        limit = self._known[session.id].gamma if self.heuristic else self.gamma or budget.nodes
        return min(budget.nodes, budget.depth, budget.forwards, limit)

    def _enough(self, guess: Guess, budget: Budget) -> bool:
        """Whether one more forward of the draft model is not worth it."""
        likely = [budget.estimate(self.name, p) for p in guess.probs]
        self._next += 0.05 * (likely[-1] - self._next)
        return guess.probs[-1] < self.confidence or prod(likely) * self._next < budget.floor

    def _tree(self, guess: Guess, most: int, budget: Budget) -> Draft:
        """The guess as a trunk, and beside it the likeliest of what else the draft model held possible."""
        guess.claims = guess.claims[:most]
        trunk, said = tuple(guess.tokens), guess.said

        def children(path: Path) -> list[Child[Path]]:
            found: list[Child[Path]] = []
            for token, prob in zip(*said.get(path, ((), ())), strict=True):
                behind = (*path, token)
                chosen = behind == trunk[: len(behind)]
                found.append(Child(token, prob, self.name if chosen else f"{self.name}-sibling", behind, chosen))
            return found

        return replace(fill(budget, tuple[int, ...](), children), cost=guess.cost)

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            known = self._known[step.session.id]
            if known.drafted and not step.prefill:
                trunk = sum(source == self.name for source in step.draft.source)
                full = 0 < trunk == sum(step.draft.source[node] == self.name for node in step.verdict.path)
                known.gamma = known.gamma + 2 if full else max(1, known.gamma - 1)
            known.drafted = 0

    def close(self, session: Context) -> None:
        self._known.pop(session.id, None)
        if self.inner is not None:
            self.inner.close(session)
