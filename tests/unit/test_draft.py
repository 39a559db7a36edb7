"""Trees by hand; random ones are in tests/properties/test_trees.py."""

from __future__ import annotations

import pytest

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, EMPTY, Draft, DraftBuilder, sane
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from oracle import KINDS, Oracle, raw


def test_a_chain_is_a_path_with_falling_probability() -> None:
    draft = Draft.chain([5, 6, 7], 0.5, "me")
    assert draft.parent.tolist() == [-1, 0, 1]
    assert draft.depth.tolist() == [1, 2, 3]
    assert draft.prob.tolist() == [0.5, 0.25, 0.125]
    assert draft.source == ("me",) * 3
    assert Draft.chain([5, 6], [0.9, 0.3]).prob.tolist() == [0.9, 0.3]
    assert len(EMPTY) == 0


def test_equal_paths_merge_and_keep_the_better_estimate() -> None:
    builder = DraftBuilder()
    a = builder.add(ANCHOR, 5, 0.3, "first", probe=True)
    b = builder.add(ANCHOR, 6, 0.4, "first")
    assert builder.add(ANCHOR, 5, 0.8, "second") == a
    assert builder.add(ANCHOR, 6, 0.1, "second", probe=True) == b
    builder.add(a, 6, 0.7)
    assert len(builder) == 3
    draft = builder.build()
    assert draft.token.tolist() == [5, 6, 6], "the likeliest path comes first"
    assert draft.parent.tolist() == [-1, 0, -1]
    assert draft.prob.tolist() == [0.8, 0.7, 0.4]
    assert draft.source == ("second", "", "first")
    assert draft.probe.tolist() == [False, False, False], "proposed for its own sake once is no probe"


@pytest.mark.parametrize("chain", [False, True])
@pytest.mark.parametrize(
    ("tokens", "parents", "tree", "first"),
    [
        ([1, 2, 3], [-1, -1, 0], [1, 2, 3], [1, 3]),
        ([1, 1, 3, 4], [-1, -1, 1, 0], [1, 4], [1, 4]),  # a duplicate sibling, and what hangs from it
        ([-1, 99, 3], [-1, -1, 1], [], []),  # out of the vocabulary, and what hangs from it
        ([99, 3, 4], [-1, -1, 1], [3, 4], [3, 4]),  # the first child that is good
        ([1, 2, 3, 4], [0, 2, -2, -1], [4], [4]),  # itself, a later one, none
        ([1, 2, 3, 4, 5], [-1, 0, 1, 2, 3], [1, 2, 3], [1, 2, 3]),  # too deep
        ([1, 2, 3, 4, 5, 6], [-1, -1, -1, -1, -1, -1], [1, 2, 3, 4], [1]),  # too many
    ],
)
def test_what_of_a_draft_may_be_scored(tokens: list[int], parents: list[int], tree: list[int], first: list[int], chain: bool) -> None:
    kept = sane(raw(tokens, parents), vocab_size=10, max_nodes=4, max_depth=3, chain=chain)
    assert kept.token.tolist() == (first if chain else tree)


@pytest.mark.parametrize(("nodes", "depth"), [(0, 5), (5, 0), (-1, 5), (5, -1)])
def test_without_a_budget_nothing_is_scored(nodes: int, depth: int) -> None:
    assert sane(Draft.chain([1, 2]), 10, nodes, depth) is EMPTY


@pytest.mark.parametrize("kind", KINDS)
def test_the_oracle_keeps_its_word(kind: str) -> None:
    """Each kind offers as many right tokens as it says, the same for the same seed; otherwise the conformance tests would test little."""
    text, k = list(range(40)), 6
    session = Session(0, "", text[:10], 10, Sampler(), Stops(), 0)
    drafts = [Oracle(kind, [text], k, seed=1).propose([session], [Budget(512, 512)])[0] for _ in range(2)]
    assert drafts[0].token.tolist() == drafts[1].token.tolist()
    kept = sane(drafts[0], 97, 512, 512)
    child = {(p, t): i for i, (p, t) in enumerate(zip(kept.parent.tolist(), kept.token.tolist(), strict=True))}
    node, right = ANCHOR, 0
    while (node := child.get((node, text[10 + right]), ANCHOR)) != ANCHOR:
        right += 1
        if right == 30:
            break
    expected = KINDS[kind].right(k)
    assert expected is None or right == min(expected, 30)
    if kind in ("huge", "deep"):
        assert len(drafts[0]) > 200
    if kind in ("out-of-range", "malformed", "duplicates"):
        assert len(kept) < len(drafts[0])
    if kind in ("right-first", "right-last", "huge", "random"):
        assert len(set(kept.parent.tolist())) < len(kept), "siblings"
