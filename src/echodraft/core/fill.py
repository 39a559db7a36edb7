"""A tree filled best first: the one that is expected to bring most tokens, of all trees with so many nodes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from heapq import heappop, heappush
from itertools import islice
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


class Siblings(NamedTuple, Generic[S]):
    """The children of one node, with its depth and path probability, that are not in the tree yet."""

    parent: int
    depth: int
    prob: float
    left: Iterator[Child[S]]


def fill(budget: Budget, root: S, children: Callable[[S], Iterable[Child[S]]]) -> Draft:
    """The likeliest nodes of the tree that `children`, likeliest first, span from `root`, the state at the anchor; so is its result.

    The expected number of accepted tokens is the sum of the path probabilities of all nodes. No child is likelier than its parent, so the
    likeliest nodes form a tree, and no other of that size sums to more (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276). How much
    goes into depth and how much into width is thus no setting: it follows from the probabilities. Of siblings each is asked for once the
    one before it is in the tree.
    """
    draft = DraftBuilder()
    least = [*budget.least[: budget.nodes], *[0.0] * (budget.nodes - len(budget.least))]
    heap: list[tuple[float, int, float, Child[S], Siblings[S]]] = []
    turn = 0

    def push(siblings: Siblings[S]) -> None:
        nonlocal turn
        child = next(siblings.left, None)
        if child is not None:
            turn += 1  # of equal ones the first comes first; children are never compared
            path = siblings.prob * child.prob
            heappush(heap, (-path - child.first, turn, path, child, siblings))

    if budget.nodes > 0 and budget.depth > 0:
        push(Siblings(ANCHOR, 0, 1.0, islice(children(root), budget.branching)))
    while heap and len(draft) < budget.nodes:
        _, _, prob, chosen, siblings = heappop(heap)
        if prob < least[len(draft)] and not chosen.first:
            break
        node = draft.add(siblings.parent, chosen.token, prob, chosen.source)
        push(siblings)
        if siblings.depth + 1 < budget.depth and len(draft) < budget.nodes:
            push(Siblings(node, siblings.depth + 1, prob, islice(children(chosen.state), budget.branching)))
    return draft.build()
