"""ToolSpec: what is kept of an answer, what is copied from similar ones, and calls of the tools in the prompt."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.core.accept import Stops
from echodraft.core.backend import Need
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.engine import Engine
from echodraft.core.session import Session
from echodraft.drafters.toolspec import LENGTHS, Known, ToolSpec
from echodraft.errors import UsageError
from echodraft.memory import Memory
from echodraft.stores.grams import BREAK, Grams
from echodraft.stores.outputs import OutputStore
from harness import Scripted, drive, run, stream

WIDE = Budget(64, 64)
TOOLS = 'Parameters of tools.\nName: get_time\nParameters: {"zone": {"type": "str"}, "form": {"type": "str"}}\n'
SAID = '{"name": "get_time", "parameters": {"zone": "UTC", "form": "x"}}'


class Letters:
    """One id a character."""

    eos: frozenset[int] = frozenset()

    def encode(self, text: str) -> list[int]:
        return [ord(c) for c in text]

    def decode(self, ids: Any) -> str:
        return "".join(map(chr, ids))


def paths(draft: Draft) -> dict[tuple[int, ...], str]:
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token.tolist(), draft.parent.tolist(), strict=True):
        out.append((*(() if parent == ANCHOR else out[parent]), token))
    return dict(zip(out, draft.source, strict=True))


def held(memory: Memory, tenant: str = "") -> list[list[int]]:
    store = memory.store(tenant, OutputStore, OutputStore)
    memory.settle(tenant)
    return [entry["ids"] for entry in store.entries()]


def saying(answers: dict[int, list[int]], vocab: int = 97) -> Scripted:
    """Behind a prompt that begins with a token it says that token's answer; the prompt's state is the token's own direction."""

    class Model(Scripted):
        def _state(self, path: list[int]) -> np.ndarray:
            state = np.zeros(8, np.float16)
            state[path[0] % 8], state[-1] = 1.0, 0.1
            return state

    return Model(lambda path: np.eye(vocab)[answers[path[0]][(len(path) - 4) % len(answers[path[0]])]], vocab)


def begin(drafter: ToolSpec, backend: Scripted, prompt: list[int], steps: int = 1, n: int = 100) -> tuple[Engine, Session]:
    """A session whose prompt was read and that took so many steps in all."""
    engine = Engine(backend, drafter, Fixed(4))
    session = engine.open(prompt, stops=Stops(max_new_tokens=n))
    for _ in range(steps):
        engine.step()
    return engine, session


def test_an_answer_is_kept_when_it_is_over_without_its_prompt() -> None:
    drafter = ToolSpec()
    said = list(range(20, 80))
    engine, session = begin(drafter, saying({1: said}), [1, 2, 3, 4], n=6)
    drive(engine)
    assert held(drafter.memory) == []
    engine.close(session)
    assert held(drafter.memory) == [said[:6]]


def test_every_turn_of_a_chat_is_an_answer_of_its_own() -> None:
    drafter = ToolSpec()
    engine, session = begin(drafter, saying({1: list(range(20, 80))}), [1, 2, 3, 4], n=5)
    drive(engine)
    engine.extend(session, [7, 8, 9], Stops(max_new_tokens=4))
    drive(engine)
    engine.close(session)
    assert held(drafter.memory) == [[20, 21, 22, 23, 24], session.output[-4:]]
    assert all(not {7, 8, 9} & set(ids) for ids in held(drafter.memory))


def test_what_comes_behind_an_answer_that_was_taken_back_is_not_kept_with_it() -> None:
    drafter = ToolSpec()
    engine, session = begin(drafter, saying({1: list(range(20, 80))}), [1, 2, 3, 4], n=5)
    drive(engine)
    engine.rewind(session, 6)
    engine.extend(session, [7, 8, 9], Stops(max_new_tokens=2))
    engine.step()
    assert held(drafter.memory) == [[20, 21]]


@pytest.mark.parametrize(("back", "kept"), [(6, [[20, 21]]), (4, []), (2, [])])
def test_what_was_taken_back_is_not_kept(back: int, kept: list[list[int]]) -> None:
    drafter = ToolSpec()
    engine, session = begin(drafter, saying({1: list(range(20, 80))}), [1, 2, 3, 4], n=5)
    drive(engine)
    engine.rewind(session, back)
    engine.close(session)
    assert held(drafter.memory) == kept


def test_the_beginning_of_an_answer_is_that_of_the_most_similar_ones() -> None:
    answers = {1: [20, *range(30, 60)], 2: [20, *range(60, 90)]}
    drafter, backend = ToolSpec(similar=1), saying(answers)
    for first in (1, 2):
        run(Engine(backend, drafter, Fixed(4)), [first, 5, 6, 7], 30)
    for first in (1, 2):
        _, session = begin(drafter, backend, [first, 5, 6, 7])
        assert session.output == [20]
        (draft,) = drafter.propose([session], [Budget(8, 8)])
        assert tuple(answers[first][1:7]) in paths(draft)


