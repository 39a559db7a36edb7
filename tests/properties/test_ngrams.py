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
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.errors import UsageError
from echodraft.stores.grams import Grams

texts = st.lists(st.integers(0, 3), min_size=1, max_size=40)


def search(tokens: Sequence[int], longest: int, shortest: int) -> tuple[int, list[int]]:
    """By brute force: the longest end of the text that occurred before, and where it went on."""
    for n in range(min(longest, len(tokens)), shortest - 1, -1):
        ends = [end for end in range(n, len(tokens)) if tokens[end - n : end] == tokens[-n:]]
        if ends:
            return n, ends
    return 0, []


@given(texts, st.integers(1, 5), st.integers(1, 3), st.lists(st.integers(1, 40), max_size=4))
def test_what_is_found_is_what_a_search_finds(tokens: list[int], longest: int, shortest: int, cuts: list[int]) -> None:
    grams = Grams(longest)
    for end in [*(cut for cut in cuts if cut < len(tokens)), len(tokens)]:
        grams.cut(end)
        grams.extend(tokens[len(grams) : end])
        n, places = grams.find(tokens[:end], shortest)
        assert (n, places.tolist()) == search(tokens[:end], longest, shortest)


@given(texts, st.integers(1, 8), st.integers(1, 40), st.booleans())
def test_a_draft_is_what_followed_the_match_and_runs_on_into_what_it_copies(tokens: list[int], most: int, cut: int, latest: bool) -> None:
    session = Session(0, "", list(tokens), len(tokens), Sampler(), Stops(), 0)
    drafter = PromptLookup(longest=4, latest=latest)
    drafter.open(session)
    session.tokens = tokens[: min(cut, len(tokens))]
    drafter.rewind(session, len(session.tokens))
    (draft,) = drafter.propose([session], [Budget(most, most)])
    _, places = search(session.tokens, 4, 1)
    grown = list(session.tokens)
    for _ in range(most if places else 0):
        grown.append(grown[places[-1 if latest else 0] + len(grown) - len(session.tokens)])
    assert draft.token.tolist() == grown[len(session.tokens) :]
    assert draft.parent.tolist() == list(range(-1, len(draft) - 1))
    drafter.close(session)
    drafter.close(session)


@pytest.mark.parametrize(("longest", "shortest"), [(0, 0), (2, 3), (3, 0)])
def test_sizes_that_cannot_be_are_refused(longest: int, shortest: int) -> None:
    with pytest.raises(UsageError, match="shortest"):
        PromptLookup(longest, shortest)
