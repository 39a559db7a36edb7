"""Whether a draft model should read: an investment, which must have been earned. A function of counts, as all of the budget is."""

from __future__ import annotations

from dataclasses import dataclass, field

CREDIT = 10.0
"""Plain steps that an engine may lose before drafts have earned anything: the reading of an ordinary prompt by a draft model."""


@dataclass(slots=True)
class Ledger:
    """What drafting saved and spent in all sessions of an engine, in plain steps, and what a draft model may read for it.

    Before its first draft a draft model reads the prompt; after a silence, what was said meanwhile. That pays over the rest of an output
    or not at all. It is allowed where what drafts bring for a token, times the tokens that are to come, is more than the price; failing
    that as a trial, where a share `trickle` of the steps since drafts last paid has earned it. The limit is what the ledger `holds`:
    `credit`, `trickle` for every step and all that drafts saved, less all that they cost. So n steps lose at most credit + n x trickle
    more than drafts ever earned, whatever the texts are and however they are cut into requests.

    recent  how many tokens the mean of what drafts bring looks back
    gain    what drafts saved in recent `tokens` tokens of sessions that were drafted for; both begin with a guess, so that one is tried
    said    output tokens of all sessions, `ended` of which came to an end; both begin with a guess
    """

    credit: float = CREDIT
    trickle: float = 0.01
    recent: float = 256.0
    holds: float = field(init=False)
    spare: float = 0.0
    gain: float = 1.0
    tokens: float = 4.0
    said: float = 128.0
    ended: float = 1.0

    def __post_init__(self) -> None:
        self.holds = self.credit

    def invests(self, price: float, room: int, batch: int) -> bool:
        """Whether to read, for `price`, the text of one of `batch` sessions, which may say `room` more tokens. A trial is paid for."""
        length = min(room, self.said / self.ended)
        if price <= 0.0:
            return True
        if length * self.gain / self.tokens > price * batch:
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

    def learn(self, saved: float, tokens: float) -> None:
        """What drafts saved in a session that was drafted for, while it said `tokens`."""
        keep = (1.0 - 1.0 / self.recent) ** tokens
        self.gain = keep * self.gain + saved
        self.tokens = keep * self.tokens + tokens

    def hear(self, tokens: int, ended: int) -> None:
        """Output tokens, and how many sessions they ended."""
        self.said += tokens
        self.ended += ended
