"""The phrase pool does what a pool of plain lists does, and holds to its limits whatever it is fed."""

from __future__ import annotations

from dataclasses import dataclass, field
from math import log2

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from echodraft.stores.phrases import PhrasePool
from echodraft.stores.phrases_table import LOOKED

Ids = tuple[int, ...]


@dataclass
class Held:
    ids: Ids
    score: float
    tried: float = 0.0
    kept: float = 0.0


def related(a: Ids, b: Ids) -> bool:
    """One begins the other."""
    n = min(len(a), len(b))
    return a[:n] == b[:n]


@dataclass
class Plain:
    """A pool as the docstring of the real one tells it: a list of places."""

    length: int
    per_key: int
    most: int
    places: list[Held | None] = field(default_factory=list)
    free: list[int] = field(default_factory=list)
    hand: int = 0
    clock: int = 0

    @property
    def half(self) -> float:
        return max(1.0, self.most / 8)

    def of(self, key: int) -> list[Held]:
        return sorted((held for held in self.places if held and held.ids[0] == key), key=lambda held: -held.score)

    def match(self, ids: Ids) -> Held | None:
        return max((held for held in self.of(ids[0]) if related(held.ids, ids)), key=lambda held: held.score, default=None)

    def add(self, ids: Ids) -> None:
        ids = ids[: self.length + 1]
        if len(ids) < 2:
            return
        known = self.match(ids)
        if known:
            known.ids = max(known.ids, ids, key=len)
            known.score = max(known.score, self.clock / self.half)
            return
        mates = self.of(ids[0])
        new = Held(ids, (self.clock + 1) / self.half)
        if len(mates) >= self.per_key:
            self.places[self.places.index(mates[-1])] = new
        else:
            if not self.free and len(self.places) == self.most:
                self.evict()
            if self.free:
                self.places[self.free.pop()] = new
            else:
                self.places.append(new)
        self.clock += 1

    def evict(self) -> None:
        seen = [(self.hand + i) % self.most for i in range(min(LOOKED, self.most))]
        self.hand = (self.hand + len(seen)) % self.most
        worst = min((place for place in seen if self.places[place]), key=lambda place: self.places[place].score)  # type: ignore[union-attr]
        self.places[worst] = None
        self.free.append(worst)

    def credit(self, ids: Ids, right: int, tried: int) -> None:
        known = self.match(ids[: self.length + 1])
        if known:
            known.tried += tried
            known.kept += right
            if right:
                known.score = log2(2**known.score + right * 2 ** (self.clock / self.half))


@dataclass
class Both:
    real: PhrasePool
    plain: Plain

    def check(self, vocab: int) -> None:
        for key in range(vocab):
            expected = self.plain.of(key)
            found = self.real.best(key, 100)
            # Worth is compared as numbers that were computed in another way: what is equally worthy may change places.
            assert {phrase.tokens for phrase in found} == {held.ids[1:] for held in expected}
            chance = {held.ids[1:]: (held.kept + 1) / (held.tried + 2) for held in expected}
            score = {held.ids[1:]: held.score for held in expected}
            assert all(phrase.chance == pytest.approx(chance[phrase.tokens]) for phrase in found)
            worth = [score[phrase.tokens] for phrase in found]
            assert worth == pytest.approx(sorted(worth, reverse=True))
        held = [held for held in self.plain.places if held]
        assert len(self.real) == len(held)
        assert self.real.tokens == sum(len(h.ids) for h in held)


phrases = st.lists(st.integers(0, 3), min_size=1, max_size=5).map(tuple)
# Powers of two, so that equal worth is equal to the last bit in both.
ops = st.lists(st.tuples(st.sampled_from(["add", "add", "add", "credit"]), phrases, st.sampled_from([0, 1, 2, 4])), max_size=60)


@settings(max_examples=150, deadline=None)
@given(ops, st.integers(1, 4), st.integers(1, 5), st.integers(1, 40))
def test_the_pool_holds_what_a_pool_of_plain_lists_holds(found: list[tuple[str, Ids, int]], length: int, per_key: int, most: int) -> None:
    both = Both(PhrasePool(length, per_key, most), Plain(length, per_key, most))
    for name, ids, right in found:
        if name == "add":
            both.real.add(ids)
            both.plain.add(ids)
        elif len(ids) > 1:
            right = min(right, len(ids[: length + 1]) - 1)
            both.real.credit(ids, right, right + 1)
            both.plain.credit(ids, right, right + 1)
        both.check(4)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["add", "correct", "prune", "save", "reach"]), phrases, phrases), max_size=50))
def test_whatever_is_done_a_phrase_is_there_once_and_the_counts_are_right(found: list[tuple[str, Ids, Ids]]) -> None:
    pool = PhrasePool(3, 3, 20)
    for name, ids, other in found:
        if name == "add":
            pool.add(ids)
        elif name == "correct" and len(ids) > 1:
            pool.correct(ids, ids[:1] + other)
        elif name == "prune":
            pool.prune(5 * len(ids))
            assert pool.tokens <= 5 * len(ids)
        elif name == "save":
            pool = PhrasePool.restore(pool.arrays())
        elif name == "reach":
            pool.reach(len(ids))
        everything = [(key, *phrase.tokens) for key in range(4) for phrase in pool.best(key, 50)]
        assert len(everything) == len(pool) <= pool.most
        assert sorted(tuple(entry["ids"]) for entry in pool.entries()) == sorted(everything)
        assert sum(map(len, everything)) == pool.tokens
        for i, a in enumerate(everything):
            assert len(a) <= pool.length + 1
            assert not any(related(a, b) for b in everything[i + 1 :])


@given(st.lists(st.integers(0, 2), max_size=30), st.integers(1, 4), st.integers(0, 29))
def test_reading_a_text_is_adding_every_phrase_that_ends_in_its_new_part(text: list[int], length: int, begin: int) -> None:
    read, added = PhrasePool(length), PhrasePool(length)
    read.read(text, begin)
    for end in range(max(begin, length) + 1, len(text) + 1):
        added.add(text[end - length - 1 : end])
    for key in range(3):
        assert [p.tokens for p in read.best(key, 30)] == [p.tokens for p in added.best(key, 30)]


@pytest.mark.parametrize("seed", range(3))
def test_files_that_are_wrong_anywhere_are_refused_or_make_a_sound_pool(seed: int) -> None:
    pool = PhrasePool(3, 3, 50)
    rng = np.random.default_rng(seed)
    pool.read(rng.integers(0, 9, 60))
    good = pool.arrays()
    for _ in range(60):
        bad = {name: array.copy() for name, array in good.items()}
        name = rng.choice(list(bad))
        flat = bad[name].reshape(-1)
        flat[rng.integers(len(flat))] = rng.choice([-1, 0, 1, 2, 100])
        try:
            made = PhrasePool.restore(bad)
        except ValueError:
            continue
        made.read(rng.integers(0, 9, 60))
        assert len(list(made.entries())) == len(made) <= made.most
