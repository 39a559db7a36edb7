"""The promise: whatever is drafted, the output is what the model alone would have said.

Architecture x attention x way of choosing x batch x drafter, in float64. The references are `model.generate` (greedy and torch sampling)
and plain forwards without a cache (keyed sampling), each prompt alone.
"""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest

from conforming import DRAFTERS, NEW, RULES, SEED, WARP, assert_conforms, drafter, policy
from echodraft.backends.toy import ToyBackend
from echodraft.backends.transformers import TransformersBackend
from echodraft.core.accept import Stops
from echodraft.core.budget import Fixed
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, pick
from echodraft.drafters.prompt_lookup import PromptLookup
from harness import decoded, drive, longest
from models import CONFIGS, SWITCH, WINDOW, generate, keyed, prompt, tiny
from oracle import Oracle
from pairwise import pairwise

# Below the sliding window, beyond it; for Phi-3 a prompt that crosses the switch, one that is beyond it, one that stays short longest.
LENGTHS = {"phi3": (20, 37, 10)}
FACTORS = {
    "arch": tuple(CONFIGS),
    "attention": ("sdpa", "eager"),
    "mode": tuple(RULES),
    "batch": (1, 3),
    "drafter": DRAFTERS,
}


def key(case: dict[str, Any]) -> str:
    return "-".join(str(case[name]) for name in FACTORS)


COVER = {key(case): case for case in pairwise(FACTORS)}
ALL = [dict(zip(FACTORS, values, strict=True)) for values in product(*FACTORS.values())]
CASES = [pytest.param(case, id=key(case), marks=[] if key(case) in COVER else pytest.mark.full) for case in ALL]


def prompts(arch: str, batch: int) -> list[list[int]]:
    return [prompt(length) for length in LENGTHS.get(arch, (5, 17, 10))[:batch]]


@cache
def reference(arch: str, attention: str, mode: str, length: int) -> list[int]:
    """What the model alone says behind the prompt of this length."""
    model, ids = tiny(arch, attention), prompt(length)
    if mode == "keyed":
        return keyed(model, ids, NEW, RULES[mode])
    return generate(model, ids, NEW, **({} if mode == "greedy" else WARP | {"seed": SEED}))


@pytest.mark.parametrize("case", CASES)
def test_output_is_what_the_model_alone_says(case: dict[str, Any]) -> None:
    arch, attention, mode = case["arch"], case["attention"], case["mode"]
    ids = prompts(arch, case["batch"])
    expected = [reference(arch, attention, mode, len(p)) for p in ids]
    backend = TransformersBackend(tiny(arch, attention), chunk=512 if mode == "greedy" else 7)
    drafts = drafter(case["drafter"], [p + out for p, out in zip(ids, expected, strict=True)])
    engine = Engine(backend, drafts, policy(case["drafter"]))
    assert_conforms(engine, mode, ids, expected, SWITCH if arch == "phi3" else None)


def toy_alone(ids: list[int], rule: Rule) -> list[int]:
    toy, tokens = ToyBackend(), list(ids)
    for _ in range(NEW):
        tokens.append(pick(toy._logits(tokens), rule, len(tokens)))
    return tokens[len(ids) :]


@pytest.mark.parametrize(("mode", "batch", "name"), [*product(("greedy", "keyed"), (1, 3), FACTORS["drafter"])])
def test_toy_output_is_what_the_toy_alone_says(mode: str, batch: int, name: str) -> None:
    ids = prompts("toy", batch)
    expected = [toy_alone(p, RULES[mode]) for p in ids]
    engine = Engine(ToyBackend(chunk=7), drafter(name, [p + out for p, out in zip(ids, expected, strict=True)]), policy(name))
    assert_conforms(engine, mode, ids, expected)


@pytest.mark.parametrize("k", [1, 3, 8, 16])
@pytest.mark.parametrize("arch", CONFIGS)
def test_right_drafts_are_accepted_in_full_and_use_the_fewest_steps(arch: str, k: int) -> None:
    ids = prompt(5)
    expected = reference(arch, "sdpa", "greedy", 5)
    engine = Engine(TransformersBackend(tiny(arch)), Oracle("right", [ids + expected], k), Fixed(512))
    session = engine.open(ids, stops=Stops(max_new_tokens=NEW))
    steps = decoded(drive(engine)[session.id])
    assert session.output == expected
    assert len(steps) == -(-(NEW - 1) // (k + 1))
    assert all(step.verdict.accepted == len(step.draft) for step in steps)


@pytest.mark.parametrize("kind", ["right-first", "right-last"])
@pytest.mark.parametrize("arch", ["mistral", "gemma3"])
def test_a_window_counts_positions_in_trees_deeper_than_itself(arch: str, kind: str) -> None:
    ids = prompts(arch, 3)
    expected = [reference(arch, "sdpa", "greedy", len(p)) for p in ids]
    texts = [p + out for p, out in zip(ids, expected, strict=True)]
    assert_conforms(Engine(TransformersBackend(tiny(arch)), Oracle(kind, texts, WINDOW + 4), Fixed(512)), "greedy", ids, expected)


def test_prompt_lookup_accepts_long_blocks_where_the_text_repeats() -> None:
    ids = prompt(6) * 3
    engine = Engine(ToyBackend(copy=100.0), PromptLookup(), Fixed(8))
    session = engine.open(ids, stops=Stops(max_new_tokens=NEW))
    steps = decoded(drive(engine)[session.id])
    assert longest(steps) == 8
    assert len(steps) == -(-(NEW - 1) // 9)


def test_pairwise_cover_holds_every_pair() -> None:
    for a, b in product(FACTORS, FACTORS):
        if a != b:
            assert {(case[a], case[b]) for case in COVER.values()} == set(product(FACTORS[a], FACTORS[b]))
    assert len(COVER) < 1.2 * len(FACTORS["arch"]) * len(FACTORS["drafter"])
