"""No drafting: every step is a plain step."""

from __future__ import annotations

from collections.abc import Sequence

from echodraft.core.budget import Budget
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.drafter import Context, Drafter


class NoDrafter(Drafter):
    """Plain autoregressive decoding by the same engine: what every speed-up is measured against.

    Needs: nothing. Knobs: none.
    """

    name = "none"

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [EMPTY] * len(sessions)
