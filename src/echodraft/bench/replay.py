"""Real drafters over recorded outputs, through the real engine: what they would have brought, without the model.

The target's greedy output does not depend on the drafter, so one recording serves them all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.backends.memo import MemoBackend
from echodraft.backends.replay import Trajectory
from echodraft.bench.methods import parse
from echodraft.bench.recording import TOP, Entry, Recording
from echodraft.build import check_budget, make_drafter, make_engine, make_policy, takes
from echodraft.core.accept import Stops
from echodraft.core.backend import Need
from echodraft.core.budget import CPU_CURVE, MOST_NODES, CostCurve
from echodraft.core.draft_model import DraftModel
from echodraft.core.drafter import Drafter, Words
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.errors import UsageError
from echodraft.memory import Memory
from echodraft.metrics.stats import Stats, by_depth
from echodraft.text.tokenizer import Text

GRID = (1, 2, 4, 8, 12, 16, 24, 32, 48, 64)
"""Fixed budgets among which `best` looks."""


@dataclass(slots=True)
class Replayed:
    """One request by one drafter.

    repeated  whether its prompt occurred before in the recording
    stats     the counts; its seconds are those of a forward that costs nothing
    scored    nodes scored, by the drafter that guessed them
    forwards  rows and context length of every step
    drafting  those of every forward of the draft model, what it read of the prompt included
    report    what the drafter counts itself, of this request and those before; without times, which a replay does not have
    """

    entry: Entry
    repeated: bool
    stats: Stats = field(default_factory=Stats)
    scored: Counter[str] = field(default_factory=Counter)
    forwards: list[tuple[int, int]] = field(default_factory=list)
    drafting: list[tuple[int, int]] = field(default_factory=list)
    report: dict[str, float] = field(default_factory=dict)

    def add(self, step: Step) -> None:
        """Count one step."""
        self.stats.add(step)
        if step.prefill:
            return
        self.scored.update(step.draft.source)
        self.forwards.append((1 + len(step.draft), len(step.session.tokens) - len(step.verdict.tokens)))


class Corpus:
    """The requests of a recording in order, read once for all drafters. `limit`: the first ones.

    Drafters get the hidden states of `layer`: norm, or the number of a decoder layer. Raises `UsageError` where it was not recorded.
    """

    def __init__(self, recording: Recording, limit: int | None = None, layer: str = "norm") -> None:
        held = recording.manifest.get("layers") or []
        if layer != "norm" and layer not in held:
            raise UsageError(
                f"{recording.folder} holds no states of layer {layer}, only {', '.join(held) or 'none'}. Record with --layers."
            )
        self.recording = recording
        self.entries = recording.entries[:limit]
        if not self.entries:
            raise UsageError(f"{recording.folder} holds no finished request yet.")
        self.trajectories: list[Trajectory] = [recording.trajectory(entry, layer) for entry in self.entries]
        seen: set[tuple[int, ...]] = set()
        self.repeated: list[bool] = []
        for trajectory in self.trajectories:
            prompt = tuple(trajectory.prompt)
            self.repeated.append(prompt in seen)
            seen.add(prompt)


def replay(
    corpus: Corpus,
    method: str,
    budget: str | int = "auto",
    *,
    curve: CostCurve = CPU_CURVE,
    carry: bool = True,
    words: Words | None = None,
    draft: DraftModel | None = None,
    memory: Memory | None = None,
    told: Callable[[Replayed], None] = lambda _: None,
    watch: Callable[[Step], None] = lambda _: None,
) -> list[Replayed]:
    """What `method` ("name:knob=value", as in a benchmark) would have done: one record a request, in order.

    budget  "auto" plans drafts on `curve`; a number is the size of every draft
    carry   what the drafter remembers goes from request to request; its memory is its own
    words   the recorded model's text, for drafters that read it
    draft   the draft model, for drafters that need one: `bench.draft` loads it with a memo
    memory  what it remembers at first, and in the end; by default nothing
    told    hears of every request, `watch` of every step

    Raises `UsageError` for drafters that cannot be replayed.
    """
    memory = Memory() if memory is None else memory
    drafter, own = _drafter(method, memory, words, draft)
    budget = budget if own is None else own
    check_budget(budget)
    budget = 0 if drafter.name == "none" else budget
    engine = make_engine(corpus.recording.backend(corpus.trajectories), drafter, budget, curve)
    done = []
    for entry, trajectory, repeated in zip(corpus.entries, corpus.trajectories, corpus.repeated, strict=True):
        record = Replayed(entry, repeated)
        for step in retrace(engine, corpus.recording, entry, trajectory):
            record.add(step)
            watch(step)
        record.drafting = _drain(draft)
        record.report = {name: value for name, value in drafter.report().items() if not name.endswith("_seconds")}
        if not carry:
            memory.forget("")
            engine.policy = make_policy(budget, curve, drafter)
        done.append(record)
        told(record)
    return done


def _drain(draft: DraftModel | None) -> list[tuple[int, int]]:
    """The draft model's forwards since the last time."""
    if draft is None or not isinstance(draft.backend, MemoBackend):
        return []
    forwards, draft.backend.forwards = draft.backend.forwards, []
    return forwards


