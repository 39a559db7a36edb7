"""ToolSpec: calls of the tools in the prompt, copies from similar answers, and the model's own second thoughts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from time import time
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from echodraft.core.backend import Need
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter, Words
from echodraft.core.fill import Child, fill
from echodraft.core.step import Step
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.drafters.recycling import Recycling, beside
from echodraft.drafters.schemas import Syntax, Tool, find_syntax, find_tools, go_on
from echodraft.errors import UsageError
from echodraft.memory import Memory
from echodraft.stores.grams import BREAK, Grams
from echodraft.stores.outputs import OutputStore

LENGTHS = (32, 16, 8, 8)
"""Tokens of the chains that are copied, as published."""
TAIL = 200
"""Tokens of output that are read to find out where in a call it is."""
State = tuple[int, tuple[tuple[int, int], ...]]
"""A token, and the chains that agree with all up to it: (chain, position of its next token)."""


class Chain(NamedTuple):
    """Tokens that may come next. claims[i]: chance of token i, given those before; weight: against other chains."""

    tokens: list[int]
    claims: list[float]
    weight: float
    source: str


@dataclass(slots=True)
class Known:
    """What is kept for a session. Its answer is tokens[begin:end], and `key` what it will be found by."""

    shared: OutputStore
    grams: Grams
    taken: int = 0  # tokens of the session that are in `grams`
    similar: list[NDArray[np.int32]] = field(default_factory=list)
    key: NDArray[np.float16] | None = None
    begin: int = 0
    end: int = 0
    tools: list[Tool] = field(default_factory=list)
    syntax: Syntax | None = None
    ids: dict[tuple[int, str], list[int]] = field(default_factory=dict)


class ToolSpec(Drafter):
    """Calls of the tools that the prompt describes, copies from answers to similar requests and from the text, recycled successors.

    Source: ToolSpec (arXiv 2604.13519). Answers are kept by the hidden state of the last prompt token; those to the ten most similar
    requests of the tenant, the prompt and the output are searched for the last 7 to 2 tokens (7 to 5 as published), up to four
    chains of 32, 16, 8 and 8 tokens.
    A state machine (tool, first parameter, remaining ones) says how a call may go on. The authors' code drafts from one of them a step:
    here all are one tree, filled best first, so shared beginnings are paid once. How a call is written is learned from answers, calls and
    examples in the prompt, not listed for each model; the beginning of an answer matches the beginnings of similar ones; history is
    bounded. Needs: best ids and hidden states; without the model's text it does without schemas.

    longest   the longest n-gram that is searched
    shortest  the shortest
    similar   answers to similar requests that are searched
    schemas   guess calls of the tools in the prompt
    """

    name = "toolspec"
    needs = frozenset({Need.TOP_K, Need.HIDDEN})
    # Chance of the first token of a call's piece, shared by all that are possible; of the tokens behind it.
    CHOICE, LITERAL = 0.6, 0.9

    def __init__(
        self,
        longest: int = 7,
        shortest: int = 2,
        similar: int = 10,
        schemas: bool = True,
        memory: Memory | None = None,
        text: Words | None = None,
    ) -> None:
        if not 1 <= shortest <= longest or similar < 0:
            raise UsageError(
                f"toolspec: 1 <= shortest <= longest and similar >= 0 must hold, not shortest={shortest}, longest={longest}, "
                f"similar={similar}."
            )
        self.longest, self.shortest, self.similar = longest, shortest, similar
        self.text = text if schemas else None
        self.tree = Recycling(memory=memory)
        self.memory = self.tree.memory
        self._known: dict[int, Known] = {}

    def open(self, session: Context) -> None:
        self.tree.open(session)
        shared = self.memory.store(session.tenant, OutputStore, OutputStore)
        self._known[session.id] = Known(shared, self._grams(()))

    def _grams(self, similar: Sequence[NDArray[np.int32]]) -> Grams:
        grams = Grams(self.longest)
        for ids in reversed(similar):  # the latest text is found first
            grams.add(ids.tolist())
        return grams

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self._tree(session, self._known[session.id], budget) for session, budget in zip(sessions, budgets, strict=True)]

    def _tree(self, session: Context, known: Known, budget: Budget) -> Draft:
        known.grams.extend(session.tokens[known.taken :])
        known.taken = len(session.tokens)
        chains = [*self._copies(session, known, budget.depth), *self._calls(session, known)]
        store = self.tree.store(session)

        def children(state: State) -> Iterable[Child[State]]:
            token, places = state
            if not places:
                return (Child(t, p, "recycling", (t, ())) for t, p in zip(store.successors(token), Recycling.FOLLOW, strict=False))
            total = sum(chains[i].weight for i, _ in places)
            guesses: dict[int, float] = {}
            ahead: dict[int, list[tuple[int, int]]] = {}
            for i, at in places:
                chain = chains[i]
                if at < len(chain.tokens):
                    t = chain.tokens[at]
                    guesses[t] = guesses.get(t, 0.0) + chain.claims[at] * chain.weight / total
                    ahead.setdefault(t, []).append((i, at + 1))
            found = [
                Child(t, chance, chains[ahead[t][0][0]].source if t in ahead else "recycling", (t, tuple(ahead.get(t, ()))))
                for t, chance in beside(guesses, store.successors(token)).items()
            ]
            return sorted(found, key=lambda child: -child.prob)

        return fill(budget, (session.tokens[-1], tuple((i, 0) for i in range(len(chains)))), children)

    def _copies(self, session: Context, known: Known, depth: int) -> list[Chain]:
        """What followed the same n-gram, or the same beginning of an answer."""
        match, places = self._latest(known, session.tokens)
        said = len(session.tokens) - known.begin
        if known.begin and said < self.longest:
            begun = [*[BREAK] * (self.longest - said), *session.tokens[known.begin :]]
            n, found = self._latest(known, begun)
            match, places = max(match, n), [*found, *(place for place in places if place not in found)]
        chains = []
        for place, most in zip(places, LENGTHS, strict=False):
            tokens = known.grams.read(place, min(most, depth))
            path = [1.0, *PromptLookup.claims(match, len(tokens))]
            chains.append(Chain(tokens, [path[i + 1] / path[i] for i in range(len(tokens))], 1.0, self.name))
        return chains

    def _latest(self, known: Known, context: Sequence[int]) -> tuple[int, list[int]]:
        """The longest match of the end of `context`, and the latest places behind it."""
        match, places = known.grams.find(context, self.shortest)
        return match, places[: -len(LENGTHS) - 1 : -1].tolist()

    def _calls(self, session: Context, known: Known) -> list[Chain]:
        """How a call of a tool may go on."""
        if self.text is None or known.syntax is None or not known.begin:
            return []
        anchor = session.tokens[-1]
        said = self.text.decode(session.tokens[max(known.begin, len(session.tokens) - TAIL) :])
        pieces = [self._encode(known, anchor, piece) for piece in go_on(said, known.tools, known.syntax)]
        return [Chain(ids, [self.CHOICE, *[self.LITERAL] * (len(ids) - 1)], 1.0 / len(pieces), "toolspec-schema") for ids in pieces if ids]

    def _encode(self, known: Known, anchor: int, piece: str) -> list[int]:
        """Ids of `piece` behind `anchor`: as the tokenizer splits the two together, if it splits between them."""
        assert self.text is not None
        found = known.ids.get((anchor, piece))
        if found is None:
            ids = self.text.encode(self.text.decode([anchor]) + piece)
            found = ids[ids.index(anchor) + 1 :] if anchor in ids[:2] else []
            known.ids[anchor, piece] = found
        return found

    def observe(self, steps: Sequence[Step]) -> None:
        self.tree.observe(steps)
        for step in steps:
            known = self._known[step.session.id]
            if step.prefill:
                self._keep(step.session, known)
                self._begin(step, known)
            known.end = len(step.session.tokens)

    def _begin(self, step: Step, known: Known) -> None:
        """A prompt was read, and an answer begins."""
        session = step.session
        known.begin = session.prompt_length
        if step.hidden is not None:
            known.key = step.hidden[-1].copy()
            known.similar = known.shared.similar(known.key, self.similar)
            self._again(known)
        if self.text is not None:
            prompt = self.text.decode(session.tokens[: session.prompt_length])
            known.tools = find_tools(prompt)
            texts = [*(self.text.decode(ids.tolist()) for ids in known.similar), prompt]
            known.syntax = find_syntax(texts, known.tools, len(texts) - 1)

    def _again(self, known: Known) -> None:
        known.grams, known.taken = self._grams(known.similar), 0

    def _keep(self, session: Context, known: Known) -> None:
        """The answer is over and becomes history."""
        if known.key is not None and known.end > known.begin:
            known.shared.add(known.key, session.tokens[known.begin : known.end], time())
        known.key = None

    def rewind(self, session: Context, length: int) -> None:
        known = self._known[session.id]
        if length <= known.begin:
            known.key, known.begin = None, 0
        known.end = min(known.end, length)
        self._again(known)

    def close(self, session: Context) -> None:
        known = self._known.pop(session.id, None)
        if known is not None:
            self._keep(session, known)
            self.tree.close(session)
            self.memory.settle(session.tenant)