def test_chains_that_begin_alike_are_paid_for_once_and_part_where_they_differ() -> None:
    drafter = ToolSpec(shortest=3, longest=3)
    prompt = [1, 2, 3, 40, 41, 42, 9, 1, 2, 3, 40, 41, 50, 8, 1, 2, 3]
    engine = Engine(stream([3]), drafter, Fixed(4))
    session = engine.open(prompt)
    (draft,) = drafter.propose([session], [Budget(9, 9)])
    found = paths(draft)
    assert {(40,), (40, 41), (40, 41, 42), (40, 41, 50)} <= set(found)
    assert list(found).count((40,)) == 1


def test_the_machine_guesses_the_call_of_a_tool_from_the_prompt() -> None:
    example = 'Say {"name": "tool", "parameters": {}}.\n'
    prompt = [ord(c) for c in TOOLS + example]
    backend = stream([0] * len(prompt) + [ord(c) for c in SAID], vocab_size=128)
    drafter = ToolSpec(text=Letters())
    engine, session = begin(drafter, backend, prompt)
    texts = set()
    while len(session.output) < len(SAID):
        (draft,) = drafter.propose([session], [Budget(200, 60)])
        texts |= {Letters().decode(path) for path, source in paths(draft).items() if source == "toolspec-schema"}
        engine.step()
    assert any(text.endswith('get_time", "parameters": {"zone": "') for text in texts)
    assert any(text.endswith('form": "') for text in texts)


@pytest.mark.parametrize("knobs", [{"text": None}, {"schemas": False, "text": Letters()}])
def test_without_text_or_schemas_no_call_is_guessed(knobs: dict[str, Any]) -> None:
    prompt = [ord(c) for c in TOOLS + '{"name": "tool", "parameters": {}}\n']
    backend = stream([0] * len(prompt) + [ord(c) for c in SAID], vocab_size=128)
    drafter = ToolSpec(**knobs)
    engine, session = begin(drafter, backend, prompt)
    while len(session.output) < len(SAID):
        (draft,) = drafter.propose([session], [WIDE])
        assert "toolspec-schema" not in draft.source
        engine.step()


def test_it_asks_for_hidden_states_and_best_ids_only() -> None:
    assert ToolSpec().needs == {Need.HIDDEN, Need.TOP_K}


@pytest.mark.parametrize("knobs", [{"longest": 2, "shortest": 3}, {"shortest": 0}, {"similar": -1}])
def test_sizes_that_cannot_be_are_refused(knobs: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="toolspec: 1 <= shortest <= longest"):
        ToolSpec(**knobs)


def all_places(text: list[int], context: list[int], shortest: int, longest: int) -> tuple[int, list[int]]:
    """The same by looking at every place."""
    for n in range(min(longest, len(context)), shortest - 1, -1):
        found = [i for i in range(n, len(text)) if text[i - n : i] == context[-n:] and BREAK not in (text[i], text[i - 1])]
        if found:
            return n, found
    return 0, []


@given(
    st.lists(st.lists(st.integers(0, 2), max_size=12), max_size=3),
    st.lists(st.lists(st.integers(0, 2), max_size=5), min_size=1, max_size=6),
    st.integers(1, 3),
    st.integers(0, 2),
)
def test_copies_are_from_the_latest_places_of_the_longest_match(
    others: list[list[int]], parts: list[list[int]], shortest: int, more: int
) -> None:
    longest = shortest + more
    grams, drafter = Grams(longest), ToolSpec(longest, shortest)
    known = Known(OutputStore(), grams)
    for text in others:
        grams.add(text)
    own: list[int] = []
    for part in parts:
        grams.extend(part)
        own += part
        begun = [BREAK] * (longest - 1) + own
        for context in (own, begun[-longest:]):
            n, places = grams.find(context, shortest)
            assert (n, places.tolist()) == all_places(grams.text.tolist(), context[-longest:], shortest, longest)
            assert drafter._latest(known, context) == (n, places.tolist()[::-1][:4])
            for place in places.tolist():
                copied = grams.read(place, 7)
                assert BREAK not in copied
                assert copied[0] == grams.text[place]


def test_a_copy_that_reaches_the_end_of_the_text_goes_on_with_itself_but_not_into_another() -> None:
    grams = Grams(2)
    grams.add([5, 6, 7])
    grams.extend([1, 2, 1, 2])
    assert grams.read(int(grams.find([1, 2])[1][-1]), 5) == [1, 2, 1, 2, 1]
    assert grams.read(int(grams.find([5, 6])[1][-1]), max(LENGTHS)) == [7]
