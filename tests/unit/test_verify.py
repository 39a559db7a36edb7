"""The verdict on a difference: rounding or a fault. Backends that round by shape, and backends that are broken."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from echodraft.backends.toy import ArrayScores, ToyBackend
from echodraft.backends.transformers_support import make_backend
from echodraft.bench.rounding import PIECES, Rounding, processed, reachable, spacing
from echodraft.bench.suites import Item
from echodraft.bench.verify import Verification, decode, draft_row
from echodraft.core.backend import Need, Request
from echodraft.core.budget import Fixed
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, pick
from echodraft.decoder import Decoder
from echodraft.drafters.none import NoDrafter
from models import prompt, tiny
from oracle import Oracle

SAMPLED = Rule(temperature=0.8, top_k=20, top_p=0.95, min_p=0.02, seed=3)
RULES = {"greedy": Rule(), "sampled": SAMPLED}
EPSILON = 0.03
NONE: frozenset[int] = frozenset()


def noise(*key: Any) -> NDArray[np.float64]:
    return np.random.default_rng([abs(hash(part)) % (1 << 32) for part in key]).uniform(-EPSILON, EPSILON, 97)


class Rounded(ToyBackend):
    """A toy whose forwards of n rows round otherwise than those of one."""

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ArrayScores]:
        found = super().score(requests, want)
        shape = len(requests), max(len(r.pending) + len(r.draft) for r in requests)
        held = [tuple(self._slots[r.slot]) for r in requests]
        return [
            ArrayScores(s.logits + np.stack([noise(shape, held, i) for i in range(len(s.logits))]) if len(s.logits) else s.logits, s.states)
            for s, held in zip(found, held, strict=True)
        ]


class WrongRows(ToyBackend):
    """A backend whose rows of a tree, all but the anchor's, are another model's in every other forward."""

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ArrayScores]:
        found = super().score(requests, want)
        for scores in found:
            if self.forwards % 2:
                scores.logits[1:] = np.roll(scores.logits[1:], 1, axis=1)
        return found


class WrongCommit(ToyBackend):
    """A backend that keeps the first rows of a tree, whatever was accepted, as long as it was not the anchor alone."""

    def commit(self, slot: int, path: Sequence[int]) -> None:
        super().commit(slot, list(range(len(path))))


class WrongNeighbours(ToyBackend):
    """A backend whose rows are shifted by what shares their forward."""

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ArrayScores]:
        found = super().score(requests, want)
        if len(requests) > 1:
            for scores in found:
                scores.logits[:] = scores.logits[:, ::-1]
        return found


class RoundedAndWrong(Rounded, WrongRows):
    pass


class RoundedAndFar(Rounded):
    """Near ties flip by rounding, and a draft's rows are wrong as well, where it does not show: far from the best token."""

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ArrayScores]:
        found = super().score(requests, want)
        for scores in found:
            if len(scores.logits) > 1:
                scores.logits[scores.logits < scores.logits.max(axis=1, keepdims=True) - 4.0] -= 50.0
        return found


ITEMS = [Item(str(length), "", prompt(length), ()) for length in (7, 12, 20, 31)]


def verified(backend: Any, kind: str = "right-last", batch: int = 1, most: int = 90, rules: dict[str, Rule] = RULES) -> Verification:
    """Plain decoding against an oracle over the same backend, on prompts of four lengths."""
    plain = Decoder(Engine(backend, NoDrafter(), Fixed(0)))
    sequences = [
        item.ids + output.ids for rule in rules.values() for item in ITEMS for output in decode(plain.engine, [item], rule, most, NONE)
    ]
    engine = Engine(backend, Oracle(kind, sequences), Fixed(16))
    found = Verification(plain, {"oracle": engine}, rules, most, batch)
    found.run(ITEMS)
    assert not backend._slots
    return found


