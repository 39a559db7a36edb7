"""Sessions that come, go, continue and go back: each one still says what it would have said alone."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import pytest
import torch

from echodraft.backends import transformers_cache
from echodraft.backends.transformers import TransformersBackend
from echodraft.core.accept import Stops
from echodraft.core.backend import Need
from echodraft.core.budget import CPU_CURVE, Adaptive, Fixed
from echodraft.core.engine import Engine
from echodraft.core.session import Session
from echodraft.core.step import Step
from echodraft.drafters.prompt_lookup import PromptLookup
from harness import Recorder, decoded, drive, longest
from models import CONFIGS, generate, logits_behind, prompt, tiny
from oracle import Oracle

NEW = 20
FEW = ("llama", "gemma3", "phi3", "gpt2")
ARCHS = [pytest.param(arch, marks=[] if arch in FEW else pytest.mark.full) for arch in CONFIGS]
LENGTHS = (5, 17, 10, 24)


@pytest.fixture(params=ARCHS)
def arch(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def model(arch: str) -> Any:
    return tiny(arch)


@pytest.fixture
def texts(arch: str) -> list[list[int]]:
    """Prompts with what the model says behind them."""
    return spoken(arch)


@cache
def spoken(arch: str) -> list[list[int]]:
    return [prompt(n) + generate(tiny(arch), prompt(n), NEW) for n in LENGTHS]


def engine_for(model: Any, texts: list[list[int]], kind: str = "right-last", **kwargs: Any) -> Engine:
    """Right drafts with wrong siblings before each right node: every commit moves rows."""
    return Engine(TransformersBackend(model, chunk=7), Oracle(kind, texts, 4, **kwargs), Fixed(64))


def begin(engine: Engine, text: list[int], new: int = NEW) -> Session:
    return engine.open(text[: len(text) - NEW], stops=Stops(max_new_tokens=new))


def test_sessions_join_and_leave_between_steps(model: Any, texts: list[list[int]]) -> None:
    engine = engine_for(model, texts)
    first, second = begin(engine, texts[0]), begin(engine, texts[1])
    for _ in range(3):
        engine.step()
    third, never_read = begin(engine, texts[2]), begin(engine, texts[3])
    engine.close(first)
    assert first.tokens == texts[0][: len(first.tokens)]
    assert 0 < len(first.output) < NEW
    engine.step([second])
    engine.close(never_read)
    fourth = begin(engine, texts[3])
    drive(engine)
    assert [s.tokens for s in (second, third, fourth)] == [texts[1], texts[2], texts[3]]


@pytest.mark.parametrize("leaving", [0, 1, 2])
def test_another_session_takes_the_row_of_one_that_left(model: Any, texts: list[list[int]], leaving: int) -> None:
    engine = engine_for(model, texts, kind="right-first")
    sessions = [begin(engine, text) for text in texts[:3]]
    engine.step()
    engine.step()
    engine.close(sessions[leaving])
    drive(engine)
    assert [s.tokens for i, s in enumerate(sessions) if i != leaving] == [text for i, text in enumerate(texts[:3]) if i != leaving]


def test_a_session_that_was_never_read_may_leave(model: Any, texts: list[list[int]]) -> None:
    engine = engine_for(model, texts)
    sessions = [begin(engine, text) for text in texts]
    engine.step(sessions[:1])
    for session in sessions[:3]:
        engine.close(session)
    drive(engine)
    assert sessions[3].tokens == texts[3]


def test_steps_of_some_sessions_leave_the_others_alone(model: Any, texts: list[list[int]]) -> None:
    engine = engine_for(model, texts)
    sessions = [begin(engine, text) for text in texts]
    for turn in range(2 * NEW):
        before = [len(s.tokens) for s in sessions]
        chosen = (sessions[0], sessions[2], sessions[3]) if turn % 3 else (sessions[1],)
        stepped = {step.session.id for step in engine.step(chosen)}
        assert stepped <= {s.id for s in chosen}
        assert all(len(s.tokens) == n for s, n in zip(sessions, before, strict=True) if s not in chosen)
    assert [s.tokens for s in sessions] == texts


def test_a_batch_shares_one_forward(model: Any, texts: list[list[int]]) -> None:
    engine = engine_for(model, texts)
    short = [begin(engine, text) for text in (texts[0], texts[2])]
    engine.step()
    before = engine.backend.forwards
    steps = engine.step()
    assert engine.backend.forwards == before + 1
    assert [step.batch for step in steps] == [2, 2]
    assert [step.session for step in steps] == short


@pytest.mark.parametrize("turn", [1, 5, 12])
def test_a_session_continues_with_more_context(model: Any, texts: list[list[int]], turn: int) -> None:
    text = texts[2] + prompt(turn, seed=1)
    text += generate(model, text, NEW)
    engine = engine_for(model, [text, texts[2]], kind="right-first")
    session = begin(engine, texts[2])
    drive(engine)
    assert session.tokens == texts[2]
    engine.extend(session, prompt(turn, seed=1))
    assert session.finish is None
    steps = drive(engine)[session.id]
    assert session.tokens == text
    assert session.output == text[-NEW:]
    assert longest(decoded(steps)) >= 3
    assert steps[0].prefill
    assert steps[0].fed == turn + 1


@pytest.mark.parametrize("back", [5, 20, 30, 43])
def test_a_session_goes_back_and_on(model: Any, texts: list[list[int]], back: int) -> None:
    text = texts[3]
    short = text[: len(text) - back]
    engine = engine_for(model, texts)
    session, other = begin(engine, text), begin(engine, texts[0])
    drive(engine)
    engine.rewind(session, len(short))
    assert session.tokens == short
    engine.extend(session, [3, 1, 4])
    drive(engine)
    assert session.output == generate(model, [*short, 3, 1, 4], NEW)
    assert other.tokens == texts[0]


def test_a_session_goes_back_and_says_the_same_again(model: Any, texts: list[list[int]]) -> None:
    engine = engine_for(model, texts)
    session = begin(engine, texts[1])
    drive(engine)
    for length in (len(texts[1]) - 1, LENGTHS[1] + 3, LENGTHS[1]):
        engine.rewind(session, length)
        assert session.prompt_length == LENGTHS[1]
        drive(engine)
        assert session.tokens == texts[1]


def test_the_cache_grows_without_a_trace(model: Any, texts: list[list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_cache, "STEP", 4)
    engine = engine_for(model, texts)
    sessions = [begin(engine, texts[0])]
    engine.step()
    first = engine.backend._cache.capacity
    sessions += [begin(engine, text) for text in texts[1:]]
    drive(engine)
    assert engine.backend._cache.capacity > first
    assert [s.tokens for s in sessions] == texts


def committed(steps: list[Step], rows: str) -> np.ndarray:
    """The rows of a step's array that belong to committed tokens, for all steps together."""
    found = []
    for step in steps:
        array = getattr(step, rows)
        first = array.shape[0] - len(step.draft)
        path = step.verdict.path[: len(step.verdict.tokens) - 1]
        found += [array[:first], array[[first + node for node in path]]]
    return np.concatenate(found)


