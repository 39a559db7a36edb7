"""The suffix drafter: what it drafts, what it remembers, and whose."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import Draft
from echodraft.core.engine import Engine
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from echodraft.drafters.suffix import Suffix
from echodraft.errors import UsageError
from echodraft.memory import Limits, Memory
from echodraft.stores.suffix import SuffixStore
from harness import Scripted, decoded, drive

VOCAB = 150_000
ROOM = Budget(64, 64, 8)


class Script:
    """An engine whose model answers each prompt with what `answers` says behind the prompt's first token."""

    def __init__(self, drafter: Suffix, answers: dict[int, Sequence[int]], nodes: int = 16) -> None:
        self.drafter, self.answers = drafter, answers
        self.engine = Engine(Scripted(self._follow, 300), drafter, Fixed(nodes))

    def _follow(self, path: list[int]) -> Any:
        row = np.zeros(300)
        answer = self.answers[path[0]]
        row[answer[min(len(path) - 1, len(answer) - 1)]] = 1.0
        return row

    def open(self, prompt: Sequence[int], n: int, tenant: str = "") -> Session:
        return self.engine.open(prompt, Sampler(), Stops(max_new_tokens=n), tenant)

    def ask(self, prompt: Sequence[int], n: int, tenant: str = "") -> list[Draft]:
        """One request from beginning to end: what was drafted in it."""
        session = self.open(prompt, n, tenant)
        steps = drive(self.engine, [session])
        self.engine.close(session)
        return [step.draft for step in decoded(steps[session.id])]


def two_turns(memory: Memory) -> tuple[Script, Session]:
    """A chat that is open still: 2 tokens of prompt, 3 of output, 3 of the next turn, 3 of output."""
    script = Script(Suffix(memory=memory), {7: range(20, 60)})
    chat = script.open([7, 8], 3)
    drive(script.engine)
    script.engine.extend(chat, [200, 201, 202])
    drive(script.engine)
    return script, chat


def session(tokens: Sequence[int], tenant: str = "", id: int = 0) -> Session:
    return Session(id, tenant, list(tokens), len(tokens), Sampler(), Stops(), 0)


def drafted(drafter: Suffix, of: Session, budget: Budget = ROOM) -> Draft:
    (draft,) = drafter.propose([of], [budget])
    return draft


def remembered(memory: Memory, tenant: str = "") -> list[list[int]]:
    """The finished outputs that a tenant's store holds."""
    return [entry["ids"] for name, store in memory if name == tenant and isinstance(store, SuffixStore) for entry in store.entries()]


def holding(*outputs: Sequence[int], tenant: str = "") -> Memory:
    """A memory with these outputs of a tenant."""
    memory = Memory()
    store = memory.store(tenant, SuffixStore, SuffixStore)
    for output in outputs:
        seq = store.begin()
        store.append(seq, output)
        store.end(seq, 1.0)
    return memory


def test_the_prompt_is_the_first_memory() -> None:
    # 1 2 occurs twice, at the end with nothing behind it: 3 has probability 1/2, and so has what follows; match 2 allows 2 tokens.
    of = session([VOCAB, 1, 2, 3, 4, VOCAB + 1, 1, 2])
    drafter = Suffix(tree=False)
    drafter.open(of)
    draft = drafted(drafter, of)
    assert draft.token.tolist() == [3, 4]
    assert draft.parent.tolist() == [-1, 0]
    assert draft.prob.tolist() == [0.5, 0.5]
    assert draft.source == ("suffix", "suffix")


def test_a_tree_claims_less_behind_a_shorter_match() -> None:
    # Behind 1 2: 3 4 5 6 with 1/2 by counts; the claims are 2/3, 2/4, 2/5 … of that.
    drafter, of = Suffix(factor=2.0, offset=0.0), session([1, 2, 3, 4, 5, 6, 7, 8, 1, 2])
    drafter.open(of)
    draft = drafted(drafter, of)
    assert draft.token.tolist() == [3, 4, 5, 6]
    assert draft.prob.tolist() == pytest.approx([1 / 3, 1 / 4, 1 / 5, 1 / 6])


