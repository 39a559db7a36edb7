"""The one event: everything outside the loop (streaming, statistics, traces, benchmarks) only consumes steps."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from echodraft.core.accept import Verdict
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft

if TYPE_CHECKING:
    from echodraft.core.session import Session


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds that the phases of a step took, for all of its sessions together.

    propose  all that drafting takes: planning, asking the drafter, and what both learned from the step
    commit   cache rows that stay, and what the drafter needs brought to the host
    """

    propose: float
    score: float
    accept: float
    commit: float

    @property
    def total(self) -> float:
        return self.propose + self.score + self.accept + self.commit


@dataclass(frozen=True, slots=True)
class Step:
    """One session's part of one forward.

    proposed  nodes that the drafter proposed; `draft` is what of it was scored
    fed       context tokens fed before the tree, the anchor included
    prefill   the forward that read a prompt (or a continuation); it has no draft and is not counted as a step
    batch     sessions that shared the forward
    budget    what the drafter was allowed to propose; None for a prefill
    hidden    float16 [fed + n, width] and
    top_k     int64 [n + 1, k], where the drafter needs them; k is its `top_k`. A replay gives NaN and -1 where the recording knows nothing
    """

    session: Session
    proposed: int
    draft: Draft
    verdict: Verdict
    fed: int
    prefill: bool
    batch: int
    times: Times
    hidden: NDArray[np.float16] | None = None
    top_k: NDArray[np.int64] | None = None
    budget: Budget | None = None
