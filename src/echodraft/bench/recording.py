"""Recorded trajectories: what a model said to every prompt of a suite, with what it computed on the way, in a folder.

manifest.json          model, dtype, vocab_size, context, eos, width (0 without hidden states), layers, top, suite, settings, what ran where
requests.jsonl         one line a finished request, written when its arrays are on disk
000000.safetensors, …  the arrays of one request:
    prompt      int32 [n]
    output      int32 [m]
    top         int32 [m, 8], the best ids of the rows that predicted the output, best first
    hidden      float16 [n + m - 1 - k, width], final-norm states at tokens k … n + m - 2 (the last one was never fed)
    hidden.<l>  the same behind l decoder layers, where asked for
A conversation's shared prefix is stored once: `prefix` of a line names the earlier file that holds the first k states.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from echodraft.backends.replay import ReplayBackend, Trajectory
from echodraft.bench.rounding import dtype_of
from echodraft.bench.suites import Item
from echodraft.core.backend import Backend, Need, Request
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.errors import EchodraftError, UsageError

VERSION = 1
TOP = 8
"""Best ids that are kept of a row."""
MANIFEST, LINES, UNFINISHED = "manifest.json", "requests.jsonl", ".unfinished"
FREE = ("limit", "drafter")
"""Settings that may change when a recording goes on: they change no output."""
SHARED = 32
"""Tokens; shorter beginnings that two requests have in common are stored twice."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of requests.jsonl. `prefix`: {"file", "tokens"} of the states that are stored with an earlier request, or None."""

    id: str
    category: str
    prompt_tokens: int
    output_tokens: int
    finish: str
    file: str
    prefix: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    max_new_tokens: int | None = None


class Recording:
    """A recording that is read. Raises `UsageError` where the folder holds none.

    It may still grow: what is there when it is opened counts.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            self.manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
            self.entries = read_entries(folder / LINES)
            version, self.vocab_size, self.width = (int(self.manifest[key]) for key in ("version", "vocab_size", "width"))
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise UsageError(f"{folder} holds no recording that can be read ({error}). Make one with: echodraft record.") from error
        if version != VERSION:
            raise UsageError(f"{folder} is a recording of version {version}, this is for {VERSION}. Record again.")
        self._by_file = {entry.file: entry for entry in self.entries}

    @property
    def top(self) -> int:
        """Best ids that were kept of a row."""
        return int(self.manifest.get("top", TOP))

    @property
    def context(self) -> int | None:
        """The model's context in tokens, where it was written down."""
        return self.manifest.get("context")

    def most(self, entry: Entry) -> int | None:
        """The most output tokens that were asked for."""
        return entry.max_new_tokens or self.manifest.get("settings", {}).get("max_new_tokens")

    def trajectory(self, entry: Entry) -> Trajectory:
        """Ids and best ids of a request; its hidden states are read when they are asked for. Raises `EchodraftError`."""
        with self._arrays(entry.file) as held:
            prompt, output, top = (held.get_tensor(name) for name in ("prompt", "output", "top"))
        return Trajectory(prompt.tolist(), output.tolist(), top, partial(self.hidden, entry) if self.width else None)

    def hidden(self, entry: Entry, layer: str = "norm") -> NDArray[np.float16]:
        """Hidden states of all fed tokens of a request, float16 [prompt + output - 1, width]."""
        name = "hidden" if layer == "norm" else f"hidden.{layer}"
        parts: list[NDArray[np.float16]] = []
        below = entry.prompt_tokens + entry.output_tokens - 1
        while True:  # back through the requests that hold the beginning
            shared = int(entry.prefix["tokens"]) if entry.prefix else 0
            if shared < below:
                with self._arrays(entry.file) as held:
                    parts.append(held.get_slice(name)[: below - shared])
                below = shared
            if not entry.prefix:
                return np.concatenate(parts[::-1])
            entry = self._by_file[entry.prefix["file"]]

    def _arrays(self, file: str) -> Any:
        try:
            return safe_open(self.folder / file, framework="np")
        except (OSError, SafetensorError) as error:
            raise EchodraftError(f"{self.folder / file} cannot be read ({error}). Record again.") from error

    def backend(self, trajectories: Sequence[Trajectory]) -> ReplayBackend:
        """The recorded model, for these requests."""
        return ReplayBackend(trajectories, self.vocab_size, self.context)


