"""Summaries, intervals and comparisons, on measurements made up for it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.bench.compare import compare, unlike
from echodraft.bench.result import Measurement
from echodraft.bench.statistics import mean_interval, ratio_interval
from echodraft.bench.summary import speedups, summarise


def run(
    speed: float = 2.0, items: int = 12, noise: float = 0.0, seed: int = 0, rounds: int = 1, steps: int = 10, **changes: Any
) -> list[Measurement]:
    """Plain decoding at one second an item, and `suffix` that is `speed` times as fast, give or take."""
    random = np.random.default_rng(seed)
    out = []
    for repeat in range(rounds):
        for i in range(items):
            ids = list(range(21 + i))
            own = float(np.exp(noise * random.standard_normal())) / speed
            plain = Measurement(f"p{i}", "ab"[i % 2], "none", ids, 0.5, 1.0, steps=20 + i, repeat=repeat)
            out += [plain, replace(plain, method="suffix", decode_seconds=own, steps=steps, **changes)]
    return out


def test_a_summary_pairs_micro_and_macro_and_the_medians_of_rounds() -> None:
    slow = [replace(m, decode_seconds=100.0) if m.method == "suffix" and m.repeat == 2 else m for m in run(items=3, rounds=3)]
    rows = {row["drafter"]: row for row in summarise(slow)}
    row = rows["suffix"]
    assert row["speedup"] == pytest.approx(2.0)
    assert row["speedup_end_to_end"] == pytest.approx(1.5)
    assert row["mean_accepted"] == pytest.approx((20 + 21 + 22) / 30)
    assert row["mean_accepted_macro"] == pytest.approx((20 + 21 + 22) / 30)
    assert row["block_efficiency"] == pytest.approx((21 + 22 + 23) / 33)
    assert (row["items"], row["rounds"], row["identical"], row["emitted"]) == (3, 3, 3, 66)
    assert {name: part["items"] for name, part in row["categories"].items()} == {"a": 2, "b": 1}
    assert rows["none"]["speedup_interval"] == (1.0, 1.0)


def test_micro_weighs_steps_and_macro_items() -> None:
    held = run(items=2)
    held[1] = replace(held[1], steps=1)
    row = summarise(held)[1]
    assert row["mean_accepted"] == pytest.approx(41 / 11)
    assert row["mean_accepted_macro"] == pytest.approx((20 / 1 + 21 / 10) / 2)


def test_an_item_that_one_of_the_two_has_not_finished_counts_for_nobody() -> None:
    held = [m for m in run(items=4) if (m.item, m.method) not in {("p0", "none"), ("p1", "suffix")}]
    assert {row["drafter"]: row["items"] for row in summarise(held)} == {"suffix": 2, "none": 3}
    assert speedups(held) == {"suffix": pytest.approx(2.0)}


def test_repeated_prompts_are_left_out_of_the_second_figure() -> None:
    held = [
        replace(m, repeated=m.item == "p1", decode_seconds=0.01 if m.item == "p1" and m.method == "suffix" else m.decode_seconds)
        for m in run()
    ]
    row = summarise(held)[1]
    assert row["speedup"] > 2.05
    assert row["without_repeated"]["items"] == 11
    assert row["without_repeated"]["speedup"] == pytest.approx(2.0)
    assert summarise(run())[1]["without_repeated"] is None


def test_peers_without_steps_have_no_counts_and_do_not_divide_by_zero() -> None:
    row = summarise(run(steps=0))[1]
    assert (row["mean_accepted"], row["mean_accepted_macro"], row["block_efficiency"], row["draft_share"]) == (None,) * 4
    assert json.dumps(row)


def test_an_output_that_ends_with_its_first_token_takes_no_time_and_divides_nothing() -> None:
    held = [replace(m, ids=[1], decode_seconds=0.0, steps=0) for m in run(items=3)]
    row = summarise(held)[1]
    assert (row["speedup"], row["decode_tokens_per_second"]) == (None, 0.0)


@given(st.lists(st.floats(0.1, 10.0), min_size=2, max_size=30), st.integers(0, 3))
def test_an_interval_holds_the_mean_of_steady_values_and_comes_out_the_same_again(values: list[float], copies: int) -> None:
    found = mean_interval(values)
    assert found is not None
    assert min(values) - 1e-9 <= found[0] <= found[1] <= max(values) + 1e-9
    assert found == mean_interval(values)
    steady = mean_interval([values[0]] * (2 + copies))
    assert steady == pytest.approx((values[0], values[0]))


def test_intervals_cover_the_truth_about_as_often_as_they_say() -> None:
    random = np.random.default_rng(1)
    hits = 0
    for _ in range(200):
        tokens, slow = random.integers(20, 100, 40), random.lognormal(0.0, 0.3, 40)
        fast = slow / 2 * random.lognormal(-0.02, 0.2, 40)
        low, high = ratio_interval(np.stack([tokens, fast * tokens], 1), np.stack([tokens, slow * tokens], 1)) or (0, 0)
        hits += low <= 2.0 <= high
    assert 0.85 <= hits / 200 <= 1.0


def test_items_stay_paired_so_that_prompts_of_unlike_speed_are_no_noise() -> None:
    below = np.stack([np.arange(10, 30), np.geomspace(1, 100, 20)], 1)
    assert ratio_interval(below / (1.0, 2.0), below) == pytest.approx((2.0, 2.0))
    assert ratio_interval(below / (1.0, 2.0), below[::-1]) != pytest.approx((2.0, 2.0), rel=0.1)


def test_one_item_has_no_interval() -> None:
    assert ratio_interval([(1, 2)], [(1, 1)]) is None
    assert mean_interval([1.0]) is None
    assert mean_interval([]) is None


def rows(before: list[Measurement], after: list[Measurement], threshold: float = 0.05, **options: Any) -> dict[tuple[str, str], Any]:
    return {(row["drafter"], row["category"]): row for row in compare(before, after, threshold, **options)}


def test_a_run_compared_with_itself_is_no_worse() -> None:
    found = rows(run(noise=0.5), run(noise=0.5))
    assert set(found) == {(method, part) for method in ("none", "suffix") for part in ("a", "b", "all")}
    assert all(row["verdict"] == "" and row["speedup"]["change"] == 0 for row in found.values())


@pytest.mark.parametrize(
    ("speed", "noise", "threshold", "worse"),
    [
        (1.5, 0.05, 0.05, True),  # a clear loss
        (1.96, 0.0, 0.05, False),  # below the threshold
        (1.96, 0.0, 0.01, True),  # beyond a finer one
        (1.8, 1.5, 0.05, False),  # lost in the noise
        (2.6, 0.05, 0.05, False),  # a gain
    ],
)
def test_worse_is_a_loss_beyond_the_threshold_and_beyond_the_noise(speed: float, noise: float, threshold: float, worse: bool) -> None:
    found = rows(run(noise=noise, seed=1), run(speed, noise=noise, seed=2), threshold)
    assert (found["suffix", "all"]["verdict"] == "worse") is worse
    assert found["none", "all"]["verdict"] == ""


def test_fewer_tokens_a_step_and_lost_identity_are_worse_on_any_machine_but_speed_only_on_the_same() -> None:
    assert rows(run(), run(1.0), same_machine=False)["suffix", "all"]["verdict"] == ""
    assert rows(run(), run(steps=14), same_machine=False)["suffix", "all"]["mean_accepted"]["worse"]
    found = rows(run(), [replace(m, ids=[*m.ids[:-1], 0]) if m.method == "suffix" else m for m in run()], same_machine=False)
    assert found["suffix", "all"]["identical"] == {"before": 12, "after": 0, "worse": True}
    assert found["suffix", "all"]["verdict"] == "worse"


def test_only_items_and_methods_of_both_runs_are_compared() -> None:
    found = rows(run(items=12), [m for m in run(items=8) if m.method == "none" or m.item != "p0"])
    assert (found["suffix", "all"]["items"], found["none", "all"]["items"]) == (7, 8)
    assert compare(run(), [replace(m, method="other") for m in run()], 0.05) == []


def test_one_item_is_too_few_to_be_worse() -> None:
    assert rows(run(items=1), run(0.5, items=1))["suffix", "a"]["verdict"] == ""


def test_what_the_manifests_differ_in_is_named() -> None:
    one = {
        "machine": {"threads": 2},
        "settings": {"budget": "auto", "limit": 3},
        "versions": {"torch": "2"},
        "revision": "a" * 40,
        "dirty": True,
    }
    two = {
        "machine": {"threads": 4, "gpu": None},
        "settings": {"budget": "8", "limit": 5},
        "versions": {"torch": "2"},
        "revision": "a" * 40,
        "dirty": True,
    }
    assert unlike(one, two) == [("threads", 2, 4), ("budget", "auto", "8")]
    assert unlike(one, {**one, "dirty": False}) == [("revision", "aaaaaaaaaa with changes", "aaaaaaaaaa")]
    assert unlike(one, {**one, "revision": "b" * 40}) == [("revision", "aaaaaaaaaa with changes", "bbbbbbbbbb with changes")]
