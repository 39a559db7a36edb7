"""The settings of a drafter that are fastest: a search knob by knob, over recorded outputs or live."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from echodraft.bench.methods import Drafted, Remembering
from echodraft.bench.recording import Recording
from echodraft.bench.result import BASELINE, Measurement, Run
from echodraft.bench.runner import run
from echodraft.bench.suites import Item
from echodraft.bench.summary import speedups
from echodraft.decoder import Decoder
from echodraft.errors import UsageError
from echodraft.profile import Profile

LENGTHS = {"gamma": (2, 3, 4, 5, 6, 8, 10, 12, 14, 16, 20)}
BRANCHES = {"top_k": (1, 2, 3, 4), "width": (0, 1, 2, 3, 4)}
LADDERS: dict[str, dict[str, tuple[Any, ...]]] = {
    # Algorithm 1 of Ouroboros: gamma, then W, then beta; then K, and what is ours.
    "ouroboros": LENGTHS | {"window": (0, 5, 10, 15, 20), "beta": (3, 4, 5, 6, 7, 8, 9), "k": (0, 1, 2, 3, 4, 5, 6)} | BRANCHES,
    "speculative": LENGTHS | BRANCHES,
    "cascade": LENGTHS | {"top_k": BRANCHES["top_k"], "drafter": ("suffix", "prompt-lookup", "recycling")},
}
"""Knobs in the order in which they are tried, each with its values, ascending. Other drafters have their budget alone."""
BUDGETS: tuple[str | int, ...] = ("auto", 4, 8, 12, 16, 24, 32, 48)
BUDGET = "budget"
EARLY = 0.85
"""A live trial ends after its second prompt where it is slower than this share of the best."""


@dataclass(frozen=True, slots=True)
class Setting:
    """A point of the search: values of knobs, in the order of the ladders, and the budget."""

    drafter: str
    options: tuple[tuple[str, Any], ...] = ()
    budget: str | int = "auto"

    def put(self, knob: str, value: Any) -> Setting:
        if knob == BUDGET:
            return replace(self, budget=value)
        return replace(self, options=tuple({**dict(self.options), knob: value}.items()))

    @property
    def profile(self) -> Profile:
        return Profile(drafter=self.drafter, options=dict(self.options), budget=self.budget)

    @property
    def method(self) -> str:
        return f"{self.profile.method}:budget={self.budget}"


def ladders_of(drafter: str, budgets: bool) -> dict[str, tuple[Any, ...]]:
    """What is searched for a drafter; `budgets`: fixed numbers of nodes, too."""
    return LADDERS.get(drafter, {}) | ({BUDGET: BUDGETS} if budgets or drafter not in LADDERS else {})


class Trials:
    """What was measured, a line each in a file that a search which is resumed reads. Without a file it lasts as long as the search.

    about  what every trial has in common; a file of another search is refused with `UsageError`
    """

    def __init__(self, path: Path | None, about: Mapping[str, Any], resume: bool) -> None:
        self.path, self.speed = path, dict[Setting, float]()
        if path is None:
            return
        own = json.loads(json.dumps(dict(about)))
        begun, *kept = [*_read(path.read_text(encoding="utf-8").splitlines() if path.exists() else [])] or [own]
        if kept and not resume:
            raise UsageError(f"{path} holds an unfinished search. Go on with --resume, or name another file with --save.")
        if kept and begun != own:
            raise UsageError(f"{path} holds a search under other settings ({begun}). Use the same, or another file with --save.")
        for held in kept:
            self._take(held)
        try:
            # A kill may have left half a line.
            path.write_text("".join(json.dumps(held) + "\n" for held in [own, *kept]), encoding="utf-8")
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror or error}). Name another file with --save.") from error

    def _take(self, held: Mapping[str, Any]) -> None:
        setting = Setting(held["drafter"], tuple((name, value) for name, value in held["options"]), held["budget"])
        self.speed[setting] = held["speedup"]

    def add(self, setting: Setting, speed: float) -> None:
        self.speed[setting] = speed
        if self.path is not None:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({**asdict(setting), "speedup": speed}) + "\n")

    def best(self) -> list[Setting]:
        """The fastest first; of equals the one that was tried first."""
        return sorted(self.speed, key=lambda setting: -self.speed[setting])


def _read(lines: Sequence[str]) -> Iterator[dict[str, Any]]:
    for line in lines:
        try:
            yield json.loads(line)
        except ValueError:
            return


def search(
    start: Setting,
    ladders: Mapping[str, Sequence[Any]],
    measure: Callable[[Setting, float], float],
    trials: Trials,
    patience: int,
    rounds: int,
) -> Setting:
    """The fastest setting that was found: knob by knob up and down its ladder, the others as they are.

    measure   speed-up of a setting over plain decoding; hears the best so far. What `trials` holds is not measured again
    patience  values in a row that are no faster, before a ladder is left in that direction
    rounds    over all knobs at most; it ends where one brings nothing
    """

    def speed(setting: Setting) -> float:
        if setting not in trials.speed:
            trials.add(setting, measure(setting, max(trials.speed.values(), default=0.0)))
        return trials.speed[setting]

    best = start
    speed(best)
    for _ in range(rounds):
        before = best
        for knob, ladder in ladders.items():
            at = _place(ladder, best.budget if knob == BUDGET else dict(best.options).get(knob, ladder[0]))
            origin = best
            for way in (range(at + 1, len(ladder)), range(at - 1, -1, -1)):
                waited = 0
                for i in way:
                    tried = origin.put(knob, ladder[i])
                    waited = 0 if speed(tried) > speed(best) else waited + 1
                    best = tried if not waited else best
                    if waited == patience:
                        break
        if best == before:
            break
    return best


def _place(ladder: Sequence[Any], value: Any) -> int:
    """Where a value stands on a ladder, or the nearest of its kind."""
    if value in ladder:
        return ladder.index(value)
    numbers = [i for i, step in enumerate(ladder) if isinstance(step, int)]
    return min(numbers, key=lambda i: abs(ladder[i] - value)) if numbers and isinstance(value, int) else 0


def live(base: Decoder, items: Sequence[Item], most: Callable[[Item], int]) -> Callable[[Setting, float], float]:
    """Measures a setting by decoding: prompt by prompt beside plain decoding, and no further than the second if it is clearly slower."""

    def measure(setting: Setting, best: float) -> float:
        return race(base, items, most, [setting], EARLY * best)[setting]

    return measure


class _Slow(Exception):
    """A trial is slower than it needs to be known."""


def race(
    base: Decoder,
    items: Sequence[Item],
    most: Callable[[Item], int],
    settings: Sequence[Setting],
    least: float = 0.0,
    told: Callable[[Measurement], None] = lambda _: None,
) -> dict[Setting, float]:
    """Decode speed of settings over plain decoding, interleaved prompt by prompt, memory carried.

    least  one setting alone ends early where it is slower
    """
    remembering, names = Remembering(), {setting: setting.method for setting in settings}
    methods = {BASELINE: Drafted(base, BASELINE, "auto", remembering)}
    methods |= {name: Drafted(base, name, "auto", remembering) for name in names.values()}
    record = Run(None, {}, False)

    def hear(measurement: Measurement) -> None:
        told(measurement)
        done = len(record.done)
        if least and done >= 2 * len(methods) and done % len(methods) == 0 and max(speedups(record.done).values(), default=least) < least:
            raise _Slow

    try:
        run(items, methods, base, most, record, told=hear)
    except _Slow:
        pass
    finally:
        for method in methods.values():
            method.close()
    found = speedups(record.done)
    return {setting: found.get(name, 0.0) for setting, name in names.items()}


def items_of(recording: Recording, limit: int | None) -> list[Item]:
    """The prompts of a recording, to be decoded again."""
    return [
        Item(entry.id, entry.category, recording.trajectory(entry).prompt, entry.stop, recording.most(entry))
        for entry in recording.entries[:limit]
    ]
