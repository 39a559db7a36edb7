"""A replay does what the live run did: the same drafts, the same counts, from a recording alone."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from echodraft.backends.replay import ReplayBackend, Trajectory
from echodraft.backends.toy import ToyBackend
from echodraft.backends.transformers import TransformersBackend
from echodraft.bench.recording import Recording, Writer, describe, read_layers, record
from echodraft.bench.replay import Corpus, Replayed, replay, speedup, summarise
from echodraft.bench.suites import Item
from echodraft.build import make_drafter, make_policy
from echodraft.core.accept import Stops
from echodraft.core.backend import Backend, Need
from echodraft.core.budget import Budget, CostCurve, Fixed
from echodraft.core.draft import EMPTY, Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.drafters import DRAFTERS, drafter_class
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
    "toy": lambda: ToyBackend(context=128),
    "llama": lambda: TransformersBackend(tiny("llama"), chunk=7),
    "mistral": lambda: TransformersBackend(tiny("mistral")),
}


class Nearest(Drafter):
    """Copies what followed the token whose hidden state is nearest to the last one, over all requests."""

    name = "nearest"
    needs = frozenset({Need.HIDDEN})

    def __init__(self, rejected: bool = False) -> None:
        self.rejected = rejected
        self.keys: list[Any] = []
        self.follows: list[list[int]] = []

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return [self.chain(s, b) for s, b in zip(sessions, budgets, strict=True)]

    def chain(self, session: Context, budget: Budget) -> Draft:
        if len(self.keys) < 2:
            return EMPTY
        apart = np.linalg.norm(np.asarray(self.keys[:-1], dtype=np.float64) - self.keys[-1], axis=1)
        return Draft.chain(self.follows[int(np.argmin(apart))][: min(budget.nodes, budget.depth)], 0.6, self.name)

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            assert step.hidden is not None
            path = step.verdict.path[: len(step.verdict.tokens) - 1]
            rows = [*range(step.fed), *(step.fed + node for node in (range(len(step.draft)) if self.rejected else path))]
            tokens = list(step.session.tokens)
            for row in rows:
                self.keys.append(step.hidden[row].astype(np.float64))
                self.follows.append(tokens[-8:])


def items() -> list[Item]:
    return [Item(f"item {i}", "ab"[i % 2], ids, ()) for i, ids in enumerate(PROMPTS)]


def eos_of(backend: Backend) -> int:
    """A token that ends the second output early."""
    return run(Engine(backend, make_drafter("none", {}), Fixed(0)), PROMPTS[1], MOST)[17]


def make(folder: Path, live: str, layers: str = "norm", drafter: str = "suffix", some: slice = slice(None), resume: bool = False) -> Path:
    """A recording of `PROMPTS`."""
    backend = LIVE[live]()
    text = Text(None, [eos_of(backend)])
    decoder = Decoder(Engine(backend, make_drafter(drafter, {}), Fixed(9)), text, live)
    kept = read_layers(layers)
    writer = Writer(folder, describe(decoder, "suite.jsonl", kept, {"max_new_tokens": MOST, "limit": None}), resume)
    record(items()[some], decoder, writer, MOST, bool(kept))
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


def steps_of(backend: Backend, drafter: Drafter, budget: str | int, memory: Memory, carry: bool, stops: Sequence[Stops]) -> list[list[Step]]:
    """The steps of every prompt, in order."""
    engine = Engine(backend, drafter, make_policy(budget, CURVE, drafter))
    out = []
    for ids, stop in zip(PROMPTS, stops, strict=True):
        session = engine.open(ids, stops=stop)
        out.append(drive(engine, [session])[session.id])
        engine.close(session)
        if not carry:
            memory.forget("")
    return out


def counts(steps: Sequence[Step]) -> dict[str, Any]:
    record = Replayed(None, False)  # type: ignore[arg-type]
    for step in steps:
        record.add(step)
    return summarise([record], CURVE)


EXACT = [name for name in DRAFTERS if drafter_class(name).replay == "exact" and Need.MODEL not in drafter_class(name).needs]


@pytest.mark.parametrize("carry", [True, False])
@pytest.mark.parametrize("budget", ["auto", 3, 16])
@pytest.mark.parametrize("live", LIVE)
@pytest.mark.parametrize("name", [*EXACT, "nearest"])
def test_drafts_budgets_and_counts_of_a_replay_are_those_of_the_live_run(
    recordings: Callable[[str], Path], name: str, live: str, budget: str | int, carry: bool
) -> None:
    def drafter(memory: Memory) -> Drafter:
        return Nearest() if name == "nearest" else make_drafter(name, {}, {"memory": memory})

    backend, memory = LIVE[live](), Memory()
    stops = [Stops(frozenset({eos_of(backend)}), MOST)] * len(PROMPTS)
    there = steps_of(backend, drafter(memory), budget, memory, carry, stops)

    corpus = Corpus(Recording(recordings(live)))
    seen: list[list[Step]] = []

    class Watched(Replayed):
        def add(self, step: Step) -> None:
            seen[-1].append(step)
            super().add(step)

    made = Nearest() if name == "nearest" else name
    found = replay(corpus, made, budget, curve=CURVE, carry=carry, record=lambda *args: seen.append([]) or Watched(*args))
    assert [fingerprint(steps) for steps in seen] == [fingerprint(steps) for steps in there]
    assert [summarise([record], CURVE) for record in found] == [counts(steps) for steps in there]
    assert summarise(found, None)["accepted"] > 0 or name == "none"
    assert {steps[-1].verdict.finish for steps in there} == {"eos", "length"}
