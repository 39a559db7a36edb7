"""Sampled output has the target's law: counts of whole outputs against their exact probabilities, with siblings drafted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from itertools import product

import numpy as np
import pytest
from numpy.typing import NDArray

from echodraft.core import engine as engine_module
from echodraft.core.accept import Stops, Verdict, accept
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler, gumbel, pick, warp
from echodraft.core.scores import Scores
from harness import Scripted
from oracle import raw

VOCAB, LENGTH, DRAWS, TOGETHER = 8, 3, 20_000, 500
PLAIN = Rule(temperature=1.0)
RULES = {"plain": PLAIN, "warped": Rule(temperature=0.7, top_k=5, top_p=0.9)}


@cache
def row(path: tuple[int, ...]) -> NDArray[np.float64]:
    """The target: other logits for every prefix."""
    return np.random.default_rng(path).normal(0.0, 1.0, VOCAB)


def law(rule: Rule) -> dict[tuple[int, ...], float]:
    """The exact probability of every output behind the prompt (0,)."""
    out = {}
    for output in product(range(VOCAB), repeat=LENGTH):
        p = 1.0
        for i, token in enumerate(output):
            x = warp(row((0, *output[:i])), rule)
            weights = np.exp(x - x.max())
            p *= weights[token] / weights.sum()
        out[output] = float(p)
    return out


def critical(freedom: int, z: float = 3.719) -> float:
    """What chi-square exceeds by chance once in 10,000 times (Wilson and Hilferty 1931)."""
    a = 2.0 / (9.0 * freedom)
    return freedom * (1.0 - a + z * a**0.5) ** 3


def fits(counts: Counter[tuple[int, ...]], exact: dict[tuple[int, ...], float]) -> bool:
    """Whether the counts may come from the exact law; outputs expected fewer than 5 times are taken together."""
    n = sum(counts.values())
    if any(exact[output] == 0.0 for output in counts):
        return False
    often = [output for output, p in exact.items() if n * p >= 5]
    expected = [n * exact[output] for output in often]
    observed = [counts[output] for output in often]
    if n - sum(expected) >= 5:
        expected.append(n - sum(expected))
        observed.append(n - sum(observed))
    statistic = sum((o - e) ** 2 / e for o, e in zip(observed, expected, strict=True))
    return statistic < critical(len(expected) - 1)


class Tree(Drafter):
    """The same tree at every step: three siblings, two under each. Some are likely, some are not."""

    TOKENS = raw([1, 4, 6, 0, 3, 2, 5, 1, 7], [-1, -1, -1, 0, 0, 1, 1, 2, 2])

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.TOKENS] * len(sessions)


def draws(rule: Rule, n: int = DRAWS) -> Counter[tuple[int, ...]]:
    """Outputs under `n` seeds, through the engine."""
    engine = Engine(Scripted(lambda path: row(tuple(path)), VOCAB), Tree(), Fixed(16))
    counts: Counter[tuple[int, ...]] = Counter()
    for first in range(0, n, TOGETHER):
        rules = [Rule(rule.temperature, rule.top_k, rule.top_p, seed=seed) for seed in range(first, first + TOGETHER)]
        sessions = [engine.open([0], Sampler(r), Stops(max_new_tokens=LENGTH)) for r in rules]
        while engine.step():
            pass
        for session in sessions:
            counts[tuple(session.output)] += 1
            engine.close(session)
    return counts


@pytest.mark.parametrize("name", RULES)
def test_drafted_trees_leave_the_law_of_the_output_alone(name: str) -> None:
    assert fits(draws(RULES[name]), law(RULES[name]))


Choice = Callable[[Sequence[int], NDArray[np.float64], int, float], int]


def in_top_two(drafted: Sequence[int], logits: NDArray[np.float64], drawn: int, _: float) -> int:
    """Typical acceptance: a drafted token that is likely enough will do."""
    best = set(np.argsort(logits)[-2:].tolist())
    return next((token for token in drafted if token in best), drawn)


def shared_noise(drafted: Sequence[int], logits: NDArray[np.float64], drawn: int, u: float) -> int:
    """A ratio test against the same noise for all siblings, and a draw from the unchanged target behind it."""
    p = np.exp(logits - logits.max())
    return next((token for token in drafted if u < p[token] / p.sum()), drawn)


def walk(choice: Choice) -> Callable[..., Verdict]:
    """`accept` with another way to decide."""

    class Biased(Sampler):
        def __init__(self, inner: Sampler, draft: Draft) -> None:
            self.inner, self.draft = inner, draft

        def choose(self, scores: Scores, row: int, prefix: Sequence[int]) -> int:
            drafted = self.draft.token[self.draft.parent == row - 1].tolist()
            u = np.exp(-np.exp(-gumbel(self.inner.rule.key(len(prefix)), np.asarray([VOCAB]))[0]))
            return choice(drafted, scores.row(row), self.inner.choose(scores, row, prefix), u)

    def biased(draft: Draft, scores: Scores, sampler: Sampler, *rest: object) -> Verdict:
        return accept(draft, scores, Biased(sampler, draft), *rest)

    return biased


@pytest.mark.parametrize("choice", [in_top_two, shared_noise])
def test_a_biased_way_to_accept_is_found_out(choice: Choice, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_module, "accept", walk(choice))
    assert not fits(draws(PLAIN, n=5_000), law(PLAIN))


@pytest.mark.parametrize(
    ("other", "position"),
    [
        pytest.param(lambda seed: Rule(1.0, seed=seed), 6, id="position"),
        pytest.param(lambda seed: Rule(1.0, seed=seed, stream=1), 5, id="stream"),
        pytest.param(lambda seed: Rule(1.0, seed=seed + 1), 5, id="seed"),
    ],
)
def test_draws_that_differ_in_one_part_of_the_key_are_independent(other: Callable[[int], Rule], position: int) -> None:
    logits = row((0,))
    p = np.exp(logits) / np.exp(logits).sum()
    exact = {(a, b): float(p[a] * p[b]) for a in range(VOCAB) for b in range(VOCAB)}
    pairs = ((pick(logits, Rule(1.0, seed=seed), 5), pick(logits, other(seed), position)) for seed in range(DRAWS))
    assert fits(Counter(pairs), exact)


def test_critical_values_are_those_of_the_tables() -> None:
    for freedom, value in ((10, 35.56), (100, 161.32)):
        assert critical(freedom) == pytest.approx(value, rel=0.02)


def test_the_tree_is_one_and_tokens_of_it_are_accepted() -> None:
    assert Tree.TOKENS.parent.min() == ANCHOR
    engine = Engine(Scripted(lambda path: row(tuple(path)), VOCAB), Tree(), Fixed(16))
    for seed in range(50):
        engine.open([0], Sampler(Rule(1.0, seed=seed)), Stops(max_new_tokens=LENGTH))
    assert {step.verdict.accepted for step in engine.step()} == {0, 1, 2}
