"""Every drafter against plain decoding: are the tokens the same, and where they are not, is it rounding or a fault?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from echodraft.bench.rounding import Rounding, Row, apart, dtype_of, host, processed, reachable, read
from echodraft.bench.suites import Item
from echodraft.core.accept import Stops
from echodraft.core.backend import Backend, Request
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.metrics.stats import Stats
from echodraft.text.tokenizer import Text

MEASURED = 3
"""How many groups of prompts the tolerance is measured on, beside the places where answers differ."""
GENERATE = "generate"


@dataclass(frozen=True, slots=True)
class Output:
    """One answer: its ids, and the steps that it came from (none for a method that is not ours), each with the columns of its forward."""

    ids: list[int]
    steps: Sequence[tuple[Step, int]] = ()


def decode(engine: Engine, items: Sequence[Item], rule: Rule, most: int, eos: frozenset[int]) -> list[Output]:
    """The answers to `items`, decoded in one batch."""
    sessions = [engine.open(item.ids, Sampler(rule), Stops(eos, most)) for item in items]
    steps: dict[int, list[tuple[Step, int]]] = {session.id: [] for session in sessions}
    try:
        while live := [session for session in sessions if session.finish is None]:
            told = engine.step(live)
            columns = 1 + max(len(step.draft) for step in told)
            for step in told:
                steps[step.session.id].append((step, step.fed if step.prefill else columns))
                if step.session.finish is not None:
                    engine.close(step.session)
    finally:
        for session in sessions:
            engine.close(session)
    return [Output(session.output, steps[session.id]) for session in sessions]


@dataclass(frozen=True, slots=True)
class Candidate:
    """A token and its processed scores: the logit (greedy), or logit / temperature + noise; None where the rule excludes it.

    plain    by the one-row forward of the true prefix
    drafted  by the forward that scored the draft, its steps replayed; None as well where there was no draft
    """

    id: int
    text: str
    plain: float | None
    drafted: float | None


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where an answer leaves plain decoding. What follows it says nothing: the prefixes differ.

    index     in the output; `position` in the whole sequence
    kept      what plain decoding chose there, None if it had ended
    drafted   what the method chose there, None if it had ended
    gap       between the two by the one-row forward
    allowed   what rounding explains: twice the tolerance, over the temperature
    moved     the largest difference of a logit between the draft's forward and the one-row forward, None without a draft's forward
    rows      sequences in the forward that emitted the token; `columns` tokens each. Zero for a method that is not ours
    verdict   "tie" or "fault"
    """

    drafter: str
    mode: str
    prompt: str
    index: int
    position: int
    kept: Candidate | None
    drafted: Candidate | None
    gap: float | None
    allowed: float
    moved: float | None
    dtype: str
    rows: int
    columns: int
    verdict: str


@dataclass(slots=True)
class Tally:
    """How one drafter did in one mode. Tokens are compared up to and including the first difference."""

    drafter: str
    mode: str
    prompts: int = 0
    tokens: int = 0
    identical: int = 0
    ties: int = 0
    faults: int = 0
    stats: Stats = field(default_factory=Stats)

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        counts = {name: getattr(self, name) for name in ("drafter", "mode", "prompts", "tokens", "identical", "ties", "faults")}
        ours = self.drafter != GENERATE
        return {
            **counts,
            "accepted": self.stats.accepted if ours else None,
            "mean_accepted": self.stats.mean_accepted if ours else None,
        }


