"""Whether a draft model should read: an investment, which must have been earned. A function of counts, as all of the budget is."""

from __future__ import annotations

from dataclasses import dataclass, field

CREDIT = 10.0
"""Plain steps that an engine may lose before drafts have earned anything: the reading of an ordinary prompt by a draft model."""


RECENT = 256.0
"""How many tokens the means of what drafts save look back."""


@dataclass(slots=True)
class Mean:
    """What drafts saved in recent tokens."""

    saved: float
    tokens: float

    @property
    def value(self) -> float:
        """What they saved a token, in plain steps."""
        return self.saved / self.tokens

    def learn(self, saved: float, tokens: float) -> None:
        """What drafts saved in a session while it said `tokens`."""
        keep = (1.0 - 1.0 / RECENT) ** tokens
        self.saved, self.tokens = keep * self.saved + saved, keep * self.tokens + tokens


@dataclass(slots=True)
class Ledger:
    """What drafting saved and spent in all sessions of an engine, in plain steps, and what a draft model may read for it.

    Before its first draft a draft model reads the prompt; after a silence, what was said meanwhile. That pays over the rest of an output
    or not at all. It is allowed where what drafts bring for a token, beyond what they bring without the draft model, times the tokens that
    are to come, is more than the price; failing that as a trial, where a share `trickle` of the steps since drafts last paid has earned it.
    The limit is what the ledger `holds`: `credit`, `trickle` for every step and all that drafts saved, less all that they cost. So n steps
    lose at most credit + n x trickle more than drafts ever earned, whatever the texts are and however they are cut into requests.

    gain    what drafts saved a token lately in sessions for which the draft model was asked; begins with a guess, so that it is
    free    what they save a token without it
    said    output tokens of all sessions, `ended` of which came to an end; both begin with a guess
    """

    credit: float = CREDIT
    trickle: float = 0.01
    holds: float = field(init=False)
    spare: float = 0.0
    gain: Mean = field(default_factory=lambda: Mean(1.0, 4.0))
    free: Mean = field(default_factory=lambda: Mean(0.0, 4.0))
    said: float = 128.0
    ended: float = 1.0

    def __post_init__(self) -> None:
        self.holds = self.credit

    def invests(self, price: float, room: int, batch: int) -> bool:
        """Whether to read, for `price`, the text of one of `batch` sessions, which may say `room` more tokens. A trial is paid for."""
        length = min(room, self.said / self.ended)
        if price <= 0.0:
            return True
        if length * (self.gain.value - self.free.value) > price * batch:
            self.spare = 0.0
            return True
        if self.spare >= price:
            self.spare -= price
            return True
        return False

    def book(self, saved: float, read: float) -> None:
        """One step: what drafts saved, less what making and scoring them cost; and what reading cost."""
        self.holds += self.trickle + saved - read
        self.spare += self.trickle

    def hear(self, tokens: int, ended: int) -> None:
        """Output tokens, and how many sessions they ended."""
        self.said += tokens
        self.ended += ended
