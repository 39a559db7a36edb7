"""What may be asked of one answer, checked before anything runs."""

from __future__ import annotations

import json
import secrets
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from typing import Any, Literal

from echodraft.core.sampling import Processor, Rule
from echodraft.errors import UsageError


@dataclass(frozen=True, slots=True)
class Options:
    """How one prompt is answered; `Decoder.generate` says what each means. Raises `UsageError` for values that cannot be right."""

    max_new_tokens: int = 256
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int | None = None
    samples: int = 1
    sampler: Literal["keyed", "torch"] = "keyed"
    stop: Sequence[str] = ()
    eos: Sequence[int] | None = None
    min_new_tokens: int = 0
    logits_processors: Sequence[Callable[..., Any]] = ()
    stopping_criteria: Sequence[Callable[..., Any]] = ()
    system: str | None = None
    tenant: str = ""

    def __post_init__(self) -> None:
        for wrong, what in (
            (self.max_new_tokens < 1, f"max_new_tokens must be at least 1, not {self.max_new_tokens}."),
            (not 0 <= self.min_new_tokens <= self.max_new_tokens, f"min_new_tokens must be 0 to {self.max_new_tokens} (max_new_tokens)."),
            (not 0.0 <= self.temperature < float("inf"), f"temperature must be 0 (greedy) or more, not {self.temperature}."),
            (self.top_k < 0, f"top_k must be 0 (off) or more, not {self.top_k}."),
            (not 0.0 < self.top_p <= 1.0, f"top_p must lie in (0, 1], not {self.top_p}."),
            (not 0.0 <= self.min_p <= 1.0, f"min_p must lie in [0, 1], not {self.min_p}."),
            (self.samples < 1, f"samples must be at least 1, not {self.samples}."),
            (self.samples > 1 and self.temperature == 0.0, "Several samples of greedy decoding are all the same. Set a temperature."),
            (self.sampler not in ("keyed", "torch"), f"sampler must be 'keyed' or 'torch', not '{self.sampler}'."),
            (isinstance(self.stop, str), "stop must be a list of strings."),
            (not all(self.stop), "A stop string is empty, so nothing could ever be said. Leave it out."),
        ):
            if wrong:
                raise UsageError(what)

    def keywords(self) -> dict[str, Any]:
        """The options as keyword arguments of `Decoder.generate`."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def drawn_seed(self) -> int | None:
        """The seed, drawn if none was given; None for greedy decoding."""
        if self.greedy:
            return None
        return secrets.randbits(32) if self.seed is None else self.seed

    def rule(self, seed: int | None, stream: int) -> Rule:
        return Rule(self.temperature, self.top_k, self.top_p, self.min_p, seed or 0, stream)


def at_least(count: int, eos: frozenset[int], prompt_length: int) -> Processor:
    """A processor that forbids the ids `eos` until `count` tokens are out."""
    ids = sorted(eos)

    def process(prefix: Sequence[int], row: Any) -> Any:
        if len(prefix) - prompt_length < count:
            row[ids] = -float("inf")
        return row

    return process


def read_options(pairs: Sequence[str]) -> dict[str, Any]:
    """Knobs from "key=value": numbers, true, false and null as in JSON, anything else is text. Raises `UsageError`."""
    out: dict[str, Any] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UsageError(f"An option reads key=value, not '{pair}'.")
        try:
            out[key] = json.loads(value)
        except ValueError:
            out[key] = value
    return out