def retrace(engine: Engine, recording: Recording, entry: Entry, trajectory: Trajectory) -> Iterator[Step]:
    """The steps of an engine over the recording's backend through one request, which ends where it ended when it was recorded."""

    def ended(tokens: Sequence[int], prompt_length: int) -> str | None:
        return entry.finish if len(tokens) - prompt_length >= len(trajectory.output) else None

    session = engine.open(trajectory.prompt, stops=Stops(max_new_tokens=recording.most(entry), checks=(ended,)))
    while session.finish is None:
        yield from engine.step()
    assert session.output == trajectory.output
    engine.close(session)


def refuse_live(drafter: Drafter, words: Words | None, draft: DraftModel | None = None) -> None:
    """Raises `UsageError` where a recording does not hold what the drafter needs."""
    if fidelity(drafter) == "live":
        why = "needs the model's answers to rejected drafts, which a recording does not hold. Measure it live: echodraft bench."
        raise UsageError(f"Drafter '{drafter.name}' {why}")
    if Need.MODEL in drafter.needs and draft is None:
        raise UsageError(f"Drafter '{drafter.name}' needs a draft model. Name one with --draft-model.")
    if Need.TEXT in drafter.needs and words is None:
        raise UsageError(f"Drafter '{drafter.name}' reads text, and the recorded model's tokenizer is not here. Name it with --tokenizer.")


def text_of(recording: Recording, methods: Sequence[str], tokenizer: str | None) -> Text | None:
    """The recorded model's text if one of the `methods` reads it, or has a draft model, and its tokenizer is here. Raises `UsageError`."""
    if not any(takes(parse(method)[0], part) for method in methods for part in ("text", "draft_model")):
        return None
    where = tokenizer or recording.manifest.get("model", "")
    if tokenizer is None and not Path(where).expanduser().exists():
        return None
    from echodraft.backends.transformers_load import load_tokenizer

    return Text(load_tokenizer(where), recording.manifest.get("eos", ()))


def fidelity(drafter: Drafter, top: int = TOP) -> str:
    """What a replay of this drafter is worth where `top` best ids were recorded: "exact", "approximate", or "live" for nothing at all."""
    if Need.TOP_K in drafter.needs and drafter.replay != "live":
        return "approximate" if drafter.replay is None or drafter.top_k > top else drafter.replay
    return drafter.replay or "exact"


def worth(corpus: Corpus, method: str, words: Words | None, draft: DraftModel | None) -> str:
    """`fidelity` of a method over a recording. Raises `UsageError` where it cannot be replayed."""
    return fidelity(_drafter(method, Memory(), words, draft)[0], corpus.recording.top)


