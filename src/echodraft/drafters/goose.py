"""GOOSE: a spine copied from the text, with the model's own second thoughts as branches of every node."""

from __future__ import annotations

from collections.abc import Sequence

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.fill import Child, fill
from echodraft.core.step import Step
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.drafters.recycling import Recycling, beside
from echodraft.memory import Memory
from echodraft.stores.adjacency import AdjacencyStore


class Goose(Drafter):
    """A deep spine of tokens copied behind the longest match in the text, and at each of its nodes wide branches of recycled successors.

    Source: GOOSE (arXiv 2604.02047). Copied tokens are right far more often than recycled ones, so the tree is deep along the copy and
    wide beside it; how much goes where follows from how sure the copy is. The paper finds the split by dynamic programming. Here the tree
    is filled best first, which is the optimum for a fixed number of nodes once every node has its probability: the chance that a copied
    token is right by the length of the match; what that leaves is shared by the recycled successors.
    There is no "as published": node budget, n-gram sizes and bypass rule of the paper are not known to us, and it says nothing on sampling.
    Needs: the target's best ids.

    longest   the longest n-gram that is looked up
    shortest  the shortest
    """

    name = "goose"
    needs = frozenset({Need.TOP_K})

    def __init__(self, longest: int = 8, shortest: int = 1, memory: Memory | None = None) -> None:
        self.copies, self.tree = PromptLookup(longest, shortest), Recycling(memory=memory)

    def open(self, session: Context) -> None:
        self.copies.open(session)
        self.tree.open(session)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        spines = self.copies.propose(sessions, [Budget(b.depth, b.depth) for b in budgets])
        return [
            self._tree(self.tree.store(session), session.tokens[-1], spine, budget)
            for session, budget, spine in zip(sessions, budgets, spines, strict=True)
        ]

    def _tree(self, store: AdjacencyStore, anchor: int, spine: Draft, budget: Budget) -> Draft:
        tokens, path = spine.token.tolist(), [1.0, *spine.prob.tolist()]

        def children(state: tuple[int, int]) -> list[Child[tuple[int, int]]]:
            """Behind a token; what the spine has next is at `at`, which is beyond its end for nodes beside it."""
            token, at = state
            copied = {tokens[at]: path[at + 1] / path[at]} if at < len(tokens) else {}
            chances = beside(copied, store.successors(token))
            found = [
                Child(t, chance, self.name, (t, at + 1)) if t in copied else Child(t, chance, "recycling", (t, len(tokens)))
                for t, chance in chances.items()
            ]
            return sorted(found, key=lambda child: -child.prob)

        return fill(budget, (anchor, 0), children)

    def observe(self, steps: Sequence[Step]) -> None:
        self.tree.observe(steps)

    def rewind(self, session: Context, length: int) -> None:
        self.copies.rewind(session, length)
        self.tree.rewind(session, length)

    def close(self, session: Context) -> None:
        self.copies.close(session)
        self.tree.close(session)
