"""A replay does what the live run did: the same drafts, the same counts, from a recording alone."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echodraft.backends.replay import ReplayBackend, Trajectory
from echodraft.backends.toy import ToyBackend
from echodraft.backends.transformers import TransformersBackend
from echodraft.bench.methods import parse
from echodraft.bench.record import describe, read_layers, record
from echodraft.bench.recording import Recording, Writer
from echodraft.bench.replay import GRID, Corpus, Replayed, compare, count_runs, fidelity, replay, speedup, summarise
from echodraft.bench.suites import Item
from echodraft.build import make_drafter, make_policy
from echodraft.core.accept import Stops
from echodraft.core.backend import Backend, Need, Request
from echodraft.core.budget import Budget, CostCurve, Fixed
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.drafters import DRAFTERS
from echodraft.errors import Unsupported, UsageError
from echodraft.memory import Memory
from echodraft.text.tokenizer import Text
from harness import decoded, drive, run
from models import prompt, tiny

CURVE = CostCurve((1, 4, 16, 64), ((1.0, 1.1, 1.5, 4.0), (1.0, 1.2, 2.0, 5.0)), (20, 80), "of the test")
MOST = 60
PROMPTS = [prompt(6) * 3, prompt(9, seed=2), prompt(7, seed=1) * 3, prompt(6) * 3, prompt(6) * 3 + prompt(5, seed=4)]
REPEATED = [False, False, False, True, False]
LIVE: dict[str, Callable[[], Backend]] = {
    "toy": lambda: ToyBackend(copy=100.0, context=128),
    "llama": lambda: TransformersBackend(tiny("llama"), chunk=7),
    "mistral": lambda: TransformersBackend(tiny("mistral")),
}


class Nearest(Drafter):
    """Copies what followed the token whose hidden state is nearest to that of the last one, over all requests."""

    name = "nearest"
    needs = frozenset({Need.HIDDEN})

    def __init__(self) -> None:
        self.keys: list[Any] = []
        self.where: list[tuple[Sequence[int], int]] = []  # the text of each key, and the position behind it

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.chain(b) for b in budgets]

    def chain(self, budget: Budget) -> Draft:
        apart = np.linalg.norm(np.asarray(self.keys[:-1]) - self.keys[-1], axis=1)
        text, position = self.where[int(np.argmin(apart))]
        return Draft.chain(text[position + 1 : position + 1 + min(budget.nodes, budget.depth)], 0.6, self.name)

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            assert step.hidden is not None
            path = step.verdict.path[: len(step.verdict.tokens) - 1]
            rows = step.hidden[[*range(step.fed), *(step.fed + node for node in path)]].astype(np.float64)
            assert np.isfinite(rows).all()
            self.keys += list(rows)
            end = len(step.session.tokens)
            self.where += [(step.session.tokens, position) for position in range(end - len(rows), end)]


def items() -> list[Item]:
    return [Item(f"item {i}", "ab"[i % 2], ids, ()) for i, ids in enumerate(PROMPTS)]


def eos_of(backend: Backend) -> int:
    """A token that ends the second output early and no other."""
    outputs = [run(Engine(backend, make_drafter("none", {}), Fixed(0)), ids, MOST) for ids in PROMPTS]
    others = {token for i, output in enumerate(outputs) if i != 1 for token in output}
    own = [token for token in outputs[1] if token not in others]
    return own[len(own) // 2]


def make(folder: Path, live: str, layers: str = "norm", drafter: str = "suffix", some: slice = slice(None), resume: bool = False) -> Path:
    """A recording of `PROMPTS`."""
    backend = LIVE[live]()
    text = Text(None, [eos_of(backend)])
    decoder = Decoder(Engine(backend, make_drafter(drafter, {}), Fixed(9)), text, live)
    kept = read_layers(layers)
    writer = Writer(folder, {**describe(decoder, "suite", kept), "settings": {"max_new_tokens": MOST, "limit": None}}, resume)
    record(items()[some], decoder, writer, lambda _: MOST)
    return folder


@pytest.fixture(scope="module")
def recordings(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    made: dict[str, Path] = {}

    def of(live: str) -> Path:
        if live not in made:
            made[live] = make(tmp_path_factory.mktemp(live) / "recording", live)
        return made[live]

    return of


def fingerprint(steps: Sequence[Step]) -> list[Any]:
    """What was proposed, scored and decided, step by step."""
    return [
        (s.proposed, s.draft.token.tolist(), s.draft.parent.tolist(), s.draft.prob.tolist(), s.draft.source, s.verdict)
        for s in decoded(steps)
    ]


def steps_of(backend: Backend, drafter: Drafter, budget: str | int, memory: Memory, carry: bool, stops: Stops) -> list[list[Step]]:
    """The steps of every prompt, in order."""
    engine = Engine(backend, drafter, make_policy(budget, CURVE, drafter))
    out = []
    for ids in PROMPTS:
        session = engine.open(ids, stops=stops)
        out.append(drive(engine, [session])[session.id])
        engine.close(session)
        if not carry:
            memory.forget("")
            engine.policy = make_policy(budget, CURVE, drafter)
    return out


def counts(steps: Sequence[Step]) -> dict[str, Any]:
    record = Replayed(None, False)  # type: ignore[arg-type]
    for step in steps:
        record.add(step)
    return summarise([record], None)


METHODS = [*DRAFTERS, "logitspec:guesses=8", f"{__name__}:Nearest"]


def exact(method: str) -> bool:
    """Whether a replay of it must equal the live run. What needs a model, text or a file first has tests of its own."""
    try:
        drafter = make_drafter(*parse(method))
    except (Unsupported, UsageError):
        return False
    return not {Need.MODEL, Need.TEXT} & drafter.needs and fidelity(drafter) == "exact"


EXACT = [method for method in METHODS if exact(method)]


@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("budget", ["auto", 3, 16])
@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("method", EXACT)
def test_drafts_budgets_and_counts_of_a_replay_are_those_of_the_live_run(
    recordings: Callable[[str], Path], method: str, live: str, budget: str | int, carry: bool
) -> None:
    backend, memory = LIVE[live](), Memory()
    name, knobs = parse(method)
    drafter = make_drafter(name, knobs, {"memory": memory})
    there = steps_of(backend, drafter, budget, memory, carry, Stops(frozenset({eos_of(backend)}), MOST))
    here: list[list[Step]] = []

    def watch(step: Step) -> None:
        if step.prefill:
            here.append([])
        here[-1].append(step)

    found = replay(Corpus(Recording(recordings(live))), method, budget, curve=CURVE, carry=carry, watch=watch)
    assert [fingerprint(steps) for steps in here] == [fingerprint(steps) for steps in there]
    assert [summarise([record], None) for record in found] == [counts(steps) for steps in there]
    if live == "toy" and method != "none":
        assert summarise(found, None)["accepted"] > 20
    assert {steps[-1].verdict.finish for steps in there} == {"eos", "length"}


@pytest.mark.parametrize("method", ["recycling", "sam", "goose"])
def test_what_learns_from_rejected_nodes_is_approximate_and_still_says_what_the_model_said(
    recordings: Callable[[str], Path], method: str
) -> None:
    (row,) = compare(Corpus(Recording(recordings("toy"))), [method], [8], CURVE)
    assert row["replay"] == "approximate"
    assert row["all"]["accepted"] > 0


def test_rows_off_the_path_know_nothing() -> None:
    states = np.arange(12, dtype=np.float16).reshape(6, 2)
    top = np.asarray([[7, 1], [8, 2], [9, 3]], dtype=np.int32)
    backend = ReplayBackend([Trajectory([3, 4, 5, 6], [7, 8, 9], top, lambda: states)], 20, 100)
    slot = backend.open()
    (scores,) = backend.score([Request(slot, [3, 4, 5, 6])], frozenset({Need.HIDDEN}))
    assert (scores.argmax(), scores.top_k(2).tolist(), scores.hidden().tolist()) == ([7], [[7, 1]], states[:4].tolist())
    backend.commit(slot, [])
    draft = Draft(  # 7 -> (8 -> 9, 1), 5: a wrong child below a right node, and a right token below a wrong node
        np.asarray([8, 9, 1, 5, 9]), np.asarray([-1, 0, 0, -1, 3]), np.ones(5), ("",) * 5, np.zeros(5, dtype=bool)
    )
    (scores,) = backend.score([Request(slot, [7], draft)], frozenset({Need.HIDDEN}))
    assert scores.argmax() == [8, 9, -1, -1, -1, -1]
    assert scores.top_k(5).tolist() == [[8, 2], [9, 3], *[[-1, -1]] * 4]
    hidden = scores.hidden()
    assert hidden[:2].tolist() == states[4:].tolist()
    assert np.isnan(hidden[2:]).all()
    assert hidden.shape == (6, 2)


def test_a_prompt_that_was_recorded_twice_is_replayed_in_order() -> None:
    one, two = (Trajectory([1, 2], out, np.asarray([[t] for t in out], dtype=np.int32)) for out in ([3, 4], [5, 6]))
    engine = Engine(ReplayBackend([one, two], 10), make_drafter("none", {}), Fixed(0))
    assert [run(engine, [1, 2], 2) for _ in range(3)] == [[3, 4], [5, 6], [3, 4]]


def test_a_session_may_go_back_on_its_path() -> None:
    path = Trajectory([1, 2], [3, 4, 5, 6], np.zeros((4, 1), dtype=np.int32))
    engine = Engine(ReplayBackend([path], 10), make_drafter("prompt-lookup", {}), Fixed(4))
    session = engine.open([1, 2], stops=Stops(max_new_tokens=4))
    drive(engine)
    engine.rewind(session, 4)
    assert session.finish is None
    drive(engine)
    assert session.tokens == [1, 2, 3, 4, 5, 6]


@pytest.mark.parametrize(
    ("use", "told"),
    [
        (lambda engine: run(engine, [1, 3], 1), "not in the recording"),
        (lambda engine: run(engine, [1, 2], 1, Sampler(Rule(temperature=1.0))), "greedy"),
        (lambda engine: run(engine, [1, 2], 1, Sampler(processors=(lambda _, row: row,))), "greedy"),
        (lambda engine: left(engine), "left its recording"),
    ],
)
def test_what_a_recording_cannot_answer_is_refused_in_words(use: Callable[[Engine], Any], told: str) -> None:
    path = Trajectory([1, 2], [3, 4], np.zeros((2, 1), dtype=np.int32))
    with pytest.raises((UsageError, Unsupported), match=told):
        use(Engine(ReplayBackend([path], 10), make_drafter("none", {}), Fixed(0)))


def left(engine: Engine) -> None:
    session = engine.open([1, 2], stops=Stops(max_new_tokens=1))
    drive(engine)
    engine.extend(session, [9], Stops(max_new_tokens=1))
    drive(engine)


def test_a_recording_without_hidden_states_offers_none(tmp_path: Path) -> None:
    corpus = Corpus(Recording(make(tmp_path / "r", "toy", layers="")))
    assert corpus.recording.width == 0
    with pytest.raises(Unsupported, match="hidden"):
        replay(corpus, f"{__name__}:Nearest", 4)
    alone = [record.forwards for record in replay(corpus, "oilbird:semantic=false", 4)]
    assert [record.forwards for record in replay(corpus, "oilbird", 4)] == alone


class LiveOnly(Nearest):
    name, replay = "live-only", "live"


class Wordy(Nearest):
    name, needs = "wordy", frozenset({Need.TEXT})


class Modelled(Nearest):
    name, needs = "modelled", frozenset({Need.MODEL})


@pytest.mark.parametrize(
    ("drafter", "told"), [("LiveOnly", "rejected drafts.*echodraft bench"), ("Wordy", "--tokenizer"), ("Modelled", "draft model")]
)
def test_a_drafter_that_needs_what_is_not_recorded_is_refused_before_anything_runs(
    recordings: Callable[[str], Path], drafter: str, told: str
) -> None:
    ran: list[str] = []
    with pytest.raises(UsageError, match=told):
        list(compare(Corpus(Recording(recordings("toy"))), ["suffix", f"{__name__}:{drafter}"], [4], told=ran.append))
    assert not ran


def test_repeated_prompts_run_but_can_be_left_out_of_the_counts(recordings: Callable[[str], Path]) -> None:
    corpus = Corpus(Recording(recordings("llama")))
    assert corpus.repeated == REPEATED
    (row,) = compare(corpus, ["suffix"], [16])
    assert (row["all"]["requests"], row["without_repeats"]["requests"]) == (5, 4)
    # The repeated request is drafted from the memory of the first: far better than the rest.
    assert row["all"]["mean_accepted"] > 1.2 * row["without_repeats"]["mean_accepted"]


def test_micro_and_macro_means_are_over_steps_and_over_requests(recordings: Callable[[str], Path]) -> None:
    found = replay(Corpus(Recording(recordings("toy"))), "suffix", 16)
    held = summarise(found, None)
    assert held["mean_accepted"] == (held["emitted"] - len(found)) / held["steps"]
    assert held["mean_accepted_macro"] == pytest.approx(np.mean([record.stats.mean_accepted for record in found]))
    assert held["block_efficiency"] == held["emitted"] / (held["steps"] + len(found))


def test_the_speed_up_is_tokens_over_what_the_forwards_cost_at_their_context() -> None:
    record = Replayed(None, False)  # type: ignore[arg-type]
    record.stats.emitted, record.stats.prefill_emitted = 9, 1
    record.forwards = [(1, 20), (16, 20), (16, 80)]
    assert speedup([record, record], CURVE) == pytest.approx(8 / (1.0 + 1.5 + 2.0))
    assert speedup([Replayed(None, False)], CURVE) is None  # type: ignore[arg-type]


def test_plain_decoding_is_no_faster_than_itself(recordings: Callable[[str], Path]) -> None:
    (row,) = compare(Corpus(Recording(recordings("toy"))), ["none"], ["auto"], CURVE)
    assert (row["all"]["mean_accepted"], row["all"]["speedup"], row["all"]["drafted"]) == (1.0, 1.0, 0)


def test_the_best_budget_is_the_fastest_of_the_grid(recordings: Callable[[str], Path]) -> None:
    corpus = Corpus(Recording(recordings("toy")))
    fixed = {row["budget"]: row["all"]["speedup"] for row in compare(corpus, ["suffix"], list(GRID), CURVE)}
    told: list[str] = []
    rows = list(compare(corpus, ["suffix", "prompt-lookup:budget=3"], ["best"], CURVE, told=told.append))
    best = max(fixed, key=fixed.__getitem__)
    assert (rows[0]["budget"], rows[0]["all"]["speedup"]) == (f"best: {best}", fixed[best])
    assert rows[1]["budget"] == 3
    assert len(told) == count_runs(["suffix", "prompt-lookup:budget=3"], ["best"]) * len(corpus.entries) == (len(GRID) + 1) * 5
    with pytest.raises(UsageError, match="--cost"):
        list(compare(corpus, ["suffix"], ["best"]))


def test_limits_take_the_first_requests(recordings: Callable[[str], Path]) -> None:
    corpus = Corpus(Recording(recordings("toy")), limit=2)
    assert [entry.id for entry in corpus.entries] == ["item 0", "item 1"]
    assert len(replay(corpus, "suffix", 4)) == 2


def test_the_code_of_the_documentation_runs(
    recordings: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    page = Path(__file__).parents[2] / "docs" / "replay.md"
    (code,) = re.findall(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), flags=re.S)
    (tmp_path / "recordings").mkdir()
    (tmp_path / "recordings" / "api_bank").symlink_to(recordings("toy"))
    monkeypatch.chdir(tmp_path)
    exec(code, {})
    mean, sources = capsys.readouterr().out.split(" ", 1)
    assert float(mean) > 1.0
    assert "suffix" in sources