def compare(
    corpus: Corpus,
    methods: Sequence[str],
    budgets: Sequence[str | int],
    cost: CostCurve | None = None,
    carry: bool = True,
    words: Words | None = None,
    draft: DraftModel | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Every method with every budget: "drafter", "budget", "replay" (exact or approximate), and the counts of "all" and "without_repeats".

    budgets  "auto", numbers, or "best": of the fixed ones of `GRID` the fastest; a method that names its own is replayed with that
    cost     plans "auto" (the built-in curve of CPUs where it is None) and estimates speed-ups
    told     hears of every request, by whom

    Raises `UsageError`, before anything is replayed, for methods that cannot be.
    """
    if cost is None and any("best" in _budgets(method, budgets) for method in methods):
        raise UsageError("The best of several budgets is the one that is fastest: say what forwards cost with --cost.")
    worths = {method: worth(corpus, method, words, draft) for method in methods}
    for method in methods:
        for budget in _budgets(method, budgets):
            best: tuple[float, str | int, list[Replayed]] = (-1.0, budget, [])
            for size in GRID if budget == "best" else [budget]:
                label = f"{method} {size}"
                curve = CPU_CURVE if cost is None else cost

                def heard(_: Replayed, said: str = label) -> None:
                    told(said)

                found = replay(corpus, method, size, curve=curve, carry=carry, words=words, draft=draft, told=heard)
                fast = (speedup(found, cost, draft) if cost is not None else None) or 0.0
                if fast > best[0]:
                    best = fast, size, found
            _, size, found = best
            yield {
                "drafter": method,
                "budget": f"best: {size}" if budget == "best" else size,
                "replay": worths[method],
                "all": summarise(found, cost, draft),
                "report": found[-1].report,
                "without_repeats": summarise([record for record in found if not record.repeated], cost, draft),
            }


def count_runs(methods: Sequence[str], budgets: Sequence[str | int]) -> int:
    """How often `compare` goes through the corpus."""
    return sum(len(GRID) if budget == "best" else 1 for method in methods for budget in _budgets(method, budgets))


def _budgets(method: str, budgets: Sequence[str | int]) -> Sequence[str | int]:
    own = parse(method)[1].get("budget")
    return budgets if own is None else [own]


def _drafter(method: str, memory: Memory, words: Words | None, draft: DraftModel | None) -> tuple[Drafter, str | int | None]:
    """The drafter of a method, and its own budget if it names one. Raises `UsageError` where it cannot be replayed."""
    name, knobs = parse(method)
    own = knobs.pop("budget", None)
    drafter = make_drafter(name, knobs, {"memory": memory, "text": words, "draft_model": draft})
    refuse_live(drafter, words, draft)
    return drafter, own


def speedup(records: Sequence[Replayed], curve: CostCurve, draft: DraftModel | None = None) -> float | None:
    """Estimated speed-up over plain decoding: plain steps for the same tokens / cost of the steps that were made.

    In forwards of one row at the same context. All that a draft model computes is in it; what else drafting takes is not. None where there
    was no step.
    """
    tokens = sum(record.stats.emitted - record.stats.prefill_emitted for record in records)
    cost = price([each for record in records for each in record.forwards], curve) + drafting_cost(records, draft)
    return tokens / cost if cost else None


def drafting_cost(records: Sequence[Replayed], draft: DraftModel | None) -> float:
    """What the draft model's forwards cost, in plain steps of the target."""
    return 0.0 if draft is None else draft.cost * price([each for record in records for each in record.drafting], draft.curve, reads=True)


def price(forwards: Sequence[tuple[int, int]], curve: CostCurve, reads: bool = False) -> float:
    """What forwards cost that have so many rows behind so much context, in those of one row at the same context.

    reads  larger ones than a draft and its anchor are text that is read, such as a prompt: only the last row is scored
    """
    tables: dict[int, NDArray[np.float64]] = {}
    cost = 0.0
    for rows, context in forwards:
        if reads and rows > MOST_NODES + 1:
            cost += curve.reading(rows, context)
            continue
        if context not in tables or len(tables[context]) <= rows:
            tables[context] = curve.table(max(MOST_NODES + 1, rows), context)
        cost += float(tables[context][rows] / tables[context][1])
    return cost


def summarise(records: Sequence[Replayed], curve: CostCurve | None, draft: DraftModel | None = None) -> dict[str, Any]:
    """The counts of many requests as plain values, named as in `docs/counts.md`; `reached` and `kept` by depth, from 1 on.

    `draft_forwards` of the draft model, and `draft_cost` of all of them in plain steps.
    """
    total = Stats.total(record.stats for record in records)
    means = [record.stats.mean_accepted for record in records if record.stats.steps]
    scored: Counter[str] = sum((record.scored for record in records), Counter())
    return {
        "requests": len(records),
        "steps": total.steps,
        "emitted": total.emitted,
        "mean_accepted": total.mean_accepted,
        "mean_accepted_macro": sum(means) / len(means) if means else 0.0,
        "block_efficiency": total.block_efficiency,
        "drafted": total.drafted,
        "verified": total.verified,
        "probes": total.probes,
        "accepted": total.accepted,
        "reached": by_depth(total.reached),
        "kept": by_depth(total.kept),
        "by_source": {name: {"scored": scored[name], "accepted": total.by_source[name]} for name in sorted(scored)},
        "draft_forwards": sum(len(record.drafting) for record in records),
        "draft_cost": drafting_cost(records, draft),
        "speedup": speedup(records, curve, draft) if curve is not None else None,
    }
