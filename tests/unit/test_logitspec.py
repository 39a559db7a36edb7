"""LogitSpec: which guesses are tried, how each is continued, and from which row they come."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.engine import Engine
from echodraft.drafters.logitspec import LogitSpec
from harness import Scripted, drive, run


def ranked(tokens: Sequence[int]) -> np.ndarray:
    """Logits that rank these tokens first."""
    logits = np.zeros(97)
    logits[list(tokens)] = np.arange(len(tokens), 0, -1)
    return logits


def paths(draft: Draft) -> set[tuple[int, ...]]:
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token.tolist(), draft.parent.tolist(), strict=True):
        out.append((*(() if parent == ANCHOR else out[parent]), token))
    return set(out)


def drafted(prompt: list[int], best: Sequence[int], budget: int = 200, **knobs: Any) -> set[tuple[int, ...]]:
    """What is drafted behind the first token of the answer, which is the best of `best`."""
    engine = Engine(Scripted(lambda _: ranked(best)), LogitSpec(**knobs), Fixed(budget))
    session = engine.open(prompt, stops=Stops(max_new_tokens=100))
    engine.step()
    (draft,) = engine.drafter.propose([session], [Budget(budget, budget, budget)])
    return paths(draft)


def test_the_runners_up_for_the_last_token_are_the_guesses_for_the_next_one() -> None:
    assert drafted([1], [9, 8, 7, 6], guesses=4) == {(9,), (8,), (7,), (6,)}
    assert drafted([1], [9, 8, 7, 6], guesses=2) == {(9,), (8,)}


def test_a_guess_is_continued_as_the_text_goes_on_behind_it_the_higher_its_rank_the_farther() -> None:
    text = [40, 41, 42, 43, 44]
    best = list(range(60, 96))
    for rank, length in ((0, 4), (7, 4), (8, 3), (31, 3), (32, 1)):
        ids = [*best[:rank], 40, *best[rank + 1 :]]
        found = max((path for path in drafted(text, ids) if path[0] == 40), key=len)
        assert found == tuple(text[:length])


def test_the_longest_match_across_the_guess_is_the_one_that_is_followed() -> None:
    # 50 is followed by 1 behind the anchor 9, and later by 2 behind another token.
    assert (50, 1) in drafted([9, 50, 1, 8, 50, 2], [9, 50])
    assert (50, 2) in drafted([9, 50, 1, 8, 50, 2], [9, 50], longest=1)


def test_the_anchor_is_continued_too() -> None:
    assert (50, 1, 8) in drafted([9, 50, 1, 8, 4], [9], copies=3)


def test_guesses_come_from_the_row_that_gave_the_last_token() -> None:
    # Behind token t come t + 1, then t + 3 and t + 5: where two tokens are accepted, the row of the second one counts.
    backend = Scripted(lambda path: ranked([(path[-1] + step) % 97 for step in (1, 3, 5)]))
    engine = Engine(backend, LogitSpec(guesses=3), Fixed(30))
    session = engine.open([1, 2, 3, 4, 50, 1], stops=Stops(max_new_tokens=40))
    while session.finish is None:
        engine.step()
        (draft,) = engine.drafter.propose([session], [Budget(30, 30, 30)])
        last = session.tokens[-1]
        assert {(last,), ((last + 2) % 97,), ((last + 4) % 97,)} <= paths(draft)


def test_what_comes_second_now_and_first_next_is_accepted() -> None:
    # The runner-up at an even place is right at the odd place behind it; nothing repeats.
    order = np.random.default_rng(0).permutation(97).tolist()
    backend = Scripted(lambda path: ranked([order[len(path)], order[len(path) + 1] if len(path) % 2 == 0 else 0]))
    engine = Engine(backend, LogitSpec(), Fixed(4))
    session = engine.open([order[0], order[1]], stops=Stops(max_new_tokens=41))
    steps = [step for step in drive(engine)[session.id] if not step.prefill]
    assert len(steps) == 20
    assert all(step.verdict.accepted == 1 for step in steps)


def test_a_vocabulary_smaller_than_the_guesses_is_guessed_whole() -> None:
    logits = np.arange(5.0)
    engine = Engine(Scripted(lambda _: logits, 5), LogitSpec(), Fixed(9))
    assert run(engine, [1, 2], 8) == [4] * 8
