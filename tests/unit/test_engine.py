"""What the engine refuses, what it survives, and what it asks of drafter and backend."""

from __future__ import annotations

from collections.abc import Sequence
from time import sleep
from typing import Any

import numpy as np
import pytest
import torch

from echodraft.backends.toy import ToyBackend
from echodraft.backends.transformers import TransformersBackend
from echodraft.core.accept import Stops
from echodraft.core.backend import Need, Shape
from echodraft.core.budget import CPU_CURVE, Adaptive, Budget, Fixed
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler
from echodraft.core.step import Step
from echodraft.drafters.none import NoDrafter
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.errors import EchodraftError, Unsupported, UsageError
from harness import Recorder, Scripted, drive, run, stream
from models import prompt, tiny
from oracle import Oracle

SAID = np.random.default_rng(4).permutation(97).tolist()


def plain(backend: Any = None) -> Engine:
    return Engine(backend or ToyBackend(context=64), NoDrafter(), Fixed(8))


@pytest.mark.parametrize("backend", [ToyBackend(context=64), pytest.param(None, id="gpt2")])
@pytest.mark.parametrize(
    ("ids", "stops", "message"),
    [
        ([], {}, "empty"),
        ([1] * 64, {}, "context is 64"),
        ([1] * 99, {}, "context is 64"),
        ([1, 97], {}, "vocabulary of 97"),
        ([-1, 5], {}, "vocabulary of 97"),
        ([1, 2, 3], {"max_length": 3}, "max_length is 3"),
        ([1, 2, 3], {"max_new_tokens": 0}, "max_new_tokens is 0"),
    ],
)
def test_a_prompt_that_cannot_be_continued_is_refused(backend: Any, ids: list[int], stops: dict[str, int], message: str) -> None:
    engine = plain(backend or TransformersBackend(tiny("gpt2")))
    with pytest.raises(UsageError, match=message):
        engine.open(ids, stops=Stops(**stops))
    assert not engine.sessions


@pytest.mark.parametrize(
    ("turn", "stops", "message"),
    [([1] * 50, None, "context is 64"), ([97], None, "vocabulary"), ([1] * 5, Stops(max_length=15), "max_length is 15")],
)
def test_a_turn_that_cannot_be_read_is_refused_and_changes_nothing(turn: list[int], stops: Stops | None, message: str) -> None:
    engine = plain()
    session = engine.open(prompt(6), stops=Stops(max_new_tokens=8))
    drive(engine)
    before = list(session.tokens)
    with pytest.raises(UsageError, match=message):
        engine.extend(session, turn, stops)
    assert (session.tokens, session.finish, session.prompt_length) == (before, "length", 6)
    engine.extend(session, [1] * 5)
    drive(engine)
    assert len(session.output) == 8


def test_a_continued_session_keeps_within_the_context() -> None:
    engine = Engine(ToyBackend(context=64), PromptLookup(), Fixed(8))
    session = engine.open(prompt(6), stops=Stops(max_new_tokens=8))
    drive(engine)
    engine.extend(session, [1, 2], Stops())
    drive(engine)
    assert len(session.tokens) == 64
    assert session.finish == "length"


@pytest.mark.parametrize("length", [0, -1, 15])
def test_a_session_cannot_be_cut_to_a_length_that_it_has_not(length: int) -> None:
    engine = plain()
    session = engine.open(prompt(6), stops=Stops(max_new_tokens=8))
    drive(engine)
    with pytest.raises(UsageError, match="14 tokens"):
        engine.rewind(session, length)
    engine.rewind(session, 1)
    assert session.tokens == prompt(6)[:1]


def test_a_full_session_that_is_cut_nowhere_stays_finished() -> None:
    engine = plain()
    session = engine.open(prompt(6), stops=Stops(max_new_tokens=8))
    drive(engine)
    engine.rewind(session, 14)
    assert session.finish == "length"
    assert engine.step() == []


