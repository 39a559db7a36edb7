"""Where the output ends, and who is called on the way: inside accepted blocks, once a token, never on a rejected branch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    MaxLengthCriteria,
    MaxTimeCriteria,
    MinNewTokensLengthLogitsProcessor,
    NoBadWordsLogitsProcessor,
    NoRepeatNGramLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
)
from transformers.generation import EosTokenCriteria

from echodraft.backends.toy import ToyBackend
from echodraft.backends.transformers import TransformersBackend
from echodraft.backends.transformers_sampling import TorchSampler, hf_criteria, hf_processors
from echodraft.core.accept import Stops
from echodraft.core.budget import Fixed
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler
from echodraft.drafters.none import NoDrafter
from harness import decoded, drive, longest, run, stream
from models import generate, prompt, tiny
from oracle import KINDS, Oracle

SAID = np.random.default_rng(4).permutation(97).tolist()  # every token once
PROMPT, FUTURE = SAID[:3], SAID[3:60]
BLOCK = 16
CUTTING = ("right", "right-last", "huge", "deep", "random")


def engine(kind: str = "right", k: int = BLOCK) -> Engine:
    """Says SAID; drafts long blocks of it."""
    return Engine(stream(SAID), Oracle(kind, [SAID], k), Fixed(512))


@pytest.mark.parametrize("position", range(2 * BLOCK))
@pytest.mark.parametrize("others", [(), (0, 1)], ids=["one id", "three ids"])
def test_the_output_ends_at_an_end_token_inside_a_block(position: int, others: tuple[int, ...]) -> None:
    later = {FUTURE[position + 1 + i] for i in others}
    host = engine()
    session = host.open(PROMPT, stops=Stops(eos=frozenset({FUTURE[position]} | later), max_new_tokens=50))
    steps = drive(host)[session.id]
    assert session.output == FUTURE[: position + 1]
    assert session.finish == "eos"
    assert sum(len(step.verdict.tokens) for step in steps) == position + 1
    assert len(decoded(steps)) == -(-position // (BLOCK + 1))


def test_without_an_end_token_only_the_limit_ends_the_output() -> None:
    assert run(engine(), PROMPT, 50) == FUTURE[:50]


def test_end_tokens_of_the_prompt_end_nothing() -> None:
    assert run(engine(), PROMPT, 8, eos=frozenset(PROMPT)) == FUTURE[:8]


@pytest.mark.parametrize("n", range(1, 9))
@pytest.mark.parametrize("limit", ["max_new_tokens", "max_length"])
@pytest.mark.parametrize("kind", CUTTING)
def test_no_block_passes_a_limit(n: int, limit: str, kind: str) -> None:
    host = engine(kind)
    stops = Stops(max_new_tokens=n) if limit == "max_new_tokens" else Stops(max_length=len(PROMPT) + n, max_new_tokens=40)
    session = host.open(PROMPT, stops=stops)
    steps = drive(host)[session.id]
    assert session.output == FUTURE[:n]
    assert session.finish == "length"
    if n >= 5 and kind != "random":
        assert longest(steps) == n - 2


def test_a_prompt_of_one_token_is_drafted_for_at_once() -> None:
    host = engine()
    session = host.open(SAID[:1], stops=Stops(max_new_tokens=BLOCK + 1))
    (step,) = host.step()
    assert step.verdict.accepted == BLOCK
    assert session.output == SAID[1 : BLOCK + 2]


@pytest.mark.parametrize("at", range(1, 12))
@pytest.mark.parametrize("kind", CUTTING)
def test_checks_are_called_after_every_token_and_cut_inside_a_block(at: int, kind: str) -> None:
    seen: list[tuple[int, int]] = []

    def check(tokens: Sequence[int], prompt_length: int) -> str | None:
        seen.append((len(tokens), prompt_length))
        return "enough" if len(tokens) - prompt_length == at else None

    host = engine(kind)
    session = host.open(PROMPT, stops=Stops(max_new_tokens=40, checks=(check,)))
    drive(host)
    assert session.output == FUTURE[:at]
    assert session.finish == "enough"
    assert seen == [(len(PROMPT) + i, len(PROMPT)) for i in range(1, at + 1)]


def test_all_checks_see_the_last_token_and_the_end_token_gives_the_reason() -> None:
    calls: list[str] = []
    checks = tuple(lambda tokens, _, name=name: calls.append(name) or (name if len(tokens) == 8 else None) for name in ("a", "b"))
    host = engine()
    session = host.open(PROMPT, stops=Stops(eos=frozenset({FUTURE[4]}), checks=checks))
    drive(host)
    assert session.output == FUTURE[:5]
    assert session.finish == "eos"
    assert calls == ["a", "b"] * 5


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("rule", [Rule(), Rule(temperature=1.0, seed=3)], ids=["greedy", "sampled"])
def test_processors_are_called_once_a_token_in_order_on_the_true_prefix(kind: str, rule: Rule) -> None:
    calls: list[list[int]] = []
    order: list[int] = []

    def record(prefix: Sequence[int], row: Any) -> Any:
        calls.append(list(prefix))
        order.append(1)
        return row

    def push(prefix: Sequence[int], row: Any) -> Any:
        order.append(2)
        row[(prefix[-1] + 1) % 97] += 4.0  # changes what is said, by what was said
        return row

    ids = prompt(9)
    known = run(Engine(ToyBackend(), NoDrafter(), Fixed(8)), ids, 20, Sampler(rule, (push,)))
    order.clear()
    said = run(Engine(ToyBackend(), Oracle(kind, [ids + known]), Fixed(512)), ids, 20, Sampler(rule, (record, push)))
    assert said == known
    assert calls == [ids + said[:i] for i in range(20)]
    assert order == [1, 2] * 20


# What generate is told, and the processor that it makes of it from (prompt length, end token, what is said without it).
PROCESSORS: dict[str, tuple[Any, Any]] = {
    "penalty": (lambda _: {"repetition_penalty": 1.3}, lambda *_: RepetitionPenaltyLogitsProcessor(1.3)),
    "reward": (lambda _: {"repetition_penalty": 0.8}, lambda *_: RepetitionPenaltyLogitsProcessor(0.8)),
    "no-repeat": (lambda _: {"no_repeat_ngram_size": 2}, lambda *_: NoRepeatNGramLogitsProcessor(2)),
    "bad-words": (lambda said: {"bad_words_ids": bad(said)}, lambda _, end, said: NoBadWordsLogitsProcessor(bad(said), end)),
    "min-new": (lambda _: {"min_new_tokens": 12}, lambda length, end, _: MinNewTokensLengthLogitsProcessor(length, 12, end)),
}


def bad(said: list[int]) -> list[list[int]]:
    return [[said[2]], said[4:6]]


@pytest.mark.parametrize("name", PROCESSORS)
@pytest.mark.parametrize("rule", [Rule(), Rule(temperature=0.4, top_k=10)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["right", "right-last", "random"])
def test_processors_of_transformers_do_what_they_do_in_generate(name: str, rule: Rule, kind: str) -> None:
    model, ids, seed = tiny("qwen3"), prompt(12) + [87] * 6, 2
    arguments, processor = PROCESSORS[name]
    warp: dict[str, Any] = {} if rule.greedy else {"temperature": rule.temperature, "top_k": rule.top_k, "seed": seed}
    plain = generate(model, ids, 24, **warp)
    end = plain[5] if name == "min-new" else None
    warp |= {"eos_token_id": end, "pad_token_id": end}
    known = generate(model, ids, 24, **arguments(plain), **warp)
    assert known != generate(model, ids, 24, **warp), "the processor changes nothing here"
    processors = hf_processors([processor(len(ids), end, plain)], torch.device("cpu"))
    host = Engine(TransformersBackend(model), Oracle(kind, [ids + known]), Fixed(64))
    sampler = TorchSampler(rule, processors, torch.Generator().manual_seed(seed))
    session = host.open(ids, sampler, Stops(frozenset({end} - {None}), max_new_tokens=24))
    steps = drive(host)[session.id]
    assert session.output == known
    if kind != "random":
        assert longest(steps) >= 3


@pytest.mark.parametrize("at", range(1, 9))
def test_criteria_of_transformers_end_the_output_inside_a_block(at: int) -> None:
    lengths: list[tuple[int, ...]] = []

    def record(ids: torch.Tensor, _: Any) -> bool:
        lengths.append(tuple(ids.shape))
        return False

    host = engine()
    checks = hf_criteria([record, MaxLengthCriteria(len(PROMPT) + at)], torch.device("cpu"))
    session = host.open(PROMPT, stops=Stops(checks=checks))
    drive(host)
    assert session.output == FUTURE[:at]
    assert session.finish == "criterion"
    assert lengths == [(1, len(PROMPT) + i) for i in range(1, at + 1)]


@pytest.mark.parametrize(("criterion", "expected"), [(EosTokenCriteria([FUTURE[6], FUTURE[9]]), 7), (MaxTimeCriteria(-1.0), 1)])
def test_tensor_valued_and_timed_criteria_work_too(criterion: Any, expected: int) -> None:
    assert run(engine(), PROMPT, 40, checks=hf_criteria([criterion], torch.device("cpu"))) == FUTURE[:expected]


def test_no_processors_and_no_criteria_are_nothing() -> None:
    assert hf_processors([], torch.device("cpu")) == ()
    assert hf_criteria([], torch.device("cpu")) == ()


def test_sessions_that_share_a_processor_of_transformers_have_their_own_prefixes() -> None:
    seen: list[list[int]] = []

    def record(ids: torch.Tensor, row: torch.Tensor) -> torch.Tensor:
        seen.append(ids[0].tolist())
        return row

    host = Engine(stream(SAID), Oracle("right", [SAID], 3), Fixed(64))
    shared = Sampler(Rule(), hf_processors([record], torch.device("cpu")))
    sessions = [host.open(ids, shared, Stops(max_new_tokens=9)) for ids in (PROMPT, prompt(3), prompt(3, seed=1))]
    drive(host)
    assert sorted(seen) == sorted(session.tokens[:n] for session in sessions for n in range(3, 12))
    seen.clear()
    host.rewind(sessions[0], 5)
    host.extend(sessions[0], [8, 9], Stops(max_new_tokens=2))
    drive(host)
    assert seen == [[*SAID[:5], 8, 9], [*SAID[:5], 8, 9, SAID[7]]]