class Verification:
    """Answers compared with plain decoding of the same model, one by one, so that an interrupt keeps what is done.

    plain     the model with the drafter none
    engines   what is compared, by name
    rules     how tokens are chosen, by the name of the mode
    most      output tokens at most
    batch     prompts that the drafters answer in one batch; plain decoding answers each alone
    generate  Hugging Face's own greedy answer to an item, or None
    """

    def __init__(
        self,
        plain: Decoder,
        engines: Mapping[str, Engine],
        rules: Mapping[str, Rule],
        most: int,
        batch: int = 1,
        generate: Callable[[Item], list[int]] | None = None,
    ) -> None:
        self.plain, self.engines, self.rules, self.most, self.batch, self.generate = plain, engines, rules, most, batch, generate
        self.rounding = Rounding(plain.engine.backend)
        self.tallies: list[Tally] = []
        self.differences: list[Difference] = []

    @property
    def faults(self) -> int:
        return sum(tally.faults for tally in self.tallies)

    @property
    def rounds(self) -> int:
        """How often `told` will be called for one prompt."""
        return len(self.rules) * (1 + len(self.engines)) + (self.generate is not None)

    def run(self, items: Sequence[Item], told: Callable[[int], None] = lambda _: None) -> None:
        """Compare all; `told` hears of every answer, by how many at once."""
        for start in range(0, len(items), self.batch):
            group = items[start : start + self.batch]
            for mode, rule in self.rules.items():
                expected = [self._decode(self.plain.engine, [item], rule)[0] for item in group]
                told(len(group))
                if start < MEASURED * self.batch and mode == next(iter(self.rules)):
                    self.rounding.measure([item.ids for item in group], [output.ids for output in expected])
                for name, engine in self.engines.items():
                    for item, plain, found in zip(group, expected, self._decode(engine, group, rule), strict=True):
                        self._compare(name, mode, rule, item, plain, found)
                    told(len(group))
                if rule.greedy and self.generate is not None:
                    for item, plain in zip(group, expected, strict=True):
                        self._compare(GENERATE, mode, rule, item, plain, Output(self.generate(item)))
                    told(len(group))

    def _decode(self, engine: Engine, items: Sequence[Item], rule: Rule) -> list[Output]:
        return decode(engine, items, rule, self.most, self.plain.text.eos)

    def _compare(self, name: str, mode: str, rule: Rule, item: Item, plain: Output, found: Output) -> None:
        tally = next((t for t in self.tallies if (t.drafter, t.mode) == (name, mode)), None)
        if tally is None:
            tally = Tally(name, mode)
            self.tallies.append(tally)
        pairs = zip(plain.ids, found.ids, strict=False)
        first = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(plain.ids), len(found.ids)))
        tally.prompts += 1
        for step, _ in found.steps:
            tally.stats.add(step)
        if plain.ids == found.ids:
            tally.tokens += first
            tally.identical += 1
            return
        tally.tokens += first + 1
        difference = self._explain(name, mode, rule, item, plain, found, first)
        self.differences.append(difference)
        tally.ties += difference.verdict == "tie"
        tally.faults += difference.verdict == "fault"

    def _explain(self, name: str, mode: str, rule: Rule, item: Item, plain: Output, found: Output, first: int) -> Difference:
        backend, prefix = self.plain.engine.backend, plain.ids[:first]
        position = len(item.ids) + first
        row = self.rounding.one_row(item.ids, prefix)
        drafted = draft_row(backend, item.ids, found.steps, first) if found.steps else None
        tolerance = self.rounding.tolerance
        ids = [output.ids[first] if first < len(output.ids) else None for output in (plain, found)]
        moved = None if drafted is None else apart(drafted, row)
        # Both must be within reach: in a batch, and beside `generate`, plain decoding too may have been moved. A small gap is no excuse for
        # a draft's forward that is far off; the factor allows for the tolerance being an estimate.
        near = moved is None or moved <= 2.0 * tolerance
        tie = near and all(token is not None and reachable(row, rule, position, token, tolerance) for token in ids)
        a, b = (None if token is None else candidate(self.plain.text, row, drafted, rule, position, token) for token in ids)
        scores = processed(row, rule, position)[1]
        shape = _shape(found.steps, first)
        return Difference(
            drafter=name,
            mode=mode,
            prompt=item.id,
            index=first,
            position=position,
            kept=a,
            drafted=b,
            gap=None if a is None or b is None else float(scores[a.id] - scores[b.id]),
            allowed=2.0 * tolerance / (rule.temperature or 1.0),
            moved=moved,
            dtype=dtype_of(backend),
            rows=shape[0],
            columns=shape[1],
            verdict="tie" if tie else "fault",
        )

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "tolerance": self.rounding.tolerance,
            "measured": self.rounding.measured,
            "batched": self.rounding.batched,
            "prefixes": self.rounding.prefixes,
            "results": [tally.as_dict() for tally in self.tallies],
            "differences": [asdict(difference) for difference in self.differences],
            "faults": self.faults,
        }


def candidate(text: Text, row: Row, drafted: Row | None, rule: Rule, position: int, token: int) -> Candidate:
    """A token with its processed scores under both forwards."""
    kept = [None if one is None else float(processed(one, rule, position)[0][token]) for one in (row, drafted)]
    plain, other = (None if score is None or not np.isfinite(score) else score for score in kept)
    return Candidate(token, text.decode([token]), plain, other)


def _emitter(steps: Sequence[tuple[Step, int]], index: int) -> tuple[int, int]:
    """Which step emitted output token `index`, and which of its tokens it is."""
    for i, (step, _) in enumerate(steps):
        if index < len(step.verdict.tokens):
            return i, index
        index -= len(step.verdict.tokens)
    raise IndexError("no step emitted this token")


def _shape(steps: Sequence[tuple[Step, int]], index: int) -> tuple[int, int]:
    """Rows and columns of the forward that emitted output token `index`; zeros where it is not ours or there is no such token."""
    if index >= sum(len(step.verdict.tokens) for step, _ in steps):
        return 0, 0
    step, columns = steps[_emitter(steps, index)[0]]
    return step.batch, columns


def draft_row(backend: Backend, prompt: Sequence[int], steps: Sequence[tuple[Step, int]], index: int) -> Row | None:
    """The logits that output token `index` was chosen from: the steps up to it are replayed, alone, drafts and cache rows as they were.

    None if no step emitted it.
    """
    if index >= sum(len(step.verdict.tokens) for step, _ in steps):
        return None
    last, offset = _emitter(steps, index)
    slot = backend.open()
    try:
        row = read(backend, slot, prompt)
        anchor = steps[0][0].verdict.tokens[-1]
        for i, (step, _) in enumerate(steps[1 : last + 1], 1):
            verdict = step.verdict
            scores = backend.score([Request(slot, [anchor], step.draft)], frozenset())[0]
            if i == last:
                row = host(scores.row(verdict.path[offset - 1] + 1 if offset else 0))
            backend.commit(slot, verdict.path[: len(verdict.tokens) - 1])
            anchor = verdict.tokens[-1]
        return row
    finally:
        backend.close(slot)
