"""The seam to a model: score a token tree in one forward."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum, IntEnum
from typing import Protocol

from echodraft.core.draft import EMPTY, Draft
from echodraft.core.scores import Scores


class Need(Enum):
    """What a drafter may ask for beyond committed tokens, and what a backend may offer."""

    TOP_K = "top-k"  # the target's best ids at the anchor and at every verified node, `Drafter.top_k` of each
    HIDDEN = "hidden"  # final-norm hidden states of committed tokens
    MODEL = "model"  # a draft model
    TEXT = "text"  # decoded text of tokens


class Shape(IntEnum):
    """The largest draft that a backend can hold."""

    NONE = 0  # one token at a time: recurrent state cannot be rolled back
    CHAIN = 1  # no siblings: positions follow slots
    TREE = 2


@dataclass(frozen=True, slots=True)
class Request:
    """One row of a forward: `pending` tokens (not yet cached; the last one is the anchor), then the tree.

    `logits=False` asks for no scores: a prefill chunk that is not the last; `ahead` more context tokens follow in later chunks.
    """

    slot: int
    pending: Sequence[int]
    draft: Draft = EMPTY
    logits: bool = True
    ahead: int = 0


class Backend(Protocol):
    """Holds cached sequences in slots and scores trees behind them."""

    offers: frozenset[Need]
    shape: Shape
    vocab_size: int
    context: int | None
    chunk: int
    """The most pending tokens that one forward should take."""

    def open(self) -> int:
        """A new, empty slot."""
        ...

    def room(self, slot: int, length: int) -> int:
        """How deep a tree may be behind `length` tokens of context (anchor included) in one forward."""
        ...

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[Scores]:
        """One forward over all requests. Nothing is committed."""
        ...

    def commit(self, slot: int, path: Sequence[int]) -> None:
        """Keep the last request's pending tokens and the nodes of `path` (ascending depth); the rest is forgotten."""
        ...

    def rewind(self, slot: int, length: int) -> int:
        """Forget cached tokens beyond `length`; returns the length really kept, which may be smaller."""
        ...

    def close(self, slot: int) -> None:
        """Give the slot back."""
        ...