def read_entries(path: Path) -> list[Entry]:
    """The complete lines of a requests.jsonl: a kill, or a recording that goes on, may leave half a line at its end."""
    entries, known = [], {field.name for field in fields(Entry)}
    for line in path.read_text(encoding="utf-8").splitlines() if path.exists() else []:
        try:
            held = json.loads(line)
        except ValueError:
            break
        entries.append(Entry(**{key: value for key, value in held.items() if key in known}))
    return entries


class Writer:
    """A recording that is made. What is in it is never changed; with `resume` it goes on where it ended.

    Raises `UsageError` for a folder that holds another recording, or one that is not to be continued.
    """

    def __init__(self, folder: Path, manifest: Mapping[str, Any], resume: bool) -> None:
        self.folder, self.entries = folder, read_entries(folder / LINES)
        self._layers = [str(layer) for layer in manifest["layers"]] if manifest["width"] else []
        self._fed: list[NDArray[np.int32]] = []
        if (folder / MANIFEST).exists():
            if not resume:
                raise UsageError(f"{folder} holds a recording already. Continue it with --resume or name another folder with --out.")
            self._check(manifest)
            reading = Recording(folder)
            for entry in self.entries:
                trajectory = reading.trajectory(entry)
                self._fed.append(np.asarray([*trajectory.prompt, *trajectory.output][:-1], dtype=np.int32))
        else:
            folder.mkdir(parents=True, exist_ok=True)
            _write(folder / MANIFEST, json.dumps(manifest, indent=1) + "\n")
        _write(folder / LINES, "".join(_line(entry) for entry in self.entries))

    def _check(self, manifest: Mapping[str, Any]) -> None:
        before = json.loads((self.folder / MANIFEST).read_text(encoding="utf-8"))
        for key in ("version", "model", "dtype", "vocab_size", "width", "layers", "suite"):
            if before.get(key) != manifest[key]:
                raise UsageError(f"{self.folder} was begun with another {key} ({before.get(key)}). Use the same, or another folder.")
        for key, value in manifest["settings"].items():
            if key not in FREE and before["settings"].get(key) != value:
                raise UsageError(f"{self.folder} was begun with another {key} ({before['settings'].get(key)}). Use it, or another folder.")

    def has(self, item: Item) -> bool:
        return any(entry.id == item.id for entry in self.entries)

    def add(self, item: Item, output: Sequence[int], finish: str, most: int, heard: Heard) -> Entry:
        """Keep one finished request."""
        prompt, out = np.asarray(item.ids, dtype=np.int32), np.asarray(output, dtype=np.int32)
        fed = np.concatenate([prompt, out])[:-1]
        arrays: dict[str, NDArray[Any]] = {"prompt": prompt, "output": out, "top": np.concatenate(heard.top).astype(np.int32)}
        prefix = None
        if self._layers:
            prefix = self._shared(fed)
            states = np.concatenate(heard.hidden)[prefix["tokens"] if prefix else 0 :]
            for layer, part in zip(self._layers, np.split(states, len(self._layers), axis=1), strict=True):
                arrays["hidden" if layer == "norm" else f"hidden.{layer}"] = np.ascontiguousarray(part)
        entry = Entry(
            item.id, item.category, len(prompt), len(out), finish, f"{len(self.entries):06d}.safetensors", prefix, item.stop, most
        )
        path = self.folder / entry.file
        save_file(arrays, path.with_suffix(UNFINISHED))
        path.with_suffix(UNFINISHED).replace(path)
        with (self.folder / LINES).open("a", encoding="utf-8") as file:
            file.write(_line(entry))
        self.entries.append(entry)
        self._fed.append(fed)
        return entry

    def _shared(self, fed: NDArray[np.int32]) -> dict[str, Any] | None:
        """The earlier request that begins like this one for longest, if that is worth anything."""
        best, found = SHARED - 1, None
        for entry, before in zip(self.entries, self._fed, strict=True):
            n = min(len(fed), len(before))
            apart = np.flatnonzero(fed[:n] != before[:n])
            same = int(apart[0]) if len(apart) else n
            if same > best:
                best, found = same, {"file": entry.file, "tokens": same}
        return found


def _line(entry: Entry) -> str:
    return json.dumps(asdict(entry)) + "\n"


