"""A tree filled best first: the one that is expected to bring most tokens, of all trees with so many nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Generic, NamedTuple, TypeVar

from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft, DraftBuilder

S = TypeVar("S")


class Child(NamedTuple, Generic[S]):
    """A guess for one place.

    prob   chance that the token is right, given that all before it are
    state  from which the guesses behind it are made
    first  it comes before all that are not: it is paid for already
    """

    token: int
    prob: float
    source: str
    state: S
    first: bool = False


def fill(budget: Budget, root: S, children: Callable[[S], Sequence[Child[S]]]) -> Draft:
    """The likeliest nodes of the tree that `children` spans from `root`, the state at the anchor; its result is likeliest first.

    The expected number of accepted tokens is the sum of the path probabilities of all nodes. No child is likelier than its parent, so the
    likeliest nodes form a tree, and no other of that size sums to more (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276). How much
    goes into depth and how much into width is thus no setting: it follows from the probabilities.
    """
    draft = DraftBuilder()
    least = [*budget.least[: budget.nodes], *[0.0] * (budget.nodes - len(budget.least))]
    heap: list[tuple[float, int, int, int, float, Child[S]]] = []
    turn, node, prob, depth, state = 0, ANCHOR, 1.0, 0, root
    while len(draft) < budget.nodes:
        if depth < budget.depth:
            for child in children(state)[: budget.branching]:
                turn += 1  # of equal ones the first comes first; children are never compared
                path = prob * child.prob
                heappush(heap, (-path - child.first, turn, node, depth, path, child))
        if not heap:
            break
        _, _, parent, above, prob, chosen = heappop(heap)
        if prob < least[len(draft)]:
            break
        depth, state = above + 1, chosen.state
        node = draft.add(parent, chosen.token, prob, chosen.source)
    return draft.build()
