"""Trees of guesses: what pool, texts and draft model hold behind a token, and behind the tokens of a draft."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import NamedTuple

from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft, merged
from echodraft.core.drafter import Context, Drafter
from echodraft.core.fill import Child, fill
from echodraft.core.guess import Path
from echodraft.core.retokenize import Claim
from echodraft.core.step import Step
from echodraft.drafters.lookahead import Known, Lookahead
from echodraft.drafters.recycling import Recycling
from echodraft.memory import Memory
from echodraft.stores.adjacency import DraftAdjacency
from echodraft.stores.phrases import Phrase, PhrasePool

PHRASE, TEXT, HOST = "phrase", "suffix", "host"
"""Who guesses: the pool, texts by their suffixes, another drafter. What pool and texts both guess is called after both."""
BESIDE = -1


class Branch(NamedTuple):
    """A node of a draft from `source`: what it has for children is looked up in `children`."""

    children: Mapping[int, Sequence[tuple[int, int, float]]]
    node: int = ANCHOR
    source: str = TEXT

    @property
    def bare(self) -> bool:
        """Whether nothing stands behind the node."""
        return not self.children.get(self.node)

    def behind(self, token: int) -> Branch | None:
        """The child that carries `token`, if there is one."""
        return next((self._replace(node=node) for said, node, _ in self.children.get(self.node, ()) if said == token), None)


class Place(NamedTuple):
    """A node of the tree: its token, how many tokens of the trunk lead to it (or `BESIDE` the trunk), its path, guesses that go on here."""

    token: int
    at: int
    path: Path = ()
    going: tuple[Phrase, ...] = ()
    texts: tuple[Branch, ...] = ()


@dataclass(slots=True)
class PhraseTree:
    """A trunk with a pool's phrases and what texts say, guesses that begin alike merged, filled best first.

    claims  for every token of the trunk its candidates, the chosen one first, with the chance of each, given the tokens before; the
            others become siblings. With no trunk all stands behind the anchor
    source  who drafted the trunk
    k       phrases that are looked up for one token
    beta    tokens of a phrase, its key included
    ends    tokens behind which nothing is looked up
    branch  look up at every node of the trunk, and where a phrase ends; else behind the trunk alone, as published
    text    what texts, or another drafter, expect behind so many tokens of the trunk
    beside  candidates behind other paths than the trunk
    asked   the phrases that were found, by the number of trunk tokens before them

    What the trunk's candidates leave open at a node the others share as they claim. Guesses that agree are taken as independent, and
    a claim of phrases or texts is squared: on code that nobody has seen before, guesses that claim a half were right one time in five, long
    copies always. A host's claims are taken as they are, and the others share what it leaves.
    """

    pool: PhrasePool
    k: int
    beta: int
    claims: Sequence[Claim] = ()
    source: str = ""
    ends: frozenset[int] = frozenset()
    branch: bool = False
    text: Callable[[int], Branch] | None = None
    beside: Mapping[Path, Claim] = field(default_factory=dict)
    asked: dict[int, list[Phrase]] = field(default_factory=dict)

    def draft(self, anchor: int, budget: Budget) -> Draft:
        """The tree behind `anchor`."""
        return fill(budget, Place(anchor, 0), self._children)

    def _children(self, place: Place) -> list[Child[Place]]:
        found: list[Child[Place]] = []
        going, texts = (*place.going, *self._look(place)), (*place.texts, *self._read(place))
        left = 1.0
        trunk = 0 <= place.at < len(self.claims)
        ids, probs = self.claims[place.at] if trunk else self.beside.get(place.path, ((), ()))
        for rank, (token, prob) in enumerate(zip(ids, probs, strict=True)):
            first = trunk and not rank
            source, at = (self.source, place.at + 1) if first else (f"{self.source}-sibling", BESIDE)
            found.append(Child(token, prob, source, _behind(place, token, at, going, texts), first))
            left -= prob
        guesses = self._guesses(going, texts)
        others = {token: guess for token, guess in guesses.items() if token not in ids}
        share = min(1.0, max(0.0, left) / max(sum(chance for chance, _ in others.values()), 1e-9))
        found += [
            Child(token, chance * share, source, _behind(place, token, BESIDE, going, texts)) for token, (chance, source) in others.items()
        ]
        return sorted(found, key=lambda child: (not child.first, -child.prob))

    def _guesses(self, going: Sequence[Phrase], texts: Sequence[Branch]) -> dict[int, tuple[float, str]]:
        """Tokens for a place with their chances, and who guesses them."""
        said: dict[str, dict[int, float]] = {PHRASE: {}, TEXT: {}, HOST: {}}
        for phrase in going:
            said[PHRASE][phrase.tokens[0]] = said[PHRASE].get(phrase.tokens[0], 0.0) + phrase.chance
        for branch in texts:
            for token, _, chance in branch.children.get(branch.node, ()):
                said[branch.source][token] = max(chance, said[branch.source].get(token, 0.0))
        known = said.pop(HOST)
        left = max(0.0, 1.0 - sum(known.values()))
        out: dict[int, tuple[float, str]] = {}
        for source, chances in said.items():
            whole = max(1.0, sum(chances.values()))
            for token, chance in chances.items():
                before, who = out.get(token, (0.0, ""))
                out[token] = 1.0 - (1.0 - before) * (1.0 - (chance / whole) ** 2), f"{who}+{source}" if who else source
        others = {token: (left * chance, who) for token, (chance, who) in out.items() if token not in known}
        return {token: (chance, HOST) for token, chance in known.items()} | others

    def _wanted(self, place: Place) -> bool:
        """Whether something new may begin behind a place."""
        return bool(self.k) and place.token not in self.ends and (place.at == len(self.claims) or (self.branch and place.at != BESIDE))

    def _look(self, place: Place) -> list[Phrase]:
        """Phrases that begin with the token of a place."""
        if not self._wanted(place) and not (self.k and self.branch and not place.going and place.token not in self.ends):
            return []
        found = [Phrase(phrase.tokens[: self.beta - 1], phrase.chance) for phrase in self.pool.best(place.token, self.k)]
        if place.at != BESIDE:
            self.asked[place.at] = found
        return found

    def _read(self, place: Place) -> list[Branch]:
        """What texts or another drafter say behind a place."""
        return [self.text(place.at)] if self.text is not None and self._wanted(place) else []


def branches(draft: Draft, source: str = TEXT) -> Branch:
    """A draft as a branch."""
    return Branch(draft.children, source=source)


def _behind(place: Place, token: int, at: int, going: Sequence[Phrase], texts: Sequence[Branch]) -> Place:
    """The place behind a token that stands behind `place`, with what is left of the guesses that have it."""
    phrases = tuple(Phrase(p.tokens[1:], p.chance) for p in going if p.tokens[0] == token and len(p.tokens) > 1)
    return Place(token, at, (*place.path, token), phrases, tuple(found for branch in texts if (found := branch.behind(token))))


def expected(draft: Draft, estimate: Callable[[str, float], float], most: int) -> float:
    """How many of the first `most` nodes of a draft will be accepted: the sum of their path probabilities as counts correct them."""
    prob, path = draft.prob.tolist(), list[float]()
    for i, (parent, source) in enumerate(islice(zip(draft.parent.tolist(), draft.source, strict=True), most)):
        above, own = (1.0, prob[i]) if parent == ANCHOR else (path[parent], prob[i] / prob[parent] if prob[parent] > 0.0 else 0.0)
        path.append(above * estimate(source, min(own, 1.0)))
    return sum(path)


class Recycled(Recycling):
    """Recycling for a draft model: what that said, not the target."""

    matrix = DraftAdjacency


class Phrases(Drafter):
    """Drafts for a draft model what the target's pool and texts hold, guess behind guess: the draft model says what of it is its own text.

    guess      the guesses for a session of the draft model
    recycling  beside them, what the draft model itself held likely behind each token when it last scored it
    """

    name = "phrases"

    def __init__(self, guess: Callable[[Context], Draft], recycling: Recycling | None = None) -> None:
        self.guess, self.recycling = guess, recycling
        if recycling is not None:
            self.needs, self.top_k = recycling.needs, recycling.top_k

    def open(self, session: Context) -> None:
        if self.recycling is not None:
            self.recycling.open(session)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        guesses = [self.guess(session) for session in sessions]
        if self.recycling is None:
            return guesses
        return [merged(each) for each in zip(guesses, self.recycling.propose(sessions, budgets), strict=True)]

    def observe(self, steps: Sequence[Step]) -> None:
        if self.recycling is not None:
            self.recycling.observe(steps)

    def close(self, session: Context) -> None:
        if self.recycling is not None:
            self.recycling.close(session)


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
