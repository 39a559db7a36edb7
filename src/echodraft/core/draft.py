"""The one value that drafters hand to the engine: a token tree rooted at the anchor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from echodraft.core.budget import Budget

ANCHOR = -1


@dataclass(frozen=True, slots=True)
class Draft:
    """A token tree rooted at the anchor (the last committed token), flat, parents before children.

    token[i]   int64   the guessed token
    parent[i]  int64   index of the parent node, -1 for the anchor; smaller than i
    prob[i]    float64 the drafter's estimate that node i will be accepted: a path probability in [0, 1]; of a probe the tokens that it
                       is expected to bring, now or later
    source[i]  str     who guessed it
    probe[i]   bool    a node that is there to learn from (a lookahead window); accepted like any other
    cost       float   what making the draft took, in plain steps of the target: the forwards of a draft model
    free       Draft   what would have been drafted without a draft model, where this was made with one: the two are weighed by counts

    Siblings have different tokens. The likeliest path should come first: its rows are then in place already when accepted.
    """

    token: NDArray[np.int64]
    parent: NDArray[np.int64]
    prob: NDArray[np.float64]
    source: tuple[str, ...]
    probe: NDArray[np.bool_]
    cost: float = 0.0
    free: Draft | None = None

    def __len__(self) -> int:
        return len(self.token)

    @property
    def depth(self) -> NDArray[np.int64]:
        """Depth of every node, 1 for children of the anchor. Shape [n]."""
        depth = np.ones(len(self), dtype=np.int64)
        for i, p in enumerate(self.parent.tolist()):
            if p != ANCHOR:
                depth[i] = depth[p] + 1
        return depth

    @property
    def ancestors(self) -> NDArray[np.bool_]:
        """`ancestors[i, j]`: node j is node i or lies on its path to the anchor. Shape [n, n]."""
        seen = np.eye(len(self), dtype=np.bool_)
        for i, p in enumerate(self.parent.tolist()):
            if p != ANCHOR:
                seen[i] |= seen[p]
        return seen

    def take(self, nodes: Sequence[int]) -> Draft:
        """The subtree of `nodes` (ascending, every parent included)."""
        if len(nodes) == len(self):
            return self
        new = {ANCHOR: ANCHOR} | {old: i for i, old in enumerate(nodes)}
        keep = np.asarray(nodes, dtype=np.int64)
        return Draft(
            self.token[keep],
            np.asarray([new[p] for p in self.parent[keep].tolist()], dtype=np.int64),
            self.prob[keep],
            tuple(self.source[i] for i in nodes),
            self.probe[keep],
            self.cost,
            self.free,
        )

    @property
    def child(self) -> dict[tuple[int, int], int]:
        """The node behind a node (-1 = the anchor) that carries a token, by both."""
        return {pair: i for i, pair in enumerate(zip(self.parent.tolist(), self.token.tolist(), strict=True))}

    @property
    def children(self) -> dict[int, list[tuple[int, int, float]]]:
        """By node (-1 = the anchor) its children: token, node, and the drafter's estimate given that the parent is right."""
        prob, out = self.prob.tolist(), dict[int, list[tuple[int, int, float]]]()
        for i, (p, token) in enumerate(zip(self.parent.tolist(), self.token.tolist(), strict=True)):
            above = 1.0 if p == ANCHOR else prob[p]
            out.setdefault(p, []).append((token, i, prob[i] / above if above > 0.0 else 0.0))
        return out

    def along(self, tokens: Sequence[int]) -> list[int]:
        """The nodes from the anchor on that carry `tokens`, as far as there are such."""
        return walk(self.child, ANCHOR, tokens)

    @staticmethod
    def chain(tokens: Sequence[int], prob: Sequence[float] | float = 0.5, source: str = "") -> Draft:
        """A draft without branches; a scalar `prob` is the chance of each token given the one before."""
        n = len(tokens)
        path = [prob ** (i + 1) for i in range(n)] if isinstance(prob, float | int) else list(prob)
        return Draft(
            np.asarray(tokens, dtype=np.int64),
            np.arange(-1, n - 1, dtype=np.int64),
            np.asarray(path, dtype=np.float64),
            (source,) * n,
            np.zeros(n, dtype=np.bool_),
        )


EMPTY = Draft.chain([])


def walk(child: Mapping[tuple[int, int], int], node: int, tokens: Sequence[int]) -> list[int]:
    """The nodes behind `node` that carry `tokens`, as far as there are such, by `Draft.child`."""
    path: list[int] = []
    for token in tokens:
        following = child.get((node, token))
        if following is None:
            break
        path.append(following)
        node = following
    return path


