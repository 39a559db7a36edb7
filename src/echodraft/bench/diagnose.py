"""Why a lexical drafter misses what was said before, and what a search by hidden states would have found. From a recording."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.bench.recording import Recording
from echodraft.bench.replay import retrace
from echodraft.core.backend import Need
from echodraft.core.budget import Budget, Fixed
from echodraft.core.common import common
from echodraft.core.draft import ANCHOR, EMPTY, Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.drafters.suffix import Suffix
from echodraft.errors import UsageError
from echodraft.stores.hidden import HiddenStore

SPANS = (1, 2, 4, 8)
"""How many of the next true tokens must occur in the pool, in a row, to be called present."""
WINDOW = range(-3, 4)
"""Positions around a break at which the length of the lexical match is told."""
AHEAD = 48
BEHIND = 24


@dataclass(slots=True)
class Position:
    """One output token and what was known of it before it came.

    present   by span: whether the next tokens occur in a row in earlier outputs, or earlier in this one; False where fewer are left
    missed    the lexical draft had no first token that was right
    found     the next tokens of the nearest keys hold the right one
    verbatim  how many true tokens the best neighbour copies, from this one on
    match     length of the lexical match
    """

    request: int
    at: int
    present: dict[int, bool]
    missed: bool
    found: bool
    verbatim: int
    match: int


@dataclass(slots=True)
class Case:
    """A gap to look at: ids of what came before and of what came, what each side had for the next token, the nearest keys."""

    position: Position
    before: list[int]
    truth: list[int]
    lexical: list[tuple[int, float]]
    neighbours: list[tuple[float, int, list[int]]]  # cosine, its own token where ours was the anchor, what followed it


@dataclass(slots=True)
class Diagnosis:
    positions: list[Position] = field(default_factory=list)
    cases: list[Case] = field(default_factory=list)
    interrupted: bool = False

    def table(self) -> list[dict[str, Any]]:
        """One row a span. Shares: present and gap of all positions with so many tokens left, recovered of the gap."""
        rows = []
        for span in SPANS:
            known = [p for p in self.positions if span in p.present]
            present = [p for p in known if p.present[span]]
            gap = [p for p in present if p.missed]
            found = [p for p in gap if p.found]
            rows.append(
                {
                    "span": span,
                    "positions": len(known),
                    "present": _share(len(present), len(known)),
                    "missed": _share(sum(p.missed for p in known), len(known)),
                    "gap": _share(len(gap), len(known)),
                    "gap_positions": len(gap),
                    "recovered": _share(len(found), len(gap)),
                    "verbatim": float(np.mean([p.verbatim for p in found])) if found else None,
                }
            )
        return rows

    def cliff(self, span: int = 4) -> dict[int, float | None]:
        """Median length of the lexical match around the gaps: by positions before and behind them."""
        by_place = {(p.request, p.at): p.match for p in self.positions}
        gaps = [p for p in self.positions if p.missed and p.present.get(span)]
        out: dict[int, float | None] = {}
        for shift in WINDOW:
            lengths = [by_place[p.request, p.at + shift] for p in gaps if (p.request, p.at + shift) in by_place]
            out[shift] = float(np.median(lengths)) if lengths else None
        return out


def _share(part: int, whole: int) -> float | None:
    return part / whole if whole else None


class _Watcher(Drafter):
    """Proposes nothing: looks at what would be proposed, token for token, and compares it with what comes."""

    name = "diagnose"
    needs = frozenset({Need.HIDDEN})

    def __init__(self, k: int, most_cases: int) -> None:
        self.k, self.most_cases = k, most_cases
        # As in the table of docs/oilbird.md: of its settings the one that drafts furthest.
        # No floor beyond the store's own, since the semantic side has none.
        self.lexical = Suffix(factor=4.0, offset=32.0, min_prob=1 / 16)
        self.keys, self.pool = HiddenStore(), {span: set[tuple[int, ...]]() for span in SPANS}
        self.found = Diagnosis()
        self.request, self.truth, self.begin, self.seq = -1, list[int](), 0, 0
        self.state: NDArray[Any] | None = None

    def start(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        self.request, self.truth, self.begin = self.request + 1, [*prompt, *output], len(prompt)
        self.seq, self.state = self.keys.begin(), None

    def open(self, session: Context) -> None:
        self.lexical.open(session)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        (session,) = sessions
        n, truth = len(session.tokens), self.truth
        (draft,) = self.lexical.propose(sessions, [Budget(64, 64, self.k)])
        first = [(int(t), float(p)) for t, p, parent in zip(draft.token, draft.prob, draft.parent, strict=True) if parent == ANCHOR]
        assert self.state is not None
        (near,) = self.keys.search(self.state[None], self.k)
        rows = self.keys.follow(near.row, AHEAD + 1)
        copies: list[list[int]] = [self.keys.token(row[row >= 0]).tolist() for row in rows]
        verbatim = max((common(copy[1:], truth[n:]) for copy in copies), default=0)
        position = Position(
            request=self.request,
            at=n - self.begin,
            present={span: tuple(truth[n : n + span]) in self.pool[span] for span in SPANS if n + span <= len(truth)},
            missed=all(token != truth[n] for token, _ in first),
            found=verbatim > 0,
            verbatim=verbatim,
            match=self._match(session.tokens),
        )
        self.found.positions.append(position)
        if position.missed and position.present.get(4) and len(self.found.cases) < self.most_cases:
            neighbours = [(float(c), copy[0], copy[1:13]) for c, copy in zip(near.cosine, copies, strict=True)]
            self.found.cases.append(Case(position, truth[max(0, n - BEHIND) : n], truth[n : n + 12], first, neighbours))
        return [EMPTY]

    def _match(self, tokens: Sequence[int]) -> int:
        """Of how many of the last tokens the best draft is the continuation; a longer match may exist and promise less."""
        (known,) = self.lexical._known.values()
        stores = [store for store in (known.own, known.shared) if store.tokens]
        return max((store.speculate(tokens[-store.depth + 1 :], 64, factor=4.0, offset=32.0).match for store in stores), default=0)

    def observe(self, steps: Sequence[Step]) -> None:
        self.lexical.observe(steps)
        for step in steps:
            assert step.hidden is not None
            self.state = step.hidden[step.fed - 1]
            tokens = list(step.session.tokens)
            self.keys.append(self.seq, tokens[-1:], self.state[None])
            for span in SPANS:
                if len(tokens) - self.begin >= span:
                    self.pool[span].add(tuple(tokens[-span:]))

    def close(self, session: Context) -> None:
        self.lexical.close(session)
        self.keys.end(self.seq, 0.0)


def diagnose(
    recording: Recording, k: int = 8, limit: int | None = None, most_cases: int = 200, told: Callable[[], None] = lambda: None
) -> Diagnosis:
    """Go through a recording token for token, memory carried. `told` hears of every request. Raises `UsageError` without hidden states.

    The lexical side is the tree of `suffix` with `k` children at most, the semantic side the tokens that follow the anchor's place behind
    the `k` nearest keys: equal branching. Both know all earlier outputs and this one so far; the lexical side also knows the prompt. The
    first output token is left out, since the state that produced its anchor belongs to the prompt. Ctrl-C ends it early.
    """
    if not recording.width:
        raise UsageError(f"{recording.folder} holds no hidden states. Record without --no-hidden.")
    watcher = _Watcher(k, most_cases)
    trajectories = [recording.trajectory(entry) for entry in recording.entries[:limit]]
    if not trajectories:
        raise UsageError(f"{recording.folder} holds no finished request yet.")
    engine = Engine(recording.backend(trajectories), watcher, Fixed(1))
    try:
        for entry, trajectory in zip(recording.entries, trajectories, strict=False):
            watcher.start(trajectory.prompt, trajectory.output)
            for _ in retrace(engine, recording, entry, trajectory):
                pass
            told()
    except KeyboardInterrupt:
        watcher.found.interrupted = True
    return watcher.found