def test_hidden_states_are_those_of_a_plain_forward(model: Any, texts: list[list[int]]) -> None:
    engine = engine_for(model, texts, needs=frozenset({Need.HIDDEN}))
    sessions = [begin(engine, texts[0], 12), begin(engine, texts[1], 14)]  # the last drafts differ in size, so one row is padded
    steps = drive(engine)
    shared = [step for found in steps.values() for step in decoded(found) if step.batch == 2]
    assert len({len(step.draft) for step in shared}) > 1
    for session in sessions:
        with torch.inference_mode():
            ids = torch.tensor([session.tokens[:-1]], device=model.device)
            plain = model.get_decoder()(ids, use_cache=False)[0][0].half().cpu().numpy()
        assert steps[session.id][0].hidden is not None
        np.testing.assert_allclose(committed(steps[session.id], "hidden"), plain, rtol=2e-3, atol=2e-3)
    assert longest(decoded(steps[sessions[0].id])) >= 3


def test_top_k_are_the_best_of_every_row(model: Any, texts: list[list[int]]) -> None:
    drafter = Recorder(Oracle("random", texts), needs=frozenset({Need.TOP_K}))
    engine = Engine(TransformersBackend(model, chunk=7), drafter, Fixed(64))
    session = begin(engine, texts[2])
    drive(engine)
    tokens = list(texts[2][: LENGTHS[2]])
    for step in drafter.seen[:4]:
        assert step.top_k.shape == (len(step.draft) + 1, drafter.top_k)
        paths = [tokens]
        for t, p in zip(step.draft.token.tolist(), step.draft.parent.tolist(), strict=True):
            paths.append([*paths[p + 1], t])
        plain = [logits_behind(model, path).topk(drafter.top_k).indices.tolist() for path in paths]
        assert step.top_k.tolist() == plain
        tokens += step.verdict.tokens
    assert drafter.seen[0].session is session


def test_an_adaptive_budget_changes_only_the_speed(model: Any, texts: list[list[int]]) -> None:
    engine = Engine(TransformersBackend(model), PromptLookup(), Adaptive(CPU_CURVE))
    sessions = [begin(engine, text) for text in texts]
    steps = drive(engine)
    assert [s.tokens for s in sessions] == texts
    assert any(step.proposed for found in steps.values() for step in found)


def test_the_model_is_as_it_was(model: Any, texts: list[list[int]]) -> None:
    before, hooks = model.config.to_json_string(), len(model.get_decoder()._forward_hooks)
    engine = engine_for(model, texts, needs=frozenset({Need.HIDDEN}))
    begin(engine, texts[0])
    drive(engine)
    assert model.config.to_json_string() == before
    assert model.config._attn_implementation == "sdpa"
    assert len(model.get_decoder()._forward_hooks) == hooks
    assert generate(model, texts[0][: LENGTHS[0]], NEW) == texts[0][LENGTHS[0] :]


@pytest.mark.parametrize("length", [60, 61, 62, 63])
@pytest.mark.parametrize("kind", ["deep", "right", "random"])
def test_the_output_ends_at_the_context_limit(length: int, kind: str) -> None:
    model = tiny("gpt2")
    text = prompt(length) + generate(model, prompt(length), 64 - length)
    engine = Engine(TransformersBackend(model), Oracle(kind, [text]), Fixed(64))
    session = engine.open(prompt(length), stops=Stops(max_new_tokens=10))
    drive(engine)
    assert session.tokens == text
    assert session.finish == "length"
