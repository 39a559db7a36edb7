"""Oilbird: what is copied from where, what both sources say, and what stays whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from echodraft.build import make_drafter, make_policy
from echodraft.core.accept import Stops
from echodraft.core.backend import Need
from echodraft.core.budget import CPU_CURVE, Adaptive, Budget, Fixed
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.drafters.oilbird import Oilbird, merged
from echodraft.drafters.oilbird_tree import AGREES, PROMPT, REENTERS, Chances, Copies, Fused
from echodraft.errors import Unsupported, UsageError
from echodraft.memory import Limits, Memory
from echodraft.stores.hidden import HiddenStore
from harness import Scripted, decoded, drive
from oracle import raw

BODY, END = [40, 41, 42, 43, 44, 45, 46, 47], 50


class Slots(Scripted):
    """A model that answers a request of [n] with a form: 30, 31, a value of its own, and the same body; its states know the place in the
    form and not the value. Each value is new, so no suffix of what was said before leads on from it.
    """

    def __init__(self) -> None:
        super().__init__(self._form)

    def _place(self, path: list[int]) -> int:
        return path[::-1].index(30) if 30 in path else -1

    def _said(self, path: list[int]) -> int:
        place = self._place(path)
        form = [31, 60 + path[0], *BODY, END]
        return 30 if place < 0 else form[min(place, len(form) - 1)]

    def _form(self, path: list[int]) -> np.ndarray:
        logits = np.zeros(self.vocab_size)
        logits[self._said(path)] = 1.0
        return logits

    def _state(self, path: list[int]) -> np.ndarray:
        state = np.random.default_rng(self._place(path) + 1).standard_normal(32) + 5.0
        return (state + 0.05 * np.random.default_rng(sum(path)).standard_normal(32)).astype(np.float16)


def steps_of(engine: Engine, n: int, tenant: str = "") -> list[Step]:
    """The steps that one request took."""
    session = engine.open([n], stops=Stops(max_new_tokens=12), tenant=tenant)
    steps = drive(engine, [session])[session.id]
    assert session.output == [30, 31, 60 + n, *BODY, END]
    engine.close(session)
    return decoded(steps)


def engine(memory: Memory | None = None, nodes: int = 16, **knobs: Any) -> Engine:
    return Engine(Slots(), make_drafter("oilbird", knobs, {"memory": memory}), Fixed(nodes))


def steps_of_the_last(count: int = 4, **knobs: Any) -> int:
    made = engine(**knobs)
    return [len(steps_of(made, n)) for n in range(count)][-1]


def test_what_follows_a_new_value_is_found_by_the_state_and_not_by_the_words() -> None:
    # 30; 31 and the value, which only the model knows; then the body at once.
    assert steps_of_the_last() == 3
    assert steps_of_the_last(semantic=False) == 4


@pytest.mark.parametrize("knobs", [{"depth_map": "fixed"}, {"fusion": False}, {"keys": "all"}, {"host": "recycling"}, {"k": 1}])
def test_every_way_to_use_the_states_finds_it(knobs: dict[str, Any]) -> None:
    assert steps_of_the_last(**knobs) == 3


def test_without_fusion_a_draft_has_one_source() -> None:
    made = engine(fusion=False)
    for n in range(5):
        session = made.open([n], stops=Stops(max_new_tokens=12))
        for step in drive(made, [session])[session.id]:
            assert len({source.startswith("suffix") for source in step.draft.source}) <= 1
        made.close(session)


def test_states_are_asked_for_only_where_they_are_used() -> None:
    assert {need.value for need in Oilbird(host="suffix").needs} == {"hidden"}
    assert not Oilbird(host="suffix", semantic=False).needs
    assert {need.value for need in Oilbird(host="recycling").needs} == {"hidden", "top-k"}


@pytest.mark.parametrize("host", ["suffix", "recycling", "suffix+recycling"])
def test_where_there_are_no_hidden_states_the_host_drafts_alone(host: str) -> None:
    drafted = []
    for knobs, offers in (({}, {Need.TOP_K}), ({"semantic": False}, {Need.TOP_K, Need.HIDDEN})):
        backend = Slots()
        backend.offers = frozenset(offers)
        made = Engine(backend, make_drafter("oilbird", {"host": host} | knobs), Fixed(16))
        assert Need.HIDDEN not in made.drafter.needs
        drafted.append([step.draft.token.tolist() for n in range(4) for step in steps_of(made, n)])
    assert drafted[0] == drafted[1]
    assert any(drafted[0])


def test_a_host_that_needs_hidden_states_is_refused_where_there_are_none() -> None:
    backend = Slots()
    backend.offers = frozenset({Need.TOP_K})
    with pytest.raises(Unsupported, match="hidden"):
        Engine(backend, Oilbird(host="toolspec"), Fixed(16))


@pytest.mark.parametrize("offers", [(), (Need.TOP_K,), (Need.HIDDEN,)])
def test_of_several_hosts_those_go_that_need_what_there_is_not(offers: tuple[Need, ...]) -> None:
    backend = Slots()
    backend.offers = frozenset(offers)
    made = Engine(backend, Oilbird(), Fixed(16)).drafter
    assert isinstance(made, Oilbird)
    assert [host.name for host in made.hosts] == ["suffix"]
    assert made.needs == made.needs & backend.offers
    assert made.semantic == (Need.HIDDEN in offers)


def with_chances(tokens: list[int], parents: list[int], prob: list[float]) -> Draft:
    return replace(raw(tokens, parents), prob=np.asarray(prob))


def test_trees_of_several_hosts_are_one_in_which_the_better_claim_of_a_token_counts() -> None:
    one, other = with_chances([5, 6, 7], [-1, 0, -1], [0.5, 0.1, 0.2]), with_chances([5, 6, 8], [-1, 0, 1], [0.4, 0.3, 0.2])
    both = merged([one, other])
    paths = {}
    for i, (token, parent) in enumerate(zip(both.token.tolist(), both.parent.tolist(), strict=True)):
        paths[i] = (*(paths[parent] if parent >= 0 else ()), token)
    assert {paths[i]: both.prob[i] for i in paths} == {(5,): 0.5, (5, 6): 0.3, (5, 6, 8): 0.2, (7,): 0.2}
    assert merged([one]) is one


def test_each_output_token_is_kept_behind_the_state_that_produced_it() -> None:
    memory = Memory()
    made = engine(memory)
    session = made.open([3], stops=Stops(max_new_tokens=12))
    drive(made, [session])
    store = memory.store("", HiddenStore, HiddenStore)
    assert store.tokens == 12
    for i in range(11):
        (near,) = store.search(made.backend._state(session.tokens[: i + 1])[None], 1)  # type: ignore[attr-defined]
        assert store.token(near.row).tolist() == [session.output[i]]
        assert store.token(store.follow(near.row, 12 - i))[0].tolist() == session.output[i:]


def test_prompts_are_keys_for_their_own_request_only() -> None:
    memory = Memory()
    made = engine(memory, keys="all")
    session = made.open([9, 7, 8, 9], stops=Stops(max_new_tokens=4))
    drive(made, [session])
    known = made.drafter._known[session.id]  # type: ignore[attr-defined]
    assert sorted(known.prompt.token(np.arange(3)).tolist()) == [7, 8, 9]
    assert memory.store("", HiddenStore, HiddenStore).tokens == 4
    made.close(session)
    assert not made.drafter._known  # type: ignore[attr-defined]


def test_what_was_rewound_is_forgotten_and_what_was_not_stays() -> None:
    memory = Memory()
    made = engine(memory)
    session = made.open([3], stops=Stops(max_new_tokens=12))
    drive(made, [session])
    made.rewind(session, 5)
    made.close(session)
    store = memory.store("", HiddenStore, HiddenStore)
    assert [entry["ids"] for entry in store.entries()] == [session.output]
    assert len(session.output) == 4


def test_what_a_tenant_learned_of_its_guesses_is_its_own() -> None:
    memory = Memory()
    made = engine(memory)
    for n in range(3):
        steps_of(made, n, "a")
    assert memory.store("a", HiddenStore, HiddenStore).survival.any()
    assert not memory.store("b", HiddenStore, HiddenStore).survival.any()
    memory.forget("a")
    steps_of(made, 5, "a")
    assert memory.store("a", HiddenStore, HiddenStore).tokens == 12


def fused(host: Draft = EMPTY, *copies: tuple[int, list[int]], store: HiddenStore | None = None) -> Fused:
    """Chains of (kind, tokens), all as similar as can be."""
    width = max((len(tokens) for _, tokens in copies), default=1)
    tokens = np.asarray([chain + [-1] * (width - len(chain)) for _, chain in copies], np.int32).reshape(-1, width)
    kind = np.asarray([kind for kind, _ in copies], np.int64)
    chains = Copies(kind, np.full(len(kind), 8), (kind % 2 == AGREES).astype(np.int64), tokens)
    return Fused(host, Chances(store or HiddenStore()), [chains])


def test_a_token_that_both_propose_is_one_node_and_as_sure_as_both_are_on_average() -> None:
    host = Draft.chain([5, 6], 0.5, "suffix")
    alone = fused(host).draft(Budget(8, 8), [fused(host).root])
    copied = fused(EMPTY, (AGREES, [5, 6, 7])).draft(Budget(8, 8), [fused(EMPTY, (AGREES, [5, 6, 7])).root])
    tree = fused(host, (AGREES, [5, 6, 7]))
    both = tree.draft(Budget(8, 8), [tree.root])
    assert both.token.tolist() == [5, 6, 7]
    assert both.source == ("suffix+oilbird", "suffix+oilbird", "oilbird")
    assert both.prob[0] == pytest.approx((alone.prob[0] + copied.prob[0]) / 2)


def test_a_copy_goes_on_where_it_leaves_the_host() -> None:
    tree = fused(Draft.chain([5, 6, 9], 0.9, "suffix"), (AGREES, [5, 6, 7, 8]))
    draft = tree.draft(Budget(16, 16), [tree.root])
    paths = {tuple(draft.token[np.flatnonzero(draft.ancestors[i])].tolist()) for i in range(len(draft))}
    assert paths == {(5,), (5, 6), (5, 6, 7), (5, 6, 7, 8), (5, 6, 9)}


def test_an_agreeing_neighbour_is_surer_than_one_that_reenters_and_one_in_the_prompt() -> None:
    tree = fused(EMPTY, (REENTERS, [1]), (AGREES, [2]), (AGREES + PROMPT, [3]))
    assert tree.guesses(tree.root)[0].token == 2


def test_chances_of_what_may_come_next_sum_to_one_at_most() -> None:
    tree = fused(Draft.chain([9], 0.99, "suffix"), *((AGREES, [token]) for token in range(8)))
    assert sum(guess.prob for guess in tree.guesses(tree.root)) <= 1.0 + 1e-9


def test_chances_follow_what_came_true() -> None:
    store = HiddenStore()
    for truth in (True, False):
        for _ in range(100):
            tree = fused(EMPTY, (AGREES, [5]), store=store)
            tree.learn([5 if truth else 6], [tree.root])
        tree = fused(EMPTY, (AGREES, [5]), store=store)
        (guess,) = tree.guesses(tree.root)
        assert (guess.prob > 0.9) if truth else (guess.prob < 0.5)


def test_the_fixed_map_copies_further_from_nearer_neighbours_whatever_came() -> None:
    store = HiddenStore()
    chances = Chances(store, learned=False)
    before = chances.of_chains().copy()
    far, near = before[AGREES, 2, 1], before[AGREES, 8, 1]
    assert far < near
    assert near**48 > 0.05
    store.survival[:] = 7.0
    assert (chances.of_chains() == before).all()


@pytest.mark.parametrize(
    ("knobs", "told"),
    [
        ({"host": "sufix"}, "suffix"),
        ({"host": "oilbird"}, "host of oilbird"),
        ({"host": "suffix+suffix"}, "once"),
        ({"k": 0}, "k lies between 1 and 64"),
        ({"depth": 0}, "depth lies"),
        ({"depth_map": "guessed"}, "learned or fixed"),
        ({"keys": "prompt"}, "output or all"),
    ],
)
def test_wrong_knobs_are_told(knobs: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        Oilbird(**knobs)


def test_a_neighbour_agrees_if_it_went_on_with_the_anchor() -> None:
    store = HiddenStore()
    keys = np.eye(4, 8)
    for said, key in ((7, 0), (8, 1)):
        seq = store.begin()
        store.append(seq, [said, 20 + said, 30 + said], keys[[key, 2, 3]])
    copies = Copies.of(store, keys[0] + 0.9 * keys[1], 2, 5, anchor=7)
    assert copies.kind.tolist() == [AGREES, REENTERS]
    assert copies.run.tolist() == [1, 0]
    assert copies.tokens.tolist() == [[27, 37, -1, -1, -1], [28, 38, -1, -1, -1]]


def test_what_the_limits_took_may_still_be_taken_back() -> None:
    made = engine(Memory(limits=Limits(tokens=1)))
    session = made.open([3], stops=Stops(max_new_tokens=12))
    drive(made, [session])
    made.rewind(session, 9)  # its output is a finished sequence now
    steps_of(made, 4)  # settles, and so takes it
    made.rewind(session, 5)
    session.stops = Stops(max_new_tokens=6)
    session.finish = None
    drive(made, [session])


def test_the_budget_takes_what_oilbird_claims_as_it_is_and_corrects_what_others_claim() -> None:
    wrong = Draft.chain([5], 0.8, "source")
    for name, kept in (("oilbird", True), ("suffix", False)):
        policy = make_policy("auto", CPU_CURVE, make_drafter(name, {}))
        assert isinstance(policy, Adaptive)
        for _ in range(50):
            policy.calibration.observe(wrong, [6])
        assert bool(policy.calibration.paths(wrong)[0] == 0.8) is kept
