"""PLD+: of all places where the last token stood before, copy from the one where the model was in the most similar state."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.fill import Child, fill
from echodraft.core.step import Step
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.errors import UsageError
from echodraft.stores.grams import continued
from echodraft.stores.product import product


@dataclass(slots=True)
class Known:
    """What is kept for a session.

    places  where each token stands, ascending
    read    tokens that are in `places`
    states  float16 [capacity, width], of length 1: row p is the state at token p, for the first `length` tokens
    """

    places: dict[int, list[int]] = field(default_factory=dict)
    read: int = 0
    states: NDArray[np.float16] = field(default_factory=lambda: np.empty((0, 0), dtype=np.float16))
    length: int = 0

    def follow(self, tokens: Sequence[int]) -> None:
        """Take in new tokens."""
        for place in range(self.read, len(tokens)):
            self.places.setdefault(tokens[place], []).append(place)
        self.read = len(tokens)

    def put(self, begin: int, rows: NDArray[np.float16]) -> None:
        """The states of the tokens from `begin` on, which is at most `length`. Shape [n, width]."""
        if begin > self.length:
            return
        end = begin + len(rows)
        if end > len(self.states):
            grown = np.empty((max(end, 2 * len(self.states)), rows.shape[1]), dtype=np.float16)
            if self.length:
                grown[: self.length] = self.states[: self.length]
            self.states = grown
        values = np.nan_to_num(rows.astype(np.float32), posinf=0.0, neginf=0.0)
        norms = np.linalg.norm(values, axis=1, keepdims=True)
        self.states[begin:end] = values / np.where(norms > 0.0, norms, 1.0)
        self.length = end

    def similarity(self, places: NDArray[np.int64], place: int) -> NDArray[np.float32]:
        """Cosine of the states before `places` and before `place`; 0 where a state is not known. Shape of `places`."""
        if not 0 < place <= self.length:
            return np.zeros(len(places), dtype=np.float32)
        cosine = product(self.states[np.maximum(places - 1, 0)].astype(np.float32), self.states[place - 1].astype(np.float32))
        return np.where(places > 0, cosine, np.float32(0.0))


class PldPlus(Drafter):
    """Prompt lookup that asks the model's own states which of many occurrences to copy from.

    Source: PLD+ (arXiv 2412.01447), ranking by hidden states. Every place where the last token stood before is a candidate. The last token
    has no state yet when the draft is made, so the state before it is compared with the state before each candidate; the tokens behind
    the most similar one are copied. Ours compares the last layer's normalised states, where the paper picks a layer for each model, and
    drafts a tree of the best candidates. Needs: hidden states. As published: spans=1.

    spans   candidates that are copied
    copies  tokens of one copy, at most
    recent  candidates that are compared at most, the latest ones
    """

    name = "pld+"
    needs = frozenset({Need.HIDDEN})

    def __init__(self, spans: int = 4, copies: int = 64, recent: int = 256) -> None:
        if min(spans, copies, recent) < 1:
            raise UsageError(f"pld+: spans, copies and recent are at least 1, not {spans}, {copies}, {recent}.")
        self.spans, self.copies, self.recent = spans, copies, recent
        self._known: dict[int, Known] = {}

    def open(self, session: Context) -> None:
        self._known[session.id] = Known()
        self._known[session.id].follow(session.tokens)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._tree(session, budget) for session, budget in zip(sessions, budgets, strict=True)]

    def _tree(self, session: Context, budget: Budget) -> Draft:
        known, tokens = self._known[session.id], session.tokens
        known.follow(tokens)
        last = len(tokens) - 1
        # The latest first, so that it wins among equals; the anchor itself is no candidate.
        places = np.asarray(known.places[tokens[last]][-2 : -self.recent - 2 : -1], dtype=np.int64)
        similar = known.similarity(places, last)
        copies = [
            self._copy(tokens, int(places[i]), float(similar[i]), min(self.copies, budget.depth))
            for i in np.argsort(-similar, kind="stable")[: self.spans].tolist()
        ]

        def children(at: tuple[int, int]) -> list[Child[tuple[int, int]]]:
            copy, n = at
            found = range(len(copies)) if copy < 0 else [copy]
            behind = (Child(*copies[i][n], self.name, (i, n + 1)) for i in found if n < len(copies[i]))
            return sorted(behind, key=lambda child: -child.prob)

        return fill(budget, (-1, 0), children)

    @staticmethod
    def _copy(tokens: Sequence[int], place: int, similar: float, n: int) -> list[tuple[int, float]]:
        """The `n` tokens behind `place`, each with the chance that it is right if those before it are: by how far back the text is the
        same, as in prompt lookup, and the first one by how similar the states are."""
        match, longest, last = 1, len(PromptLookup.FOLLOW), len(tokens) - 1
        while match < longest and match <= place and tokens[place - match] == tokens[last - match]:
            match += 1
        chances = [PromptLookup.FOLLOW[min(match + i, longest) - 1] for i in range(n)]
        chances[:1] = [chances[0] * (1.0 + min(max(similar, 0.0), 1.0)) / 2.0]
        return list(zip(continued(tokens, place + 1, n), chances, strict=True))

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            if step.hidden is not None:
                emitted, fed = len(step.verdict.tokens), step.fed
                # Rows of what is committed: the context that was fed and the accepted nodes. The last token has no state yet.
                rows = [*range(fed), *(fed + node for node in step.verdict.path[: emitted - 1])]
                self._known[step.session.id].put(len(step.session.tokens) - emitted - fed, step.hidden[rows])

    def rewind(self, session: Context, length: int) -> None:
        known = self._known[session.id]
        known.places, known.read, known.length = {}, 0, min(known.length, length - 1)
        known.follow(session.tokens)

    def close(self, session: Context) -> None:
        self._known.pop(session.id, None)
