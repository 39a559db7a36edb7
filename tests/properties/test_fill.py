"""A tree filled best first is the best of all trees with so many nodes."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR
from echodraft.core.fill import Child, fill

Tree = dict[int, list[tuple[int, float]]]  # node -> (child, its chance); 0 is the root and no token comes twice


@st.composite
def trees(draw: st.DrawFn) -> Tree:
    n = draw(st.integers(1, 9))
    tree: Tree = {node: [] for node in range(n + 1)}
    for node in range(1, n + 1):
        tree[draw(st.integers(0, node - 1))].append((node, draw(st.sampled_from([0.0, 0.1, 0.3, 0.5, 0.9, 1.0]))))
    return {node: sorted(found, key=lambda pair: -pair[1]) for node, found in tree.items()}


def paths(tree: Tree, budget: Budget) -> dict[int, tuple[float, int]]:
    """Path probability and parent of all nodes that depth and branching allow."""
    out: dict[int, tuple[float, int]] = {}
    level = [(0, 1.0)]
    for _ in range(budget.depth):
        level = [
            (child, prob * own)
            for node, prob in level
            for child, own in tree[node][: budget.branching]
            if not out.update({child: (prob * own, node)})
        ]
    return out


@given(trees(), st.integers(0, 8), st.integers(0, 4), st.integers(1, 3))
def test_no_tree_of_that_size_is_expected_to_bring_more(tree: Tree, nodes: int, depth: int, branching: int) -> None:
    budget = Budget(nodes, depth, branching)
    draft = fill(budget, 0, lambda node: [Child(t, p, "x", t) for t, p in tree[node]])
    allowed = paths(tree, budget)
    size = min(nodes, len(allowed))
    assert len(draft) == size
    for token, parent, prob in zip(draft.token.tolist(), draft.parent.tolist(), draft.prob.tolist(), strict=True):
        assert allowed[token] == (pytest.approx(prob), 0 if parent == ANCHOR else draft.token[parent])
    best = max(
        sum(allowed[node][0] for node in chosen)
        for chosen in combinations(allowed, size)
        if all(allowed[node][1] in (0, *chosen) for node in chosen)
    )
    assert sum(draft.prob) == pytest.approx(best)
