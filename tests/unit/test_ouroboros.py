"""Ouroboros: each mechanism does what the paper says, and no switch, draft model or sampler changes an output."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest

from conforming import NEW, draft_model, sampler, twin
from echodraft.backends.toy import ToyBackend, ToyTokenizer
from echodraft.build import make_drafter
from echodraft.core.accept import Stops
from echodraft.core.backend import Need
from echodraft.core.budget import Adaptive, Budget, CostCurve, Fixed
from echodraft.core.draft import Draft
from echodraft.core.drafter import Drafter
from echodraft.core.engine import Engine
from echodraft.core.retokenize import OtherIds
from echodraft.core.session import Session
from echodraft.core.step import Step
from echodraft.drafters.none import NoDrafter
from echodraft.drafters.ouroboros import Ouroboros, rescued
from echodraft.drafters.phrase_tree import HOST, PhraseTree, PhraseWindow, branches
from echodraft.errors import Unsupported, UsageError
from echodraft.memory import Memory
from echodraft.stores.phrases import PhrasePool
from echodraft.stores.suffix import SuffixStore
from echodraft.text.tokenizer import Text
from harness import Recorder, decoded, drive, run, stream
from models import prompt

TEXT, OTHER = prompt(6) * 3, prompt(7, seed=1) * 3
SWITCHES = ("phrases", "k", "verify", "history", "branch", "output", "texts", "host", "recycle")


def engine_for(backend: Any, model: Any = None, memory: Memory | None = None, nodes: int = 48, **knobs: Any) -> Engine:
    parts = {"memory": memory, "draft_model": model or draft_model(twin(backend))}
    return Engine(backend, make_drafter("ouroboros", knobs, parts), Fixed(nodes))


def ouroboros(engine: Engine) -> Ouroboros:
    assert isinstance(engine.drafter, Ouroboros)
    return engine.drafter


def plain(backend: Any, ids: Sequence[int], mode: str = "greedy", n: int = NEW) -> list[int]:
    return run(Engine(twin(backend), NoDrafter(), Fixed(0)), ids, n, sampler(mode))


def pool_of(engine: Engine) -> PhrasePool:
    """Of the tenant of its first open session."""
    return next(iter(ouroboros(engine)._known.values())).pool


def step(engine: Engine, session: Session) -> Step:
    (found,) = engine.step([session])
    return found


def off(name: str) -> Any:
    return {"k": 0, "host": ""}.get(name, False)


@pytest.mark.parametrize("mode", ["greedy", "keyed"])
@pytest.mark.parametrize(
    "pattern", [p for p in product([True, False], repeat=len(SWITCHES)) if sum(p) in (0, 1, len(SWITCHES) - 1, len(SWITCHES))]
)
def test_no_switch_changes_an_output(pattern: tuple[bool, ...], mode: str) -> None:
    knobs = {name: off(name) for name, on in zip(SWITCHES, pattern, strict=True) if not on}
    backend = ToyBackend(copy=6.0)
    engine = engine_for(backend, draft_model(ToyBackend(copy=6.0, seed=0)), gamma=4, beta=4, **knobs)
    sessions = [engine.open(ids, sampler(mode), Stops(max_new_tokens=NEW)) for ids in (TEXT, OTHER, TEXT[:1])]
    drive(engine)
    assert [s.output for s in sessions] == [plain(backend, ids, mode) for ids in (TEXT, OTHER, TEXT[:1])]


WRONG = {
    "another model": draft_model(ToyBackend(seed=5)),
    "ends at once": draft_model(ToyBackend(), eos=frozenset(range(97))),
    "ends early": draft_model(ToyBackend(), eos=frozenset(range(0, 97, 3))),
    "small context": draft_model(ToyBackend(context=24)),
    "no context": draft_model(ToyBackend(context=2)),
    "small vocabulary": draft_model(ToyBackend(vocab_size=20)),
    "large vocabulary": draft_model(ToyBackend(vocab_size=300)),
    "another tokenizer": draft_model(ToyBackend(), reading=lambda: OtherIds(Text(ToyTokenizer()), Text(ToyTokenizer()))),
}


@pytest.mark.parametrize("mode", ["greedy", "keyed", "torch"])
@pytest.mark.parametrize("kind", WRONG)
@pytest.mark.parametrize("window", [0, 4])
def test_no_draft_model_changes_an_output(kind: str, mode: str, window: int) -> None:
    backend: Any = ToyBackend()
    if mode == "torch":
        pytest.importorskip("torch")
        from echodraft.backends.transformers_support import make_backend
        from models import tiny

        backend = make_backend(tiny("llama"), False)[0]
        wanted = [run(Engine(backend, NoDrafter(), Fixed(0)), ids, NEW, sampler(mode)) for ids in (TEXT, OTHER)]
    else:
        wanted = [plain(backend, ids, mode) for ids in (TEXT, OTHER)]
    engine = engine_for(backend, WRONG[kind], gamma=5, window=window, rows=40 if window else 0)
    for _ in range(2):  # with a cold pool and with a warm one
        sessions = [engine.open(ids, sampler(mode), Stops(max_new_tokens=NEW)) for ids in (TEXT, OTHER)]
        drive(engine)
        assert [s.output for s in sessions] == wanted
        for session in sessions:
            engine.close(session)


@pytest.mark.parametrize("mode", ["greedy", "keyed"])
def test_a_window_makes_the_same_draft_and_phrases_that_no_text_holds(mode: str) -> None:
    backend = ToyBackend()
    drafts, pools = [], []
    for window in (0, 6):
        knobs: dict[str, Any] = {"gamma": 6, "k": 0, "branch": False, "output": False, "verify": False, "beta": 4, "rows": 40, **BARE}
        engine = engine_for(backend, draft_model(ToyBackend()), window=window, **knobs)
        session = engine.open(TEXT, sampler(mode), Stops(max_new_tokens=60))
        steps = decoded(drive(engine)[session.id])
        assert session.output == plain(backend, TEXT, mode, 60)
        drafts.append([step.draft.token.tolist() for step in steps])
        pools.append(pool_of(engine))
    assert drafts[0] == drafts[1]
    assert len(pools[0]) == 0
    assert len(pools[1]) > 60


def test_a_window_moves_with_the_text_of_the_target() -> None:
    """It fills once a session, not once a draft: a full window makes phrases in every forward."""
    window = PhraseWindow(5, 4, 3, Memory())
    target = ToyBackend()
    engine = Engine(target, window, Fixed(30))
    session = engine.open(TEXT, stops=Stops(max_new_tokens=200))
    for _ in range(6):
        engine.step()
    full = [list(level) for level in window._known[session.id].window.levels]
    assert len(full) == 3
    engine.follow(session, [*session.tokens[:-2], 7, 8, 9], session.stops)
    window.propose([session], [Budget(30, 30)])
    moved = window._known[session.id].window.levels
    assert [level[:-1] for level in moved] == [level[1:] for level in full]
    engine.step()
    assert [len(level) for level in window._known[session.id].window.levels] == [len(level) for level in full]


BARE: dict[str, Any] = {"texts": False, "host": "", "recycle": False, "top_k": 1}
"""The pool alone, and no siblings: as published."""
SAID = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
"""What the target says, by position, again and again; one token has several successors."""


MECHANISMS: dict[str, list[dict[str, Any]]] = {
    "phrases": [{"phrases": False}, {}],
    "what it said before": [{"verify": False, "output": False}, {"verify": False, "output": False, "recycle": True}],
}
"""Without it, and with it alone."""


@pytest.mark.parametrize("mode", ["greedy", "keyed"])
@pytest.mark.parametrize("mechanism", MECHANISMS)
def test_a_mechanism_makes_the_same_draft_in_fewer_forwards(mechanism: str, mode: str) -> None:
    backend = ToyBackend(copy=100.0)
    drafts, forwards = [], []
    for knobs in MECHANISMS[mechanism]:
        draft = ToyBackend(copy=100.0)
        engine = engine_for(backend, draft_model(draft), **{"gamma": 8, "k": 0, "branch": False, **BARE, **knobs})
        session = engine.open(TEXT, sampler(mode), Stops(max_new_tokens=80))
        steps = decoded(drive(engine)[session.id])
        drafts.append([step.draft.token.tolist() for step in steps])
        forwards.append(draft.forwards)
    assert drafts[0] == drafts[1]
    assert forwards[1] < 0.7 * forwards[0]


@pytest.mark.parametrize("width", [0, 3])
def test_every_forward_of_the_draft_model_is_told_to_its_drafter(width: int) -> None:
    draft = ToyBackend(copy=2.0)
    engine = engine_for(ToyBackend(copy=2.0), draft_model(draft), gamma=8, width=width)
    inner = ouroboros(engine).inner
    assert inner is not None
    told = inner.engine.drafter = Recorder(inner.engine.drafter)
    engine.open(TEXT, stops=Stops(max_new_tokens=40))
    drive(engine)
    assert len(told.seen) == draft.forwards
    assert width == 0 or any(len(step.draft) > len(step.verdict.tokens) for step in told.seen)
    for step in told.seen:
        assert step.top_k is not None
        assert len(step.top_k) == len(step.draft) + 1
        along = step.top_k[[0, *(node + 1 for node in step.verdict.path)], 0].tolist()
        assert along[: len(step.verdict.tokens)] == list(step.verdict.tokens)


def test_a_draft_is_lengthened_by_phrases_behind_its_last_token_and_the_bonus_token_is_kept() -> None:
    engine = engine_for(stream(SAID), gamma=2, beta=4, branch=False, **BARE)
    session = engine.open([1], stops=Stops(max_new_tokens=100))
    steps = decoded(drive(engine)[session.id])
    late = steps[-4:-1]
    assert [len(s.verdict.tokens) for s in late] == [6, 6, 6]  # 2 drafted, 3 behind the key, the bonus token
    for s in late:
        sources = [s.draft.source[node] for node in s.verdict.path]
        assert sources == ["ouroboros"] * 2 + ["phrase"] * 3


def test_shared_beginnings_of_phrases_are_merged_and_their_chances_shared() -> None:
    pool = PhrasePool()
    for phrase in ([7, 1, 2, 3], [7, 1, 2, 4], [7, 5]):
        pool.add(phrase)
    draft = PhraseTree(pool, 3, 7, [([7], [0.9])], "draft").draft(0, Budget(20, 20))
    by = {(p, t): i for i, (p, t) in enumerate(zip(draft.parent.tolist(), draft.token.tolist(), strict=True))}
    assert len(draft) == 6
    last = by[-1, 7]
    assert {t for p, t in by if p == last} == {1, 5}
    middle = by[by[last, 1], 2]
    assert {t for p, t in by if p == middle} == {3, 4}
    for node in range(-1, len(draft)):
        below = sum(draft.prob[i] for i in range(len(draft)) if draft.parent[i] == node)
        assert below <= (1.0 if node < 0 else draft.prob[node]) + 1e-9


def test_as_published_phrases_stand_behind_the_draft_alone() -> None:
    pool = PhrasePool()
    for phrase in ([0, 9, 9], [7, 1, 2], [2, 8]):
        pool.add(phrase)
    published = PhraseTree(pool, 3, 7, [([7], [0.9])]).draft(0, Budget(20, 20))
    everywhere = PhraseTree(pool, 3, 7, [([7], [0.9])], branch=True).draft(0, Budget(20, 20))
    assert published.token.tolist() == [7, 1, 2]
    assert everywhere.token.tolist() == [7, 1, 2, 8, 9, 9]


def test_nothing_is_looked_up_behind_an_end_token() -> None:
    pool = PhrasePool()
    pool.add([7, 1, 2])
    assert PhraseTree(pool, 3, 7, [([7], [0.9])], ends=frozenset({7})).draft(0, Budget(20, 20)).token.tolist() == [7]


def test_runs_of_a_rejected_tail_and_what_the_target_says_behind_the_error_are_phrases() -> None:
    line, told = [5, 6, 7, 8, 9, 5, 4, 3], [6, 1, 8, 9, 2, 4, 3, 0]
    found = [list(phrase) for phrase in rescued(line, told, right=1, beta=4)]
    assert found == [[8, 9], [4, 3], [6, 1, 8, 9], [1, 8, 9, 2], [8, 9, 2, 4], [9, 2, 4, 3], [2, 4, 3, 0], [4, 3, 0], [3, 0]]
    told[4:] = [-1, -1, -1, -1]
    assert [list(phrase) for phrase in rescued(line, told, right=1, beta=4)] == [[8, 9], [6, 1, 8, 9], [1, 8, 9], [8, 9]]
    assert [list(phrase) for phrase in rescued([5, 7], [1, 2], right=0, beta=4)] == [[5, 1, 2], [1, 2]]


def rejected(**knobs: Any) -> PhrasePool:
    """The pool after a step whose draft was wrong in its first token alone."""
    wrong = stream([token + 50 if i == 3 else token for i, token in enumerate(SAID)])
    engine = engine_for(stream(SAID), draft_model(wrong), gamma=6, output=False, branch=False, **BARE, **knobs)
    session = engine.open(SAID[:2], stops=Stops(max_new_tokens=9))
    step(engine, session)  # reads the prompt and says 4
    assert step(engine, session).draft.token.tolist() == [51, 5, 9, 2, 6, 5]
    return pool_of(engine)


def test_a_rejected_draft_leaves_phrases_of_what_the_target_said() -> None:
    pool = rejected()
    assert [phrase.tokens for phrase in pool.best(4, 9)] == [(1, 5, 9, 2, 6, 5)]
    assert {phrase.tokens for phrase in pool.best(5, 9)} == {(9, 2, 6, 5, 3), (3,)}
    assert pool.best(51, 9) == []


def test_without_phrases_from_verification_the_pool_stays_empty() -> None:
    assert len(rejected(verify=False)) == 0


def test_a_phrase_that_was_not_right_is_replaced_by_what_the_target_said_along_it() -> None:
    engine = engine_for(stream(SAID), gamma=1, output=False, branch=False, **BARE)
    session = engine.open(SAID[:3], stops=Stops(max_new_tokens=9))
    step(engine, session)  # reads the prompt and says 1
    pool = pool_of(engine)
    pool.add([5, 9, 77, 6])  # the draft will be 5, and 9 2 6 the truth
    step(engine, session)
    assert [phrase.tokens for phrase in pool.best(5, 9)] == [(9, 2, 6)]


def test_a_phrase_beside_a_draft_that_was_rejected_later_is_corrected_too() -> None:
    wrong = stream([token + 50 if i == 5 else token for i, token in enumerate(SAID)])
    engine = engine_for(stream(SAID), draft_model(wrong), gamma=4, output=False, branch=True, **BARE)
    session = engine.open(SAID[:2], stops=Stops(max_new_tokens=9))
    step(engine, session)  # reads the prompt and says 4
    pool = pool_of(engine)
    pool.add([4, 77, 78])  # the draft will be 1 5 59 2, and 1 5 9 the truth
    step(engine, session)
    assert (77, 78) not in {phrase.tokens for phrase in pool.best(4, 9)}
    assert pool.best(4, 9)[0].tokens[:2] == (1, 5)


def test_a_step_without_a_draft_is_not_judged_by_the_draft_before() -> None:
    engine = engine_for(stream(SAID), draft=False, verify=False)
    session = engine.open([1], stops=Stops(max_new_tokens=900))
    for _ in range(25):
        engine.step()
    pool = pool_of(engine)
    engine.policy = Fixed(0)
    before = pool.arrays()["tally"].sum()
    for _ in range(3):
        step(engine, session)
    assert pool.arrays()["tally"].sum() == before


def test_the_pool_outlives_a_request_by_tenant_or_does_not() -> None:
    memory = Memory()
    engine = engine_for(stream(SAID), memory=memory)
    run(engine, [1], 30)
    assert {tenant for tenant, store in memory if isinstance(store, PhrasePool) and len(store)} == {""}
    short = Memory()
    engine = engine_for(stream(SAID), memory=short, history=False)
    run(engine, [1], 30)
    assert not list(short)
    assert ouroboros(engine).memory.nbytes == 0


def test_what_the_draft_model_made_up_is_no_phrase() -> None:
    """It says tokens that the target never says; none of them is in the pool."""
    engine = engine_for(stream(SAID), draft_model(stream([token + 50 for token in SAID])), gamma=6)
    session = engine.open([1], stops=Stops(max_new_tokens=60))
    drive(engine)
    assert {t for entry in pool_of(engine).entries() for t in entry["ids"]} <= set(SAID)
    assert len(pool_of(engine)) > 0
    assert session.finish == "length"


def test_without_a_draft_model_the_pool_drafts_for_the_target() -> None:
    engine = Engine(stream(SAID), make_drafter("ouroboros", {"draft": False}, {}), Fixed(32))
    assert Need.MODEL not in engine.drafter.needs
    session = engine.open([1], stops=Stops(max_new_tokens=100))
    steps = decoded(drive(engine)[session.id])
    assert max(step.verdict.accepted for step in steps) >= 6
    assert session.output == plain(stream(SAID), [1], n=100)


def test_a_batch_shares_the_pool_of_its_tenant_alone() -> None:
    engine = engine_for(stream(SAID), draft=False)
    one = engine.open([1], stops=Stops(max_new_tokens=60), tenant="a")
    drive(engine, [one])
    mate, stranger = (engine.open([1], stops=Stops(max_new_tokens=60), tenant=tenant) for tenant in ("a", "b"))
    steps = drive(engine, [mate, stranger])
    assert len(steps[mate.id]) < len(steps[stranger.id])


def test_degenerate_text_before_does_not_hurt_a_later_request() -> None:
    counts = []
    for before in (0, 30):
        memory = Memory()
        for _ in range(before):
            engine = engine_for(stream([5]), memory=memory)
            run(engine, [5], 100)
        engine = engine_for(stream(SAID), memory=memory, draft=False)
        session = engine.open([1], stops=Stops(max_new_tokens=100))
        counts.append(len(drive(engine)[session.id]))
        assert session.output == plain(stream(SAID), [1], n=100)
    assert counts[1] <= counts[0] + 3


def test_the_report_adds_up() -> None:
    engine = engine_for(stream(SAID), gamma=4, beta=4, **BARE)
    session = engine.open([1], stops=Stops(max_new_tokens=101))
    steps = decoded(drive(engine)[session.id])
    report = ouroboros(engine).report()
    assert report["steps"] == len(steps)
    assert report["tokens_per_step"] == pytest.approx(101 / len(steps))
    assert 0 < report["accepted_prefix"] <= report["match"] <= 4
    assert 0 < report["suffix_tokens"] < report["tokens_per_step"]
    assert report["draft_tokens_per_forward"] > 1
    assert 0 < report["hit_rate"] <= 1
    assert report["pool_phrases"] == len(pool_of(engine))
    counts = ouroboros(engine).counts
    assert report["equation_6"] == pytest.approx(report["tokens_per_step"] / (1 + counts.cost / counts.steps))


@pytest.mark.parametrize(
    "knobs", [{"gamma": -1}, {"width": -1}, {"beta": 1}, {"beta": 99}, {"k": -1}, {"guesses": 0}, {"rows": -1}, {"window": 1}]
)
def test_knobs_that_cannot_be_are_refused_with_the_reason(knobs: dict[str, int]) -> None:
    with pytest.raises(UsageError, match=f"ouroboros: {next(iter(knobs))} "):
        make_drafter("ouroboros", knobs)


def test_what_the_draft_model_said_is_scored_whatever_else_claims_more() -> None:
    pool = PhrasePool()
    for token in range(1, 20):
        pool.add([7, token, token + 1])
    draft = PhraseTree(pool, 20, 7, [([9], [0.01]), ([8], [0.02])], "draft", branch=True).draft(7, Budget(4, 20))
    said = [i for i, source in enumerate(draft.source) if source == "draft"]
    assert [int(draft.token[i]) for i in said] == [9, 8]
    assert len(draft) == 4


def test_candidates_of_the_draft_model_become_siblings_and_guesses_that_agree_with_one_stand_behind_it() -> None:
    pool = PhrasePool()
    pool.add([7, 2, 3])
    draft = PhraseTree(pool, 3, 7, [([1, 2], [0.7, 0.2])], "draft", branch=True).draft(7, Budget(9, 9))
    by = {(p, t): i for i, (p, t) in enumerate(zip(draft.parent.tolist(), draft.token.tolist(), strict=True))}
    beside = by[-1, 2]
    assert draft.source[by[-1, 1]] == "draft"
    assert draft.source[beside] == "draft-sibling"
    assert draft.prob[beside] == pytest.approx(0.2)
    assert draft.source[by[beside, 3]] == "phrase"


def test_guesses_that_agree_are_surer_and_named_after_all_who_make_them() -> None:
    pool = PhrasePool()
    pool.add([7, 5])
    text, chances = branches(Draft.chain([5], 0.5)), {}
    for one in (PhraseTree(pool, 3, 7), PhraseTree(PhrasePool(), 3, 7, text=lambda _: text), PhraseTree(pool, 3, 7, text=lambda _: text)):
        draft = one.draft(7, Budget(1, 1))
        chances[draft.source[0]] = float(draft.prob[0])
    assert list(chances) == ["phrase", "suffix", "phrase+suffix"]
    assert max(chances["phrase"], chances["suffix"]) < chances["phrase+suffix"] < 1.0


def paying(target: Any, draft: Any) -> list[Step]:
    """The decoding steps of 1,200 tokens where drafts are as long as pays."""
    drafter = make_drafter("ouroboros", {"gamma": 0}, {"draft_model": draft_model(draft, cost=0.3)})
    engine = Engine(target, drafter, Adaptive(CostCurve((1, 64), ((1.0, 2.0),)), draft=drafter.cost))
    session = engine.open([1], stops=Stops(max_new_tokens=1200))
    return decoded(drive(engine)[session.id])


def test_a_draft_model_is_not_asked_where_texts_alone_are_sure_for_long() -> None:
    long = list(range(60))
    steps = paying(stream(long), stream(long))
    late = steps[len(steps) // 2 :]
    assert sum(step.draft.cost for step in late) < 0.3 * 0.2 * sum(len(step.verdict.tokens) for step in late)
    assert sum(len(step.verdict.tokens) for step in late) > 8 * len(late)


def test_texts_of_the_target_draft_for_the_draft_model_and_hold_nothing_that_it_made_up() -> None:
    memory = Memory()
    engine = engine_for(stream(SAID), draft_model(stream([token + 50 for token in SAID])), memory=memory, gamma=6)
    session = engine.open([1], stops=Stops(max_new_tokens=60))
    drive(engine)
    engine.close(session)
    (store,) = [store for _, store in memory if isinstance(store, SuffixStore)]
    assert {t for entry in store.entries() for t in entry["ids"]} <= set(SAID)
    assert store.tokens == 60


@pytest.mark.parametrize("draft", [True, False])
def test_what_a_host_drafts_is_taken_in(draft: bool) -> None:
    """A text that repeats itself, of which pool and draft model know nothing."""
    steps = {}
    for host in ("", "prompt-lookup"):
        knobs = {**BARE, "host": host, "draft": draft, "gamma": 2, "output": False, "verify": False}
        engine = engine_for(stream(list(range(1, 40))), draft_model(stream([50])), nodes=8, **knobs)
        session = engine.open([1], stops=Stops(max_new_tokens=200))
        steps[host] = len(decoded(drive(engine)[session.id]))
    assert steps[""] == 200
    assert steps["prompt-lookup"] < 80


def test_a_backend_without_hidden_states_leaves_a_host_what_it_can_do_without() -> None:
    backend = ToyBackend()
    backend.offers = frozenset({Need.TOP_K})  # type: ignore[misc]
    engine = engine_for(backend)
    assert Need.HIDDEN not in engine.drafter.needs
    session = engine.open(TEXT, stops=Stops(max_new_tokens=NEW))
    drive(engine)
    assert session.output == plain(ToyBackend(), TEXT)
    backend.offers = frozenset({Need.HIDDEN})  # type: ignore[misc]
    with pytest.raises(Unsupported, match="top-k"):
        engine_for(backend)


def test_a_host_says_what_it_knows_and_the_others_share_the_rest() -> None:
    pool = PhrasePool()
    pool.add([7, 5])
    pool.add([7, 6])
    tree = PhraseTree(pool, 3, 7, text=lambda _: branches(Draft.chain([5], 0.75), HOST))
    draft = tree.draft(7, Budget(2, 1))
    assert draft.source == ("host", "phrase")
    assert draft.token.tolist() == [5, 6]
    assert draft.prob[0] == 0.75
    assert draft.prob[1] <= 0.25


@pytest.mark.parametrize("draft", [True, False])
def test_a_host_that_is_wrong_in_any_way_changes_no_output(draft: bool) -> None:
    class Wild(Drafter):
        def propose(self, sessions: Sequence[Any], budgets: Sequence[Budget]) -> list[Draft]:
            tokens, parents = np.array([5, -3, 1 << 40, 5, 7, 2]), np.array([-1, 9, 0, -1, 4, 0])
            made = Draft(tokens, parents, np.array([np.nan, 2.0, -1.0, 0.5, np.inf, 0.0]), 6 * ("wild",), np.zeros(6, np.bool_))
            return [made for _ in sessions]

    engine = engine_for(ToyBackend(), **{**BARE, "draft": draft})
    ouroboros(engine).host = Wild()
    ouroboros(engine)._settle()
    for policy in (Fixed(48), Adaptive(CostCurve((1, 64), ((1.0, 2.0),)), draft=engine.drafter.cost)):
        engine.policy = policy
        session = engine.open(TEXT, stops=Stops(max_new_tokens=NEW))
        drive(engine)
        assert session.output == plain(ToyBackend(), TEXT)


def test_a_host_with_a_draft_model_of_its_own_is_refused() -> None:
    with pytest.raises(UsageError, match="cascade"):
        make_drafter("ouroboros", {"host": "cascade"}, {})
