"""The loop: propose, score, accept, commit, observe, yield. One request is an engine with one session."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import count
from time import perf_counter

import numpy as np

from echodraft.core.accept import Stops, accept
from echodraft.core.backend import Backend, Need, Request, Shape
from echodraft.core.budget import Budget, Policy
from echodraft.core.common import common
from echodraft.core.draft import EMPTY, Draft, sane
from echodraft.core.drafter import Drafter
from echodraft.core.sampling import Sampler
from echodraft.core.scores import Scores
from echodraft.core.session import Session
from echodraft.core.step import Step, Times
from echodraft.errors import Unsupported, UsageError

AT_ONCE = 8
"""Pending tokens of a session that follows another one, which go with its draft in one forward."""

NEAR = 128
"""Tokens at the end of two texts that are compared one by one."""


class Engine:
    """Sessions over one backend, one drafter and one budget policy. Sessions come, go and continue between steps."""

    def __init__(self, backend: Backend, drafter: Drafter, policy: Policy) -> None:
        missing = (drafter.needs & {Need.TOP_K, Need.HIDDEN}) - backend.offers  # text and draft models are for `build` to bring
        if missing and not drafter.spare(missing):
            what = ", ".join(sorted(need.value for need in missing))
            raise Unsupported(f"Drafter '{drafter.name}' needs {what}, which this backend does not offer. See: echodraft ls drafters.")
        self.backend, self.drafter, self.policy = backend, drafter, policy
        self.sessions: dict[int, Session] = {}
        self._ids = count()

    def open(self, prompt: Sequence[int], sampler: Sampler | None = None, stops: Stops | None = None, tenant: str = "") -> Session:
        """Begin a session. Its prompt is read by its first step. Raises `UsageError` on a prompt that is empty, too long or not of ids."""
        if not len(prompt):
            raise UsageError("The prompt is empty. Give at least one token.")
        stops = self._limits(prompt, len(prompt), stops or Stops())
        session = Session(next(self._ids), tenant, list(prompt), len(prompt), sampler or Sampler(), stops, self.backend.open())
        self.sessions[session.id] = session
        start = perf_counter()
        try:
            self.drafter.open(session)
        except BaseException:
            self.close(session)
            raise
        session.opening = perf_counter() - start
        return session

    def extend(self, session: Session, tokens: Sequence[int], stops: Stops | None = None) -> None:
        """Continue a session with more context, such as the next turn of a chat. Raises `UsageError` as `open` does."""
        session.stops = self._limits(tokens, len(session.tokens) + len(tokens), stops or session.stops)
        session.tokens.extend(tokens)
        session.prompt_length = len(session.tokens)
        session.finish = None

    def _limits(self, tokens: Sequence[int], length: int, stops: Stops) -> Stops:
        """`stops` within the model's context, for a prompt of `length` that ends with the new `tokens`. Raises `UsageError`."""
        limit = self.backend.context
        if limit is not None and length >= limit:
            raise UsageError(f"The prompt has {length} tokens, the model's context is {limit}. Shorten the prompt.")
        if not all(0 <= token < self.backend.vocab_size for token in tokens):
            raise UsageError(f"The prompt holds ids outside the vocabulary of {self.backend.vocab_size}. Use the model's own tokenizer.")
        if limit is not None and (stops.max_length is None or stops.max_length > limit):
            stops = replace(stops, max_length=limit)
        if stops.max_new_tokens is not None and stops.max_new_tokens < 1:
            raise UsageError(f"max_new_tokens is {stops.max_new_tokens}. Ask for at least one token.")
        if stops.max_length is not None and stops.max_length <= length:
            raise UsageError(f"max_length is {stops.max_length}, but the prompt has {length} tokens. Raise it or use max_new_tokens.")
        return stops

    def rewind(self, session: Session, length: int) -> None:
        """Cut the session to its first `length` tokens (at least one). It goes on from there where its limits leave room."""
        if not 1 <= length <= len(session.tokens):
            raise UsageError(f"The session has {len(session.tokens)} tokens and cannot be cut to {length}.")
        del session.tokens[length:]
        session.prompt_length = min(session.prompt_length, length)
        session.cached = self.backend.rewind(session.slot, min(session.cached, length - 1))
        session.finish = None if session.room else "length"
        self.drafter.rewind(session, length)

    def follow(self, session: Session, tokens: Sequence[int], stops: Stops) -> None:
        """Make `tokens` the text of the session, as a draft model's session follows the target's. It goes on from there.

        What both texts begin with stays cached; the rest is fed by the next step, together with its draft where it is short.
        """
        held = session.tokens
        most = min(len(held), len(tokens))
        near = max(0, most - NEAR)  # texts part near their ends; the rest is compared in one go
        near = near if held[:near] == list(tokens[:near]) else 0
        same = near + common(held[near:most], tokens[near:most])
        # The last token is the anchor, which is fed again.
        session.cached = self.backend.rewind(session.slot, min(session.cached, same, len(tokens) - 1))
        if same < len(held):
            del held[same:]
            session.prompt_length = same
            self.drafter.rewind(session, same)
        held.extend(tokens[same:])
        session.prompt_length = session.follows = len(held)
        session.stops, session.finish, session.at_once = stops, None, AT_ONCE

    def close(self, session: Session) -> None:
        """End a session and free its slot; closing twice is harmless."""
        if self.sessions.pop(session.id, None) is not None:
            self.drafter.close(session)
            self.backend.close(session.slot)

    def step(self, sessions: Iterable[Session] | None = None) -> list[Step]:
        """One forward over all unfinished sessions (or the named ones): one step each. New context is read first, session by session."""
        live = [s for s in (self.sessions.values() if sessions is None else sessions) if s.finish is None]
        fresh = [s for s in live if len(s.pending) > s.at_once]
        ready = [s for s in live if len(s.pending) <= s.at_once]
        steps = [self._read(session) for session in fresh]
        if ready:
            steps += self._decode(ready)
        start = perf_counter()
        self.drafter.observe(steps)
        took = perf_counter() - start
        return [_later(step, took / len(steps) + _opening(step.session)) for step in steps]

    def draft(self, sessions: list[Session]) -> tuple[list[Budget], list[int], list[Draft]]:
        """What stands behind the sessions' anchors: budgets, how many nodes were proposed, and what of them is worth scoring."""
        rooms = [min(s.room - 1, self.backend.room(s.slot, len(s.tokens))) for s in sessions]
        if self.backend.shape == Shape.NONE:
            rooms = [0] * len(sessions)
        budgets = self.policy.plan(rooms, [self.drafter.price(s) for s in sessions])
        drafts = self._propose(sessions, budgets)
        proposed = [len(draft) for draft in drafts]
        return budgets, proposed, self.policy.trim(drafts, max(len(s.tokens) for s in sessions))

    def _decode(self, sessions: list[Session]) -> list[Step]:
        start = perf_counter()
        context = max(len(s.tokens) for s in sessions)
        budgets, proposed, drafts = self.draft(sessions)
        proposing = perf_counter() - start
        steps = self._forward(sessions, [s.pending for s in sessions], drafts, proposed, proposing, budgets)
        start = perf_counter()
        self.policy.observe(drafts, [step.verdict for step in steps], context)
        return [_later(step, (perf_counter() - start) / len(steps)) for step in steps]

    def _propose(self, sessions: list[Session], budgets: list[Budget]) -> list[Draft]:
        """The drafts, made harmless. Sessions without a budget are not asked."""
        drafts = [EMPTY] * len(sessions)
        asked = [i for i, budget in enumerate(budgets) if budget.nodes > 0 and budget.depth > 0]
        if asked:
            found = self.drafter.propose([sessions[i] for i in asked], [budgets[i] for i in asked])
            chain = self.backend.shape == Shape.CHAIN
            for i, draft in zip(asked, found, strict=True):
                drafts[i] = sane(draft, self.backend.vocab_size, budgets[i].nodes, budgets[i].depth, chain)
        return drafts

    def _read(self, session: Session) -> Step:
        """Feed new context in chunks; the last one yields a token."""
        want = self.drafter.needs & {Need.HIDDEN}
        fed, hidden = len(session.pending), []
        start = perf_counter()
        while len(session.pending) > self.backend.chunk:
            part = session.pending[: self.backend.chunk]
            scores = self.backend.score([Request(session.slot, part, logits=False, ahead=len(session.pending) - len(part))], want)
            if want:
                hidden.append(scores[0].hidden())
            self.backend.commit(session.slot, [])
            session.cached += len(part)
        chunks = perf_counter() - start
        step = self._forward([session], [session.pending], [EMPTY], [0], 0.0)[0]
        times = replace(step.times, score=step.times.score + chunks)
        if step.hidden is not None:
            return replace(step, fed=fed, times=times, hidden=np.concatenate([*hidden, step.hidden]))
        return replace(step, fed=fed, times=times)

    def _forward(
        self,
        sessions: list[Session],
        pending: list[list[int]],
        drafts: list[Draft],
        proposed: list[int],
        proposing: float,
        budgets: Sequence[Budget] | None = None,
    ) -> list[Step]:
        """Score, accept, commit: one forward for all. Only a prefill has no budgets."""
        needs = self.drafter.needs
        start = perf_counter()
        requests = [Request(s.slot, fed, draft) for s, fed, draft in zip(sessions, pending, drafts, strict=True)]
        scores: Sequence[Scores] = self.backend.score(requests, needs)
        scored = perf_counter()
        lengths = [len(s.tokens) for s in sessions]
        try:
            verdicts = [
                accept(draft, row, s.sampler, s.stops, s.tokens, s.prompt_length)
                for s, draft, row in zip(sessions, drafts, scores, strict=True)
            ]
        except BaseException:
            # A processor raised: nothing was committed or told, so nothing was emitted, in any session.
            for s, length in zip(sessions, lengths, strict=True):
                del s.tokens[length:]
            raise
        accepted = perf_counter()
        for s, fed, verdict in zip(sessions, pending, verdicts, strict=True):
            # The last emitted token is the next anchor: fed again, never cached.
            path = verdict.path[: len(verdict.tokens) - 1]
            self.backend.commit(s.slot, path)
            s.cached += len(fed) + len(path)
            s.finish = verdict.finish
        hidden = [row.hidden() if Need.HIDDEN in needs else None for row in scores]
        top_k = [row.top_k(self.drafter.top_k) if Need.TOP_K in needs else None for row in scores]
        unasked: list[Budget | None] = [None] * len(sessions)
        times = Times(proposing, scored - start, accepted - scored, perf_counter() - accepted)
        return [
            Step(
                session=s,
                proposed=n,
                draft=draft,
                verdict=verdict,
                fed=len(fed),
                prefill=budgets is None,
                batch=len(sessions),
                times=times,
                hidden=states,
                top_k=best,
                budget=budget,
            )
            for s, n, draft, verdict, fed, states, best, budget in zip(
                sessions, proposed, drafts, verdicts, pending, hidden, top_k, budgets or unasked, strict=True
            )
        ]


def _later(step: Step, seconds: float) -> Step:
    """A step with what more its drafter took, this session's share: a part of what drafting takes."""
    return replace(step, times=replace(step.times, propose=step.times.propose + seconds * step.batch))


def _opening(session: Session) -> float:
    """What the drafter took when the session began, counted once: with its first step, whatever kind of step that is."""
    seconds, session.opening = session.opening, 0.0
    return seconds
