"""A small set of cases in which every pair of values of any two factors occurs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import combinations, product
from typing import Any


def pairwise(factors: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """Rows that cover all pairs, always the same ones.

    The two largest factors are crossed; every further value is the one that brings most new pairs, and the value used least on a tie.
    Pairs that are left get rows of their own.
    """
    names = sorted(factors, key=lambda name: -len(factors[name]))
    left = {frozenset([(a, x), (b, y)]) for a, b in combinations(names, 2) for x, y in product(factors[a], factors[b])}
    used: dict[tuple[str, Any], int] = {}
    rows: list[dict[str, Any]] = []

    def add(row: dict[str, Any]) -> None:
        for name in names:
            if name not in row:
                row[name] = min(
                    factors[name],
                    key=lambda v: (-sum(frozenset([(name, v), pair]) in left for pair in row.items()), used.get((name, v), 0)),
                )
        for pair in row.items():
            used[pair] = used.get(pair, 0) + 1
        left.difference_update(map(frozenset, combinations(row.items(), 2)))
        rows.append({name: row[name] for name in factors})

    for values in product(*(factors[name] for name in names[:2])):
        add(dict(zip(names, values, strict=False)))
    while left:
        add(dict(min(left, key=sorted)))
    return rows
