"""The tree of Oilbird: sequences copied from neighbours and the tree of a lexical host, as one."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.fill import Child, fill
from echodraft.stores.hidden import HiddenStore
from echodraft.stores.survival import Survival

SIMILAR = (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Bounds of the bins of cosine."""
AGREES, REENTERS, PROMPT = 0, 1, 2
"""A neighbour whose own next token is the anchor, or is another one; both again for neighbours in the request's prompt."""
RUN = (0, 1, 2, 3, 3, 4, 4, 4, 4, 5, 5, 5, 5, 5, 5, 5, 5)
"""Bins of the tokens of a chain that came true: 0, 1, 2, 3 to 4, 5 to 8, 9 to 16, more."""
LEVELS = (0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95)
"""Bounds of the bins of probability."""
SILENT, OTHERS = 0, 1
"""Bins before them: a source says nothing here, or says other tokens."""
MOST_DEPTH = 48


def _chain_prior() -> NDArray[np.float64]:
    """[kind, similarity, run]; smoothed from counts over the first requests of three suites (tool calls, code, mathematics)."""
    agrees = ((0.06, 0.17, 0.3, 0.33, 0.4, 0.5, 0.58, 0.75, 0.88), (0.2, 0.3, 0.35, 0.4, 0.45, 0.52, 0.6, 0.75, 0.9))
    enters = ((0.02, 0.05, 0.09, 0.13, 0.18, 0.25, 0.18, 0.15, 0.15), (0.18, 0.22, 0.32, 0.42, 0.42, 0.55, 0.65, 0.75, 0.85))
    later = (0.5, 0.5, 0.55, 0.55, 0.6, 0.65, 0.7, 0.75, 0.9), (0.6, 0.6, 0.6, 0.6, 0.6, 0.6, 0.65, 0.75, 0.85)
    middle = 0.35, 0.4, 0.45, 0.5, 0.5, 0.6, 0.65, 0.75, 0.85
    rest = max(RUN) - 1  # bins of longer runs
    rows = [agrees[0], *agrees, *[later[0]] * rest], [*enters, middle, *[later[1]] * rest]
    prior = np.asarray(rows).swapaxes(1, 2)
    both: NDArray[np.float64] = np.concatenate([prior, prior * 0.5])
    return both


def _fixed_map() -> NDArray[np.float64]:
    """The same by a fixed map: copies whose chance falls to a tenth after 1 to 48 tokens, by the square of the similarity."""
    middle = np.asarray([0.2, *((a + b) / 2 for a, b in zip(SIMILAR, (*SIMILAR[1:], 1.0), strict=True))])
    depth = 1.0 + (MOST_DEPTH - 1) * np.maximum((middle - 0.3) / 0.7, 0.0) ** 2
    chance = np.repeat((0.1 ** (1.0 / depth))[None, :, None], max(RUN) + 2, axis=2)
    first = chance.copy()
    first[:, :, 0] *= 0.3
    return np.concatenate([chance, first, chance * 0.5, first * 0.5])


def _claim_prior() -> NDArray[np.float64]:
    """[semantic, lexical]: the mean of both, since they mostly speak of the same place; one that says another token takes away a third."""
    middle = np.asarray([0.0, 0.0, *((a + b) / 2 for a, b in zip((0.0, *LEVELS), (*LEVELS, 1.0), strict=True))])
    prior: NDArray[np.float64] = (middle[:, None] + middle[None, :]) / 2
    prior[: OTHERS + 1], prior[:, : OTHERS + 1] = middle[None, :], middle[:, None]
    prior[OTHERS, :] *= 0.7
    prior[:, OTHERS] *= 0.7
    return prior


CHAIN_PRIOR, FIXED_MAP, CLAIM_PRIOR = _chain_prior(), _fixed_map(), _claim_prior()
COUNTS = 2 * (CHAIN_PRIOR.size + CLAIM_PRIOR.size)
WEIGHT = 4.0


class Chances:
    """What copies and claims are worth, learned from what came true. The counts lie in the tenant's store and are kept with it.

    chains  chance of a copied token by (kind, similarity, run), given that those before it were right
    claims  chance of a token by what (the chains, the host) say of it
    """

    def __init__(self, store: HiddenStore, learned: bool = True) -> None:
        if len(store.survival) != COUNTS:
            store.survival = np.zeros(COUNTS)
        first, second = store.survival[: 2 * CHAIN_PRIOR.size], store.survival[2 * CHAIN_PRIOR.size :]
        self.learned = learned
        self.chains = Survival(first.reshape(*CHAIN_PRIOR.shape, 2), CHAIN_PRIOR, WEIGHT)
        self.claims = Survival(second.reshape(*CLAIM_PRIOR.shape, 2), CLAIM_PRIOR, WEIGHT)

    def of_chains(self) -> NDArray[np.float64]:
        return self.chains.chances() if self.learned else FIXED_MAP


class Place(NamedTuple):
    """Where the tree has come to: the host's node (None = beside its tree), and the chains that came so far."""

    depth: int
    host: int | None
    chains: Sequence[int]


class Guess(NamedTuple):
    """A token for a place, and the bins of what the chains and the host say of it."""

    token: int
    prob: float
    source: str
    semantic: int
    lexical: int


