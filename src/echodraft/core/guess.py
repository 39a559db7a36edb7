"""What a draft model says behind a text: its chosen path, and what stands behind others."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from echodraft.core.common import common
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.retokenize import Claim

Path = tuple[int, ...]
"""Tokens from the anchor on."""


@dataclass(slots=True)
class Guess:
    """What the draft model says behind a text.

    claims    for each token its candidates (ids, probabilities given the tokens before), the chosen one first
    beside    the same behind other paths than the one it chose, a path behind those that it goes on from
    cost      this session's share of the forwards, in plain steps of the target
    forwards  of the draft model
    wide      what of the cost is for branches
    """

    claims: Sequence[Claim] = ()
    beside: dict[Path, Claim] = field(default_factory=dict)
    cost: float = 0.0
    forwards: int = 0
    wide: float = 0.0

    @property
    def tokens(self) -> list[int]:
        return [ids[0] for ids, _ in self.claims]

    @property
    def probs(self) -> list[float]:
        """Of each token given those before."""
        return [probs[0] for _, probs in self.claims]

    @property
    def said(self) -> dict[Path, Claim]:
        """Candidates behind every path, parents first."""
        return {tuple(self.tokens[:i]): claim for i, claim in enumerate(self.claims)} | self.beside

    @property
    def open(self) -> list[tuple[float, Path]]:
        """Paths off the chosen one, behind which nothing was said yet, with their probabilities: the likeliest first."""
        said = self.said
        prob: dict[Path, float] = {(): 1.0}
        for path, (ids, probs) in said.items():
            prob |= {(*path, token): prob[path] * p for token, p in zip(ids, probs, strict=True)}
        chosen = tuple(self.tokens)
        return sorted(((p, path) for path, p in prob.items() if path not in said and path != chosen), key=lambda one: -one[0])


def nodes_of(chosen: Sequence[int], branches: Sequence[Path]) -> list[Path]:
    """The tree of the chosen path and its branches, from where the first of them leaves it: the chosen path first, parents first."""
    start = min((common(chosen, path) for path in branches), default=len(chosen))
    paths = (tuple(chosen), *branches)
    return list(dict.fromkeys(path[:n] for path in paths for n in range(start + 1, len(path) + 1)))


def as_tree(nodes: Sequence[Path]) -> Draft:
    """Nodes as a draft to be scored."""
    at = {path: i for i, path in enumerate(nodes)}
    tokens = np.asarray([path[-1] for path in nodes], dtype=np.int64)
    parents = np.asarray([at.get(path[:-1], ANCHOR) for path in nodes], dtype=np.int64)
    return Draft(tokens, parents, np.ones(len(nodes)), ("",) * len(nodes), np.zeros(len(nodes), dtype=np.bool_))


def paths_of(root: Path, draft: Draft) -> list[Path]:
    """The nodes of a draft behind `root`."""
    paths = {ANCHOR: root}
    for node, (parent, token) in enumerate(zip(draft.parent.tolist(), draft.token.tolist(), strict=True)):
        paths[node] = (*paths[parent], token)
    return list(paths.values())[1:]