def test_a_tree_branches_and_a_path_does_not() -> None:
    # Behind 1 2 came 3 4 and 5 6, and now nothing: 1/3 each; the later one first. Match 2 allows 2 tokens.
    tokens = [1, 2, 3, 4, 1, 2, 5, 6, 1, 2]
    for tree, token, parent in ((True, [5, 3], [-1, -1]), (False, [5, 6], [-1, 0])):
        drafter, of = Suffix(tree=tree, factor=1.0, offset=0.0), session(tokens)
        drafter.open(of)
        draft = drafted(drafter, of)
        assert (draft.token.tolist(), draft.parent.tolist()) == (token, parent)
        assert draft.prob.tolist() == pytest.approx([2 / 9, 2 / 9] if tree else [1 / 3, 1 / 3])


@pytest.mark.parametrize(
    ("knobs", "length"), [({"tree": False}, 3), ({}, 14), ({"factor": 1.0}, 11), ({"offset": 0.0}, 6), ({"tree": False, "offset": 2.0}, 5)]
)
def test_paths_are_as_long_as_published_and_trees_longer(knobs: dict[str, Any], length: int) -> None:
    # Match 3: 3 x 1 tokens as published; a tree may have 3 x 2 + 8.
    drafter, of = Suffix(memory=holding(range(10, 40)), **knobs), session([99, 12, 13, 14])
    drafter.open(of)
    assert drafted(drafter, of).token.tolist() == list(range(15, 15 + length))


def test_the_memory_wins_only_where_it_expects_more() -> None:
    # Own text: behind 1 2 came 3 once of two times: .5 + .5. The memory: 8 in one of two cases, 9 in the other: .5 each. A tie is own.
    own = [1, 2, 3, 4, 1, 2]
    tied = holding([1, 2, 8], [1, 2, 9])
    better = holding([1, 2, 8], [1, 2, 8], [1, 2, 9])  # 8: 2/3 and 9: 1/3, with two nodes 1 again
    best = holding([1, 2, 8, 8])  # 8 8: 1 + 1
    for memory, token, source in ((tied, [3, 4], "suffix"), (better, [3, 4], "suffix"), (best, [8, 8], "suffix-memory")):
        drafter, of = Suffix(factor=1.0, offset=0.0, memory=memory), session(own)
        drafter.open(of)
        draft = drafted(drafter, of)
        assert (draft.token.tolist(), set(draft.source)) == (token, {source})


def test_a_prompt_of_one_token_drafts_from_memory() -> None:
    drafter, of = Suffix(memory=holding([VOCAB, 5, 6])), session([VOCAB])
    drafter.open(of)
    assert drafted(drafter, of).token.tolist() == [5, 6]


def test_a_draft_keeps_to_its_budget() -> None:
    memory = holding(*([1, 10 + i, 20 + i, 30 + i] for i in range(4)))
    for budget, size in ((Budget(2, 9), 2), (Budget(9, 1), 4), (Budget(9, 2), 8), (Budget(64, 64, 3), 9), (Budget(64, 64), 12)):
        drafter, of = Suffix(factor=64.0, memory=memory), session([1])
        drafter.open(of)
        draft = drafted(drafter, of, budget)
        assert len(draft) == size
        assert draft.depth.max() <= budget.depth
        drafter.close(of)


def test_outputs_are_remembered_and_prompts_are_not() -> None:
    memory = Memory()
    script = Script(Suffix(tree=False, memory=memory), {7: [20, 21, 22, 23, 24, 25]})
    script.ask([7, 8, 9], 4)
    assert remembered(memory) == [[22, 23, 24, 25]]
    # The first token, 22, comes with the prompt. Match 1 allows one draft token; behind it and the bonus token there is room for one more.
    drafts = script.ask([7, 8, 9], 4)
    assert [(draft.token.tolist(), draft.source) for draft in drafts] == [([23], ("suffix-memory",)), ([], ())]


def test_a_request_learns_from_one_that_still_runs() -> None:
    script = Script(Suffix(), {7: range(20, 60), 8: range(20, 60)})
    first, second = script.open([7], 40), script.open([8], 40)
    for _ in range(30):
        script.engine.step([first])
    steps = drive(script.engine, [second])[second.id]
    assert first.finish is None
    assert second.output == list(range(20, 60))
    assert {source for step in decoded(steps) for source in step.draft.source} == {"suffix-memory"}
    assert sum(step.verdict.accepted for step in steps) > 15