@dataclass(slots=True)
class Copies:
    """Chains from neighbours: the tokens behind the anchor. Shapes [n], [n, depth].

    kind, similar, run  their bins and the tokens that came true before the first one
    tokens              -1 behind the end
    """

    kind: NDArray[np.int64]
    similar: NDArray[np.int64]
    run: NDArray[np.int64]
    tokens: NDArray[np.int32]

    @staticmethod
    def of(store: HiddenStore, state: NDArray[Any], k: int, depth: int, anchor: int, prompt: bool = False) -> Copies:
        """Of the k nearest keys to `state` [width], the state that produced the anchor."""
        (near,) = store.search(state[None], k)
        rows = store.follow(near.row, depth + 1)
        tokens = np.where(rows >= 0, store.token(rows), -1)
        agrees = tokens[:, 0] == anchor
        kind = np.where(agrees, AGREES, REENTERS) + PROMPT * prompt
        return Copies(kind, np.searchsorted(SIMILAR, near.cosine), agrees.astype(np.int64), tokens[:, 1:])


@dataclass(slots=True)
class Fused:
    """One step's tree: what each place may go on with, from all sources at once."""

    host: Draft
    chances: Chances
    copies: Sequence[Copies]
    _children: dict[int, list[tuple[int, int, float]]] = field(init=False)  # of the host's nodes: token, node, its chance behind them
    _bins: list[Any] = field(init=False)  # of chains: the row of each run in the table of chances
    _tokens: list[list[int]] = field(init=False)
    _chance: list[list[float]] = field(init=False)
    _joint: Any = field(init=False)

    def __post_init__(self) -> None:
        self._children = self.host.children
        self._tokens, self._chance, self._bins = [], [], []
        table, self._joint = self.chances.of_chains(), self.chances.claims.chances().tolist()
        for copies in self.copies:
            run = np.minimum(copies.run[:, None] + np.arange(copies.tokens.shape[1]), len(RUN))
            bins = np.asarray((*RUN, max(RUN) + 1))[run]
            self._tokens += copies.tokens.tolist()
            self._chance += table[copies.kind[:, None], copies.similar[:, None], bins].tolist()
            self._bins += [(kind, similar, row) for kind, similar, row in zip(copies.kind, copies.similar, bins, strict=True)]

    @property
    def root(self) -> Place:
        return Place(0, ANCHOR, range(len(self._tokens)))

    def draft(self, budget: Budget, roots: Iterable[Place]) -> Draft:
        """The likeliest nodes; of several roots the tree that is expected to bring most."""

        def children(state: tuple[Place, int | None]) -> list[Child[tuple[Place, int | None]]]:
            place = state[0] if state[1] is None else self.behind(state[0], state[1])
            return [Child(guess.token, guess.prob, guess.source, (place, guess.token)) for guess in self.guesses(place)]

        starts: list[tuple[Place, int | None]] = [(root, None) for root in roots]
        return max((fill(budget, start, children) for start in starts), key=lambda draft: float(draft.prob.sum()))

    def guesses(self, place: Place) -> list[Guess]:
        """The tokens that may come next, likeliest first; their chances sum to 1 at most."""
        best: dict[int, float] = {}
        voices: dict[int, float] = {}
        whole = 0.0
        for chain in place.chains:
            token, chance = self._tokens[chain][place.depth], self._chance[chain][place.depth]
            best[token] = max(best.get(token, 0.0), chance)
            voices[token] = voices.get(token, 0.0) + chance
            whole += chance
        claims = () if place.host is None else self._children.get(place.host, ())
        found = {token: (node, claim) for token, node, claim in claims}
        out = []
        for token in {**best, **found}:
            semantic, lexical, source = OTHERS if best else SILENT, OTHERS if found else SILENT, "oilbird"
            if token in best:
                # The best copy, less where others contradict it.
                semantic = 2 + bisect(LEVELS, best[token] * (voices[token] / whole) ** 0.5 if whole > 0.0 else 0.0)
            if token in found:
                node, claim = found[token]
                lexical, source = 2 + bisect(LEVELS, claim), self.host.source[node]
                source += "+oilbird" if token in best else ""
            out.append(Guess(token, self._joint[semantic][lexical], source, semantic, lexical))
        total = max(1.0, sum(guess.prob for guess in out))
        return sorted((guess._replace(prob=guess.prob / total) for guess in out), key=lambda guess: -guess.prob)

    def behind(self, place: Place, token: int) -> Place:
        """The place once `token` has come: the host's node and the chains that have it too."""
        claims = () if place.host is None else self._children.get(place.host, ())
        host = next((node for said, node, _ in claims if said == token), None)
        depth = place.depth + 1
        chains = [
            c for c in place.chains if self._tokens[c][depth - 1] == token and depth < len(self._tokens[c]) and self._tokens[c][depth] >= 0
        ]
        return Place(depth, host, chains)

    def learn(self, tokens: Sequence[int], roots: Sequence[Place]) -> None:
        """Count what `tokens`, which came behind the anchor, confirm and refute, from the `roots` that were drafted from.

        Guesses count whether or not they were in the draft.
        """
        for place in roots:
            for token in tokens:
                for guess in self.guesses(place):
                    self.chances.claims.count((guess.semantic, guess.lexical), guess.token == token)
                for chain in place.chains:
                    kind, similar, bins = self._bins[chain]
                    self.chances.chains.count((kind, similar, bins[place.depth]), self._tokens[chain][place.depth] == token)
                place = self.behind(place, token)
