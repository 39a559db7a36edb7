"""Token Recycling: what is learned from a step, and the tree that is read off it."""

from __future__ import annotations

import re
from collections import Counter
from itertools import product
from math import prod
from time import time
from typing import Any

import numpy as np
import pytest

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.engine import Engine
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from echodraft.drafters.recycling import Recycling
from echodraft.memory import Memory
from echodraft.stores.adjacency import WIDTH, AdjacencyStore
from harness import Recorder, Scripted, drive

BIG = 2 * 8**5


def known(vocab: int = BIG) -> AdjacencyStore:
    """Every token's successor of rank r is 8 x token + r: with anchor 1, a token says its path."""
    store = AdjacencyStore()
    tokens = np.arange(vocab)
    store.learn(tokens.tolist(), (tokens[:, None] * 8 + np.arange(8)) % (1 << 30))
    return store


def begin(drafter: Recycling, tokens: list[int], id: int = 0, tenant: str = "") -> Session:
    session = Session(id, tenant, tokens, len(tokens), Sampler(), Stops(), 0)
    drafter.open(session)
    return session


def drafted(budget: Budget, **knobs: Any) -> Draft:
    """Behind token 1, everything being known."""
    drafter = Recycling(**knobs)
    drafter.memory.store("", AdjacencyStore, known)
    (draft,) = drafter.propose([begin(drafter, [5, 1])], [budget])
    return draft


