"""A tree filled best first is the best of all trees with so many nodes."""

from __future__ import annotations

from dataclasses import replace
from itertools import accumulate, combinations
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.core.budget import Adaptive, Budget, Calibration, CostCurve
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


@given(trees(), st.lists(st.floats(0.0, 1.0), min_size=1, max_size=12), st.floats(1.0, 8.0))
def test_filling_ends_only_where_nothing_more_would_be_scored(tree: Tree, slopes: list[float], rate: float) -> None:
    cost = tuple(1.0 + float(total) for total in accumulate(slopes, initial=0.0))
    curve = CostCurve(tuple(range(1, len(cost) + 1)), (cost,))
    policy = Adaptive(curve, most=8, cap=100.0, credit=100.0, calibration=Calibration(inf), tokens=rate, cost=1.0)
    (budget,) = policy.plan([8], [0.0])

    def scored(budget: Budget) -> list[float]:  # of equally likely nodes either may be there
        (draft,) = policy.trim([fill(budget, 0, lambda node: [Child(t, p, "x", t) for t, p in tree[node]])], 0)
        return sorted(draft.prob.tolist())

    assert scored(budget) == scored(replace(budget, least=()))


def test_filling_ends_early_where_rows_are_dear() -> None:
    """Each node costs half a step and halves the chance of the next: only the first one can pay."""
    curve = CostCurve((1, 65), ((1.0, 33.0),))
    (budget,) = Adaptive(curve, calibration=Calibration(inf), tokens=1.0, cost=1.0).plan([64], [0.0])
    assert len(fill(budget, 0, lambda node: [Child(node + 1, 0.6, "x", node + 1)])) == 1
    assert len(fill(replace(budget, least=()), 0, lambda node: [Child(node + 1, 0.6, "x", node + 1)])) == 64


def test_filling_goes_on_where_one_dear_row_brings_many_cheap_ones() -> None:
    curve = CostCurve((1, 2, 65), ((1.0, 3.0, 3.0),))
    (budget,) = Adaptive(curve, calibration=Calibration(inf), tokens=1.0, cost=1.0).plan([64], [0.0])
    assert len(fill(budget, 0, lambda node: [Child(node + 1, 0.9, "x", node + 1)])) == 64


def test_what_is_paid_for_is_in_the_tree_however_unlikely() -> None:
    """The path that a draft model chose; its siblings and what stands behind it end where they do not pay."""
    budget = Budget(8, 8, least=[0.5] * 8)
    path = fill(budget, 0, lambda node: [Child(1, 0.1, "x", node + 1, node < 3), Child(2, 0.3, "x", 9)])
    assert path.token.tolist() == [1, 1, 1]
