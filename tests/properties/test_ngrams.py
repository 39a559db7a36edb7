"""The n-gram index finds what a search through the whole text finds, however the text came in."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from echodraft.drafters.prompt_lookup import NgramIndex, PromptLookup
from echodraft.errors import UsageError

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def search(tokens: Sequence[int], longest: int, shortest: int, latest: bool) -> tuple[int, int] | None:
    """By brute force: the longest end of the text that occurred before, and where it went on."""
    for n in range(min(longest, len(tokens)), shortest - 1, -1):
        gram = list(tokens[-n:])
        ends = [end for end in range(n, len(tokens)) if list(tokens[end - n : end]) == gram]
        if ends:
            return n, ends[-1] if latest else ends[0]
    return None


@given(texts, st.integers(1, 5), st.integers(1, 3), st.booleans(), st.lists(st.integers(1, 40), max_size=4))
def test_the_index_finds_what_a_search_finds(tokens: list[int], longest: int, shortest: int, latest: bool, cuts: list[int]) -> None:
    index = NgramIndex(longest, latest)
    for end in [*sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]:
        index.extend(tokens[:end])
        assert index.find(tokens[:end], shortest) == search(tokens[:end], longest, shortest, latest)


@given(texts, st.integers(1, 8), st.integers(1, 40))
def test_a_draft_is_what_followed_the_match_and_runs_on_into_what_it_copies(tokens: list[int], most: int, cut: int) -> None:
    session = Session(0, "", list(tokens), len(tokens), Sampler(), Stops(), 0)
    drafter = PromptLookup(longest=4)
    drafter.open(session)
    session.tokens = tokens[: min(cut, len(tokens))]
    drafter.rewind(session, len(session.tokens))
    (draft,) = drafter.propose([session], [Budget(most, most)])
    found = search(session.tokens, 4, 1, latest=True)
    grown = list(session.tokens)
    for _ in range(most if found else 0):
        grown.append(grown[found[1] + len(grown) - len(session.tokens)])
    assert draft.token.tolist() == grown[len(session.tokens) :]
    assert draft.parent.tolist() == list(range(-1, len(draft) - 1))
    drafter.close(session)
    drafter.close(session)


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (3, 0)])
def test_sizes_that_cannot_be_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(UsageError, match="shortest"):
        PromptLookup(longest, shortest)
