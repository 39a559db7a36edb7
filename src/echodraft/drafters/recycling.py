"""Token Recycling: the target's own second thoughts as the draft."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft, DraftBuilder
from echodraft.core.drafter import Context, Drafter
from echodraft.core.step import Step
from echodraft.memory import Memory
from echodraft.stores.adjacency import WIDTH, AdjacencyStore

# The published tree of 80 nodes ("2.2.2", from the authors' code in Spec-Bench): a node by the ranks on its path -> its children. Ranks
# count from 0, the best; children are always the best ones. 8, 21, 25, 15, 8 and 3 nodes at depths 1 to 6.
TEMPLATE = {
    "": 8,
    **{"0": 8, "1": 4, "2": 3, "3": 2, "4": 1, "5": 1, "6": 1, "7": 1},
    **{"00": 8, "01": 3, "02": 2, "03": 1, "04": 1, "05": 1, "06": 1, "07": 1, "10": 2, "11": 1, "20": 1, "30": 1, "40": 1, "50": 1},
    **{"000": 5, "001": 2, "002": 1, "003": 1, "004": 1, "010": 1, "020": 1, "100": 1, "200": 1, "300": 1},
    **{"0000": 3, "0001": 1, "0002": 1, "0010": 1, "0100": 1, "1000": 1},
    **{"00000": 2, "00010": 1},
}


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
    # Chance that the successor of each rank is right, given that its parent was: measured on five prompts of code, chat and mathematics
    # with SmolLM2-135M, and made smooth. A prior that the budget corrects from counts.
    FOLLOW = (0.44, 0.11, 0.045, 0.035, 0.03, 0.02, 0.016, 0.014)

    def __init__(self, template: bool = False, memory: Memory | None = None) -> None:
        self.template, self.memory = template, Memory() if memory is None else memory
        self._store: dict[int, AdjacencyStore] = {}

    def open(self, session: Context) -> None:
        self._store[session.id] = self.memory.store(session.tenant, AdjacencyStore, AdjacencyStore)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._tree(self._store[s.id], s.tokens[-1], b) for s, b in zip(sessions, budgets, strict=True)]

    def _tree(self, store: AdjacencyStore, anchor: int, budget: Budget) -> Draft:
        draft = DraftBuilder()
        # (minus path probability, order of discovery, parent, its probability, ranks on the path, successors of the parent)
        heap: list[tuple[float, int, int, float, str, list[int]]] = []

        def expand(node: int, token: int, prob: float, ranks: str) -> None:
            width = TEMPLATE.get(ranks, 0) if self.template else budget.branching
            successors = store.successors(token)[:width]
            if successors and len(ranks) < budget.depth:
                heappush(heap, (-prob * self.FOLLOW[0], len(draft), node, prob, ranks + "0", successors))

        expand(ANCHOR, anchor, 1.0, "")
        while heap and len(draft) < budget.nodes:
            minus, _, parent, above, ranks, successors = heappop(heap)
            rank = int(ranks[-1])
            node = draft.add(parent, successors[rank], -minus, self.name)
            if rank + 1 < len(successors):
                heappush(heap, (-above * self.FOLLOW[rank + 1], len(draft), parent, above, f"{ranks[:-1]}{rank + 1}", successors))
            expand(node, successors[rank], -minus, ranks)
        return draft.build()

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.top_k is not None:
                anchor = step.session.tokens[-len(step.verdict.tokens) - 1]
                self._store[step.session.id].learn([anchor, *step.draft.token.tolist()], step.top_k[:, :WIDTH])

    def close(self, session: Context) -> None:
        if self._store.pop(session.id, None) is not None:
            self.memory.settle(session.tenant)
