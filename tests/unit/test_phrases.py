"""The phrase pool over a long life: bounded, useful phrases kept, degenerate text harmless."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from echodraft.memory import Limits, Memory
from echodraft.stores.phrases import PhrasePool


def filled(most: int, seed: int = 0, **limits: int) -> PhrasePool:
    pool = PhrasePool(most=most, **limits)
    rng = np.random.default_rng(seed)
    while len(pool) < most:
        pool.read(rng.integers(0, 50_000, 4096))
    return pool


def test_the_key_is_not_part_of_what_follows_it() -> None:
    pool = PhrasePool(length=3)
    pool.add([7, 1, 2, 3, 4])
    assert [phrase.tokens for phrase in pool.best(7, 4)] == [(1, 2, 3)]
    assert pool.best(1, 4) == []


def test_the_newest_comes_first_among_phrases_without_success() -> None:
    pool = PhrasePool()
    for token in (1, 2, 3):
        pool.add([7, token])
    assert [phrase.tokens for phrase in pool.best(7, 2)] == [(3,), (2,)]


def test_what_was_right_before_comes_before_what_is_new() -> None:
    pool = PhrasePool(per_key=3)
    pool.add([7, 1, 1])
    pool.credit([7, 1, 1], 2, 2)
    for token in range(2, 50):
        pool.add([7, token])
    assert [phrase.tokens for phrase in pool.best(7, 3)] == [(1, 1), (49,), (48,)]


def test_success_is_worth_less_with_age() -> None:
    pool = PhrasePool(most=40)
    pool.add([0, 1])
    pool.credit([0, 1], 1, 1)
    for key in range(1, 1000):
        pool.add([key, 5])
    assert pool.best(0, 1) == []
    assert pool.best(999, 1) != []


def test_a_key_that_is_full_gives_up_its_worst_phrase() -> None:
    pool = PhrasePool(per_key=2)
    for token in (1, 2, 3):
        pool.add([7, token])
        pool.credit([7, 1], 1, 1)
    assert {phrase.tokens for phrase in pool.best(7, 9)} == {(1,), (3,)}


def test_a_correction_takes_the_place_of_a_phrase_that_was_never_right() -> None:
    pool = PhrasePool()
    pool.add([7, 3])
    pool.add([7, 1, 2])
    pool.credit([7, 1, 2], 0, 1)
    pool.correct([7, 1, 2], [7, 1, 4])
    assert [phrase.tokens for phrase in pool.best(7, 9)] == [(1, 4), (3,)]
    assert pool.best(7, 1)[0].chance == 0.5


def test_a_correction_stands_beside_a_phrase_that_was_right_before() -> None:
    pool = PhrasePool(length=2)
    pool.read([7, 1, 2])
    pool.add([7, 3])
    pool.credit([7, 3], 1, 1)
    for wrong in ([7, 1, 2], [7, 3]):
        pool.correct(wrong, [7, 4, 5])
    assert {phrase.tokens for phrase in pool.best(7, 9)} == {(1, 2), (3,), (4, 5)}


def test_a_correction_that_is_known_already_leaves_one_phrase() -> None:
    pool = PhrasePool()
    pool.add([7, 1, 2])
    pool.add([7, 1, 4])
    pool.correct([7, 1, 2], [7, 1, 4])
    assert [phrase.tokens for phrase in pool.best(7, 9)] == [(1, 4)]


@pytest.mark.parametrize("text", [[5] * 10_000, [5, 6] * 5_000, [5, 5, 5, 6] * 2_500])
def test_text_that_repeats_itself_takes_the_place_of_nothing(text: list[int]) -> None:
    pool = filled(1000)
    pool.add([70_000, 1, 2])
    before = Counter(tuple(entry["ids"]) for entry in pool.entries())
    for i in range(100, len(text) + 1, 100):
        pool.read(text[:i], i - 100)
    after = Counter(tuple(entry["ids"]) for entry in pool.entries())
    assert len(pool) == 1000
    assert (before - after).total() <= 4
    assert pool.best(70_000, 1)[0].tokens == (1, 2)


def test_one_phrase_ten_thousand_times_neither_fills_nor_ages_the_pool() -> None:
    pool = PhrasePool(most=100)
    pool.add([1, 2, 3])
    for _ in range(10_000):
        pool.add([9, 9, 9, 9])
    assert len(pool) == 2
    pool.add([8, 8])
    # As worthy as what was added last, no more.
    for key in range(100, 400):
        pool.add([key, 1])
    assert pool.best(9, 1) == []


def test_ten_thousand_requests_leave_the_size_as_it_was() -> None:
    pool, rng, sizes = PhrasePool(most=2000), np.random.default_rng(0), []
    for i in range(10_000):
        pool.read(rng.integers(0, 1000, 20))
        if i in (2000, 9999):
            sizes.append((len(pool), pool.nbytes))
    assert sizes[0] == sizes[1]
    assert sizes[0][0] == 2000


def test_a_phrase_takes_few_bytes() -> None:
    pool = filled(100_000)
    assert pool.nbytes / len(pool) <= 80


def test_a_memory_holds_the_pool_to_its_limits_by_tenant() -> None:
    memory = Memory(limits=Limits(tokens=100))
    for tenant in ("a", "b"):
        pool = memory.store(tenant, PhrasePool, PhrasePool)
        pool.read(np.random.default_rng(0).integers(0, 99, 200))
        memory.settle(tenant)
        assert 90 < pool.tokens <= 100
    memory.forget("a")
    assert {tenant for tenant, _ in memory} == {"b"}


def test_what_was_written_too_long_ago_goes() -> None:
    pool = PhrasePool()
    pool.add([1, 2])
    pool.prune(1000, before=pool.arrays()["when"][0] + 1)
    assert len(pool) == pool.tokens == 0
    pool.add([1, 2])
    assert len(pool.best(1, 1)) == 1


@pytest.mark.parametrize("limits", [{"length": 0}, {"length": 65}, {"per_key": 0}, {"most": 0}])
def test_limits_that_cannot_be_are_refused(limits: dict[str, int]) -> None:
    with pytest.raises(ValueError, match="phrase"):
        PhrasePool(**limits)
