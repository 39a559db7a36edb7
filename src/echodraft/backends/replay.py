"""A recording as a model: greedy trajectories that were written down once, scored again without any model. NumPy only."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from echodraft.backends.greedy import GreedyScores
from echodraft.core.backend import Need, Request, Shape
from echodraft.core.draft import ANCHOR
from echodraft.core.sampling import Rule
from echodraft.errors import Unsupported, UsageError

UNKNOWN = -1
"""The id where the recording does not say what the model would have said."""


@dataclass(frozen=True, slots=True)
class Trajectory:
    """What a model said to one prompt, greedily.

    prompt  ids, all of them
    output  ids
    top     int32 [output, k]: the best ids of the rows that predicted the output, best first
    states  reads the hidden states, float16 [prompt + output - 1, width]: row p is the state at token p; None where there are none
    """

    prompt: list[int]
    output: list[int]
    top: NDArray[np.int32]
    states: Callable[[], NDArray[np.float16]] | None = None


@dataclass(slots=True)
class Slot:
    """One sequence: how many of its tokens are cached, and the trajectory that it follows once its prompt was read."""

    cached: int = 0
    path: Sequence[int] = ()
    trajectory: Trajectory | None = None
    states: NDArray[np.float16] | None = None


@dataclass(frozen=True, slots=True)
class ReplayScores(GreedyScores):
    """What the recording knows of one forward.

    at  the position in the trajectory of the anchor and of every node, -1 for nodes off the path. Length n + 1
    """

    held: ClassVar[str] = "A recording holds the model's greedy choices, not its logits."
    slot: Slot
    start: int
    at: list[int]

    def argmax(self) -> Sequence[int]:
        path, last = self.slot.path, len(self.slot.path) - 1
        return [path[p + 1] if 0 <= p < last else UNKNOWN for p in self.at]

    def top_k(self, k: int) -> NDArray[np.int64]:
        """The best ids where they were recorded, -1 elsewhere. Shape [n + 1, k], or as many as were recorded."""
        trajectory = self.slot.trajectory
        assert trajectory is not None
        most, first = min(k, trajectory.top.shape[1]), len(trajectory.prompt) - 1
        found: NDArray[np.int64] = np.full((len(self.at), most), UNKNOWN, dtype=np.int64)
        for row, p in enumerate(self.at):
            if 0 <= p - first < len(trajectory.top):
                found[row] = trajectory.top[p - first, :most]
        return found

    def hidden(self) -> NDArray[np.float16]:
        """The recorded states of the fed context and of nodes on the path; NaN off it. Shape [fed + n, width]."""
        states, fed = self.slot.states, self.at[0] + 1 - self.start
        assert states is not None
        found = np.full((fed + len(self.at) - 1, states.shape[1]), np.nan, dtype=np.float16)
        found[:fed] = states[self.start : self.start + fed]
        for row, p in enumerate(self.at[1:], fed):
            if 0 <= p < len(states):
                found[row] = states[p]
        return found

    def best(self, i: int, rule: Rule, position: int, k: int) -> NoReturn:
        self.refuse()


class ReplayBackend:
    """Goes through recorded trajectories as the model went.

    On the path all is as in the live run: the same choices, best ids and hidden states. Off the path nothing is known, so a row there has
    no best ids (-1) and no hidden state (NaN). A prompt that was recorded several times is replayed in the order of the recording.

    vocab_size, context  of the recorded model
    """

    shape = Shape.TREE
    chunk = 1 << 30  # prompts come whole, so that they are known by what they are

    def __init__(self, trajectories: Sequence[Trajectory], vocab_size: int, context: int | None = None) -> None:
        self.vocab_size, self.context = vocab_size, context
        hidden = bool(trajectories) and all(trajectory.states is not None for trajectory in trajectories)
        self.offers = frozenset({Need.TOP_K, Need.HIDDEN}) if hidden else frozenset({Need.TOP_K})
        self._by_prompt: dict[tuple[int, ...], deque[Trajectory]] = defaultdict(deque)
        for trajectory in trajectories:
            self._by_prompt[tuple(trajectory.prompt)].append(trajectory)
        self._slots: dict[int, Slot] = {}
        self._last: dict[int, Request] = {}
        self.forwards = 0

    def open(self) -> int:
        slot = max(self._slots, default=-1) + 1
        self._slots[slot] = Slot()
        return slot

    def room(self, slot: int, length: int) -> int:
        return 1 << 30 if self.context is None else self.context - length

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ReplayScores]:
        self.forwards += 1
        return [self._score(request, Need.HIDDEN in want) for request in requests]

    def _score(self, request: Request, hidden: bool) -> ReplayScores:
        slot, pending = self._slots[request.slot], list(request.pending)
        if slot.trajectory is None:
            self._follow(slot, pending)
        if hidden and slot.states is None and slot.trajectory is not None and slot.trajectory.states is not None:
            slot.states = slot.trajectory.states()
        anchor = slot.cached + len(pending) - 1
        if list(slot.path[slot.cached : anchor + 1]) != pending:
            raise Unsupported("The session left its recording. A replay reads recorded prompts and goes on greedily, nothing else.")
        self._last[request.slot] = request
        path, last = slot.path, len(slot.path) - 1
        at = [anchor]
        for token, parent in zip(request.draft.token.tolist(), request.draft.parent.tolist(), strict=True):
            p = at[parent - ANCHOR]
            at.append(p + 1 if 0 <= p < last and path[p + 1] == token else UNKNOWN)
        return ReplayScores(slot, slot.cached, at)

    def _follow(self, slot: Slot, prompt: list[int]) -> None:
        """Find the trajectory of a prompt. Raises `UsageError` where there is none."""
        known = self._by_prompt.get(tuple(prompt))
        if not known:
            raise UsageError(f"This prompt of {len(prompt)} tokens is not in the recording. Record its suite first: echodraft record.")
        slot.trajectory = known[0]
        known.rotate(-1)
        slot.path = [*slot.trajectory.prompt, *slot.trajectory.output]

    def commit(self, slot: int, path: Sequence[int]) -> None:
        self._slots[slot].cached += len(self._last.pop(slot).pending) + len(path)

    def rewind(self, slot: int, length: int) -> int:
        held = self._slots[slot]
        held.cached = min(held.cached, length)
        return held.cached

    def close(self, slot: int) -> None:
        del self._slots[slot]
        self._last.pop(slot, None)