@pytest.mark.parametrize("batch", [1, 3])
def test_the_same_answers_are_counted_as_identical(batch: int) -> None:
    found = verified(ToyBackend(), batch=batch)
    assert [(t.mode, t.prompts, t.identical, t.ties, t.faults, t.tokens) for t in found.tallies] == [
        (mode, 4, 4, 0, 0, 4 * 90) for mode in RULES
    ]
    assert found.rounding.measured == 0.0
    assert found.differences == []
    assert all(tally.stats.mean_accepted > 3 for tally in found.tallies)


@pytest.mark.parametrize("batch", [1, 3])
def test_rounding_flips_near_ties_and_is_told_from_faults(batch: int) -> None:
    found = verified(Rounded(), batch=batch)
    assert 0.9 * 2 * EPSILON < found.rounding.measured <= 2 * EPSILON + 1e-6
    assert {difference.verdict for difference in found.differences} == {"tie"}
    assert {difference.mode for difference in found.differences} == set(RULES)
    for difference in found.differences:
        assert difference.kept is not None
        assert difference.drafted is not None
        assert difference.kept.id != difference.drafted.id
        # The tolerance grows as more is measured.
        final = 2 * found.rounding.tolerance / (0.8 if difference.mode == "sampled" else 1.0)
        assert 0.95 * final < difference.allowed <= final
        if batch == 1:
            assert difference.moved is not None
            assert difference.moved <= 2 * EPSILON + 1e-6


@pytest.mark.parametrize("backend", [WrongRows, RoundedAndWrong])
def test_wrong_rows_of_a_draft_are_faults_and_do_not_widen_the_tolerance(backend: type) -> None:
    found = verified(backend())
    assert found.rounding.measured <= (2 * EPSILON + 1e-6 if issubclass(backend, Rounded) else 0.0)
    assert found.faults >= 4
    fault = next(d for d in found.differences if d.verdict == "fault" and d.mode == "greedy")
    assert fault.kept is not None
    assert fault.drafted is not None
    assert fault.kept.plain is not None
    assert fault.drafted.plain is not None
    assert fault.gap == pytest.approx(fault.kept.plain - fault.drafted.plain)
    assert fault.gap > fault.allowed
    assert (fault.rows, fault.dtype) == (1, "float64")
    assert 1 < fault.columns <= 17


def test_a_small_gap_does_not_excuse_a_forward_that_is_far_off() -> None:
    found = verified(RoundedAndFar(), rules={"greedy": Rule()})
    assert found.differences
    assert found.faults == len(found.differences)
    assert all(difference.gap is not None and difference.gap <= difference.allowed for difference in found.differences)


def test_rows_kept_wrongly_are_faults_of_the_token_that_comes_behind_them() -> None:
    found = verified(WrongCommit(), rules={"greedy": Rule()})
    assert found.faults == len(found.differences) > 0
    # The toy sees its whole prefix: with other tokens in its cache the replayed forward says something else.
    assert all(difference.moved is not None and difference.moved > 0.1 for difference in found.differences)


def test_a_row_that_depends_on_its_neighbours_is_a_fault() -> None:
    found = verified(WrongNeighbours(), batch=2)
    assert found.rounding.batched > 1.0
    assert found.faults == len(found.differences) == 8
    assert {difference.rows for difference in found.differences} == {2}
    assert verified(WrongNeighbours(), batch=1).differences == []


def test_an_answer_that_goes_on_past_its_end_is_a_fault() -> None:
    backend = ToyBackend()
    plain = Decoder(Engine(backend, NoDrafter(), Fixed(0)))
    found = Verification(plain, {}, {"greedy": Rule()}, 10, generate=lambda item: [*decode(plain.engine, [item], Rule(), 11, NONE)[0].ids])
    found.run(ITEMS[:1])
    (difference,) = found.differences
    assert (difference.verdict, difference.index, difference.kept, difference.gap) == ("fault", 10, None, None)
    assert difference.drafted is not None
    assert found.tallies[0].as_dict()["mean_accepted"] is None


