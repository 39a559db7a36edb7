"""How many nodes this step: a pure function of counts and a saved cost curve, never of the clock, so that runs repeat.

A drafter says how likely each node is; counts correct what it says; the tree is cut where one more row of the forward would cost more
than the tokens it is expected to bring. For a tree fixed in advance the expected number of accepted tokens is the sum of its path
probabilities, so best first is optimal (Sequoia, arXiv 2402.12374; OPT-Tree, arXiv 2406.17276).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import inf
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from echodraft.core.accept import Verdict
from echodraft.core.draft import ANCHOR, EMPTY, Draft
from echodraft.core.ledger import Ledger

MOST_NODES = 64
DOUBT = 0.25
"""A claim that counts correct may turn out four times as likely as it says."""
NEAR = 64
"""Contexts that lie as close as this cost the same."""


@dataclass(frozen=True, slots=True)
class Budget:
    """What one session may draft this step: nodes in all, depth of the tree, children of one node.

    forwards  of a draft model, at most; 0 = what is known without it
    floor     a token whose path is less likely does not pay for the forward of the draft model that makes it; 0 where that costs nothing
    least     the n-th likeliest node is not scored if its path is less likely than least[n - 1], whatever comes behind it, by the prices
              of the step before; may be shorter
    estimate  what a drafter's claim is worth by counts: (source, its probability of a node given the parent) -> probability
    """

    nodes: int
    depth: int
    branching: int = 8
    floor: float = 0.0
    least: Sequence[float] = ()
    forwards: int = 1 << 30
    estimate: Callable[[str, float], float] = field(default=lambda _, claim: claim, compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class CostCurve:
    """t(rows): what a forward of `rows` tokens costs, relative to one row, at each measured context length.

    rows      ascending, starting at 1
    cost      one tuple a context length, as long as `rows`
    contexts  ascending, tokens
    seconds   of one row, by context, where it was measured: to compare models
    read      cost of reading a context into an empty cache, by context, where it was measured: only its last row is scored
    """

    rows: tuple[int, ...]
    cost: tuple[tuple[float, ...], ...]
    contexts: tuple[int, ...] = (0,)
    name: str = "built-in"
    seconds: tuple[float, ...] = ()
    read: tuple[float, ...] = ()

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

    def near(self, most: int, context: int) -> NDArray[np.float64]:
        """`table` for a context near `context`, kept. Read only."""
        return _table(self, most, context // NEAR * NEAR)

    def price(self, rows: int, context: int) -> float:
        """Cost of `rows` rows near `context`."""
        return float(self.near(rows, context)[rows])

    def reading(self, tokens: int, context: int) -> float:
        """Cost of reading `tokens` more tokens up to `context`: as measured, else as that many rows cost."""
        rows = float(self.table(tokens, context)[tokens])
        if not self.read:
            return rows
        x, y = (1, *self.contexts), (1.0, *self.read)
        slope = max(0.0, (y[-1] - y[-2]) / max(1, x[-1] - x[-2]))
        return min(rows, float(np.interp(tokens, x, y)) + slope * max(0, tokens - x[-1]))


CPU_CURVE = CostCurve((1, 2, 4, 8, 16, 32, 64), ((1.0, 1.5, 1.8, 2.2, 3.2, 5.2, 9.4),), name="built-in CPU")
GPU_CURVE = CostCurve((1, 16, 32, 64), ((1.0, 1.02, 1.05, 1.15),), name="built-in GPU")


class Policy(Protocol):
    """Plans budgets before drafting, trims drafts before scoring, learns from verdicts."""

    def plan(self, rooms: Sequence[int], prices: Sequence[float]) -> list[Budget]:
        """One budget per session; `rooms` are the depths that limits and context allow, `prices` as the drafter says (`Drafter.price`)."""
        ...

    def trim(self, drafts: Sequence[Draft], context: int) -> list[Draft]:
        """What of each draft is worth scoring, with `context` cached tokens in the longest session."""
        ...

    def observe(self, drafts: Sequence[Draft], verdicts: Sequence[Verdict], context: int) -> None:
        """What the scored drafts brought."""
        ...


@dataclass(slots=True)
class Fixed:
    """Every draft is scored as proposed, up to `nodes`, of which any number may be siblings: a method as published."""

    nodes: int

    def plan(self, rooms: Sequence[int], prices: Sequence[float]) -> list[Budget]:
        return [Budget(self.nodes, min(room, self.nodes), self.nodes) for room in rooms]

    def trim(self, drafts: Sequence[Draft], context: int) -> list[Draft]:
        return list(drafts)

    def observe(self, drafts: Sequence[Draft], verdicts: Sequence[Verdict], context: int) -> None:
        pass


@dataclass(slots=True)
class Calibration:
    """Acceptance counts by (source, claimed probability): what a node's claim is worth, given that its parent was right.

    It learns from every proposal, scored or not: the tokens that came tell which nodes were right.

    weight   how many observations a drafter's own claim is worth; infinitely many where it learns from counts itself
    trusted  sources of which the same is true, where it is not of all
    forget   counts are halved beyond this many
    """

    weight: float = 4.0
    trusted: frozenset[str] = frozenset()
    forget: int = 100
    counts: dict[tuple[str, int], list[float]] = field(default_factory=dict)

    def paths(self, draft: Draft) -> NDArray[np.float64]:
        """Calibrated path probability of every node; of a probe, what its drafter says that it is worth. Shape [n]."""
        path = np.empty(len(draft))
        for i, (p, own, source) in enumerate(zip(draft.parent.tolist(), _conditional(draft), draft.source, strict=True)):
            estimate = own if draft.probe[i] else self.estimate(source, own)
            path[i] = estimate * (1.0 if p == ANCHOR else path[p])
        return path

    def estimate(self, source: str, own: float) -> float:
        """How likely a node is right whose parent is, where `source` says `own`."""
        if source in self.trusted:
            return own
        accepted, seen = self.counts.get((source, _bin(own)), (0.0, 0.0))
        return own + (accepted - seen * own) / (seen + self.weight)

    def observe(self, draft: Draft, tokens: Sequence[int]) -> None:
        """Count the nodes that `tokens`, which came behind the anchor, confirm or refute."""
        right = {ANCHOR: 0}  # nodes on the true path, with the index of the token that comes behind them
        for i, (p, t, own, source) in enumerate(
            zip(draft.parent.tolist(), draft.token.tolist(), _conditional(draft), draft.source, strict=True)
        ):
            at = right.get(p)
            if at is None or at == len(tokens):
                continue
            hit = t == tokens[at]
            if hit:
                right[i] = at + 1
            count = self.counts.setdefault((source, _bin(own)), [0.0, 0.0])
            count[0] += hit
            count[1] += 1
            if count[1] > self.forget:
                count[0], count[1] = count[0] / 2, count[1] / 2


def _bin(prob: float) -> int:
    # 0.9 / 1.0 and 0.81 / 0.9 are one claim.
    return int(prob * 10 + 1e-6)


def _conditional(draft: Draft) -> list[float]:
    """The drafter's probability of each node given its parent."""
    prob, out = draft.prob.tolist(), []
    for own, p in zip(prob, draft.parent.tolist(), strict=True):
        above = 1.0 if p == ANCHOR else prob[p]
        share = own / above if above > 0 else 0.0
        out.append(min(max(share, 0.0), 1.0) if share == share else 0.0)
    return out


