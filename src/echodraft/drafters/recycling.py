"""Token Recycling: the target's own second thoughts as the draft."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heappop, heappush, heapreplace

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft, DraftBuilder
from echodraft.core.drafter import Context, Drafter
from echodraft.core.step import Step
from echodraft.memory import Memory
from echodraft.stores.adjacency import WIDTH, AdjacencyStore

# A node by the ranks on its path: octal digits behind a leading 1, so that the anchor is 0o1 and its second child 0o11.
ROOT, DIGIT = 0o1, 3
# The published tree of 80 nodes ("2.2.2", from the authors' code in Spec-Bench): how many of its successors a node has as children, always
# the best ones. 8, 21, 25, 15, 8 and 3 nodes at depths 1 to 6.
TEMPLATE = {
    **{0o1: 8, 0o10: 8, 0o11: 4, 0o12: 3, 0o13: 2, 0o14: 1, 0o15: 1, 0o16: 1, 0o17: 1},
    **{0o100: 8, 0o101: 3, 0o102: 2, 0o103: 1, 0o104: 1, 0o105: 1, 0o106: 1, 0o107: 1},
    **{0o110: 2, 0o111: 1, 0o120: 1, 0o130: 1, 0o140: 1, 0o150: 1},
    **{0o1000: 5, 0o1001: 2, 0o1002: 1, 0o1003: 1, 0o1004: 1, 0o1010: 1, 0o1020: 1, 0o1100: 1, 0o1200: 1, 0o1300: 1},
    **{0o10000: 3, 0o10001: 1, 0o10002: 1, 0o10010: 1, 0o10100: 1, 0o11000: 1, 0o100000: 2, 0o100010: 1},
}


def beside(guesses: Mapping[int, float], successors: Sequence[int]) -> dict[int, float]:
    """The chance of every token that another source or recycling guesses: what the `guesses` leave is shared by the other `successors`."""
    listed, total = dict(zip(successors, Recycling.FOLLOW, strict=False)), sum(guesses.values())
    chances = {token: guess / max(1.0, total) for token, guess in guesses.items()}
    left = max(0.0, 1.0 - total) / (1.0 - sum(share for token, share in listed.items() if token in chances))
    return chances | {token: left * share for token, share in listed.items() if token not in chances}


class Recycling(Drafter):
    """What the model itself held likely behind each token when it last scored it, in all requests of the tenant.

    Source: Token Recycling (arXiv 2408.08696). Every scored node, accepted or not, leaves its eight best successors behind; the tree of
    the next step is read off them from the anchor on. By default it is filled best first up to the budget, with the chance of a path
    taken from the ranks on it. As in the published code nothing is learned from the prompt but what follows its last token, and what is
    not known yet is not guessed, where the published code guesses token 0. Needs: the target's best ids.

    template  the published fixed tree of 80 nodes; of a smaller budget its likeliest part
    """

    name = "recycling"
    needs = frozenset({Need.TOP_K})
    matrix = AdjacencyStore
    # Chance that the successor of each rank is right, given that its parent was: measured on five prompts of code, chat and mathematics
    # with SmolLM2-135M, and made smooth. A prior that the budget corrects from counts.
    FOLLOW = (0.44, 0.11, 0.045, 0.035, 0.03, 0.02, 0.016, 0.014)

    def __init__(self, template: bool = False, memory: Memory | None = None) -> None:
        self.template, self.memory = template, Memory() if memory is None else memory
        self._store: dict[int, AdjacencyStore] = {}

    def open(self, session: Context) -> None:
        self._store[session.id] = self.memory.store(session.tenant, self.matrix, self.matrix)

    def store(self, session: Context) -> AdjacencyStore:
        """What is known for an open session."""
        return self._store[session.id]

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._tree(self._store[s.id], s.tokens[-1], b) for s, b in zip(sessions, budgets, strict=True)]

    def _tree(self, store: AdjacencyStore, anchor: int, budget: Budget) -> Draft:
        draft, first = DraftBuilder(), self.FOLLOW[0]
        # What may come next: minus its path probability, its ranks, its parent, the parent's probability and successors.
        heap: list[tuple[float, int, int, float, list[int]]] = []
        token, node, prob, ranks, depth = anchor, ANCHOR, 1.0, ROOT, 0
        while True:
            if depth < budget.depth:
                children = store.successors(token)[: TEMPLATE.get(ranks, 0) if self.template else budget.branching]
                if children:
                    heappush(heap, (-prob * first, ranks << DIGIT, node, prob, children))
            if not heap or len(draft) == budget.nodes:
                return draft.build()
            minus, ranks, parent, above, successors = heap[0]
            rank = ranks & 7
            if rank + 1 < len(successors):
                heapreplace(heap, (-above * self.FOLLOW[rank + 1], ranks + 1, parent, above, successors))
            else:
                heappop(heap)
            token, prob, depth = successors[rank], -minus, (ranks.bit_length() - 1) // DIGIT
            node = draft.add(parent, token, prob, self.name)

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.top_k is not None:
                anchor = step.session.tokens[-len(step.verdict.tokens) - 1]
                self._store[step.session.id].learn([anchor, *step.draft.token.tolist()], step.top_k[:, :WIDTH])

    def close(self, session: Context) -> None:
        if self._store.pop(session.id, None) is not None:
            self.memory.settle(session.tenant)