@dataclass(slots=True)
class DraftBuilder:
    """A trie that merges equal paths: a token proposed twice at one place is paid for once and keeps its better estimate."""

    token: list[int] = field(default_factory=list)
    parent: list[int] = field(default_factory=list)
    prob: list[float] = field(default_factory=list)
    source: list[str] = field(default_factory=list)
    probe: list[bool] = field(default_factory=list)
    _child: dict[tuple[int, int], int] = field(default_factory=dict)
    _depth: dict[int, int] = field(default_factory=lambda: {ANCHOR: 0})
    _width: dict[int, int] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.token)

    def add(self, parent: int, token: int, prob: float, source: str = "", probe: bool = False) -> int:
        """Add `token` under `parent` (-1 = anchor) unless it is there; returns its node."""
        node = self._child.get((parent, token))
        if node is not None:
            if prob > self.prob[node]:
                self.prob[node], self.source[node] = prob, source
            self.probe[node] = self.probe[node] and probe
            return node
        node = len(self.token)
        self._child[parent, token] = node
        self.token.append(token)
        self.parent.append(parent)
        self.prob.append(prob)
        self.source.append(source)
        self.probe.append(probe)
        self._depth[node] = self._depth[parent] + 1
        self._width[parent] = self._width.get(parent, 0) + 1
        return node

    def chain(
        self, parent: int, tokens: Sequence[int], probs: Sequence[float], budget: Budget, source: str = "", probe: bool = False
    ) -> list[int]:
        """Add a path under `parent` as far as the budget goes; returns its nodes, those included that were there already."""
        path: list[int] = []
        for token, prob in zip(tokens, probs, strict=True):
            if (parent, token) not in self._child and (
                len(self) >= budget.nodes or self._depth[parent] >= budget.depth or self._width.get(parent, 0) >= budget.branching
            ):
                break
            parent = self.add(parent, token, prob, source, probe)
            path.append(parent)
        return path

    def build(self) -> Draft:
        """The draft, likeliest path first."""
        children: dict[int, list[int]] = {}
        for node, p in enumerate(self.parent):
            children.setdefault(p, []).append(node)
        order: list[int] = []
        stack = [ANCHOR]
        while stack:
            node = stack.pop()
            if node != ANCHOR:
                order.append(node)
            stack.extend(sorted(children.get(node, ()), key=self.prob.__getitem__))
        new = {ANCHOR: ANCHOR} | {old: i for i, old in enumerate(order)}
        return Draft(
            np.asarray([self.token[i] for i in order], dtype=np.int64),
            np.asarray([new[self.parent[i]] for i in order], dtype=np.int64),
            np.asarray([self.prob[i] for i in order], dtype=np.float64),
            tuple(self.source[i] for i in order),
            np.asarray([self.probe[i] for i in order], dtype=np.bool_),
        )


def merged(drafts: Sequence[Draft]) -> Draft:
    """Several trees as one: a token at one place is there once, with the better claim."""
    if len(drafts) == 1:
        return drafts[0]
    tree = DraftBuilder()
    for draft in drafts:
        node = {ANCHOR: ANCHOR}
        for i, (parent, token, prob) in enumerate(zip(draft.parent.tolist(), draft.token.tolist(), draft.prob.tolist(), strict=True)):
            node[i] = tree.add(node[parent], token, prob, draft.source[i])
    return tree.build()


def sane(draft: Draft, vocab_size: int, max_nodes: int, max_depth: int, chain: bool = False) -> Draft:
    """What of `draft` may be scored, whatever the drafter did.

    Drops nodes with a token outside the vocabulary, a parent that is not before them, a sibling with the same token, a depth
    beyond `max_depth`, everything beyond the first `max_nodes`, and whatever hangs from a dropped node. `chain` keeps the
    first child of every node only. Estimates that are no probability become the nearest one, NaN becomes 0.
    """
    if not len(draft) or max_nodes <= 0 or max_depth <= 0:
        return replace(EMPTY, cost=draft.cost, free=draft.free) if draft.cost else EMPTY
    depth = {ANCHOR: 0}  # of the kept nodes so far
    seen: set[tuple[int, int]] = set()
    keep: list[int] = []
    for i, (t, p) in enumerate(zip(draft.token.tolist(), draft.parent.tolist(), strict=True)):
        key = (p, 0 if chain else t)
        if 0 <= t < vocab_size and p in depth and depth[p] < max_depth and key not in seen:
            seen.add(key)
            depth[i] = depth[p] + 1
            keep.append(i)
            if len(keep) == max_nodes:
                break
    kept = draft.take(keep)
    if np.all((kept.prob >= 0.0) & (kept.prob <= 1.0)):
        return kept
    return replace(kept, prob=np.clip(np.nan_to_num(kept.prob), 0.0, 1.0))
