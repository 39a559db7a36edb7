"""Steps on disk: one line of JSON a step, written as they come, so that a kill leaves a readable file.

The first line is the header: {"echodraft_trace": 1, "model", "drafter", "settings", "versions", "started"}. Every other line is a step:

request   number in this file; a chat's next turn is a new request
step      number in the request; 0 is the prefill, which also holds "drafter", "item", "seed"
          (null if greedy), "prompt_tokens" and "prompt" (the end of its text)
prefill, context (tokens up to and with the anchor), batch, proposed (nodes), budget ([nodes, depth] allowed, null for a prefill)
anchor    [id, text]
draft     the tree that was scored, by column: token, text, parent (-1 = anchor), prob (4 digits), source, probe (nodes that are probes)
path      accepted nodes; emitted: ids; pieces: the text that each of them completed, stop strings included
finish    "eos", "stop", "length", … or null
seconds   propose, score, accept, commit: of the whole forward, which `batch` sessions shared
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from io import TextIOWrapper
from pathlib import Path
from typing import Any, Protocol
from weakref import WeakKeyDictionary

from echodraft.core.session import Session
from echodraft.core.step import Step
from echodraft.errors import UsageError

VERSION = 1
MARK = "echodraft_trace"
PROMPT = 2000
"""Characters of a prompt's end that are kept."""


class Words(Protocol):
    """The text of ids."""

    def token(self, token: int) -> str:
        """One token by itself, special ones by their names."""
        ...

    def transcript(self, stops: Sequence[str] = (), context: Sequence[int] = ()) -> Any:
        """An output's text as it grows: `follow(tokens, prompt_length)` and `pieces`."""
        ...

    def decode(self, ids: Sequence[int]) -> str: ...


@dataclass(slots=True)
class _Request:
    number: int
    transcript: Any
    steps: int = 0


class Trace:
    """Writes a trace. `begin` before the first step; then every function that `watch` returns takes steps. A context manager.

    path  a new file, or an older trace, which is written over. Raises `UsageError` for any other file and for a folder that is not there
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: TextIOWrapper | None = None
        self._requests: WeakKeyDictionary[Session, _Request] = WeakKeyDictionary()
        self._names: dict[int, str] = {}
        self._count = 0
        if not path.parent.is_dir():
            raise UsageError(f"There is no folder '{path.parent}' for the trace. Make it, or name another file.")
        if path.is_dir() or (path.exists() and path.stat().st_size and not _is_trace(path)):
            raise UsageError(f"'{path}' is there and is no trace, so it is left alone. Name another file.")

    def begin(self, model: str, drafter: str | Sequence[str], settings: Mapping[str, Any]) -> None:
        """Write the header. The file is only touched now, when the model is loaded."""
        try:
            # Half a character of a hostile token has no UTF-8; it is written as an escape, which JSON reads back.
            self._file = self.path.open("w", encoding="utf-8", errors="backslashreplace", newline="\n")
        except OSError as error:
            raise UsageError(f"The trace cannot be written to '{self.path}': {error.strerror}. Name another file.") from error
        versions = {name: _version(name) for name in ("echodraft", "torch", "transformers")}
        started = datetime.now(UTC).isoformat(timespec="seconds")
        named = drafter if isinstance(drafter, str) else list(drafter)
        self._write({MARK: VERSION, "model": model, "drafter": named, "settings": dict(settings), "versions": versions, "started": started})

    def watch(self, words: Words, drafter: str, item: str | None = None) -> Callable[[Step], None]:
        """A consumer of steps, for `Decoder.watchers`; `item` names the request where a suite has a name for it."""
        return lambda step: self._add(step, words, drafter, item)

    def _add(self, step: Step, words: Words, drafter: str, item: str | None) -> None:
        session, verdict = step.session, step.verdict
        first = step.prefill or session not in self._requests
        if first:
            prompt = session.tokens[: session.prompt_length]
            self._requests[session] = _Request(self._count, words.transcript((), prompt))
            self._count += 1
        request = self._requests[session]
        before = len(session.tokens) - len(verdict.tokens)
        anchor = session.tokens[before - 1]
        if first:  # what was said before somebody watched
            request.transcript.follow(session.tokens[:before], session.prompt_length)
        known = len(request.transcript.pieces)
        request.transcript.follow(session.tokens, session.prompt_length)
        line: dict[str, Any] = {"request": request.number, "step": request.steps, "prefill": step.prefill}
        if first:
            seed = session.rule.seed if session.rule.temperature else None
            line |= {"drafter": drafter, "item": item, "seed": seed, "prompt_tokens": len(prompt), "prompt": _end(words, prompt)}
        line |= {
            "context": before,
            "batch": step.batch,
            "anchor": [anchor, self._name(words, anchor)],
            "proposed": step.proposed,
            "budget": [step.budget.nodes, step.budget.depth] if step.budget else None,
            "draft": self._draft(step, words),
            "path": list(verdict.path),
            "emitted": list(verdict.tokens),
            "pieces": request.transcript.pieces[known:],
            "finish": verdict.finish,
            "seconds": {phase: round(seconds, 6) for phase, seconds in asdict(step.times).items()},
        }
        request.steps += 1
        self._write(line)

    def _draft(self, step: Step, words: Words) -> dict[str, Any]:
        draft = step.draft
        token = draft.token.tolist()
        return {
            "token": token,
            "text": [self._name(words, one) for one in token],
            "parent": draft.parent.tolist(),
            "prob": [round(prob, 4) for prob in draft.prob.tolist()],
            "source": list(draft.source),
            "probe": draft.probe.nonzero()[0].tolist(),
        }

    def _name(self, words: Words, token: int) -> str:
        if token not in self._names:
            self._names[token] = words.token(token)
        return self._names[token]

    def _write(self, line: Mapping[str, Any]) -> None:
        if self._file is None:
            raise RuntimeError("a trace takes steps after begin()")
        self._file.write(json.dumps(line, ensure_ascii=False, separators=(",", ":")) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Trace:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _end(words: Words, prompt: Sequence[int]) -> str:
    """The end of the prompt's text. A character has at most a few tokens, so no more ids than characters are read."""
    return words.decode(prompt[-PROMPT:])[-PROMPT:]


def _is_trace(path: Path) -> bool:
    with path.open(encoding="utf-8", errors="replace") as file:
        return file.readline(200).startswith(f'{{"{MARK}":')


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
