"""What a draft model reads is paid for: streams of requests that it helps, that it does not, and that it helps now and then. Counted."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from conforming import draft_model
from echodraft.backends.toy import ToyBackend
from echodraft.bench.cost import measure
from echodraft.build import make_drafter
from echodraft.core.accept import Stops, Verdict
from echodraft.core.budget import Adaptive, CostCurve
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.engine import Engine
from echodraft.core.ledger import CREDIT, Ledger, Mean
from echodraft.core.step import Step
from echodraft.curves import load_curve, save_curve
from echodraft.errors import UsageError
from harness import Scripted, decoded, drive
from models import prompt

VOCAB = 97
SAID = np.random.default_rng(1).integers(1, VOCAB - 1, 5000).tolist()
ONE_HOT = np.eye(VOCAB)
TARGET = CostCurve((1, 64), ((1.0, 4.4),))
DRAFT = CostCurve((1, 64), ((1.0, 3.0),))
COST = 0.3
GOOD, BAD = 0, VOCAB - 1
"""The first token of a prompt: what the draft model can say of its text."""


def says(path: Sequence[int]) -> int:
    return SAID[len(path)]


def guesses(path: Sequence[int]) -> int:
    """As the target in good texts, never in bad ones."""
    return SAID[len(path)] if path[0] == GOOD else SAID[len(path)] % (VOCAB - 2) + 1


def wrong(path: Sequence[int]) -> int:
    return says(path) % (VOCAB - 2) + 1


def scripted(text: Callable[[Sequence[int]], int]) -> Scripted:
    backend = Scripted(lambda path: 12.0 * ONE_HOT[text(path)], VOCAB)
    backend.chunk = 1 << 20
    return backend


@dataclass
class World:
    """An engine with a draft model, and what both cost beyond plain steps: by forwards of the draft model and rows of the target."""

    drafter: str = "speculative"
    policy: Adaptive = field(default_factory=lambda: Adaptive(TARGET, draft=COST))

    def __post_init__(self) -> None:
        self.model = draft_model(scripted(guesses), cost=COST, curve=DRAFT)
        knobs = {"history": False} if self.drafter == "ouroboros" else {}  # all requests get the same answer here
        self.engine = Engine(scripted(says), make_drafter(self.drafter, knobs, {"draft_model": self.model}), self.policy)
        self.tokens, self.lost = 0, 0.0

    def run(self, *kinds: int, prompt: int = 70, n: int = 30) -> list[Step]:
        """One batch, a request a kind; the decoding steps of the first one."""
        sessions = [self.engine.open([kind, *SAID[1 : prompt + i]], stops=Stops(max_new_tokens=n)) for i, kind in enumerate(kinds)]
        before = len(self.model.backend.requests)  # type: ignore[attr-defined]
        steps = drive(self.engine)
        for session in sessions:
            assert session.output == SAID[len(session.tokens) - n : len(session.tokens)]
            self.engine.close(session)
        first = decoded(steps[sessions[0].id])
        plain = float(TARGET.table(len(kinds), 0)[len(kinds)])
        for batch in zip(*(decoded(steps[s.id]) for s in sessions), strict=False):
            rows = len(kinds) * (1 + max(len(step.draft) for step in batch))
            self.lost += float(TARGET.table(rows, 0)[rows]) / plain - 1.0
            self.lost -= sum(step.verdict.accepted for step in batch) / len(kinds)
        for requests in self.model.backend.requests[before:]:  # type: ignore[attr-defined]
            rows = sum(len(r.pending) + len(r.draft) for r in requests)
            self.lost += COST * float(DRAFT.table(rows, 0)[rows]) / plain
        self.tokens += n - 1
        return first


@pytest.mark.parametrize("drafter", ["speculative", "cascade", "ouroboros"])
@pytest.mark.parametrize(
    ("batch", "prompt", "n"),
    [(1, 70, 30), (1, 700, 60), (1, 2000, 128), (1, 70, 1100), (1, 5, 10), (4, 70, 60)],
    ids=["short", "middling", "long prompts", "one long output", "tiny", "batches"],
)
def test_a_draft_model_that_is_always_wrong_costs_under_two_percent(drafter: str, batch: int, prompt: int, n: int) -> None:
    world = World(drafter)
    while world.tokens < 1000:
        world.run(*batch * [BAD], prompt=prompt, n=n)
    assert world.lost <= 0.02 * world.tokens
    while world.tokens < (3000 if drafter == "ouroboros" else 2500):  # whose host's first drafts cost what a trial needs
        world.run(*batch * [BAD], prompt=prompt, n=n)
    assert world.model.backend.forwards, "it was never asked"
    assert world.lost <= CREDIT + 0.01 * world.tokens


def test_six_short_requests_lose_little() -> None:
    world = World()
    for _ in range(6):
        world.run(BAD)
    assert world.lost <= 0.03 * world.tokens


@pytest.mark.parametrize("drafter", ["speculative", "ouroboros"])
@pytest.mark.parametrize("prompt", [70, 700])
def test_where_drafts_paid_a_new_request_is_asked_at_its_first_step(prompt: int, drafter: str) -> None:
    world = World(drafter)
    firsts = [world.run(GOOD, prompt=prompt, n=60)[0] for _ in range(12)]
    assert all(step.proposed for step in firsts[1:])
    assert world.lost <= -0.3 * world.tokens


def test_a_prompt_that_costs_more_than_drafts_bring_is_not_read() -> None:
    """Where ten tokens follow two thousand, reading costs twenty steps."""
    world = World()
    for _ in range(20):
        world.run(GOOD, n=60)
    before = world.lost
    assert before < -300
    for _ in range(30):
        world.run(GOOD, prompt=2000, n=10)
    read = sum(len(r.pending) > 1000 for requests in world.model.backend.requests for r in requests)  # type: ignore[attr-defined]
    assert read <= 10  # until it is known how short the outputs are
    assert world.lost <= before + 200


def test_what_is_as_good_without_the_draft_model_is_not_read_for_it() -> None:
    """Ten tokens a step right with it and without it: a prompt for three steps is read at first, not once that is known."""
    policy, asked = Adaptive(TARGET, draft=COST), []
    for free in (None, Draft.chain(SAID[:10], 0.9)):
        for _ in range(40):
            (budget,) = policy.plan([100], [3.0])
            asked.append(budget.forwards > 0)
            draft = replace(Draft.chain(SAID[:10], 0.9), cost=3.0 + COST if asked[-1] else 0.0, free=free if asked[-1] else None)
            policy.observe(policy.trim([draft], 100), [Verdict(tuple(SAID[:11]), tuple(range(10)), "length")], 100)
    assert all(asked[5:40])
    assert not any(asked[60:])


def test_a_long_prompt_is_read_once_the_steps_before_have_earned_it() -> None:
    """The credit does not pay for it; a hundredth of the steps does in time, and from then on it pays for itself."""
    world = World()
    asked = [any(step.proposed for step in world.run(GOOD, prompt=2000, n=200)) for _ in range(12)]
    first = asked.index(True)
    assert 2 <= first <= 8
    assert all(asked[first:])


@pytest.mark.parametrize("drafter", ["speculative", "ouroboros"])
def test_texts_that_can_be_guessed_are_found_among_those_that_cannot(drafter: str) -> None:
    world = World(drafter)
    for _ in range(20):
        world.run(BAD)
    lost = world.lost
    found = next(i for i in range(40) if world.run(GOOD)[0].verdict.accepted)
    assert found <= 10
    for _ in range(30):
        world.run(GOOD)
    assert world.lost < lost - 100


@pytest.mark.parametrize("order", [[GOOD, BAD], [BAD, GOOD], 3 * [GOOD] + 3 * [BAD]], ids=["by turns", "other way round", "by threes"])
def test_one_category_that_pays_pays_for_the_others(order: list[int]) -> None:
    world = World()
    for _ in range(60 // len(order)):
        for kind in order:
            world.run(kind, n=60)
    assert world.lost <= -0.02 * world.tokens


def test_what_was_earned_is_not_lost_again_when_texts_turn() -> None:
    world = World()
    for _ in range(20):
        world.run(GOOD)
    lost, tokens = world.lost, world.tokens
    for _ in range(60):
        world.run(BAD)
    assert world.lost - lost <= 40 + 0.02 * (world.tokens - tokens)


def test_a_late_session_of_a_batch_is_asked_with_the_others() -> None:
    world = World()
    for _ in range(3):
        world.run(GOOD)
    steps = world.run(GOOD, BAD, GOOD, n=60)
    assert sum(step.verdict.accepted for step in steps) > 30


requests = st.lists(
    st.tuples(st.floats(0.0, 70.0), st.integers(1, 60), st.sampled_from(["right", "wrong", "turning"]), st.integers(1, 3)),
    min_size=1,
    max_size=30,
)


@settings(max_examples=60)
@given(requests, st.floats(0.01, 1.5), st.randoms(use_true_random=False))
def test_no_stream_loses_more_than_the_credit_and_a_hundredth_of_its_steps(
    stream: list[tuple[float, int, str, int]], draft: float, random: object
) -> None:
    """Beyond what drafts ever earned; at every step, whatever is asked, however it comes out."""
    policy = Adaptive(TARGET, draft=draft)
    steps, balance, earned = 0, 0.0, 0.0
    for price, length, kind, batch in stream:
        unread = batch * [price]
        plain = float(TARGET.table(batch, 0)[batch])
        while length > 0:
            budgets = policy.plan(batch * [200], unread)  # the limit; outputs end before
            drafts, read = [], 0.0
            for i, budget in enumerate(budgets):
                n = min(budget.nodes, budget.depth, budget.forwards, 5)
                if n < 1:
                    drafts.append(EMPTY)
                    continue
                chain = Draft.chain(n * [1], 0.9, "model")
                object.__setattr__(chain, "cost", unread[i] + n * draft * plain / batch)
                read, unread[i] = read + unread[i] / plain, 0.0
                drafts.append(chain)
            cut = policy.trim(drafts, 0)
            good = kind == "right" or (kind == "turning" and random.random() < 0.5)  # type: ignore[attr-defined]
            longest = 1 + max(map(len, cut)) if good else 1
            end = "eos" if length <= longest else None
            verdicts = [Verdict((len(d) + 1) * (1,), tuple(range(len(d))), end) if good else Verdict((2,), (), end) for d in cut]
            policy.observe(cut, verdicts, 0)
            steps += 1
            rows = batch * (1 + max(map(len, cut)))
            balance += sum(v.accepted for v in verdicts) / batch - (float(TARGET.table(rows, 0)[rows]) / plain - 1.0)
            balance -= sum(d.cost for d in drafts) / plain
            earned = max(earned, balance)
            assert -balance <= CREDIT + 0.01 * steps + 1e-6
            length -= longest


def test_reading_is_allowed_where_it_pays_or_as_a_trial() -> None:
    ledger = Ledger(gain=Mean(50.0, 100.0), said=3000.0, ended=100.0)  # half a step a token, thirty tokens an output
    assert ledger.invests(14.0, 1000, 1)
    assert not ledger.invests(16.0, 1000, 1)
    assert not ledger.invests(6.0, 10, 1), "few tokens are left"
    assert not ledger.invests(4.0, 1000, 4), "in a batch a session's tokens are worth less"
    for _ in range(500):
        ledger.book(0.0, 0.0)
    assert not ledger.invests(5.5, 10, 1)
    assert ledger.invests(4.5, 0, 1)
    assert not ledger.invests(4.5, 0, 1), "the trial was paid for"


def test_a_price_is_what_the_guess_then_costs() -> None:
    world = World()
    session = world.engine.open([BAD, *SAID[1:300]], stops=Stops(max_new_tokens=80))
    drafter, cost = world.engine.drafter, []
    prices = []
    for _ in range(70):
        prices.append(drafter.price(session))
        cost += [step.draft.cost for step in world.engine.step() if not step.prefill and step.draft.cost]
    assert prices[0] == pytest.approx(COST * (float(DRAFT.table(300, 0)[300]) - 1))
    assert max(prices[3:]) > 0.0, "what is said meanwhile is to be read as well"


def test_a_reading_that_was_measured_is_priced_as_measured() -> None:
    curve = CostCurve((1, 8, 64), ((1.0, 1.2, 5.0), (1.0, 1.2, 5.0)), (200, 2000), read=(8.0, 98.0))
    assert curve.reading(200, 0) == pytest.approx(8.0)
    assert curve.reading(2000, 0) == pytest.approx(98.0)
    assert curve.reading(4000, 0) == pytest.approx(198.0)
    assert curve.reading(8, 0) == pytest.approx(1.2), "few rows are known from the curve"
    assert CostCurve((1, 64), ((1.0, 2.0),)).reading(127, 0) == pytest.approx(3.0)


def test_what_reading_takes_is_measured_and_kept(tmp_path: Path) -> None:
    curve, _ = measure(ToyBackend(context=400), [20, 200], "toy", repeats=1)
    assert len(curve.read) == 2
    save_curve(curve, tmp_path / "curve.json")
    assert load_curve(tmp_path / "curve.json") == curve
    save_curve(CostCurve((1, 2), ((1.0, 1.5),), read=(3.0, 4.0)), tmp_path / "wrong.json")
    with pytest.raises(UsageError, match="incomplete"):
        load_curve(tmp_path / "wrong.json")


def test_what_is_known_without_the_draft_model_is_drafted_where_that_is_too_dear() -> None:
    draft = ToyBackend(copy=100.0)
    model = draft_model(draft, cost=50.0)
    engine = Engine(ToyBackend(copy=100.0), make_drafter("ouroboros", {}, {"draft_model": model}), Adaptive(TARGET, draft=50.0))
    session = engine.open(3 * prompt(12), stops=Stops(max_new_tokens=200))
    steps = decoded(drive(engine)[session.id])
    assert len(steps) < 100
    assert draft.forwards == 0