@pytest.mark.parametrize("rule", [Rule(), Rule(1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("where", ["numpy", "torch"])
def test_nan_logits_are_an_error_and_nothing_is_emitted(rule: Rule, where: str) -> None:
    if where == "numpy":
        backend: Any = Scripted(lambda path: np.full(97, np.nan))
    else:
        model = tiny("llama")
        backend = TransformersBackend(model)
        handle = model.lm_head.register_forward_hook(lambda _, __, out: out * torch.nan)
    try:
        engine = plain(backend)
        session = engine.open(prompt(6), Sampler(rule))
        with pytest.raises(EchodraftError, match="NaN"):
            engine.step()
    finally:
        if where == "torch":
            handle.remove()
    assert session.output == []


def test_a_drafter_whose_needs_are_not_offered_is_refused_when_the_engine_is_built() -> None:
    backend = ToyBackend()
    backend.offers = frozenset()
    with pytest.raises(Unsupported, match="hidden"):
        Engine(backend, Recorder(NoDrafter(), frozenset({Need.HIDDEN})), Fixed(8))


def test_a_step_that_a_processor_broke_off_may_be_repeated() -> None:
    """The first session had its tokens already when the second one's processor raised."""
    ids, broken = [prompt(5), prompt(9)], []
    known = [run(plain(), p, 12) for p in ids]

    def fail_once(prefix: Sequence[int], row: Any) -> Any:
        if len(prefix) == len(ids[1]) + 4 and not broken:
            broken.append(len(prefix))
            raise RuntimeError("broken")
        return row

    engine = Engine(ToyBackend(), Oracle("right-last", [p + out for p, out in zip(ids, known, strict=True)]), Fixed(64))
    stops = Stops(max_new_tokens=12)
    sessions = [engine.open(ids[0], stops=stops), engine.open(ids[1], Sampler(Rule(), (fail_once,)), stops)]
    engine.step()
    before = [list(s.tokens) for s in sessions]
    with pytest.raises(RuntimeError, match="broken"):
        engine.step()
    assert [s.tokens for s in sessions] == before
    steps = drive(engine)
    assert [s.output for s in sessions] == known
    assert all(sum(len(step.verdict.tokens) for step in steps[s.id]) == 11 for s in sessions)


def test_closing_twice_is_harmless_and_frees_the_slot() -> None:
    engine = plain()
    session, other = engine.open(prompt(6)), engine.open(prompt(7))
    engine.close(session)
    engine.close(session)
    assert list(engine.sessions.values()) == [other]
    assert list(engine.backend._slots) == [other.slot]


@pytest.mark.parametrize(("shape", "blocks"), [(Shape.NONE, {0}), (Shape.CHAIN, {4}), (Shape.TREE, {4})])
def test_a_backend_gets_no_draft_that_it_cannot_hold(shape: Shape, blocks: set[int]) -> None:
    backend = stream(SAID)
    backend.shape = shape
    engine = Engine(backend, Oracle("right-first", [SAID], 4), Fixed(64))
    session = engine.open(SAID[:1], stops=Stops(max_new_tokens=20))
    steps = drive(engine)[session.id]
    assert session.output == SAID[1:21]
    assert {step.verdict.accepted for step in steps} == blocks
    for request in (request for requests in backend.requests for request in requests):
        if shape is not Shape.TREE:
            assert request.draft.parent.tolist() == list(range(-1, len(request.draft) - 1))


class Nonsense(Drafter):
    """Claims that no probability can be."""

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        claims = [np.nan, np.inf, -np.inf, -3.0, 1e300, 0.0]
        return [Draft.chain(SAID[len(s.tokens) : len(s.tokens) + 6], claims) for s in sessions]


def test_probabilities_that_are_none_break_nothing() -> None:
    engine = Engine(stream(SAID), Nonsense(), Adaptive(CPU_CURVE))
    session = engine.open(SAID[:3], stops=Stops(max_new_tokens=40))
    drive(engine)
    assert session.output == SAID[3:43]


class Watcher(Drafter):
    """Notes what it is told."""

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def open(self, session: Context) -> None:
        self.told.append(("open", session.id, list(session.tokens)))

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        self.told.append(("propose", [s.id for s in sessions], [b.depth for b in budgets]))
        return [Draft.chain([1]) for _ in sessions]

    def observe(self, steps: Sequence[Any]) -> None:
        self.told.append(("observe", [(s.session.id, s.prefill, s.verdict.tokens) for s in steps]))

    def rewind(self, session: Context, length: int) -> None:
        self.told.append(("rewind", session.id, length, list(session.tokens)))

    def close(self, session: Context) -> None:
        self.told.append(("close", session.id))


def test_a_drafter_is_told_of_everything_and_asked_only_where_there_is_room() -> None:
    watcher = Watcher()
    engine = Engine(stream(SAID), watcher, Fixed(8))
    a = engine.open(SAID[:3], stops=Stops(max_new_tokens=3))
    b = engine.open(SAID[:5], stops=Stops(max_new_tokens=2))
    engine.step()
    engine.step()
    engine.step()
    engine.rewind(a, 4)
    engine.close(b)
    assert (
        watcher.told
        == [
            ("open", 0, SAID[:3]),
            ("open", 1, SAID[:5]),
            ("observe", [(0, True, (SAID[3],)), (1, True, (SAID[5],))]),
            ("propose", [0], [1]),  # one more token of b needs no draft
            ("observe", [(0, False, (SAID[4],)), (1, False, (SAID[6],))]),
            ("observe", [(0, False, (SAID[5],))]),
            ("rewind", 0, 4, SAID[:4]),
            ("close", 1),
        ]
    )


def test_prompts_are_read_in_chunks_and_only_the_last_one_asks_for_logits() -> None:
    backend = stream(SAID)
    backend.chunk = 7
    engine = plain(backend)
    session = engine.open(SAID[:17], stops=Stops(max_new_tokens=2))
    (step,) = engine.step()
    sent = [(list(r.pending), r.logits, r.ahead) for (r,) in backend.requests]
    assert sent == [(SAID[:7], False, 10), (SAID[7:14], False, 3), (SAID[14:17], True, 0)]
    assert step.prefill
    assert step.fed == 17
    assert session.output == [SAID[17]]


@pytest.mark.parametrize("length", [5, 1])
def test_what_a_drafter_takes_to_open_and_to_learn_is_part_of_the_time(length: int) -> None:
    class Slow(NoDrafter):
        def open(self, session: Context) -> None:
            sleep(0.02)

        def observe(self, steps: Sequence[Step]) -> None:
            sleep(0.02)

    engine = Engine(ToyBackend(), Slow(), Fixed(0))
    session = engine.open(prompt(length), stops=Stops(max_new_tokens=3))
    first, *later = drive(engine)[session.id]
    assert first.times.propose >= 0.04
    assert all(step.times.propose >= 0.02 for step in later)
    assert session.opening == 0.0
