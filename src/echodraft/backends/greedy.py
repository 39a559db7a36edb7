"""Scores of which only the greedy choices are kept."""

from __future__ import annotations

from typing import Any, ClassVar, NoReturn

from echodraft.core.sampling import Rule
from echodraft.errors import Unsupported


class GreedyScores:
    """Refuses what needs logits; `held` says what is kept instead."""

    __slots__ = ()
    held: ClassVar[str]

    def row(self, i: int) -> NoReturn:
        self.refuse()

    def pick(self, values: Any, rule: Rule, position: int) -> NoReturn:
        self.refuse()

    def draw(self, i: int, rule: Rule, position: int) -> NoReturn:
        self.refuse()

    def refuse(self) -> NoReturn:
        raise Unsupported(f"{self.held} Decode greedily and without processors.")
