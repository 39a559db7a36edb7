"""The suffix store on cases worked by hand, and at its edges."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numba
import numpy as np
import pytest

from echodraft.stores.suffix import Expected, SuffixStore
from echodraft.stores.suffix_nodes import compiled

HIGH = 200_000  # ids of added tokens


def holding(*texts: Sequence[int], depth: int = 64) -> SuffixStore:
    """A store of these finished texts."""
    store = SuffixStore(depth)
    for i, text in enumerate(texts):
        seq = store.begin()
        store.append(seq, text)
        store.end(seq, float(i + 1))
    return store


def paths(found: Expected) -> dict[tuple[int, ...], float]:
    """The drafted paths with their probabilities."""
    out: list[tuple[int, ...]] = []
    for token, parent in zip(found.tokens.tolist(), found.parents.tolist(), strict=True):
        out.append(((*out[parent],) if parent >= 0 else ()) + (token,))
    return dict(zip(out, found.probs.tolist(), strict=True))


# Behind 1 2 came: 3 4 three times, 5 6 once, 3 7 once. So 3 has 4 of 5; behind it 4 has 3 of 5 and 7 has 1 of 5; 5 and its 6 have 1 of 5.
FORK = ([1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 3, 4], [1, 2, 5, 6], [1, 2, 3, 7])


def test_a_path_follows_the_likeliest_token() -> None:
    found = holding(*FORK).speculate([9, 1, 2], tree=False)
    # Match 2 allows 2 tokens: 3 (4/5), 4 (3/5). Match 1 (the 2 alone) allows 1: 3 (4/5).
    assert found.tokens.tolist() == [3, 4]
    assert found.parents.tolist() == [-1, 0]
    assert found.probs.tolist() == pytest.approx([0.8, 0.6])
    assert found.score == pytest.approx(1.4)
    assert found.match == 2


def test_a_path_ends_before_what_is_too_unlikely() -> None:
    assert holding(*FORK).speculate([1, 2], tree=False, min_prob=0.6).tokens.tolist() == [3, 4]
    assert holding(*FORK).speculate([1, 2], tree=False, min_prob=0.61).tokens.tolist() == [3]
    assert holding(*FORK).speculate([1, 2], tree=False, min_prob=0.81).tokens.tolist() == []


def test_a_tree_takes_the_likeliest_nodes_first_and_puts_the_likeliest_path_first() -> None:
    # Best first: 3 (.8), 3 4 (.6), then 5 and 3 7 (.2 each): the 5 came into the queue first, with the 3; then 3 7, then 5 6.
    store = holding(*FORK)
    for nodes, wanted in (
        (1, {(3,): 0.8}),
        (2, {(3,): 0.8, (3, 4): 0.6}),
        (3, {(3,): 0.8, (3, 4): 0.6, (5,): 0.2}),
        (4, {(3,): 0.8, (3, 4): 0.6, (3, 7): 0.2, (5,): 0.2}),
        (9, {(3,): 0.8, (3, 4): 0.6, (3, 7): 0.2, (5,): 0.2, (5, 6): 0.2}),
    ):
        found = store.speculate([1, 2], nodes, factor=9.0)
        assert paths(found) == pytest.approx(wanted)
        assert list(paths(found)) == list(wanted)
        assert found.score == pytest.approx(sum(wanted.values()))


def test_a_tree_holds_no_node_below_the_least_probability() -> None:
    assert set(paths(holding(*FORK).speculate([1, 2], factor=9.0, min_prob=0.3))) == {(3,), (3, 4)}


def test_a_tree_is_no_deeper_and_no_wider_than_asked() -> None:
    store = holding(*FORK)
    assert set(paths(store.speculate([1, 2], factor=9.0, depth=1))) == {(3,), (5,)}
    assert set(paths(store.speculate([1, 2], factor=9.0, branching=1))) == {(3,), (3, 4)}


@pytest.mark.parametrize(
    ("factor", "offset", "length"),
    [
        (1.0, 0.0, 3),
        (2.0, 0.0, 6),
        (0.5, 0.0, 1),
        (0.3, 0.0, 0),
        (1.0, 2.0, 5),
        (1.0, -2.0, 1),
        (1.0, -3.0, 0),
        (0.1, 0.7, 1),
        (0.0, 4.0, 4),
    ],
)
def test_a_draft_is_as_long_as_the_match_allows(factor: float, offset: float, length: int) -> None:
    # Match 3, so int(3 x factor + offset + 1e-6) tokens; 0.1 x 3 + 0.7 is 1 although floats say 0.99…; shorter matches allow fewer.
    found = holding([*range(20)]).speculate([99, 3, 4, 5], factor=factor, offset=offset, tree=False)
    assert found.tokens.tolist() == list(range(6, 6 + length))
    assert found.match == (3 if length else 0)


def test_a_shorter_match_wins_with_more_expected_tokens() -> None:
    # 1 2 was followed by ten different tokens: .1 each, and 2 nodes give .2. The 2 alone was followed by 9 far more often: 30 of 40.
    texts = [[1, 2, 10 + i] for i in range(10)] + [[2, 9]] * 30
    found = holding(*texts).speculate([1, 2])
    assert (found.match, paths(found)) == (1, {(9,): 0.75})


def test_the_longer_match_wins_where_both_expect_as_much() -> None:
    # One token is allowed. Behind 2, 9 came in 2 of 4; behind 1 2, 8 came in 1 of 2. The same score: the longer match.
    found = holding([1, 2, 8], [1, 2, 7], [2, 9], [2, 9]).speculate([1, 2], 1, tree=False)
    assert (found.match, found.score) == (2, 0.5)
    assert found.tokens.tolist() == [7]


def test_of_equally_frequent_tokens_the_one_that_came_last_is_likelier() -> None:
    store = SuffixStore()
    for followers, best in (([3], 3), ([4], 4), ([3], 3), ([4], 4), ([5, 5], 5), ([3], 3)):
        for token in followers:
            seq = store.begin()
            store.append(seq, [1, token])
            store.end(seq, 0.0)
        assert store.speculate([1]).tokens.tolist() == [best]


def test_the_growing_end_of_a_text_counts_as_an_occurrence_that_goes_on_otherwise() -> None:
    # As published: 1 2 occurs twice in 1 2 3 1 2, once with nothing behind it yet, so 3 has probability 1/2.
    store = SuffixStore()
    seq = store.begin()
    store.append(seq, [1, 2, 3, 1, 2])
    assert paths(store.speculate(seq=seq, factor=3.0)) == pytest.approx({(3,): 0.5, (3, 1): 0.5, (3, 1, 2): 0.5})


def test_texts_that_grow_side_by_side_see_each_other_at_once() -> None:
    store = SuffixStore()
    one, two = store.begin(), store.begin()
    for token in (HIGH, HIGH + 1, HIGH + 2, HIGH + 3):
        store.append(one, [token])
        store.append(two, [token - HIGH])
        assert store.speculate([token - HIGH - 1], 1).tokens.tolist() == ([token - HIGH] if token > HIGH else [])
    assert store.speculate([HIGH, HIGH + 1], factor=2.0).tokens.tolist() == [HIGH + 2, HIGH + 3]
    assert store.text(one).tolist() == [HIGH, HIGH + 1, HIGH + 2, HIGH + 3]
    store.append(two, [HIGH + 2])
    assert store.speculate([5, HIGH + 2], seq=two).tokens.tolist() == [HIGH + 3]


def test_a_match_reaches_from_a_growing_text_into_the_context_before_it() -> None:
    store = holding([8, 9, 1, 2, 3, 4, 5, 6, 7], [1, 2, 7])
    seq = store.begin()
    store.append(seq, [1, 2])
    found = store.speculate([8, 9, 1, 2], seq=seq)
    assert (found.match, found.tokens.tolist(), found.score) == (4, [3, 4, 5, 6], 4.0)


def test_match_and_draft_together_are_no_longer_than_the_depth() -> None:
    store = holding(list(range(50)), depth=8)
    found = store.speculate(list(range(30)), factor=9.0)
    assert found.tokens.tolist() == [30, 31, 32, 33, 34, 35, 36]  # match 1 has 7 below it
    assert found.match == 1
    found = store.speculate(list(range(30)))
    assert (found.match, found.tokens.tolist()) == (4, [30, 31, 32, 33])


@pytest.mark.parametrize("context", [[], [7], [7, 7, 7], [2]])
def test_nothing_is_expected_where_nothing_is_known(context: list[int]) -> None:
    for store in (SuffixStore(), holding([1, 2]), holding([1, 2], depth=1)):
        found = store.speculate(context)
        assert (len(found.tokens), len(found.parents), len(found.probs), found.score, found.match) == (0, 0, 0, 0.0, 0)


def test_a_store_of_depth_one_knows_tokens_and_expects_nothing() -> None:
    store = holding([1, 2, 1, 2], depth=1)
    assert len(store.speculate([1]).tokens) == 0
    assert store.remove(0)
    assert store.tokens == 0


def test_the_oldest_finished_texts_are_forgotten_first_and_growing_ones_never() -> None:
    store = holding([1, 1], [2, 2], [3, 3])
    growing = store.begin()
    store.append(growing, [4, 4])
    store.prune(6)
    assert [entry["ids"] for entry in store.entries()] == [[2, 2], [3, 3]]
    store.prune(100, before=3.0)
    assert list(store.entries()) == [{"ids": [3, 3], "finished": 3.0}]
    store.prune(0)
    assert list(store.entries()) == []
    assert (store.tokens, store.text(growing).tolist()) == (2, [4, 4])
    assert len(store.speculate([3]).tokens) == 0


def test_ten_thousand_short_requests_leave_the_store_as_large_as_it_was_when_it_was_full() -> None:
    random = np.random.default_rng(0)
    store, sizes = SuffixStore(), []
    for request in range(10_000):
        seq, start = store.begin(), int(random.integers(0, 5000))
        store.append(seq, np.concatenate([np.arange(start, start + 15), random.integers(0, 5000, 25)]))
        store.end(seq, float(request))
        store.prune(200_000)
        assert store.tokens == min(40 * (request + 1), 200_000)
        if request % 1000 == 999:
            sizes.append(store.nbytes)
    assert sizes[-1] == sizes[5]
    assert store.nbytes <= 96 * store.tokens
    store.prune(0)
    assert store.tokens == 0
    assert len(store.speculate([17]).tokens) == 0


def test_a_store_stays_within_its_bytes_a_token() -> None:
    text = np.random.default_rng(0).zipf(1.3, 60_000).clip(max=100_000).astype(np.int32)
    for removable, most in ((True, 96), (False, 64)):
        store = SuffixStore(64, removable)
        seq = store.begin()
        store.append(seq, text)
        assert store.nbytes <= most * store.tokens


def test_a_store_is_made_again_from_its_arrays_without_what_still_grows() -> None:
    store = holding([1, 2, 3], [], [1, 2, HIGH])
    growing = store.begin()
    store.append(growing, [1, 2, 5, 5, 5])
    again = SuffixStore.restore(store.arrays())
    assert list(again.entries()) == list(store.entries())
    assert again.tokens == 6
    assert paths(again.speculate([1, 2])) == pytest.approx({(HIGH,): 0.5, (3,): 0.5})
    assert all(np.array_equal(again.arrays()[name], array) for name, array in store.arrays().items())
    assert SuffixStore.restore(SuffixStore(9).arrays()).depth == 9


@pytest.mark.parametrize(
    "broken",
    [
        {"tokens": None},
        {"depth": None},
        {"tokens": np.asarray([1, -2, 3])},
        {"tokens": np.asarray([1, 1 << 31, 3])},
        {"tokens": np.asarray([1.0, 2.0, 3.0])},
        {"tokens": np.asarray([[1, 2, 3]])},
        {"tokens": np.asarray([1, 2])},
        {"lengths": np.asarray([2, 2])},
        {"lengths": np.asarray([4, -1])},
        {"lengths": np.asarray([3])},
        {"lengths": np.asarray([1 << 62, 1 << 62, (1 << 62), (1 << 62), 3]), "times": np.zeros(5)},
        {"times": np.asarray([0.0])},
        {"times": np.asarray([0.0, np.nan])},
        {"depth": np.asarray([0])},
        {"depth": np.asarray([256])},
        {"depth": np.asarray([], dtype=np.int64)},
    ],
)
def test_arrays_that_cannot_be_right_are_refused(broken: dict[str, Any]) -> None:
    arrays = holding([1, 2], [3]).arrays() | broken
    with pytest.raises(ValueError, match="suffix store"):
        SuffixStore.restore({name: array for name, array in arrays.items() if array is not None})


def test_ids_that_are_none_are_refused_and_leave_the_store_as_it_was() -> None:
    store = SuffixStore()
    seq = store.begin()
    with pytest.raises(ValueError, match="negative"):
        store.append(seq, [1, -1])
    with pytest.raises((OverflowError, ValueError)):
        store.append(seq, [1, 1 << 31])
    assert store.tokens == 0


def test_only_growing_texts_grow_and_only_removable_ones_are_removed() -> None:
    store = holding([1, 2])
    with pytest.raises(KeyError):
        store.append(0, [3])
    assert not store.remove(17)
    kept = SuffixStore(removable=False)
    kept.append(kept.begin(), [1])
    with pytest.raises(ValueError, match="removal"):
        kept.remove(0)


@pytest.mark.parametrize(
    "how", [{"min_prob": 0.01}, {"min_prob": 1.1}, {"factor": -1.0}, {"factor": float("inf")}, {"offset": float("nan")}]
)
def test_numbers_that_cannot_be_right_are_refused(how: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="min_prob"):
        holding([1, 2]).speculate([1], **how)


def test_code_that_can_be_kept_nowhere_is_compiled_anyway(monkeypatch: pytest.MonkeyPatch) -> None:
    real = numba.njit

    def njit(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return real(**options)

    monkeypatch.setattr(numba, "njit", njit)
    assert compiled(lambda x: x + 1)(1) == 2
