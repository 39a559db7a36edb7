"""A replay does what the live run did: the same drafts, the same counts, from a recording alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echodraft.backends.toy import ToyBackend
from echodraft.backends.transformers import TransformersBackend
from echodraft.bench.methods import parse
from echodraft.bench.record import describe, read_layers, record
from echodraft.bench.recording import Recording, Writer
from echodraft.bench.replay import Corpus, Replayed, fidelity, replay, summarise
from echodraft.bench.suites import Item
from echodraft.build import make_drafter, make_policy
from echodraft.core.accept import Stops
from echodraft.core.backend import Backend, Need
from echodraft.core.budget import Budget, CostCurve, Fixed
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.drafters import DRAFTERS, drafter_class
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
    return out


def counts(steps: Sequence[Step]) -> dict[str, Any]:
    record = Replayed(None, False)  # type: ignore[arg-type]
    for step in steps:
        record.add(step)
    return summarise([record], None)


METHODS = [*DRAFTERS, "logitspec:guesses=8", f"{__name__}:Nearest"]
EXACT = [
    method
    for method in METHODS
    if Need.MODEL not in drafter_class(parse(method)[0]).needs and fidelity(make_drafter(*parse(method))) == "exact"
]


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
