"""The seam to a method: guess a tree behind the anchor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Literal, Protocol

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.sampling import Rule
from echodraft.core.step import Step


class Context(Protocol):
    """All that a drafter may know of a session."""

    @property
    def id(self) -> int: ...
    @property
    def tenant(self) -> str: ...
    @property
    def tokens(self) -> Sequence[int]: ...
    @property
    def prompt_length(self) -> int: ...
    @property
    def settled(self) -> int:
        """How many tokens stay. Behind them a draft model, drafted for in a cascade, guesses: no more is worth remembering."""
        ...

    @property
    def rule(self) -> Rule: ...


class Words(Protocol):
    """The target's text, for drafters that read it."""

    eos: frozenset[int]

    @property
    def fingerprint(self) -> str:
        """Of the vocabulary: equal for texts that give the same ids. "" = not known."""
        ...

    def encode(self, text: str) -> list[int]:
        """Ids of raw text, with the begin token if the model wants one."""
        ...

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids` without special tokens."""
        ...

    def split(self, text: str) -> list[int]:
        """Ids of text that goes on: no begin token; special tokens are recognised."""
        ...

    def spell(self, ids: Sequence[int]) -> str:
        """Text of `ids`, special tokens written out."""
        ...


class Drafter:
    """Base of all drafters. It may be wrong in any way; the output stays right.

    It sees sessions as token ids and steps as what was drafted and emitted, so a token-only drafter can run inside another engine.
    Override `propose`; the rest has defaults.
    """

    name = "drafter"
    needs: frozenset[Need] = frozenset()
    top_k = 8
    """How many of the best ids `step.top_k` should have in a row; a backend that keeps fewer gives what it has."""
    replay: ClassVar[Literal["exact", "approximate", "live"] | None] = None
    """What a replay of recorded outputs is worth, where nothing is known of rejected nodes: their best ids are -1, their states NaN.
    "exact": it never looks at them. "approximate": it learns from them. "live": it cannot do without them. None: "approximate" if it
    needs the best ids, else "exact"."""
    calibrated = False
    """Whether what it says of its nodes are chances by its own counts, which the budget then takes as they are."""
    trusted: frozenset[str] = frozenset()
    """The sources of which that is true, where it is not of all."""
    cost = 0.0
    """What one more token of a draft costs, in plain steps of the target: a forward of a draft model, if there is one. A drafter with a
    cost heeds `Budget.forwards`: at 0 it proposes what costs nothing."""

    def spare(self, missing: frozenset[Need]) -> bool:
        """Asked before anything else where a backend does not offer `missing`: whether the drafter, which needs them, goes on without."""
        return False

    def open(self, session: Context) -> None:
        """A session begins; its prompt is in `session.tokens`."""

    def price(self, session: Context) -> float:
        """What a draft model has to read of the session before its next draft, in plain steps of the target; `Draft.cost` has it, too."""
        return 0.0

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        """One draft per session, each within its budget; more is cut off."""
        raise NotImplementedError

    def observe(self, steps: Sequence[Step]) -> None:
        """What came of it, prefill included. `session.tokens` holds the emitted tokens already."""

    def rewind(self, session: Context, length: int) -> None:
        """Tokens beyond `length` are no longer part of the session."""

    def close(self, session: Context) -> None:
        """The session is over; forget its state."""

    def report(self) -> dict[str, float]:
        """Counts of its own since it was made, for people and programs; most drafters have none."""
        return {}
