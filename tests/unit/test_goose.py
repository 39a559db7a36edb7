"""GOOSE: where the spine goes, where the branches are, and how sure each is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from echodraft.drafters.goose import Goose
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.drafters.recycling import Recycling, beside
from echodraft.stores.adjacency import AdjacencyStore

REPEAT = [1, 2, 3, 4, 5, 6, 1, 2, 3]
WIDE = Budget(64, 64)


def drafted(tokens: list[int], known: dict[int, list[int]], budget: Budget = WIDE, drafter: Any = None) -> Draft:
    """Behind `tokens`, with these recycled successors."""
    drafter = drafter or Goose()
    tree = getattr(drafter, "tree", drafter)
    if not isinstance(drafter, PromptLookup):
        store = tree.memory.store("", AdjacencyStore, AdjacencyStore)
        for token, successors in known.items():
            store.learn([token], np.asarray([successors]))
    session = Session(0, "", tokens, len(tokens), Sampler(), Stops(), 0)
    drafter.open(session)
    (draft,) = drafter.propose([session], [budget])
    return draft


def nodes(draft: Draft) -> dict[tuple[int, ...], tuple[float, str]]:
    """Probability and source by path."""
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token.tolist(), draft.parent.tolist(), strict=True):
        out.append((*(() if parent == ANCHOR else out[parent]), token))
    return dict(zip(out, zip(draft.prob.tolist(), draft.source, strict=True), strict=True))


def test_the_spine_is_the_copy_and_every_node_of_it_has_branches() -> None:
    found = nodes(drafted(REPEAT, {3: [9, 8], 4: [7], 5: [50, 6]}))
    assert {(4,), (4, 5), (4, 5, 6), (9,), (8,), (4, 7), (4, 5, 50)} <= set(found)
    assert {path: source for path, (_, source) in found.items() if len(path) == 1} == {(4,): "goose", (9,): "recycling", (8,): "recycling"}


def test_a_branch_is_recycled_further() -> None:
    assert {(9,), (9, 10), (9, 10, 11)} <= set(nodes(drafted(REPEAT, {3: [9], 9: [10], 10: [11]})))


def test_without_a_copy_the_tree_is_that_of_recycling() -> None:
    known = {3: [4, 5], 4: [6, 7, 8], 5: [3], 6: [4]}
    assert nodes(drafted([1, 2, 3], known)) == nodes(drafted([1, 2, 3], known, drafter=Recycling()))


def test_without_recycled_successors_the_tree_is_that_of_prompt_lookup() -> None:
    own, copied = drafted(REPEAT, {}, Budget(9, 9)), drafted(REPEAT, {}, Budget(9, 9), PromptLookup())
    assert own.token.tolist() == copied.token.tolist()
    assert own.prob.tolist() == pytest.approx(copied.prob.tolist())


@pytest.mark.parametrize("successors", [[4, 8, 9], [8, 9, 4], [8, 9, 10], []])
def test_what_the_two_say_of_a_token_is_one_probability(successors: list[int]) -> None:
    found = nodes(drafted(REPEAT, {3: successors} if successors else {}))
    first = {path[0]: prob for path, (prob, _) in found.items() if len(path) == 1}
    assert first == pytest.approx(beside({4: PromptLookup.FOLLOW[2]}, successors))


@given(
    st.dictionaries(st.integers(0, 9), st.floats(0.0, 1.0), max_size=4),
    st.lists(st.integers(0, 9), unique=True, max_size=8),
)
def test_chances_are_of_all_tokens_and_no_more_than_one_in_all(guesses: dict[int, float], successors: list[int]) -> None:
    chances = beside(guesses, successors)
    assert set(chances) == {*guesses, *successors}
    assert all(0.0 <= chance <= 1.0 for chance in chances.values())
    assert sum(chances.values()) <= 1.0 + 1e-9


def test_what_a_guess_leaves_is_shared_by_the_successors_that_it_is_not() -> None:
    first, second, third = Recycling.FOLLOW[:3]
    assert beside({4: 0.6}, [4, 5, 6]) == pytest.approx({4: 0.6, 5: 0.4 * second / (1 - first), 6: 0.4 * third / (1 - first)})
    assert beside({9: 0.6}, [4, 5]) == pytest.approx({9: 0.6, 4: 0.4 * first, 5: 0.4 * second})
    assert beside({4: 1.5, 5: 0.5}, [6]) == pytest.approx({4: 0.75, 5: 0.25, 6: 0.0})


def test_a_sure_copy_makes_the_tree_deep_and_an_unsure_one_makes_it_wide() -> None:
    known = {token: [60, 61, 62, 63, 64, 65, 66, 67] for token in range(1, 7)}
    long, short = drafted([1, 2, 3, 4, 5, 6] * 3, known, Budget(12, 12)), drafted([1, 9, 8, 7, 1], known, Budget(12, 12))
    assert long.depth.max() > short.depth.max()
    assert np.sum(long.parent == ANCHOR) < np.sum(short.parent == ANCHOR)
