"""A trace read back: requests, their steps, and what each step says. Nothing of a trace is executed or trusted."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from echodraft.errors import UsageError
from echodraft.metrics.trace import MARK, VERSION

FINISHES = {"eos": "the end token", "stop": "a stop string", "length": "the limit on tokens", "criterion": "a stopping criterion"}


class Token(NamedTuple):
    """One output token: the text that it completed, and the drafter that guessed it (None = the target's own)."""

    text: str
    id: int
    source: str | None


class Tree(BaseModel):
    """The draft that was scored, by column."""

    model_config = ConfigDict(frozen=True)
    token: list[int] = []
    text: list[str] = []
    parent: list[int] = []
    prob: list[float] = []
    source: list[str] = []
    probe: list[int] = []

    @model_validator(mode="after")
    def _is_a_tree(self) -> Tree:
        n = len(self.token)
        if not all(len(column) == n for column in (self.text, self.parent, self.prob, self.source)):
            raise ValueError("the columns of a draft differ in length")
        if not all(-1 <= parent < node for node, parent in enumerate(self.parent)):
            raise ValueError("a node comes before its parent")
        return self

    def children(self, node: int) -> list[int]:
        """Nodes under `node`; -1 is the anchor."""
        return [child for child, parent in enumerate(self.parent) if parent == node]


class Traced(BaseModel):
    """One step as the trace holds it (`metrics.trace` says what each field is)."""

    model_config = ConfigDict(frozen=True)
    request: int
    step: int
    prefill: bool = False
    drafter: str | None = None
    item: str | None = None
    seed: int | None = None
    prompt_tokens: int | None = None
    prompt: str = ""
    context: int
    batch: int = 1
    anchor: tuple[int, str]
    proposed: int = 0
    budget: tuple[int, int] | None = None
    draft: Tree = Tree()
    path: list[int] = []
    emitted: list[int]
    pieces: list[str]
    finish: str | None = None
    seconds: dict[str, float] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _hangs_together(self) -> Traced:
        at = -1
        for node in self.path:
            if not 0 <= node < len(self.draft.token) or self.draft.parent[node] != at:
                raise ValueError("the accepted path is none in the draft")
            at = node
        if not self.emitted or len(self.pieces) != len(self.emitted) or not len(self.path) <= len(self.emitted) <= len(self.path) + 1:
            raise ValueError("the emitted tokens do not fit the accepted path")
        return self

    @property
    def tokens(self) -> list[Token]:
        """What the step emitted."""
        sources = [self.draft.source[node] for node in self.path]
        named: list[str | None] = [*sources, *[None] * (len(self.emitted) - len(sources))]
        return [Token(*one) for one in zip(self.pieces, self.emitted, named, strict=True)]

    @property
    def own(self) -> Token | None:
        """The target's own token at the end of the step; None where the output ended on an accepted node."""
        return self.tokens[-1] if len(self.emitted) > len(self.path) else None

    @property
    def refused(self) -> list[int]:
        """Nodes that stood where the target's own token came: what it said no to. Nodes below them are moot."""
        return self.draft.children(self.path[-1] if self.path else -1) if self.own else []

    @property
    def ended(self) -> str:
        """Why the step brought no more tokens, in words."""
        if self.finish is not None:
            return f"the output ended: {FINISHES.get(self.finish) or repr(self.finish)}"
        if self.prefill:
            return "the prompt was read"
        if not self.draft.token:
            return self._undrafted()
        if self.refused:
            said = ", ".join(shown(self.draft.text[node], self.draft.token[node]) for node in self.refused)
            return f"the target said {self._own()} where the draft had {said}"
        return f"accepted to the end of a branch ({len(self.path)}), and the bonus token {self._own()}"

    def _undrafted(self) -> str:
        if self.proposed:
            return f"no draft: the budget left none of {self.proposed} proposed"
        if self.budget is not None and min(self.budget) == 0:
            return "no draft: there was room for one more token only" if self.budget[0] else "no draft: the drafter was not asked"
        return "no draft: the drafter proposed nothing"

    def _own(self) -> str:
        return shown(self.own.text, self.own.id) if self.own else ""


@dataclass(slots=True)
class Request:
    """One answer of the trace; `head` is the step that names it: drafter, item, seed, prompt."""

    head: Traced
    steps: list[Traced] = field(default_factory=list)

    @property
    def number(self) -> int:
        return self.head.request

    @property
    def finish(self) -> str | None:
        """None where the answer was interrupted."""
        return self.steps[-1].finish

    @property
    def emitted(self) -> int:
        return sum(len(step.emitted) for step in self.steps)

    @property
    def decoded(self) -> list[Traced]:
        """Without the prefill."""
        return [step for step in self.steps if not step.prefill]

    @property
    def mean_accepted(self) -> float:
        """As in `metrics.stats`: tokens emitted by steps / steps."""
        return sum(len(step.emitted) for step in self.decoded) / len(self.decoded) if self.decoded else 0.0

    def only(self, step: int) -> Request:
        """The request with one step alone. Raises `UsageError` where it has none of that number."""
        found = [one for one in self.steps if one.step == step]
        if not found:
            raise UsageError(f"Request {self.number} has no step {step}. It has steps 0 to {self.steps[-1].step}.")
        return Request(self.head, found)

    @property
    def name(self) -> str:
        """What to call it: number, item, drafter."""
        return " · ".join(part for part in (f"request {self.number}", self.head.item, self.head.drafter) if part)


@dataclass(slots=True)
class Tracing:
    """A whole trace: its header and its requests by number."""

    header: Mapping[str, Any]
    requests: dict[int, Request]

    def request(self, number: int) -> Request:
        """Raises `UsageError` where there is none of that number."""
        if number not in self.requests:
            raise UsageError(f"The trace has no request {number}. It has {_range(self.requests)}.")
        return self.requests[number]


def shown(text: str, token: int) -> str:
    """A token in a sentence: quoted, blanks visible; its id where it has no text."""
    return repr(text) if text else f"#{token}"


def read(path: Path) -> Tracing:
    """Read a trace, up to a last line that a kill left unfinished. Raises `UsageError` for a file that is none."""
    if not path.is_file():
        raise UsageError(f"There is no trace '{path}'. Write one with: echodraft run … --trace {path}")
    lines = _lines(path)
    header = next(lines, (0, None))[1]
    if not isinstance(header, dict) or MARK not in header:
        raise UsageError(f"'{path}' is no trace of echodraft. Write one with: echodraft run … --trace FILE")
    if header[MARK] != VERSION:
        raise UsageError(f"'{path}' is a trace of version {header[MARK]}, this echodraft reads version {VERSION}. Write it again.")
    requests: dict[int, Request] = {}
    for number, value in lines:
        try:
            step = Traced.model_validate(value)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"])) or "step"
            raise UsageError(f"Line {number} of '{path}' is no step: {where}: {first['msg']}. Write the trace again.") from error
        requests.setdefault(step.request, Request(step)).steps.append(step)
    return Tracing(header, requests)


def _lines(path: Path) -> Iterator[tuple[int, Any]]:
    """Numbered values. A broken last line is what a kill leaves; a broken line in the middle is an error."""
    with path.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            try:
                yield number, json.loads(line)
            except ValueError as error:
                if not line.endswith("\n"):
                    return
                raise UsageError(f"Line {number} of '{path}' is no JSON. Is this a trace?") from error


def _range(requests: Mapping[int, Request]) -> str:
    if not requests:
        return "none: it was interrupted before the first step"
    low, high = min(requests), max(requests)
    return str(low) if low == high else f"{low} to {high}"
