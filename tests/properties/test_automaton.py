"""The automaton finds what a search through the whole text finds, however the text came in."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from echodraft.stores.automaton import Automaton

texts = st.lists(st.integers(0, 2), min_size=1, max_size=40) | st.lists(st.integers(0, 3), min_size=1, max_size=3).map(lambda t: t * 9)


def first(tokens: Sequence[int], n: int) -> int | None:
    """By brute force: the position behind the first occurrence of the last n tokens, if that is not the end itself."""
    for end in range(n, len(tokens)):
        if list(tokens[end - n : end]) == list(tokens[len(tokens) - n :]):
            return end
    return None


def ends(tokens: Sequence[int]) -> list[tuple[int, int]]:
    """All ends of the text that occurred before, longest first: (length, position behind the first occurrence)."""
    found = [(n, first(tokens, n)) for n in range(len(tokens) - 1, 0, -1)]
    return [(n, end) for n, end in found if end is not None]


@given(texts, st.lists(st.integers(1, 40), max_size=4))
def test_the_match_is_the_longest_end_that_occurred_before_and_its_first_occurrence(tokens: list[int], cuts: list[int]) -> None:
    automaton = Automaton()
    for length in [*sorted(cut for cut in cuts if cut < len(tokens)), len(tokens)]:
        automaton.extend(tokens[:length])
        automaton.extend(tokens[:length])
        assert automaton.match() == next(iter(ends(tokens[:length])), (0, 0))


@given(texts, st.integers(1, 30), st.integers(1, 6))
def test_where_too_few_tokens_follow_a_shorter_end_is_taken_that_enough_follow(tokens: list[int], wanted: int, shortest: int) -> None:
    automaton = Automaton()
    automaton.extend(tokens)
    match, position = automaton.followed(wanted, shortest)
    found = ends(tokens)
    if not found or found[0][0] < shortest:
        assert (match, position) == next(iter(found), (0, 0))
        return
    allowed = [(n, end) for n, end in found if n >= shortest]
    assert (match, position) in allowed
    enough = [(n, end) for n, end in allowed if len(tokens) - end >= wanted]
    # Of the ends that occurred first at one place only the longest counts.
    assert position == (enough[0] if enough else allowed[-1])[1]
    assert match == max(n for n, end in allowed if end == position)


@given(texts)
def test_there_are_at_most_two_states_and_three_transitions_a_token(tokens: list[int]) -> None:
    automaton = Automaton()
    automaton.extend(tokens)
    assert len(automaton.link) <= 2 * len(tokens) + (len(tokens) == 1)
    assert sum(map(len, automaton.follow)) <= 3 * len(tokens)


@given(texts, st.lists(st.integers(0, 3), max_size=6))
def test_it_reads_the_substrings_of_the_text_and_nothing_else(tokens: list[int], word: list[int]) -> None:
    automaton = Automaton()
    automaton.extend(tokens)
    state: int | None = 0
    for token in word:
        state = None if state is None else automaton.follow[state].get(token)
    occurs = any(tokens[i : i + len(word)] == word for i in range(len(tokens) - len(word) + 1))
    assert (state is not None) == occurs