def test_the_answer_of_generate_is_judged_by_the_same_rule() -> None:
    backend = ToyBackend()
    plain = Decoder(Engine(backend, NoDrafter(), Fixed(0)))

    def wrong(item: Item) -> list[int]:
        ids = decode(plain.engine, [item], Rule(), 10, NONE)[0].ids
        return [*ids[:4], (ids[4] + 1) % 97, *ids[5:]]

    found = Verification(plain, {}, RULES, 10, generate=wrong)
    found.run(ITEMS)
    assert [(t.drafter, t.mode, t.prompts, t.faults, t.tokens) for t in found.tallies] == [("generate", "greedy", 4, 4, 20)]
    assert {(d.index, d.rows, d.columns, d.moved) for d in found.differences} == {(4, 0, 0, None)}


@pytest.mark.parametrize("kind", ["right-last", "random", "wrong-middle"])
def test_replayed_steps_give_the_row_that_each_token_was_chosen_from(kind: str) -> None:
    backend, _ = make_backend(tiny("llama"))
    plain = decode(Engine(backend, NoDrafter(), Fixed(0)), ITEMS[:1], Rule(), 24, NONE)[0]
    (output,) = decode(Engine(backend, Oracle(kind, [ITEMS[0].ids + plain.ids]), Fixed(16)), ITEMS[:1], Rule(), 24, NONE)
    assert output.ids == plain.ids
    rows = [draft_row(backend, ITEMS[0].ids, output.steps, i) for i in range(24)]
    assert [int(row.argmax()) for row in rows if row is not None] == output.ids
    assert draft_row(backend, ITEMS[0].ids, output.steps, 24) is None
    ones = [draft_row(backend, ITEMS[0].ids, plain.steps, i) for i in range(24)]
    np.testing.assert_allclose(np.stack(rows), np.stack(ones), atol=1e-5)


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3", "mixtral"])
def test_in_float64_forwards_of_all_shapes_agree_also_across_a_longrope_switch(name: str) -> None:
    backend, _ = make_backend(tiny(name))
    rounding = Rounding(backend)
    rounding.measure([prompt(20), prompt(25)], [prompt(40, seed=1), prompt(30, seed=2)])
    assert rounding.prefixes > 2 * 40
    assert max(rounding.measured, rounding.batched) < 1e-5
    assert 0 < rounding.tolerance < 2e-5


def test_bfloat16_differences_of_a_real_architecture_are_ties() -> None:
    import copy

    backend, _ = make_backend(copy.deepcopy(tiny("llama")).bfloat16())
    found = verified(backend, most=60)
    assert found.rounding.measured > 0.0
    assert found.differences
    assert {difference.verdict for difference in found.differences} == {"tie"}
    assert {difference.dtype for difference in found.differences} == {"bfloat16"}


