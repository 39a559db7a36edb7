"""SAM-Decoding: a chain behind a long match, a recycled tree behind a short one."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from echodraft.drafters.sam import Sam
from echodraft.errors import UsageError
from echodraft.stores.adjacency import AdjacencyStore

WIDE = Budget(64, 64)


def begin(drafter: Sam, tokens: list[int]) -> Session:
    session = Session(0, "", tokens, len(tokens), Sampler(), Stops(), 0)
    drafter.open(session)
    return session


def drafted(tokens: list[int], budget: Budget = WIDE, **knobs: Any) -> Draft:
    """The draft of a drafter that knows 7, 8 and 9 as successors of every token."""
    drafter = Sam(**knobs)
    session = begin(drafter, tokens)
    drafter.tree.memory.store("", AdjacencyStore, AdjacencyStore).learn(range(100), np.tile([7, 8, 9], (100, 1)))
    (draft,) = drafter.propose([session], [budget])
    return draft


def is_chain(draft: Draft) -> bool:
    return set(draft.source) == {"sam"} and draft.parent.tolist() == list(range(-1, len(draft) - 1))


def is_tree(draft: Draft) -> bool:
    return set(draft.source) == {"recycling"} and draft.parent.tolist().count(-1) == 3


WORD = [11, 12, 13, 14, 15]
TAIL = list(range(20, 90))


def test_a_match_of_the_threshold_is_copied_and_a_shorter_one_is_not() -> None:
    chain = drafted([1, *WORD, *TAIL, 2, *WORD])
    assert is_chain(chain)
    # 1 + 4 x 5 tokens at most.
    assert chain.token.tolist() == TAIL[:21]
    assert np.all(np.diff(chain.prob) < 0)
    assert is_tree(drafted([1, *WORD, *TAIL, 2, *WORD[1:]]))
    assert drafted([1, *WORD, *TAIL, 2, *WORD[1:]], threshold=4).token.tolist() == TAIL[:17]


def test_the_earliest_occurrence_is_copied() -> None:
    assert drafted([*WORD, *TAIL, 3, *WORD, 60, 61, 62, 63, *WORD], predicts=3).token.tolist() == TAIL[:3]


@pytest.mark.parametrize(
    ("budget", "knobs", "tokens"),
    [
        (Budget(64, 64), {"alpha": 20.0}, 40),
        (Budget(64, 64), {"alpha": 20.0, "predicts": 60}, 60),
        (Budget(64, 64), {"alpha": 0.5}, 3),
        (Budget(9, 64), {}, 9),
        (Budget(64, 5), {}, 5),
        (Budget(1, 1), {}, 1),
    ],
)
def test_a_chain_is_bounded_by_the_match_the_knobs_and_the_budget(budget: Budget, knobs: dict[str, Any], tokens: int) -> None:
    assert drafted([*WORD, *TAIL, *WORD], budget, **knobs).token.tolist() == TAIL[:tokens]


def test_a_shorter_match_is_copied_where_too_few_tokens_follow_the_longest() -> None:
    # The longest match is 0, WORD: 3 tokens follow. WORD alone occurred first at the beginning, and many follow.
    text = [*WORD, *TAIL, 0, *WORD, 1, 0, *WORD]
    assert drafted(text, predicts=7).token.tolist() == [1, 0, *WORD]
    assert drafted(text, predicts=8).token.tolist() == TAIL[:8]
    # Not where the shorter one is below the threshold: what there is is copied.
    assert drafted(text, predicts=8, threshold=6).token.tolist() == [1, 0, *WORD]


def test_a_text_that_repeats_itself_is_copied_round_after_round() -> None:
    draft = drafted(WORD * 9)
    assert draft.token.tolist() == WORD * 8


def test_tokens_that_were_not_drafted_are_read_before_the_next_draft() -> None:
    drafter = Sam()
    session = begin(drafter, [*WORD, *TAIL])
    assert len(drafter.propose([session], [WIDE])[0]) == 0
    session.tokens.extend([5, *WORD])
    assert drafter.propose([session], [WIDE])[0].token.tolist() == TAIL[:21]


def test_what_was_cut_off_is_not_copied() -> None:
    drafter = Sam()
    session = begin(drafter, [*WORD, 1, 2, 3, *WORD])
    assert drafter.propose([session], [WIDE])[0].token.tolist() == [1, 2, 3, *WORD]
    del session.tokens[5:]
    drafter.rewind(session, 5)
    session.tokens.extend([30, 31, 32, 33])
    assert len(drafter.propose([session], [WIDE])[0]) == 0
    session.tokens.extend(WORD)
    assert drafter.propose([session], [WIDE])[0].token.tolist() == [30, 31, 32, 33, *WORD]


@pytest.mark.parametrize("knobs", [{"predicts": 0}, {"threshold": 0}, {"alpha": -1.0}])
def test_sizes_that_cannot_be_are_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="sam: "):
        Sam(**knobs)
