"""How many nodes this step: a pure function of counts and a saved cost curve, never of the clock, so that runs repeat.

A drafter says how likely each node is; counts correct what it says; the tree is cut where one more row of the forward would cost more
than the tokens it is expected to bring. For a tree fixed in advance the expected number of accepted tokens is the sum of its path
probabilities, so best first is optimal (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from echodraft.core.accept import Verdict
from echodraft.core.draft import ANCHOR, EMPTY, Draft

MOST_NODES = 64


@dataclass(frozen=True, slots=True)
class Budget:
    """What one session may draft this step: nodes in all, depth of the tree, children of one node."""

    nodes: int
    depth: int
    branching: int = 8


@dataclass(frozen=True, slots=True)
class CostCurve:
    """t(rows): what a forward of `rows` tokens costs, relative to one row, at each measured context length.

    rows      ascending, starting at 1
    cost      one tuple a context length, as long as `rows`
    contexts  ascending, tokens
    """

    rows: tuple[int, ...]
    cost: tuple[tuple[float, ...], ...]
    contexts: tuple[int, ...] = (0,)
    name: str = "built-in"

    def table(self, most: int, context: int) -> NDArray[np.float64]:
        """Cost of 0…most rows at `context`, interpolated; beyond the last point it grows by the last slope. Shape [most + 1]."""
        points = np.asarray(self.cost)
        cost = np.asarray([np.interp(context, self.contexts, points[:, i]) for i in range(len(self.rows))])
        n = np.arange(most + 1)
        table = np.interp(n, self.rows, cost)
        if len(self.rows) > 1:
            slope = max(0.0, (cost[-1] - cost[-2]) / (self.rows[-1] - self.rows[-2]))
            table += slope * np.maximum(n - self.rows[-1], 0)
        # A measured curve may dip by noise or where another kernel begins; a plan must not ask for more rows only to ride a dip.
        return np.maximum.accumulate(table)


CPU_CURVE = CostCurve((1, 2, 4, 8, 16, 32, 64), ((1.0, 1.5, 1.8, 2.2, 3.2, 5.2, 9.4),), name="built-in CPU")
GPU_CURVE = CostCurve((1, 16, 32, 64), ((1.0, 1.02, 1.05, 1.15),), name="built-in GPU")


class Policy(Protocol):
    """Plans budgets before drafting, trims drafts before scoring, learns from verdicts."""

    def plan(self, rooms: Sequence[int]) -> list[Budget]:
        """One budget per session; `rooms` are the depths that limits and context allow."""
        ...

    def trim(self, drafts: Sequence[Draft], context: int) -> list[Draft]:
        """What of each draft is worth scoring, with `context` cached tokens in the longest session."""
        ...

    def observe(self, drafts: Sequence[Draft], verdicts: Sequence[Verdict], context: int) -> None:
        """What the scored drafts brought."""
        ...


@dataclass(slots=True)
class Fixed:
    """Every draft is scored as proposed, up to `nodes`: a method as published."""

    nodes: int

    def plan(self, rooms: Sequence[int]) -> list[Budget]:
        return [Budget(self.nodes, min(room, self.nodes)) for room in rooms]

    def trim(self, drafts: Sequence[Draft], context: int) -> list[Draft]:
        return list(drafts)

    def observe(self, drafts: Sequence[Draft], verdicts: Sequence[Verdict], context: int) -> None:
        pass


@dataclass(slots=True)
class Calibration:
    """Acceptance counts by (source, reported probability): what a node's claim is worth, given that its parent was accepted."""

    weight: float = 4.0
    forget: int = 200
    counts: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def paths(self, draft: Draft) -> NDArray[np.float64]:
        """Calibrated path probability of every node. Shape [n]."""
        path = np.empty(len(draft))
        for i, (p, own, source) in enumerate(zip(draft.parent.tolist(), _conditional(draft), draft.source, strict=True)):
            accepted, seen = self.counts.get((source, int(own * 10)), (0.0, 0.0))
            estimate = (accepted + self.weight * own) / (seen + self.weight)
            path[i] = estimate * (1.0 if p == ANCHOR else path[p])
        return path

    def observe(self, draft: Draft, verdict: Verdict) -> None:
        """Count the nodes whose parent was accepted; behind a node on which the output ended nothing was tested."""
        taken = set(verdict.path)
        tested = taken | {ANCHOR}
        if len(verdict.tokens) == len(verdict.path):
            tested.discard(verdict.path[-1])
        for i, (p, own, source) in enumerate(zip(draft.parent.tolist(), _conditional(draft), draft.source, strict=True)):
            if p in tested:
                count = self.counts.setdefault((source, int(own * 10)), [0.0, 0.0])
                count[0] += i in taken
                count[1] += 1
                if count[1] > self.forget:
                    count[0], count[1] = count[0] / 2, count[1] / 2