def test_no_tenant_drafts_from_what_another_one_was_told() -> None:
    answers = {7: range(20, 60)}
    script = Script(Suffix(), answers)
    script.ask([7], 40, "owner")
    still_open = script.open([7], 40, "owner")
    drive(script.engine, [still_open])
    assert not any(map(len, script.ask([7], 40, "thief"))), "nothing repeats in this text, so all drafts are stolen"
    assert any(map(len, script.ask([7], 40, "owner")))
    script.drafter.memory.forget("owner")
    assert not any(map(len, script.ask([7], 40, "owner")))


def test_a_drafter_that_is_made_later_finds_the_memory() -> None:
    memory = Memory()
    Script(Suffix(memory=memory), {7: range(20, 60)}).ask([7], 40)
    assert any(map(len, Script(Suffix(memory=memory), {7: range(20, 60)}).ask([7], 40)))
    assert not any(map(len, Script(Suffix(), {7: range(20, 60)}).ask([7], 40)))


def test_a_memory_keeps_its_limit_when_sessions_close() -> None:
    memory = Memory(limits=Limits(tokens=50))
    script = Script(Suffix(memory=memory), {7: range(20, 60), 8: range(100, 140)})
    script.ask([7], 40)
    script.ask([8], 40)
    assert remembered(memory) == [list(range(100, 140))]


def test_the_next_turn_is_context_and_parts_two_outputs() -> None:
    memory = Memory()
    script, chat = two_turns(memory)
    assert remembered(memory) == [[21, 22, 23]]
    own = script.drafter._known[chat.id].own
    assert own.text(0).tolist() == chat.tokens == [7, 8, 21, 22, 23, 200, 201, 202, 27, 28, 29]
    script.engine.close(chat)
    assert remembered(memory) == [[21, 22, 23], [27, 28, 29]]


def test_a_turn_that_no_step_has_read_yet_counts_as_context() -> None:
    script = Script(Suffix(memory=holding([200, 201, 50, 51])), {7: range(20, 60)})
    chat = script.open([7, 8], 3)
    drive(script.engine)
    chat.tokens += [200, 201]
    assert drafted(script.drafter, chat).token.tolist() == [50, 51]


@pytest.mark.parametrize(
    ("length", "kept"),
    [
        (11, [[21, 22, 23], [27, 28, 29]]),
        (10, [[21, 22, 23], [27, 28]]),
        (8, [[21, 22, 23]]),
        (6, [[21, 22, 23]]),
        (5, [[21, 22, 23]]),
        (4, [[21, 22]]),
        (2, []),
        (1, []),
    ],
)
def test_what_is_taken_back_is_forgotten(length: int, kept: list[list[int]]) -> None:
    memory = Memory()
    script, chat = two_turns(memory)
    script.engine.rewind(chat, length)
    assert script.drafter._known[chat.id].own.text(0).tolist() == chat.tokens
    script.engine.close(chat)
    assert remembered(memory) == kept


def test_output_behind_a_cut_goes_on_where_it_was_cut() -> None:
    memory = Memory()
    script = Script(Suffix(memory=memory), {7: range(20, 60)})
    one = script.open([7], 8)
    drive(script.engine)
    script.engine.rewind(one, 4)
    script.answers[7] = range(50, 90)
    drive(script.engine)
    script.engine.close(one)
    assert remembered(memory) == [[20, 21, 22, 53, 54, 55, 56, 57]]


def test_a_session_whose_tenant_was_forgotten_ends_quietly() -> None:
    script = Script(Suffix(), {7: range(20, 60)})
    one = script.open([7], 40)
    for _ in range(5):
        script.engine.step()
    script.drafter.memory.forget("")
    drive(script.engine)
    script.engine.close(one)
    assert remembered(script.drafter.memory) == []


def test_closing_twice_or_what_was_never_opened_is_harmless() -> None:
    drafter, of = Suffix(), session([1, 2])
    drafter.open(of)
    drafter.close(of)
    drafter.close(of)


@pytest.mark.parametrize(
    "knobs",
    [
        {"depth": 1},
        {"depth": 256},
        {"factor": -1.0},
        {"factor": float("nan")},
        {"factor": "much"},
        {"offset": True},
        {"offset": float("inf")},
        {"min_prob": 0.05},
    ],
)
def test_knobs_that_cannot_be_right_are_refused(knobs: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="suffix: "):
        Suffix(**knobs)