def _write(path: Path, text: str) -> None:
    """Write a file whole or not at all."""
    unfinished = path.with_suffix(UNFINISHED)
    unfinished.write_text(text, encoding="utf-8")
    unfinished.replace(path)


class Heard(Drafter):
    """A drafter that passes all on to another and keeps what the target computed for the tokens that were kept.

    hidden  float16 [rows, width] by step, of every token that was fed and committed
    top     int64 [emitted, k] by step
    """

    def __init__(self, inner: Drafter, hidden: bool) -> None:
        self.name, self.inner = inner.name, inner
        self.needs = inner.needs | {Need.TOP_K} | ({Need.HIDDEN} if hidden else frozenset())
        self.top_k = max(TOP, inner.top_k)
        self.hidden: list[NDArray[np.float16]] = []
        self.top: list[NDArray[np.int64]] = []

    def open(self, session: Context) -> None:
        self.hidden, self.top = [], []
        self.inner.open(session)

    def propose(self, sessions: Sequence[Context], budgets: Sequence[Budget]) -> list[Draft]:
        return self.inner.propose(sessions, budgets)

    def observe(self, steps: Sequence[Step]) -> None:
        for step in steps:
            path = list(step.verdict.path[: len(step.verdict.tokens) - 1])
            if step.hidden is not None:
                self.hidden.append(step.hidden[[*range(step.fed), *(step.fed + node for node in path)]])
            if step.top_k is not None:
                self.top.append(step.top_k[[0, *(node + 1 for node in path)], :TOP])
        self.inner.observe(steps)

    def rewind(self, session: Context, length: int) -> None:
        self.inner.rewind(session, length)

    def close(self, session: Context) -> None:
        self.inner.close(session)


def read_layers(text: str) -> tuple[str, ...]:
    """The layers of "norm,12,20": the final norm always, then numbers of decoder layers; none of "". Raises `UsageError`."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    for part in parts:
        if part != "norm" and not part.isdecimal():
            raise UsageError(f"--layers lists norm and numbers of decoder layers, such as norm,12; not '{part}'.")
    return tuple(dict.fromkeys(["norm", *parts])) if parts else ()


def describe(decoder: Decoder, suite: str, layers: Sequence[str], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The part of a manifest that says whose trajectories these are; the backend is told to show the `layers`, norm first.

    No layers: no hidden states. Raises `UsageError` for layers that the backend does not show.
    """
    backend, also = decoder.engine.backend, [int(layer) for layer in layers[1:]]
    if Need.HIDDEN not in backend.offers and layers:
        raise UsageError("This backend offers no hidden states. Record with --no-hidden.")
    if also and not hasattr(backend, "show"):
        raise UsageError(f"{type(backend).__name__} shows the final norm only. Record with --layers norm.")
    if also:
        backend.show(also)  # type: ignore[attr-defined]
    return {
        "version": VERSION,
        "model": decoder.name,
        "dtype": dtype_of(backend),
        "vocab_size": backend.vocab_size,
        "context": backend.context,
        "eos": sorted(decoder.text.eos),
        "width": _width(backend) // len(layers) if layers else 0,
        "layers": list(layers),
        "top": min(TOP, backend.vocab_size),
        "suite": suite,
        "settings": dict(settings),
    }


def _width(backend: Backend) -> int:
    """Numbers in what the backend gives as the hidden states of one token."""
    slot = backend.open()
    try:
        return int(backend.score([Request(slot, [0])], frozenset({Need.HIDDEN}))[0].hidden().shape[1])
    finally:
        backend.close(slot)


def record(
    items: Sequence[Item], decoder: Decoder, writer: Writer, most: int, hidden: bool, told: Callable[[Entry], None] = lambda _: None
) -> None:
    """Answer the items that the recording lacks, greedily, and keep what was said and computed; `told` hears of each."""
    engine = decoder.engine
    heard = Heard(engine.drafter, hidden)
    listening = Decoder(Engine(engine.backend, heard, engine.policy), decoder.text, decoder.name, decoder.memory)
    for item in items:
        if not writer.has(item):
            answer = listening.generate(item.ids, max_new_tokens=most, stop=item.stop)
            told(writer.add(item, answer.ids, str(answer.finish_reason), most, heard))
