"""Running an engine under check, and a backend whose scores a test makes up."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.backends.toy import ArrayScores, ToyBackend
from echodraft.core.accept import Stops
from echodraft.core.backend import Need, Request
from echodraft.core.draft import ANCHOR
from echodraft.core.drafter import Drafter
from echodraft.core.engine import Engine
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from echodraft.core.step import Step


def check(step: Step) -> None:
    """What holds for every step, whatever was drafted."""
    session, draft, verdict = step.session, step.draft, step.verdict
    assert verdict.tokens
    assert session.tokens[-len(verdict.tokens) :] == list(verdict.tokens)
    assert session.cached == len(session.tokens) - 1
    assert session.finish == verdict.finish
    assert len(draft) <= step.proposed
    assert not (step.prefill and len(draft))
    bonus = len(verdict.tokens) - len(verdict.path)
    assert bonus == 1 or (bonus == 0 and verdict.finish is not None)
    node = ANCHOR
    for child, token in zip(verdict.path, verdict.tokens, strict=False):
        assert (draft.parent[child], draft.token[child]) == (node, token)
        node = child


def drive(engine: Engine, sessions: Iterable[Session] | None = None) -> dict[int, list[Step]]:
    """Steps until the sessions (all by default) are finished: by session, each one checked."""
    named = list(engine.sessions.values() if sessions is None else sessions)
    steps: dict[int, list[Step]] = {session.id: [] for session in named}
    while any(session.finish is None for session in named):
        for step in engine.step(named):
            check(step)
            steps[step.session.id].append(step)
    return steps


def decoded(steps: Sequence[Step]) -> list[Step]:
    """Without those that read a prompt."""
    return [step for step in steps if not step.prefill]


def longest(steps: Iterable[Step]) -> int:
    """The longest accepted block."""
    return max((step.verdict.accepted for step in steps), default=0)


def run(engine: Engine, prompt: Sequence[int], n: int, sampler: Sampler | None = None, **stops: Any) -> list[int]:
    """The output of one session, which is closed again."""
    session = engine.open(prompt, sampler, Stops(max_new_tokens=n, **stops))
    drive(engine, [session])
    engine.close(session)
    return session.output


class Scripted(ToyBackend):
    """A toy whose logits are `follow(path)`; keeps the requests of every forward."""

    def __init__(self, follow: Callable[[list[int]], NDArray[np.float64]], vocab_size: int = 97, context: int = 1 << 20) -> None:
        super().__init__(vocab_size, context=context)
        self.follow = follow
        self.requests: list[list[Request]] = []

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ArrayScores]:
        self.requests.append(list(requests))
        return super().score(requests, want)

    def _logits(self, path: list[int]) -> NDArray[np.float64]:
        return self.follow(path)

    def _state(self, path: list[int]) -> NDArray[np.float16]:
        return np.zeros(1, dtype=np.float16)


def stream(tokens: Sequence[int], vocab_size: int = 97) -> Scripted:
    """A backend that says `tokens` by position, whatever the path is."""
    one_hot = np.eye(vocab_size)
    return Scripted(lambda path: one_hot[tokens[len(path) % len(tokens)]], vocab_size)


class Recorder(Drafter):
    """A drafter that passes all on to another and keeps the steps that it saw."""

    def __init__(self, inner: Drafter, needs: frozenset[Need] = frozenset()) -> None:
        self.inner, self.needs, self.name = inner, inner.needs | needs, inner.name
        self.seen: list[Step] = []
        self.open, self.propose, self.rewind, self.close = inner.open, inner.propose, inner.rewind, inner.close

    def observe(self, steps: Sequence[Step]) -> None:
        self.seen += steps
        self.inner.observe(steps)