def _conditional(draft: Draft) -> list[float]:
    """The drafter's probability of each node given its parent."""
    prob, out = draft.prob.tolist(), []
    for own, p in zip(prob, draft.parent.tolist(), strict=True):
        above = 1.0 if p == ANCHOR else prob[p]
        out.append(min(max(own / above, 0.0), 1.0) if above > 0 else 0.0)
    return out


@dataclass(slots=True)
class Adaptive:
    """Drafts where it pays, by counts.

    The tree is cut where expected tokens minus (tokens per unit of cost so far) x cost is largest. Where that says zero although something
    was proposed, a small probe goes through after 1, 2, 4, … 64 steps.

    `balance` bounds the loss, in plain steps: it starts with `credit`, earns a share `trickle` of every step and what drafts save,
    pays what they cost, and holds `cap` at most; below zero nothing is drafted. So n steps lose at most credit + n x trickle + one draft.
    """

    curve: CostCurve
    most: int = MOST_NODES
    credit: float = 2.0
    cap: float = 6.0
    trickle: float = 0.01
    calibration: Calibration = field(default_factory=Calibration)
    balance: float = field(init=False)
    wait: int = 1
    since: int = 0
    probing: bool = False
    tokens: float = 20.0
    cost: float = 20.0

    def __post_init__(self) -> None:
        self.balance = self.credit

    def plan(self, rooms: Sequence[int]) -> list[Budget]:
        nodes = self.most if self.balance > 0 else 0
        return [Budget(nodes, min(room, nodes)) for room in rooms]

    def trim(self, drafts: Sequence[Draft], context: int) -> list[Draft]:
        most = max(map(len, drafts), default=0)
        self.probing = False
        if most == 0:
            return list(drafts)
        paths = [self.calibration.paths(draft) for draft in drafts]
        gain = np.zeros(most + 1)
        for path in paths:
            best = np.sort(path)[::-1]
            gain[1 : len(best) + 1] += np.cumsum(best)
            gain[len(best) + 1 :] += best.sum()
        relative = self._relative(len(drafts), most, context)
        rate = max(1.0, self.tokens / self.cost)
        nodes = int(np.argmax(gain - rate * len(drafts) * (relative - 1.0)))
        if nodes == 0:
            self.since += 1
            if self.since < self.wait:
                return [EMPTY] * len(drafts)
            self.probing, self.since, nodes = True, 0, 4
        out = []
        for draft, path in zip(drafts, paths, strict=True):
            # Stable, and a parent is never less likely than its child: ancestors come along.
            keep = np.argsort(-path, kind="stable")[:nodes]
            out.append(draft.take(sorted(keep.tolist())))
        return out

    def observe(self, drafts: Sequence[Draft], verdicts: Sequence[Verdict], context: int) -> None:
        batch = len(drafts)
        nodes = max(map(len, drafts), default=0)
        extra = float(self._relative(batch, nodes, context)[nodes]) - 1.0
        accepted = sum(verdict.accepted for verdict in verdicts) / batch
        self.balance = min(self.cap, self.balance + self.trickle + accepted - extra)
        self.tokens = 0.99 * self.tokens + 1.0 + accepted
        self.cost = 0.99 * self.cost + 1.0 + extra
        for draft, verdict in zip(drafts, verdicts, strict=True):
            self.calibration.observe(draft, verdict)
        if nodes and accepted > extra:
            self.wait = 1
        elif self.probing:
            self.wait = min(64, 2 * self.wait)

    def _relative(self, batch: int, nodes: int, context: int) -> NDArray[np.float64]:
        """Cost of a forward with 0…nodes nodes a session over that of a plain step. Rows of a batch are padded to one width."""
        table = self.curve.table(batch * (nodes + 1), context)
        relative: NDArray[np.float64] = table[batch::batch] / table[batch]
        return relative