def ranks(draft: Draft) -> set[tuple[int, ...]]:
    """The ranks on the path of every node."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token.tolist(), draft.parent.tolist(), strict=True):
        above, path = (1, ()) if parent == ANCHOR else (int(draft.token[parent]), paths[parent])
        assert 0 <= token - 8 * above < 8
        paths.append((*path, token - 8 * above))
    return set(paths)


def test_the_template_is_the_published_tree() -> None:
    paths = ranks(drafted(Budget(80, 80), template=True))
    assert len(paths) == 80
    assert [n for _, n in sorted(Counter(map(len, paths)).items())] == [8, 21, 25, 15, 8, 3]
    assert [n for _, n in sorted(Counter(path[0] for path in paths).items())] == [49, 10, 6, 5, 3, 3, 2, 2]
    # Spot checks against the authors' list: what comes last at each depth, and what does not come.
    assert {(7, 0), (5, 0, 0), (3, 0, 0, 0), (1, 0, 0, 0, 0), (0, 0, 0, 1, 0, 0), (0, 0, 0, 0, 0, 1)} <= paths
    assert not {(7, 0, 0), (1, 4), (6, 0, 0), (4, 0, 0, 0), (0, 3, 0, 0), (0, 0, 0, 0, 1, 0)} & paths


def test_a_smaller_budget_takes_the_likeliest_part_of_the_template() -> None:
    paths = ranks(drafted(Budget(30, 3), template=True))
    assert len(paths) == 30
    assert paths < ranks(drafted(Budget(80, 80), template=True))
    assert max(map(len, paths)) == 3
    assert {(0,), (1,), (0, 0), (0, 0, 0), (0, 1)} <= paths


@pytest.mark.parametrize(("nodes", "depth", "branching"), [(1, 1, 8), (5, 9, 1), (20, 2, 3), (60, 4, 8), (64, 5, 8)])
def test_the_tree_is_filled_best_first(nodes: int, depth: int, branching: int) -> None:
    draft = drafted(Budget(nodes, depth, branching))
    paths = ranks(draft)
    chance = {
        path: prod(Recycling.FOLLOW[rank] for rank in path)
        for length in range(1, min(depth, 5) + 1)
        for path in product(range(branching), repeat=length)
    }
    best = sorted(chance.values(), reverse=True)[:nodes]
    assert sorted((chance[path] for path in paths), reverse=True) == pytest.approx(best)
    assert sorted(draft.prob.tolist(), reverse=True) == pytest.approx(best)
    assert all(p < i for i, p in enumerate(draft.parent.tolist()))


def test_what_is_not_known_is_not_guessed() -> None:
    drafter = Recycling()
    session = begin(drafter, [3, 4])
    assert len(drafter.propose([session], [Budget(64, 64)])[0]) == 0
    drafter.memory.store("", AdjacencyStore, AdjacencyStore).learn([4], np.asarray([[6, 5]]))
    (draft,) = drafter.propose([session], [Budget(64, 64)])
    assert sorted(draft.token.tolist()) == [5, 6]
    assert draft.parent.tolist() == [ANCHOR, ANCHOR]
    assert draft.token[0] == 6


def test_every_scored_node_leaves_its_successors_accepted_or_not() -> None:
    """The model says 10, 11, 12, … behind 9, and 50, 51, … behind 40: a wrong draft teaches what it would have said."""
    vocab = 97

    def follow(path: list[int]) -> np.ndarray:
        return -np.abs(np.arange(vocab) - (path[-1] + 1)) - 0.1 * (np.arange(vocab) > path[-1])

    drafter = Recorder(Recycling())
    store = drafter.inner.memory.store("", AdjacencyStore, AdjacencyStore)
    store.learn([9], np.asarray([[40]]))
    store.learn([10], np.asarray([[40, 60]]))
    engine = Engine(Scripted(follow), drafter, Fixed(2))
    session = engine.open([3, 9], stops=Stops(max_new_tokens=3))
    (step,) = engine.step()  # reads the prompt: the anchor is its last token
    assert store.successors(9)[:3] == [10, 9, 11]
    assert store.successors(3) == []
    (step,) = engine.step()
    assert sorted(step.draft.token.tolist()) == [40, 60]
    assert step.verdict.accepted == 0
    assert store.successors(40)[:3] == [41, 40, 42]
    assert store.successors(60)[:3] == [61, 60, 62]
    assert store.successors(10)[:3] == [11, 10, 12]
    assert all(len(store.successors(token)) == WIDTH for token in (9, 10, 40, 60))
    drive(engine)
    assert session.output == [10, 11, 12]


def test_the_last_row_of_a_token_that_comes_twice_counts() -> None:
    store = AdjacencyStore()
    store.learn([7, 8, 7, 7], np.asarray([[1, 2], [3, 4], [5, 6], [9, 10]]))
    assert (store.successors(7), store.successors(8)) == ([9, 10], [3, 4])


def test_a_row_that_says_nothing_changes_nothing() -> None:
    """As a replay has them at nodes that were rejected."""
    store = AdjacencyStore()
    store.learn([4], np.asarray([[-1, -1]]))
    assert not list(store.entries())
    store.learn([7, 8, 7], np.asarray([[1, 2], [3, 4], [-1, -1]]))
    store.learn([8, 9], np.asarray([[-1, -1], [-1, -1]]))
    assert (store.successors(7), store.successors(8), store.successors(9)) == ([1, 2], [3, 4], [])


def test_ids_of_any_size_are_kept_and_the_store_grows_to_the_largest() -> None:
    store = AdjacencyStore()
    for token in (5, 70_000, 151_935, 200_000):
        store.learn([token], np.asarray([[token + 1, 65_536 + token]]))
        assert store.nbytes <= (token + 1) * 5 / 4 * WIDTH * 4
    assert [store.successors(token) for token in (5, 70_000, 151_935)] == [[6, 65_541], [70_001, 135_536], [151_936, 217_471]]
    assert store.successors(69_999) == store.successors(10**9) == []
    assert store.tokens == 0


def test_a_store_that_grows_id_by_id_is_copied_a_few_times_only() -> None:
    store, arrays = AdjacencyStore(), set()
    for token in range(1000):
        store.learn([token], np.asarray([[7]]))
        arrays.add(len(store.rows))
    assert len(arrays) < 40


def test_a_store_is_emptied_where_it_was_last_written_before_a_time() -> None:
    before = time()
    store = known(64)
    assert before <= store.written <= time()
    store.prune(0, store.written)
    assert store.successors(3)
    store.prune(0, store.written + 1)
    assert (store.successors(3), store.nbytes) == ([], 0)
    store.learn([3], np.asarray([[4]]))
    assert store.successors(3) == [4]


def test_a_store_is_made_again_from_its_arrays() -> None:
    store = AdjacencyStore()
    store.learn([3, 90], np.asarray([[4, 5, 6], [7, 8, 9]]))
    assert list(store.entries()) == [{"token": 3, "successors": [4, 5, 6]}, {"token": 90, "successors": [7, 8, 9]}]
    again = AdjacencyStore.restore(store.arrays())
    assert [again.successors(token) for token in range(91)] == [store.successors(token) for token in range(91)]
    assert again.written == store.written
    again.learn([3], np.asarray([[1]]))
    assert store.successors(3) == [4, 5, 6]


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        ({"rows": None}, "int32"),
        ({"rows": np.zeros((4, WIDTH), np.int64)}, "int32"),
        ({"rows": np.zeros((4, WIDTH + 1), np.int32)}, "int32"),
        ({"rows": np.zeros(WIDTH, np.int32)}, "int32"),
        ({"rows": np.full((4, WIDTH), -2, np.int32)}, "from 0 on"),
        ({"rows": np.asarray([[1, -1, 2, -1, -1, -1, -1, -1]], np.int32)}, "from 0 on"),
        ({"rows": np.asarray([[1, 2, 3, 1, -1, -1, -1, -1]], np.int32)}, "once"),
        ({"written": None}, "time"),
        ({"written": np.zeros(2)}, "time"),
        ({"written": np.asarray([np.nan])}, "time"),
    ],
)
def test_arrays_that_cannot_be_right_are_refused(broken: dict[str, Any], message: str) -> None:
    arrays = {name: value for name, value in (known(16).arrays() | broken).items() if value is not None}
    with pytest.raises(ValueError, match=re.escape(message)):
        AdjacencyStore.restore(arrays)


def test_requests_of_a_tenant_learn_from_each_other_and_no_others_do() -> None:
    memory = Memory()
    first, second = Recycling(memory=memory), Recycling(memory=memory)
    session = begin(first, [3, 4], tenant="a")
    memory.store("a", AdjacencyStore, AdjacencyStore).learn([4], np.asarray([[5]]))
    budget = [Budget(8, 8)]
    (own,) = first.propose([session], budget)
    (same,) = second.propose([begin(second, [4], id=7, tenant="a")], budget)
    (other,) = second.propose([begin(second, [4], id=8, tenant="b")], budget)
    assert own.token.tolist() == same.token.tolist() == [5]
    assert len(other) == 0
    first.close(session)
    first.close(session)
    (same,) = second.propose([begin(second, [4], id=9, tenant="a")], budget)
    assert same.token.tolist() == [5]
