"""LogitSpec: the runners-up for the last token as guesses for the one behind it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft, DraftBuilder
from echodraft.core.drafter import Context, Drafter
from echodraft.core.step import Step
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.errors import UsageError
from echodraft.stores.grams import Grams


@dataclass(slots=True)
class Known:
    """What is kept for a session: its n-grams, and the best ids of the row that gave token `length - 1`."""

    index: Grams
    best: list[int] = field(default_factory=list)
    length: int = 0


class LogitSpec(Drafter):
    """What nearly came instead of the last token often comes right behind it; and the text knows how both go on.

    Source: LogitSpec (arXiv 2507.01449). The row of logits that gave the anchor (the "next token") also ranks guesses for the token behind
    it (the "next next token"). The anchor and each guess are continued with what followed the same n-gram in the text, the latest
    occurrence first. A branch with the guess of rank 1 to 8 has up to 4 tokens, up to 32 it has 3, beyond it is the guess alone. Needs:
    the target's best ids, `guesses` of them. As published: a budget of 64 nodes.

    guesses  ranks that are tried; the budget decides how many of them are scored
    longest  the longest n-gram that is looked up
    copies   tokens copied behind the anchor, at most
    """

    name = "logitspec"
    needs = frozenset({Need.TOP_K})
    replay = "exact"  # it reads rows on the path only
    LENGTHS = ((8, 4), (32, 3))
    # Chance that the guess of each rank is right, as measured on tool calls by a model of 1.5B; a prior that the budget corrects.
    FOLLOW = (0.013, 0.065, 0.035, 0.025, 0.02, 0.015, 0.012, 0.01)

    def __init__(self, guesses: int = 64, longest: int = 3, copies: int = 20) -> None:
        if min(guesses, longest, copies) < 1:
            raise UsageError(f"logitspec: guesses, longest and copies are at least 1, not {guesses}, {longest}, {copies}.")
        self.top_k, self.longest, self.copies = guesses, longest, copies
        self._known: dict[int, Known] = {}

    def open(self, session: Context) -> None:
        self._known[session.id] = Known(Grams(self.longest))

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._tree(session, budget) for session, budget in zip(sessions, budgets, strict=True)]

    def _tree(self, session: Context, budget: Budget) -> Draft:
        known, tokens, draft = self._known[session.id], session.tokens, DraftBuilder()
        known.index.extend(tokens[len(known.index) :])
        tail = list(tokens[-self.longest :])
        copied, claims = self._copied(known, tail, self.copies)
        draft.chain(ANCHOR, copied, claims, budget, self.name)
        for rank, guess in enumerate(known.best if known.length == len(tokens) else ()):
            if len(draft) >= budget.nodes:
                break
            right = self.FOLLOW[min(rank, len(self.FOLLOW) - 1)]
            length = next((n for most, n in self.LENGTHS if rank < most), 1)
            copied, claims = self._copied(known, [*tail, guess], length - 1)
            draft.chain(ANCHOR, [guess, *copied], [right, *(right * claim for claim in claims)], budget, f"{self.name}-guess")
        return draft.build()

    @staticmethod
    def _copied(known: Known, tail: Sequence[int], most: int) -> tuple[list[int], list[float]]:
        """What followed the longest known end of `tail`, with path probabilities."""
        match, places = known.index.find(tail)
        return (known.index.read(int(places[-1]), most), PromptLookup.claims(match, most)) if match else ([], [])

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            known = self._known[step.session.id]
            if step.top_k is not None:
                # The row behind the last accepted node gave the bonus token, the anchor to come; without one the session is over.
                path = step.verdict.path
                known.best, known.length = step.top_k[path[-1] + 1 if path else 0].tolist(), len(step.session.tokens)

    def rewind(self, session: Context, length: int) -> None:
        self._known[session.id].index.cut(length)
        self._known[session.id].length = 0

    def close(self, session: Context) -> None:
        self._known.pop(session.id, None)
