"""What users of other libraries met with drafters, as tests of the kind, over every registered drafter."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Any

import numpy as np
import pytest

from conforming import NEW, draft_model, knobs, twin
from echodraft.backends.toy import ToyBackend
from echodraft.build import knobs_of, make_drafter
from echodraft.core.accept import Stops
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import ANCHOR
from echodraft.core.draft_model import DraftEngine
from echodraft.core.drafter import Drafter
from echodraft.core.engine import Engine
from echodraft.core.session import Session
from echodraft.core.step import Step
from echodraft.drafters import DRAFTERS, drafter_class
from echodraft.drafters.none import NoDrafter
from echodraft.errors import UsageError
from echodraft.memory import Limits, Memory
from harness import Scripted, decoded, drive, longest, run, stream
from models import prompt

REAL = tuple(name for name in DRAFTERS if name != "none")
REMEMBERING = tuple(name for name in REAL if "memory" in inspect.signature(drafter_class(name)).parameters)
TEXT = prompt(6) * 3
OTHER = prompt(7, seed=1) * 3
MUMBLE = prompt(9, seed=2)  # the toy repeats itself behind it now and then

WORD = [65_535, 65_536, 69_999, 4, 65_540, 66_000]


def needed(name: str) -> dict[str, Any]:
    """Knobs of a drafter that cannot do without; a corpus of the texts below, and one from another model."""
    return knobs(name, [TEXT * 2, OTHER * 2, WORD * 4, [20, 21, 22], [20, 21, 85]])


each = pytest.mark.parametrize("name", REAL)


def repeating() -> ToyBackend:
    """A toy that goes on with what it repeats."""
    return ToyBackend(copy=100.0)


def engine_for(name: str, backend: Any = None, nodes: int = 16, memory: Memory | None = None, **knobs: Any) -> Engine:
    backend = backend or repeating()
    parts = {"memory": memory, "draft_model": draft_model(twin(backend))}
    return Engine(backend, make_drafter(name, needed(name) | knobs, parts), Fixed(nodes))


def alone(ids: Sequence[int], n: int = NEW, backend: Any = None) -> list[int]:
    """What the model says without drafts."""
    return run(Engine(backend or repeating(), NoDrafter(), Fixed(0)), ids, n)


def drafts(steps: list[Step]) -> list[Any]:
    """All that was drafted, step by step."""
    return [(s.draft.token.tolist(), s.draft.parent.tolist(), s.draft.prob.tolist(), s.draft.source) for s in decoded(steps)]


def told(name: str, ids: Sequence[int], memory: Memory, tenant: str = "") -> list[Any]:
    """What is drafted for one request, from its beginning to its end, by a drafter that was made for it."""
    engine = engine_for(name, ToyBackend(), memory=memory)
    session = engine.open(ids, stops=Stops(max_new_tokens=2 * NEW), tenant=tenant)
    steps = drive(engine)[session.id]
    assert session.output == alone(ids, 2 * NEW, ToyBackend())
    engine.close(session)
    return drafts(steps)


def state(drafter: Drafter) -> Iterator[Any]:
    """What a drafter, and those in it, may keep of sessions."""
    values = list(vars(drafter).values())
    for value in (*values, *chain.from_iterable(value for value in values if isinstance(value, tuple))):
        if isinstance(value, Drafter):
            yield from state(value)
        elif isinstance(value, DraftEngine):
            yield from (value._followed, value._outer, value.engine.sessions, value.engine.backend._slots)  # type: ignore[attr-defined]
            yield from state(value.engine.drafter)
        elif isinstance(value, dict | list | set):
            yield value


@each
def test_blocks_are_accepted_where_the_text_repeats(name: str) -> None:
    engine = engine_for(name)
    session = engine.open(TEXT, stops=Stops(max_new_tokens=NEW))
    assert longest(decoded(drive(engine)[session.id])) >= 3
    assert session.output == alone(TEXT)


@each
@pytest.mark.parametrize("budget", [Budget(1, 1, 1), Budget(6, 2, 1), Budget(9, 5, 2), Budget(40, 40), Budget(64, 3)])
def test_a_draft_keeps_within_its_budget(name: str, budget: Budget) -> None:
    engine = engine_for(name)
    session = engine.open(TEXT, stops=Stops(max_new_tokens=NEW))
    found = 0
    while session.finish is None:
        engine.step()
        (draft,) = engine.drafter.propose([session], [budget])
        children = np.bincount(draft.parent - ANCHOR)
        assert len(draft) <= budget.nodes
        assert draft.depth.max(initial=0) <= budget.depth
        assert children.max(initial=0) <= budget.branching
        found += len(draft)
    assert found > 0


@each
@pytest.mark.parametrize("nodes", [1, 64])
def test_a_prompt_may_be_one_token(name: str, nodes: int) -> None:
    backend = stream([5, 6, 7, 5, 6, 7, 8])
    session = (engine := engine_for(name, backend, nodes)).open([5], stops=Stops(max_new_tokens=40))
    drive(engine)
    assert session.output == alone([5], 40, stream([5, 6, 7, 5, 6, 7, 8]))


def smallest(name: str) -> dict[str, int]:
    """Every size among the knobs of a drafter, each as small as it may be."""
    sizes: dict[str, int] = {}
    for parameter in knobs_of(drafter_class(name)).values():
        for size in range(1, parameter.default + 1) if type(parameter.default) is int else ():
            with suppress(UsageError):
                make_drafter(name, needed(name) | sizes | {parameter.name: size})
                sizes[parameter.name] = size
                break
    return sizes


@each
def test_all_sizes_may_be_the_smallest(name: str) -> None:
    engine = engine_for(name, nodes=1, memory=Memory(limits=Limits(tokens=1)), **smallest(name))
    for ids in (TEXT, OTHER, TEXT):
        assert run(engine, ids, NEW) == alone(ids)


@each
def test_ids_outside_the_vocabulary_never_reach_the_target(name: str) -> None:
    """A memory that a model with a larger vocabulary filled."""
    memory, proposed, said = Memory(), [], list(range(20, 30))
    run(engine_for(name, stream([id for token in said for id in (token, token + 60)]), memory=memory), [7], NEW)
    backend = stream(said, vocab_size=50)
    engine = engine_for(name, backend, memory=memory)
    propose = engine.drafter.propose

    def watched(sessions: Any, budgets: Any) -> Any:
        found = propose(sessions, budgets)
        proposed.extend(token for draft in found for token in draft.token.tolist())
        return found

    engine.drafter.propose = watched  # type: ignore[method-assign]
    assert run(engine, [7], NEW) == alone([7], NEW, stream(said, vocab_size=50))
    scored = [token for requests in backend.requests for request in requests for token in request.draft.token.tolist()]
    assert max(scored) < 50
    assert (max(proposed) >= 50) == (name in REMEMBERING or bool(needed(name)))


@each
def test_ids_beyond_16_bits_are_drafted_as_they_are(name: str) -> None:
    vocab, word = 70_000, WORD

    def follow(path: list[int]) -> np.ndarray:
        logits = np.zeros(vocab)
        logits[word[len(path) % len(word)]] = 1.0
        return logits

    engine = engine_for(name, Scripted(follow, vocab), nodes=4)
    session = engine.open(word * 2, stops=Stops(max_new_tokens=NEW))
    assert longest(drive(engine)[session.id]) >= 2
    assert session.output == word * (NEW // len(word))


@each
def test_a_request_is_drafted_from_itself_and_from_what_its_memory_holds(name: str) -> None:
    fresh = told(name, MUMBLE, Memory())
    memory = Memory()
    told(name, OTHER, memory)
    told(name, MUMBLE, memory)
    assert (told(name, MUMBLE, memory) != fresh) == (name in REMEMBERING)
    assert told(name, MUMBLE, Memory()) == fresh


@each
def test_a_tenant_learns_nothing_from_another(name: str) -> None:
    memory = Memory()
    fresh = told(name, MUMBLE, Memory(), "b")
    told(name, MUMBLE, memory, "a")
    assert (told(name, MUMBLE, memory, "a") != fresh) == (name in REMEMBERING)  # else there was nothing to steal
    assert told(name, MUMBLE, memory, "b") == fresh
    # Side by side, while the other's request is open and one step ahead.
    engine = engine_for(name, ToyBackend(), memory=memory)
    engine.open(MUMBLE, stops=Stops(max_new_tokens=NEW), tenant="a")
    engine.step()
    thief = engine.open(MUMBLE, stops=Stops(max_new_tokens=2 * NEW), tenant="c")
    assert drafts(drive(engine)[thief.id]) == fresh


@pytest.mark.parametrize("name", REMEMBERING)
def test_a_memory_is_held_to_its_limits_when_a_request_ends(name: str) -> None:
    memory = Memory(limits=Limits(bytes=1))
    for tenant in ("a", "b"):
        told(name, MUMBLE, memory, tenant)
        assert {held for held, _ in memory} == {tenant}


@each
@pytest.mark.parametrize("change", ["back", "on"])
def test_a_session_that_went_back_or_on_is_drafted_like_one_that_begins_there(name: str, change: str) -> None:
    engine = engine_for(name)
    session = engine.open(OTHER + TEXT, stops=Stops(max_new_tokens=NEW))
    drive(engine)
    if change == "back":
        engine.rewind(session, len(OTHER) - 2)
    else:
        engine.extend(session, OTHER)
    ids = list(session.tokens)
    other = engine.open(ids, stops=Stops(max_new_tokens=NEW))
    first, second = engine.drafter.propose([session, other], [Budget(20, 20), Budget(20, 20)])
    assert (first.token.tolist(), first.parent.tolist()) == (second.token.tolist(), second.parent.tolist())
    engine.close(other)
    drive(engine)
    assert session.tokens == ids + alone(ids)[: len(session.tokens) - len(ids)]
    assert len(session.tokens) >= len(ids) + NEW


@each
def test_a_thousand_short_requests_leave_nothing_of_a_session(name: str) -> None:
    said = np.random.default_rng(3).integers(0, 97, 1009).tolist()
    memory = Memory(limits=Limits(tokens=2000))
    engine = engine_for(name, stream(said), nodes=4, memory=memory)
    half = 0
    for i in range(1000):
        session = engine.open(said[i : i + 3], stops=Stops(max_new_tokens=6))
        drive(engine)
        assert i or any(state(engine.drafter)) or name == "rest"  # which reads its corpus only
        engine.close(session)
        assert not any(state(engine.drafter))
        assert all(store.tokens <= 2000 for _, store in memory)
        if i == 499:
            half = memory.nbytes
    assert memory.nbytes <= 1.5 * half


@each
def test_sessions_of_a_batch_end_where_they_end(name: str) -> None:
    engine = engine_for(name)
    texts, lengths = (TEXT, OTHER, TEXT[:3]), (3, 11, NEW)
    sessions = [engine.open(ids, stops=Stops(max_new_tokens=n)) for ids, n in zip(texts, lengths, strict=True)]
    drive(engine)
    assert [s.output for s in sessions] == [alone(ids, n) for ids, n in zip(texts, lengths, strict=True)]
    last = alone(OTHER)[9]
    assert run(engine, OTHER, NEW, eos=frozenset({last})) == alone(OTHER)[: alone(OTHER).index(last) + 1]


@each
def test_the_order_of_requests_changes_no_output(name: str) -> None:
    texts = [TEXT, OTHER, TEXT + OTHER, TEXT[:1]]
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [2, 0, 3, 1]):
        engine = engine_for(name)
        assert [run(engine, texts[i], NEW) for i in order] == [alone(texts[i]) for i in order]


@each
def test_a_session_that_leaves_does_not_disturb_the_others(name: str) -> None:
    engine = engine_for(name)
    sessions: list[Session] = [engine.open(TEXT, stops=Stops(max_new_tokens=2 * NEW)) for _ in range(3)]
    engine.step()
    engine.step()
    engine.close(sessions[1])
    steps = drive(engine)
    assert sessions[0].output == sessions[2].output == alone(TEXT, 2 * NEW)
    assert all(longest(steps[s.id]) >= 3 for s in (sessions[0], sessions[2]))
