"""The state of one request."""

from __future__ import annotations

from dataclasses import dataclass

from echodraft.core.accept import Stops
from echodraft.core.sampling import Rule, Sampler


@dataclass(eq=False, slots=True, weakref_slot=True)
class Session:
    """One sequence: `tokens` is prompt and output; the first `cached` of them are in the backend's slot, the rest is pending.

    The last pending token is the anchor. A finished session has `finish` set and may be continued with `Engine.extend`.

    at_once  up to this many pending tokens go with a draft in one forward; more are read as context first
    follows  how many tokens are another session's text; what this one, a draft model's, says behind them is a guess. None: all is its own
    opening  seconds that the drafter took when the session began; its first step's share of drafting
    """

    id: int
    tenant: str
    tokens: list[int]
    prompt_length: int
    sampler: Sampler
    stops: Stops
    slot: int
    cached: int = 0
    finish: str | None = None
    at_once: int = 1
    opening: float = 0.0
    follows: int | None = None

    @property
    def pending(self) -> list[int]:
        return self.tokens[self.cached :]

    @property
    def settled(self) -> int:
        """How many tokens stay, unless the request itself is rewound."""
        return len(self.tokens) if self.follows is None else min(self.follows, len(self.tokens))

    @property
    def output(self) -> list[int]:
        return self.tokens[self.prompt_length :]

    @property
    def room(self) -> int:
        """Output tokens that the limits still allow."""
        return self.stops.room(self.tokens, self.prompt_length)

    @property
    def rule(self) -> Rule:
        return self.sampler.rule
