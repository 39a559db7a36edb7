"""SAM-Decoding: copy what followed the longest match, or recycle where nothing long matches."""

from __future__ import annotations

from collections.abc import Sequence

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.step import Step
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.drafters.recycling import Recycling
from echodraft.errors import UsageError
from echodraft.memory import Memory
from echodraft.stores.automaton import Automaton


class Sam(Drafter):
    """A chain copied from the earliest occurrence of the longest match in prompt and output, or the tree of Token Recycling.

    Source: SAM-Decoding (arXiv 2411.10666) with Token Recycling as its second method. A suffix automaton keeps the longest match as the
    text grows. A match of `threshold` tokens or more is copied; otherwise `recycling` drafts. Where too few tokens follow the match, a
    shorter one that more tokens follow is copied, here never shorter than the threshold: the authors' code goes down to one token. The
    authors' second automaton, over a fixed corpus of model outputs, is not here: it is built before the first request and for one model,
    and what earlier requests said is what the drafters with a memory learn as they go. Needs: the target's best ids, for the tree.

    predicts   the longest chain
    threshold  the shortest match that is copied
    alpha      a match of n tokens is followed for at most 1 + alpha x n
    """

    name = "sam"
    needs = frozenset({Need.TOP_K})

    def __init__(self, predicts: int = 40, threshold: int = 5, alpha: float = 4.0, memory: Memory | None = None) -> None:
        if predicts < 1 or threshold < 1 or alpha < 0:
            raise UsageError(
                f"sam: predicts and threshold are at least 1, alpha is not negative; not predicts={predicts}, threshold={threshold}, "
                f"alpha={alpha}."
            )
        self.predicts, self.threshold, self.alpha = predicts, threshold, alpha
        self.tree = Recycling(memory=memory)
        self._automaton: dict[int, Automaton] = {}

    def open(self, session: Context) -> None:
        self.tree.open(session)
        self._read(session)

    def _read(self, session: Context) -> None:
        self._automaton[session.id] = Automaton()
        self._automaton[session.id].extend(session.tokens)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._draft(s, b) for s, b in zip(sessions, budgets, strict=True)]

    def _draft(self, session: Context, budget: Budget) -> Draft:
        automaton, tokens = self._automaton[session.id], session.tokens
        automaton.extend(tokens)
        longest, _ = automaton.match()
        if longest < self.threshold:
            return self.tree.propose([session], [budget])[0]
        most = min(self.predicts, 1 + int(self.alpha * longest), budget.nodes, budget.depth)
        match, position = automaton.followed(most, self.threshold)
        copied = tokens[position : position + most]
        # A copied token is right as often as in prompt lookup.
        return Draft.chain(copied, PromptLookup.claims(match, len(copied)), self.name)

    def observe(self, steps: Sequence[Step]) -> None:
        self.tree.observe(steps)

    def rewind(self, session: Context, length: int) -> None:
        self.tree.rewind(session, length)
        self._read(session)

    def close(self, session: Context) -> None:
        self.tree.close(session)
        self._automaton.pop(session.id, None)