@dataclass(slots=True)
class Adaptive:
    """Drafts where it pays, by counts.

    A tree is cut where expected tokens minus (tokens per unit of cost so far) x cost is largest. Proposals that are not worth scoring still
    teach the calibration, so the turn to text that can be guessed is noticed at no cost.

    Where every token of a proposal costs a forward of a draft model (`draft`, in plain steps), the drafter is told the floor below which
    one more does not pay, and is not asked for more than the balance holds. While what it proposes is not worth its cost, drafting
    included, the draft model is asked again after 1, 2, 4, … 64 steps only, and what the drafter knows without it is drafted meanwhile;
    where drafts paid, the end of a request gives the next one a fresh start.
    What must be read first is for the `ledger` to allow, which bounds what all sessions lose together.

    `balance` bounds the loss, in plain steps: it starts with `credit`, earns a share `trickle` of every step and what drafts save, pays
    what they cost, and holds `cap` at most; no draft may cost more than it holds. Where it cannot pay for a draft whose first token then
    turns out right, it earns `refill`: so n steps of text that cannot be guessed lose at most credit + n x trickle.
    """

    curve: CostCurve
    most: int = MOST_NODES
    draft: float = 0.0
    credit: float = 1.0
    cap: float = 6.0
    trickle: float = 0.01
    refill: float = 0.25
    calibration: Calibration = field(default_factory=Calibration)
    ledger: Ledger = field(default_factory=Ledger)
    tokens: float = 20.0
    cost: float = 20.0
    balance: float = field(init=False)
    _wait: int = 1
    _since: int = 0
    _asked: set[int] = field(default_factory=set)
    _tried: bool = False
    _read: float = 0.0
    _proposed: Sequence[Draft] = ()
    _without: Sequence[Draft] = ()
    _wanted: int = 0
    _context: int = 0

    def __post_init__(self) -> None:
        self.balance = self.credit

    def plan(self, rooms: Sequence[int], prices: Sequence[float]) -> list[Budget]:
        self._since += 1
        self._asked, self._read = set(), 0.0
        exact = self.calibration.weight == inf
        least = self._least(1.0 if exact else DOUBT) if len(rooms) == 1 and (exact or self.draft) else ()
        if not self.draft:
            return [Budget(self.most, min(room, self.most), least=least) for room in rooms]
        extra = self._extra(len(rooms), 16, self._context)
        one = self.draft + float(extra[16]) / 16
        dear = self.draft + float(np.max(extra[1:] / np.arange(1, 17)))  # so much holds for any number: what was drafted can be scored
        if self._since >= self._wait:
            self._ask(rooms, prices, dear)
        forwards = min(self.most, int(self._purse / dear))
        floor, estimate = self._rate * one, self.calibration.estimate
        return [
            Budget(
                self.most,
                min(room, self.most),
                floor=floor,
                least=least,
                forwards=forwards if i in self._asked else 0,
                estimate=estimate,
            )
            for i, room in enumerate(rooms)
        ]

    def _ask(self, rooms: Sequence[int], prices: Sequence[float], one: float) -> None:
        """Ask for the sessions whose text may be read, and all that are known, if a forward of the draft model can then be paid."""
        if self._purse < one:
            return
        batch = len(rooms)
        step = self.curve.price(batch, self._context)
        for i in sorted(range(batch), key=prices.__getitem__):
            price = prices[i] / step
            affordable = self.ledger.holds - self._read - price >= one
            if rooms[i] > 0 and affordable and self.ledger.invests(price, rooms[i], batch):
                self._read += price
                self._asked.add(i)

    def _least(self, share: float) -> list[float]:
        """How likely the n-th likeliest node must be: from there on it takes rows at the least price that any number of them has."""
        return [share * self._rate * price for price in _cheapest(self.curve, self.most, self._context // NEAR * NEAR)]

    @property
    def _purse(self) -> float:
        """What a draft may cost."""
        return min(self.balance, self.ledger.holds - self._read) if self.draft else self.balance

    @property
    def _rate(self) -> float:
        """Tokens that a plain step's cost brings."""
        return max(1.0, self.tokens / self.cost)

    def _made(self, context: int) -> float:
        """What the proposals cost to make, in plain steps of the batch, with what was read for them."""
        spent, batch = sum(draft.cost for draft in self._proposed), len(self._proposed)
        return spent / self.curve.price(batch, context) if spent else 0.0

    def _drafting(self, context: int) -> float:
        """The same without the reading, which is booked apart."""
        return max(0.0, self._made(context) - self._read)

    def trim(self, drafts: Sequence[Draft], context: int) -> list[Draft]:
        self._proposed, self._without, self._wanted, self._context = drafts, (), 0, context
        self._read = min(self._read, self._made(context))  # a drafter that did without its draft model has read nothing
        if not any(map(len, drafts)):
            if self._drafting(context):  # it cost forwards of the draft model and brought nothing
                self._since, self._wait = 0, min(64, 2 * self._wait)
            return list(drafts)
        paths = [self.calibration.paths(draft) for draft in drafts]
        self._wanted, worth, extra = self._best(paths, context)
        spent = self._drafting(context)
        if self._asked:  # what is guessed where the draft model was not asked tells nothing of it
            pays = self._wanted > 0 and worth > self._rate * spent
            self._since, self._wait = 0, 1 if pays else min(64, 2 * self._wait)
            free = [draft.free or (EMPTY if draft.cost else draft) for draft in drafts]
            ways = [self.calibration.paths(draft) for draft in free]
            n = self._best(ways, context)[0]
            self._without = [_likeliest(draft, way, n) for draft, way in zip(free, ways, strict=True)]
        affordable = max(0, int(np.searchsorted(extra, self._purse - spent, side="right")) - 1)
        return [_likeliest(draft, path, min(self._wanted, affordable)) for draft, path in zip(drafts, paths, strict=True)]

    def _best(self, paths: Sequence[NDArray[np.float64]], context: int) -> tuple[int, float, NDArray[np.float64]]:
        """How many nodes of each draft are worth scoring, what that brings beyond plain steps, in tokens, and what 0, 1, … nodes cost."""
        most = max(map(len, paths))
        gain = np.zeros(most + 1)
        for path in paths:
            best = np.sort(path)[::-1]
            gain[1 : len(best) + 1] += np.cumsum(best)
            gain[len(best) + 1 :] += best.sum()
        extra = self._extra(len(paths), most, context)
        worth = gain / len(paths) - self._rate * extra
        wanted = int(np.argmax(worth))
        return wanted, float(worth[wanted]), extra

    def observe(self, drafts: Sequence[Draft], verdicts: Sequence[Verdict], context: int) -> None:
        batch, nodes = len(drafts), max(map(len, drafts), default=0)
        extra = float(self._extra(batch, nodes, context)[nodes])
        accepted = sum(verdict.accepted for verdict in verdicts) / batch
        spent = self._drafting(context)
        saved = accepted - extra - spent
        earned = self.trickle + saved
        if self._wanted and not nodes:
            hits = sum(v.tokens[0] in d.token[d.parent == ANCHOR] for d, v in zip(self._proposed, verdicts, strict=True))
            earned += self.refill * hits / batch
        self.balance = min(self.cap, self.balance + earned)
        if self.draft:
            self._account(saved, extra, drafts, verdicts, context)
        self.tokens = 0.99 * self.tokens + 1.0 + accepted
        self.cost = 0.99 * self.cost + 1.0 + extra + spent
        for draft, verdict in zip(self._proposed, verdicts, strict=True):
            self.calibration.observe(draft, verdict.tokens)
            if draft.free is not None:
                self.calibration.observe(draft.free, verdict.tokens)

    def _account(self, saved: float, extra: float, drafts: Sequence[Draft], verdicts: Sequence[Verdict], context: int) -> None:
        """Tell the ledger what this step brought, and what it would have brought without the draft model.

        The silence of the draft model that bad drafts lead to counts for them, to the end of the output.
        """
        ledger, batch = self.ledger, len(verdicts)
        ledger.book(saved, self._read)
        asked = self._asked or (range(batch) if self._tried else ())
        if asked:
            kept = sum(verdicts[i].accepted for i in asked) / len(asked)
            ledger.gain.learn(kept - extra - self._drafting(context) * batch / len(asked), 1.0 + kept)
        free = [self._without[i] if i in self._asked and self._without else draft for i, draft in enumerate(drafts)]
        kept = sum(len(draft.along(verdict.tokens)) for draft, verdict in zip(free, verdicts, strict=True)) / batch
        nodes = max(map(len, free))
        ledger.free.learn(kept - float(self._extra(batch, nodes, context)[nodes]), 1.0 + kept)
        ended = sum(verdict.finish is not None for verdict in verdicts)
        ledger.hear(sum(len(verdict.tokens) for verdict in verdicts), ended)
        self._tried = (self._tried or bool(self._asked)) and not ended
        if ended and ledger.gain.value > ledger.free.value:
            self._wait, self.balance = 1, max(self.balance, self.credit)

    def _extra(self, batch: int, nodes: int, context: int) -> NDArray[np.float64]:
        """What 0…nodes nodes a session cost beyond a plain step, in plain steps. Rows of a batch are padded to one width."""
        table = self.curve.near(batch * (nodes + 1), context)
        extra: NDArray[np.float64] = table[batch::batch] / table[batch] - 1.0
        return extra


def _likeliest(draft: Draft, path: NDArray[np.float64], n: int) -> Draft:
    """The n nodes with the likeliest paths."""
    keep = np.argsort(-path, kind="stable")[:n]  # stable, and a parent is never less likely than its child: ancestors come along
    return draft.take(sorted(keep.tolist())) if len(keep) else EMPTY


@lru_cache(512)
def _table(curve: CostCurve, most: int, context: int) -> NDArray[np.float64]:
    table = curve.table(most, context)
    table.flags.writeable = False
    return table


@lru_cache(256)
def _cheapest(curve: CostCurve, most: int, context: int) -> list[float]:
    """The least that a row costs from each row on: of the n-th to any later one, the mean price of these. In plain steps."""
    cost = curve.table(most + 1, context)[1:] / curve.table(1, context)[1]
    return [float(np.min((cost[n:] - cost[n - 1]) / np.arange(1, most + 2 - n))) for n in range(1, most + 1)]
