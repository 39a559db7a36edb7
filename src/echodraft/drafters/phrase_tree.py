"""Trees of phrases: what a pool holds behind a token, and behind the tokens of a draft."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.fill import Child, fill
from echodraft.drafters.lookahead import Known, Lookahead
from echodraft.memory import Memory
from echodraft.stores.phrases import Phrase, PhrasePool

SOURCE = "phrase"
BESIDE = -1


class Place(NamedTuple):
    """A node of the tree: its token, how many tokens of the trunk lead to it (or `BESIDE` the trunk), what of phrases goes on here."""

    token: int
    at: int
    going: tuple[Phrase, ...] = ()


@dataclass(slots=True)
class PhraseTree:
    """A trunk with a pool's phrases, those that begin alike merged, filled best first.

    trunk   tokens that are drafted already, and
    probs   the chance of each, given those before it; with no trunk phrases follow the anchor
    source  who drafted the trunk
    k       phrases that are looked up for one token
    beta    tokens of a phrase, its key included
    ends    tokens behind which nothing is looked up
    branch  look up at every node of the trunk, and where a phrase ends; else behind the trunk alone, as published
    asked   the phrases that were found, by the number of trunk tokens before them

    What the trunk leaves open at a node its phrases share as their counts claim.
    """

    pool: PhrasePool
    k: int
    beta: int
    trunk: Sequence[int] = ()
    probs: Sequence[float] = ()
    source: str = ""
    ends: frozenset[int] = frozenset()
    branch: bool = False
    asked: dict[int, list[Phrase]] = field(default_factory=dict)

    def draft(self, anchor: int, budget: Budget) -> Draft:
        """The tree behind `anchor`."""
        return fill(budget, Place(anchor, 0), self._children)

    def _children(self, place: Place) -> list[Child[Place]]:
        going = [*place.going, *self._look(place)]
        found: dict[int, Child[Place]] = {}
        left = 1.0
        if 0 <= place.at < len(self.trunk):
            token, prob = self.trunk[place.at], self.probs[place.at]
            found[token] = Child(token, prob, self.source, Place(token, place.at + 1, _behind(going, token)))
            left -= prob
        share = min(1.0, left / sum(phrase.chance for phrase in going)) if going else 0.0
        for phrase in going:
            token = phrase.tokens[0]
            if token not in found:
                found[token] = Child(token, phrase.chance * share, SOURCE, Place(token, BESIDE, _behind(going, token)))
        return sorted(found.values(), key=lambda child: -child.prob)

    def _look(self, place: Place) -> list[Phrase]:
        """Phrases that begin with the token of a place."""
        wanted = place.at == len(self.trunk) or (self.branch and (place.at != BESIDE or not place.going))
        if not wanted or not self.k or place.token in self.ends:
            return []
        found = [Phrase(phrase.tokens[: self.beta - 1], phrase.chance) for phrase in self.pool.best(place.token, self.k)]
        if place.at != BESIDE:
            self.asked[place.at] = found
        return found


def _behind(going: Sequence[Phrase], token: int) -> tuple[Phrase, ...]:
    """What is left of the phrases that go on with a token."""
    return tuple(Phrase(p.tokens[1:], p.chance) for p in going if p.tokens[0] == token and len(p.tokens) > 1)


class Phrases(Drafter):
    """Drafts for a draft model what the tenant's pool holds, phrase behind phrase: the draft model says what of it is its own text.

    pools  the pool of a tenant
    k      phrases of one token
    beta   tokens of a phrase, its key included
    """

    name = "phrases"

    def __init__(self, pools: Callable[[str], PhrasePool], k: int, beta: int) -> None:
        self.pools, self.k, self.beta = pools, k, beta

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [
            PhraseTree(self.pools(session.tenant), self.k, self.beta, branch=True).draft(session.tokens[-1], budget)
            for session, budget in zip(sessions, budgets, strict=True)
        ]


class PhraseWindow(Lookahead):
    """Lookahead decoding of a draft model, with the tenant's pool, as published: the window makes phrases, the pool's are tried.

    Where the target accepted or rejected, the window moves with the end of the text and is not begun again. The draft's own text makes no
    phrases: only the target's does.
    """

    def __init__(self, window: int, beta: int, k: int, memory: Memory) -> None:
        super().__init__(window, beta, k, from_text=False, carry=True, memory=memory)

    def rewind(self, session: Context, length: int) -> None:
        """Nothing yet: more of the target's text follows, and the window moves by what both come to."""

    def _moved(self, session: Context, known: Known) -> Known:
        known.window.move(len(session.tokens) - known.length)
        known.length = len(session.tokens)
        return known
