"""The budget: drafting costs next to nothing where nothing can be guessed, and goes deep where all can be. Counted, not timed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.core.accept import Stops, Verdict
from echodraft.core.budget import CPU_CURVE, GPU_CURVE, Adaptive, Budget, Calibration, CostCurve, Fixed
from echodraft.core.draft import ANCHOR, EMPTY, Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.drafters.prompt_lookup import PromptLookup
from harness import Scripted, decoded, drive, stream
from oracle import Oracle, raw

VOCAB, LONG = 1000, 2000
CURVES = {"cpu": CPU_CURVE, "gpu": GPU_CURVE, "float32": CostCurve((1, 2, 16, 64), ((1.0, 2.0, 2.1, 4.0),), name="float32")}
# Even tokens only, so that an odd one is always wrong.
RANDOM = (2 * np.random.default_rng(1).integers(0, VOCAB // 2, 3 * LONG)).tolist()


@pytest.fixture(params=CURVES)
def curve(request: pytest.FixtureRequest) -> CostCurve:
    return CURVES[request.param]


class Rubbish(Drafter):
    """Always proposes, is always wrong, and is sure of itself."""

    name = "rubbish"

    def __init__(self, claim: float) -> None:
        self.claim, self.rng = claim, np.random.default_rng(2)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [Draft.chain((1 + 2 * self.rng.integers(0, VOCAB // 2, b.nodes)).tolist(), self.claim, self.name) for b in budgets]


def go(
    drafter: Drafter, curve: CostCurve, tokens: list[int] = RANDOM, n: int = LONG, batch: int = 1, draft: float = 0.0
) -> tuple[list[Step], Scripted]:
    """The decoding steps of the first session, `n` tokens long."""
    backend = stream(tokens, VOCAB)
    engine = Engine(backend, drafter, Adaptive(curve, draft=draft))
    sessions = [engine.open(tokens[: i + 2], stops=Stops(max_new_tokens=n)) for i in range(batch)]
    steps = drive(engine)[sessions[0].id]
    assert sessions[0].output == tokens[2 : n + 2]
    return decoded(steps), backend


def extra(steps: list[Step], curve: CostCurve) -> float:
    """What the drafts cost beyond plain steps, in plain steps."""
    table = curve.table(100, 0)
    return float(sum(table[1 + len(step.draft)] / table[1] - 1.0 for step in steps))


@pytest.mark.parametrize(
    "drafter",
    [Rubbish(0.9), Rubbish(0.2), Rubbish(1.0), PromptLookup()],
    ids=["sure", "unsure", "certain", "prompt-lookup"],
)
def test_text_that_cannot_be_guessed_costs_at_most_two_percent(drafter: Drafter, curve: CostCurve) -> None:
    steps, backend = go(drafter, curve)
    assert len(steps) >= 0.99 * LONG
    assert extra(steps, curve) <= 0.02 * len(steps)
    assert any(step.proposed for step in steps), "nothing was ever proposed"
    plain = [request for (request,) in backend.requests[1:] if not len(request.draft)]
    assert plain
    assert all(len(r.pending) == 1 and r.logits and r.ahead == 0 and r.draft is EMPTY for r in plain)


@pytest.mark.parametrize("curve", [CPU_CURVE, CURVES["float32"]], ids=["cpu", "float32"])
def test_a_drafter_that_costs_is_asked_ever_less_while_it_is_wrong(curve: CostCurve) -> None:
    steps, _ = go(Rubbish(0.9), curve, draft=0.001)
    asked = [i for i, step in enumerate(steps) if step.budget is not None and step.budget.forwards]
    assert len(asked) < 0.03 * len(steps)
    assert max(np.diff(asked)[-20:]) == 64  # at first it may be that no row can be paid
    assert extra(steps, curve) <= 0.02 * len(steps)


class Stranger(Drafter):
    """Never the same source twice, so that nothing can be learnt of it; wrong before `turn`, right from there on."""

    name = "stranger"

    def __init__(self, turn: int) -> None:
        self.turn, self.steps = turn, 0

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        self.steps += 1
        at = len(sessions[0].tokens)
        wrong = int(at < self.turn)
        return [Draft.chain([token + wrong for token in RANDOM[at : at + 16]], 0.9, f"{self.name} {self.steps}")]


def test_nothing_need_be_learnt_to_bound_the_loss(curve: CostCurve) -> None:
    steps, _ = go(Stranger(turn=2 * LONG), curve)
    assert extra(steps, curve) <= 0.02 * len(steps)


def test_a_balance_that_is_spent_fills_where_drafts_would_have_been_right(curve: CostCurve) -> None:
    steps, _ = go(Stranger(turn=1000), curve, n=1200)
    right = np.cumsum([len(step.verdict.tokens) for step in steps]) > 1000
    plain = [step for step, late in zip(steps, right, strict=True) if late and not step.verdict.accepted]
    assert len(plain) <= 20
    assert right.sum() < 50


def test_short_texts_that_cannot_be_guessed_lose_a_few_steps_at_most(curve: CostCurve) -> None:
    for n in (5, 20, 60):
        steps, _ = go(Rubbish(0.9), curve, n=n)
        assert extra(steps, curve) <= 12.0


def test_text_that_can_be_guessed_is_drafted_deeply(curve: CostCurve) -> None:
    steps, _ = go(Oracle("right", [RANDOM], 64, VOCAB), curve, n=500)
    late = steps[len(steps) // 2 :]
    assert np.mean([step.verdict.accepted for step in late]) > 12
    assert len(steps) < 500 / 8


def test_half_right_drafts_are_cut_where_they_stop_paying() -> None:
    steps, _ = go(Oracle("wrong-middle", [RANDOM], 12, VOCAB), CPU_CURVE, n=1000)
    late = steps[len(steps) // 2 :]
    assert np.median([step.verdict.accepted for step in late]) == 6
    assert np.median([len(step.draft) for step in late]) < 12


@pytest.mark.parametrize("draft", [0.0, 0.001])
def test_copying_that_begins_late_is_found(curve: CostCurve, draft: float) -> None:
    tokens = RANDOM[:1500] + RANDOM[200:700]
    steps, _ = go(PromptLookup(), curve, tokens, n=1990, draft=draft)
    ends = np.cumsum([len(step.verdict.tokens) for step in steps])
    found = next(end for step, end in zip(steps, ends, strict=True) if end > 1500 and step.verdict.accepted >= 3)
    assert found < 1500 + 150
    assert sum(end > found for end in ends) < (1990 - found) / 4


def test_runs_repeat_exactly(curve: CostCurve) -> None:
    sizes = [[len(step.draft) for step in go(Oracle("random", [RANDOM], 8, VOCAB, seed=3), curve, n=300)[0]] for _ in range(2)]
    assert sizes[0] == sizes[1]
    assert len(set(sizes[0])) > 1


def test_a_larger_batch_drafts_less_for_each_session() -> None:
    mean = {}
    for batch in (1, 8):
        steps, _ = go(Oracle("right", [RANDOM], 64, VOCAB), CPU_CURVE, n=200, batch=batch)
        mean[batch] = np.mean([len(step.draft) for step in steps])
    assert 0 < mean[8] < mean[1]


trees = st.lists(st.tuples(st.integers(0, 50), st.floats(0, 1), st.integers(0, 10**6)), min_size=1, max_size=20).map(
    lambda nodes: Draft(
        np.arange(len(nodes)),
        np.asarray([where % (i + 1) - 1 for i, (_, _, where) in enumerate(nodes)]),
        np.asarray([p for _, p, _ in nodes]),
        tuple("ab"[token % 2] for token, _, _ in nodes),
        np.zeros(len(nodes), dtype=np.bool_),
    )
)


@given(st.lists(trees, min_size=1, max_size=4), st.sampled_from(list(CURVES.values())))
def test_a_cut_tree_is_a_tree_of_the_likeliest_nodes(drafts: list[Draft], curve: CostCurve) -> None:
    policy = Adaptive(curve)
    paths = [policy.calibration.paths(draft) for draft in drafts]
    widths = []
    for draft, path, cut in zip(drafts, paths, policy.trim(drafts, 0), strict=True):
        widths.append((len(cut), len(draft)))
        assert all(p < i for i, p in enumerate(cut.parent.tolist()))
        kept = set(cut.token.tolist())  # tokens name the nodes here
        assert {int(draft.parent[i]) for i in kept} <= kept | {ANCHOR}
        if kept:
            assert min(path[list(kept)]) >= max((path[i] for i in range(len(draft)) if i not in kept), default=0.0)
    most = max(cut for cut, _ in widths)
    assert all(cut == min(most, size) for cut, size in widths)


def test_an_empty_proposal_costs_nothing_and_is_passed_on() -> None:
    policy = Adaptive(CPU_CURVE)
    assert policy.trim([EMPTY, EMPTY], 100) == [EMPTY, EMPTY]
    policy.observe([EMPTY, EMPTY], 2 * [Verdict((1,), (), None)], 100)
    assert policy.balance >= policy.credit


def test_without_room_nothing_may_be_drafted() -> None:
    for policy in (Adaptive(CPU_CURVE), Fixed(8)):
        assert [min(b.nodes, b.depth) for b in policy.plan([0, -1], [0.0, 0.0])] == [0, -1]


def test_fixed_scores_what_is_proposed() -> None:
    drafts = [Draft.chain(range(20)), raw([1, 2], [-1, -1])]
    policy = Fixed(8)
    assert policy.plan([100, 3, 0], 3 * [0.0]) == [Budget(8, 8, 8), Budget(8, 3, 8), Budget(8, 0, 8)]
    assert policy.trim(drafts, 0) == drafts
    assert all(a is b for a, b in zip(policy.trim(drafts, 0), drafts, strict=True))


def test_counts_correct_what_a_drafter_claims() -> None:
    calibration, draft = Calibration(), Draft.chain([1, 2, 3], 0.9, "liar")
    for _ in range(100):
        calibration.observe(draft, (9,))
    assert calibration.paths(draft)[0] < 0.1
    honest = Draft.chain([1, 2, 3], 0.9, "honest")
    assert calibration.paths(honest) == pytest.approx([0.9, 0.81, 0.729])
    for _ in range(100):
        calibration.observe(honest, (1, 2, 3, 4))
    assert calibration.paths(honest)[2] > 0.95


def test_a_source_that_learns_from_counts_itself_is_taken_at_its_word() -> None:
    calibration, draft = Calibration(trusted=frozenset({"host"})), Draft.chain([1, 2, 3], 0.9, "host")
    for _ in range(100):
        calibration.observe(draft, (9,))
    assert calibration.paths(draft) == pytest.approx([0.9, 0.81, 0.729])


def test_a_probe_is_worth_what_its_drafter_says_however_rarely_it_is_right() -> None:
    draft = replace(Draft.chain([1, 2], 0.5, "window"), probe=np.array([True, True]))
    calibration = Calibration()
    for _ in range(100):
        calibration.observe(draft, (9,))
    assert calibration.paths(draft) == pytest.approx([0.5, 0.25])


def test_behind_the_node_on_which_the_output_ended_nothing_was_tested() -> None:
    calibration, draft = Calibration(), Draft.chain([1, 2], 0.9)
    calibration.observe(draft, (1,))
    assert list(calibration.counts.values()) == [[1.0, 1.0]]


rows_of = st.lists(st.integers(2, 128), min_size=0, max_size=6, unique=True).map(lambda rows: (1, *sorted(rows)))


@given(rows_of, st.data())
def test_cost_tables_never_fall_and_pass_through_the_measured_points(rows: tuple[int, ...], data: st.DataObject) -> None:
    costs = st.lists(st.floats(0.5, 10.0), min_size=len(rows), max_size=len(rows)).map(tuple)
    contexts = data.draw(st.sampled_from([(0,), (100, 4000)]))
    measured = tuple(data.draw(costs) for _ in contexts)
    curve = CostCurve(rows, measured, contexts)
    for at, cost in zip(contexts, measured, strict=True):
        table = curve.table(200, at)
        assert table.shape == (201,)
        assert (np.diff(table) >= 0).all()
        assert table[list(rows)] == pytest.approx(np.maximum.accumulate(cost))


def test_cost_between_contexts_is_interpolated_and_beyond_the_last_row_it_goes_on_as_before() -> None:
    curve = CostCurve((1, 3, 5), ((1.0, 2.0, 3.0), (2.0, 4.0, 8.0)), (0, 1000))
    assert curve.table(5, 500)[[1, 3, 5]] == pytest.approx([1.5, 3.0, 5.5])
    assert curve.table(9, 0)[[2, 4, 7, 9]] == pytest.approx([1.5, 2.5, 4.0, 5.0])
    assert curve.table(5, 10_000)[5] == pytest.approx(8.0)
