"""Lookahead: what the window brings, what it costs, and what is kept of it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from echodraft.core.accept import Stops
from echodraft.core.budget import CPU_CURVE, GPU_CURVE, Adaptive, CostCurve, Fixed
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.drafters.lookahead import MADE, SEEN, WINDOW, Lookahead
from echodraft.errors import UsageError
from echodraft.memory import Memory
from harness import Scripted, decoded, drive, stream

RANDOM = np.random.default_rng(5).permutation(97)[:90].tolist()
"""No token comes twice, so that nothing can be looked up in the text."""


def steps_of(backend: Scripted, policy: Any = None, n: int = 80, memory: Memory | None = None, **knobs: Any) -> list[Step]:
    engine = Engine(backend, Lookahead(**knobs, memory=memory), policy or Fixed(300))
    session = engine.open(RANDOM[:2], stops=Stops(max_new_tokens=n))
    steps = decoded(drive(engine)[session.id])
    engine.close(session)
    return steps


def kept(steps: Sequence[Step]) -> list[str]:
    """Who guessed each accepted token."""
    return [step.draft.source[node] for step in steps for node in step.verdict.path]


def babble() -> Scripted:
    """Every token hangs on all before it, so that what is said in a wrong context is worthless."""
    one_hot = np.eye(5003)
    return Scripted(lambda path: one_hot[hash(tuple(path)) % 5003], 5003)


@pytest.mark.parametrize("level", [2, 3, 5])
def test_what_the_window_foresaw_is_accepted_whole_with_the_token_behind_it(level: int) -> None:
    steps = steps_of(stream(RANDOM[:30]), window=6, level=level, from_text=False)
    assert set(kept(steps)) <= {MADE, WINDOW}
    assert max(len(step.verdict.tokens) for step in steps) >= level
    assert any(step.verdict.accepted == level - 1 and step.draft.source[step.verdict.path[-1]] == MADE for step in steps)


def test_the_text_is_looked_up_if_it_counts() -> None:
    word = [3, 4, 5, 6, 7]
    assert SEEN in kept(steps_of(stream(word), from_text=True))
    assert SEEN not in kept(steps_of(stream(word), from_text=False))


def test_a_window_that_earns_nothing_is_scored_no_more_where_its_nodes_cost_anything() -> None:
    flat = CostCurve((1, 64), ((1.0, 1.0),))
    cheap = CostCurve((1, 64), ((1.0, 1.63),))  # a row costs a hundredth of a step, half of what a node is assumed to bring
    probes = {
        curve: [int(step.draft.probe.sum()) for step in steps_of(babble(), Adaptive(curve), n=300, from_text=False)]
        for curve in (flat, cheap, CPU_CURVE)
    }
    assert all(probes[flat][10:-1])
    assert any(probes[cheap][:20])
    assert max(probes[cheap][-100:]) <= 1  # what a bounded loss leaves
    assert not any(probes[CPU_CURVE])


@pytest.mark.parametrize(("backend", "rises"), [(babble, False), (lambda: stream(RANDOM), True)])
def test_a_window_claims_what_it_earned_for_each_node(backend: Any, rises: bool) -> None:
    steps = steps_of(backend(), n=60, from_text=False)
    claims = [float(step.draft.prob[step.draft.probe].max()) for step in steps if step.draft.probe.any()]
    assert (claims[-1] > 1.2 * claims[0]) if rises else (claims[-1] < claims[0] / 1.2)


def test_a_window_that_earns_its_cost_is_scored_to_the_end() -> None:
    tokens = np.random.default_rng(6).integers(0, 97, 4001).tolist()
    steps = steps_of(stream(tokens), Adaptive(GPU_CURVE), n=600, from_text=False)
    assert all(step.draft.probe.any() for step in steps[-20:-5])
    assert 600 / len(steps) > 2


def test_a_budget_without_room_for_the_window_scores_most_columns_whole_or_none() -> None:
    for nodes in range(1, 30):
        for step in steps_of(babble(), Fixed(nodes), n=12, window=4, level=4, from_text=False)[3:6]:
            assert len(step.draft) in (0, 8, 11)


@pytest.mark.parametrize("carry", [True, False])
def test_what_the_window_found_serves_later_requests_if_it_is_carried(carry: bool) -> None:
    memory = Memory()
    first = steps_of(stream(RANDOM), memory=memory, carry=carry, from_text=False)
    second = steps_of(stream(RANDOM), memory=memory, carry=carry, from_text=False)
    assert MADE not in first[0].draft.source
    assert any(MADE in step.draft.source for step in second[:2]) == carry
    assert bool(list(memory)) == carry


def test_a_window_that_was_not_scored_stays_as_it_is() -> None:
    engine = Engine(babble(), Lookahead(from_text=False), Adaptive(CPU_CURVE))
    session = engine.open(RANDOM[:2], stops=Stops(max_new_tokens=20))
    engine.step()
    known: Any = engine.drafter._known[session.id]  # type: ignore[attr-defined]
    before = [list(level) for level in known.window.levels]
    while session.finish is None:
        engine.step()
    assert known.window.levels == before


def test_two_runs_draft_the_same() -> None:
    first, second = (steps_of(babble(), n=30) for _ in range(2))
    assert [step.draft.token.tolist() for step in first] == [step.draft.token.tolist() for step in second]


@pytest.mark.parametrize("knobs", [{"window": 1}, {"level": 1}, {"level": 65}, {"guesses": 0}])
def test_sizes_that_make_no_window_are_refused(knobs: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="lookahead"):
        Lookahead(**knobs)
