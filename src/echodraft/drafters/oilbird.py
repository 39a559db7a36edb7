"""Oilbird: what followed the moments that looked like this one to the model, in one tree with what followed these words."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.core.backend import Need
from echodraft.core.budget import MOST_NODES, Budget
from echodraft.core.draft import Draft, merged
from echodraft.core.drafter import Context, Drafter, Words
from echodraft.core.step import Step
from echodraft.drafters import drafter_class, taken
from echodraft.drafters.oilbird_tree import MOST_DEPTH, Chances, Copies, Fused, Place
from echodraft.drafters.written import Written
from echodraft.errors import UsageError, unknown_name
from echodraft.memory import Memory
from echodraft.stores.hidden import HiddenStore, warm

log = logging.getLogger("echodraft")

HOSTS = ("suffix", "recycling", "goose", "toolspec", "prompt-lookup", "sam")


@dataclass(slots=True)
class Known:
    """What is kept for a session.

    output   its output in the memory
    prompt   keys of its own prompt, which no other request sees, of the first `read` tokens
    state    the state that produced token `position`, the anchor of the next step
    tree     of the last proposal, to learn from
    """

    store: HiddenStore
    chances: Chances
    output: Written
    prompt: HiddenStore = field(default_factory=HiddenStore)
    read: int = 0
    state: NDArray[Any] | None = None
    position: int = -1
    tree: Fused | None = None


class Oilbird(Drafter):
    """Copies from positions where the model was in a similar state, fused with lexical drafters in one tree.

    Source: Oilbird (Jin et al., August 2026), of which only a summary is public; docs/oilbird.md says what it leaves open and what was
    chosen. The state that produced the anchor is looked up among the states behind all output tokens of the tenant, past and running. A
    neighbour that went on with the anchor too is copied from the token after it; one that said another token there is copied from the
    same place, behind a value that was new. Tokens on which copies and hosts agree are paid once. Every node has a chance, learned from
    counts: of copies by similarity, kind and depth, then of tokens by what copies and host say of them. The tree is filled best first.
    Needs: hidden states, and what its hosts need; where there are no hidden states those hosts draft alone that need none.

    host       the lexical drafters, "+" between them: suffix, recycling, goose, toolspec and others. The paper has one
    k          neighbours
    depth      tokens copied from each at most
    depth_map  learned, or fixed: how far to copy follows from the similarity alone
    keys       output, or all: also the positions of the request's own prompt, for this request only
    centred    take the mean of all states off before the cosine
    semantic   false: the hosts alone in the same filling, to compare with
    fusion     false: either copies or hosts, whichever is expected to bring more
    """

    name = "oilbird"
    needs = frozenset({Need.HIDDEN})

    def __init__(
        self,
        host: str = "suffix+toolspec",
        k: int = 8,
        depth: int = MOST_DEPTH,
        depth_map: str = "learned",
        keys: str = "output",
        centred: bool = True,
        semantic: bool = True,
        fusion: bool = True,
        memory: Memory | None = None,
        text: Words | None = None,
    ) -> None:
        names = host.split("+")
        for name in names:
            if name not in HOSTS:
                raise unknown_name("host of oilbird", name, HOSTS)
        if len(set(names)) < len(names):
            raise UsageError(f"oilbird: each host is named once, not '{host}'.")
        for wrong, what in (
            (not 1 <= k <= 64, f"k lies between 1 and 64, not {k}"),
            (not 1 <= depth <= 1024, f"depth lies between 1 and 1024, not {depth}"),
            (depth_map not in ("learned", "fixed"), f"depth_map is learned or fixed, not {depth_map}"),
            (keys not in ("output", "all"), f"keys is output or all, not {keys}"),
        ):
            if wrong:
                raise UsageError(f"oilbird: {what}.")
        self.k, self.depth, self.learned, self.prompts = k, depth, depth_map == "learned", keys == "all"
        self.centred, self.fusion = centred, fusion
        self.memory = Memory() if memory is None else memory
        parts = {"memory": self.memory, "text": text}
        self.hosts = tuple(kind(**taken(kind, parts)) for kind in map(drafter_class, names))
        self.semantic = semantic
        self._settle()
        self._known: dict[int, Known] = {}
        warm()

    def spare(self, missing: frozenset[Need]) -> bool:
        kept = tuple(host for host in self.hosts if not missing & host.needs)
        if not kept:
            return False
        self.hosts, self.semantic = kept, self.semantic and Need.HIDDEN not in missing
        self._settle()
        what = "hidden states" if Need.HIDDEN in missing else "best ids"
        _tell(what, " and ".join([*(("hidden states",) if self.semantic else ()), *(host.name for host in kept)]))
        return True

    def _settle(self) -> None:
        """What follows from the hosts, and from whether there are hidden states."""
        own = Oilbird.needs if self.semantic else frozenset[Need]()
        self.needs = own.union(*(host.needs for host in self.hosts))
        self.top_k, self.calibrated = max(host.top_k for host in self.hosts), self.semantic

    def open(self, session: Context) -> None:
        for host in self.hosts:
            host.open(session)
        store = self.memory.store(session.tenant, HiddenStore, HiddenStore)
        store.centred = self.centred
        self._known[session.id] = Known(store, Chances(store, self.learned), Written(store), self._prompt())

    def _prompt(self) -> HiddenStore:
        store = HiddenStore()
        store.centred = self.centred
        return store

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        # The host may say more than fits: what is taken of it is decided here.
        wider = [Budget(max(budget.nodes, MOST_NODES), budget.depth, budget.branching) for budget in budgets]
        hosts = [merged(drafts) for drafts in zip(*(host.propose(sessions, wider) for host in self.hosts), strict=True)]
        return [self._draft(*each) for each in zip(sessions, budgets, hosts, strict=True)]

    def _draft(self, session: Context, budget: Budget, host: Draft) -> Draft:
        known = self._known[session.id]
        known.tree = tree = Fused(host, known.chances, self._copies(session, known))
        return tree.draft(budget, self._roots(tree))

    def _roots(self, tree: Fused) -> list[Place]:
        """Where drafts may begin: one place with both sources, or one for each."""
        root = tree.root
        return [root] if self.fusion else [root._replace(chains=()), root._replace(host=None)]

    def _copies(self, session: Context, known: Known) -> list[Copies]:
        if known.state is None or known.position != len(session.tokens) - 1:
            return []
        anchor = session.tokens[-1]
        found = [Copies.of(known.store, known.state, self.k, self.depth, anchor)]
        if self.prompts:
            found.append(Copies.of(known.prompt, known.state, self.k, self.depth, anchor, prompt=True))
        return found

    def observe(self, steps: Sequence[Step]) -> None:
        for host in self.hosts:
            host.observe(steps)
        for step in steps:
            known = self._known[step.session.id]
            if known.tree is not None:
                known.tree.learn(step.verdict.tokens, self._roots(known.tree))
                known.tree = None
            if self.semantic and step.hidden is not None:
                self._remember(known, step, step.hidden)

    def _remember(self, known: Known, step: Step, hidden: NDArray[np.float16]) -> None:
        """The tokens that came are output, each behind the state that produced it: the anchor's, then those of the accepted nodes."""
        tokens, came = step.session.tokens, len(step.verdict.tokens)
        begin = len(tokens) - came
        states = hidden[[step.fed - 1, *(step.fed + node for node in step.verdict.path)][:came]]
        if self.prompts and step.fed > 1:
            read = tokens[begin - step.fed + 1 : begin]
            known.prompt.append(known.prompt.begin(), read, hidden[: len(read)])
            known.read = begin
        known.store.append(known.output.place(begin, len(tokens)), tokens[begin:], states)
        known.state, known.position = states[-1], len(tokens) - 1

    def rewind(self, session: Context, length: int) -> None:
        for host in self.hosts:
            host.rewind(session, length)
        known = self._known[session.id]
        known.state = known.tree = None
        if length < known.read:
            known.prompt, known.read = self._prompt(), 0
        if (across := known.output.rewind(length)) is not None:
            known.store.cut(across.seq, length - across.begin)
            across.end = length

    def close(self, session: Context) -> None:
        for host in self.hosts:
            host.close(session)
        known = self._known.pop(session.id, None)
        if known is not None:
            known.output.close()
            self.memory.settle(session.tenant)


@cache
def _tell(what: str, left: str) -> None:
    log.info("There are no %s here, so oilbird drafts with %s alone.", what, left)