def test_every_size_of_piece_ends_where_the_text_ends() -> None:
    class Noted(ToyBackend):
        def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[ArrayScores]:
            assert not any(len(r.draft) for r in requests)
            return super().score(requests, want)

    backend = Noted()
    rounding = Rounding(backend)
    rounding.measure([prompt(10)], [prompt(70, seed=1)])
    assert rounding.prefixes == sum(-(-64 // n) for n in PIECES)
    assert not backend._slots


def test_a_state_that_cannot_be_rolled_back_is_read_again() -> None:
    class Forgetful(ToyBackend):
        def rewind(self, slot: int, length: int) -> int:
            return super().rewind(slot, 0)

    rounding = Rounding(Forgetful())
    rounding.measure([prompt(10), prompt(12)], [prompt(30, seed=1), prompt(20, seed=2)])
    assert rounding.measured == rounding.batched == 0.0
    assert rounding.prefixes > 50


@pytest.mark.parametrize(("dtype", "size", "expected"), [("bfloat16", 20.0, 0.125), ("float16", 1.5, 2**-10), ("float32", 4.0, 2**-21)])
def test_spacing_is_that_of_the_dtype(dtype: str, size: float, expected: float) -> None:
    assert spacing(dtype, size) == expected


ROW = np.asarray([2.0, 1.0, 0.0, -1.0, -3.0], dtype=np.float32)


@pytest.mark.parametrize("temperature", [0.0, 0.5, 2.0])
def test_without_exclusions_a_gap_of_twice_the_tolerance_is_the_border(temperature: float) -> None:
    rule = Rule(temperature, seed=1)
    scores, _ = processed(ROW, rule, 9)
    first, second = np.argsort(-scores)[:2].tolist()
    border = (scores[first] - scores[second]) * (temperature or 1.0) / 2
    assert reachable(ROW, rule, 9, first, 0.0)
    assert reachable(ROW, rule, 9, second, border * 1.001)
    assert not reachable(ROW, rule, 9, second, border * 0.999)


@pytest.mark.parametrize(
    ("rule", "token", "border"),
    [
        (Rule(1.0, top_k=2), 2, 0.5),  # 1.0 behind the second best: both may move
        (Rule(1.0, min_p=0.2), 2, (2.0 + np.log(0.2)) / 2),  # the best may have exp(0)/0.2 of its weight at most
        (Rule(1.0, top_p=0.6), 1, None),  # the best alone holds 0.64
    ],
)
def test_an_excluded_token_is_reached_only_within_the_tolerance_of_its_threshold(rule: Rule, token: int, border: float | None) -> None:
    # A position whose noise makes the token win once it is in.
    def wins(at: int) -> bool:
        open_scores = processed(ROW, Rule(1.0), at)[0]
        return int(open_scores.argmax()) == token and processed(ROW, rule, at)[0][token] == -np.inf

    position = next(at for at in range(1000) if wins(at))
    if border is None:
        border = next(t for t in np.arange(0.001, 1.0, 0.001) if pick(ROW - t + 2 * t * np.eye(5)[token], rule, position) == token)
    assert reachable(ROW, rule, position, token, border * 1.01 + 1e-3)
    assert not reachable(ROW, rule, position, token, border * 0.99 - 1e-3)


def test_a_rival_beyond_the_gap_must_be_excludable() -> None:
    # Token 1 is chosen where token 0, the likelier, drops below the threshold of min-p; far above it, it cannot.
    position = next(at for at in range(1000) if np.argsort(-processed(ROW, Rule(1.0), at)[0]).tolist()[:2] == [2, 0])
    rule = Rule(1.0, min_p=float(np.exp(-2.0) * 0.999))  # token 2 is just in
    assert pick(ROW, rule, position) == 2
    gap = float(np.subtract(*np.sort(processed(ROW, rule, position)[0])[::-1][:2]))
    assert gap > 0.01
    assert reachable(ROW, rule, position, 0, 0.004)
    assert not reachable(ROW, Rule(1.0, min_p=0.01), position, 0, 0.004)


@given(
    st.lists(st.floats(-4, 4, width=32), min_size=6, max_size=6),
    st.lists(st.floats(-1, 1), min_size=6, max_size=6),
    st.sampled_from([0.0, 0.01, 0.3, 2.0]),
    st.sampled_from([Rule(), Rule(0.7), Rule(1.0, top_k=3), Rule(1.5, top_p=0.7), Rule(0.9, min_p=0.2), SAMPLED]),
    st.integers(0, 50),
)
def test_whatever_a_row_within_the_tolerance_chooses_is_reachable(
    logits: list[float], moves: list[float], tolerance: float, rule: Rule, position: int
) -> None:
    row = np.asarray(logits, dtype=np.float32)
    moved = row.astype(np.float64) + 0.999 * tolerance * np.asarray(moves)
    assert reachable(row, rule, position, pick(moved, rule, position), tolerance + 1e-9)
