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
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from echodraft.backends.replay import ReplayBackend, Trajectory
from echodraft.bench.suites import Item
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
    """A line of requests.jsonl.

    prefix          {"file", "tokens"}: the states of so many first tokens are stored with an earlier request; or None
    max_new_tokens  what was asked for, None = the same for all, in the settings of the manifest
    text            of the output
    """

    id: str
    category: str
    prompt_tokens: int
    output_tokens: int
    finish: str
    file: str
    prefix: dict[str, Any] | None = None
    stop: tuple[str, ...] = ()
    max_new_tokens: int | None = None
    text: str = ""


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

    def trajectory(self, entry: Entry, layer: str = "norm") -> Trajectory:
        """Ids and best ids of a request; hidden states, of this layer, are read when they are asked for. Raises `EchodraftError`."""
        with self._arrays(entry.file) as held:
            prompt, output, top = (held.get_tensor(name) for name in ("prompt", "output", "top"))
        return Trajectory(prompt.tolist(), output.tolist(), top, partial(self.hidden, entry, layer) if self.width else None)

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
        self._by_id = {entry.id: entry for entry in self.entries}
        self.layers = [str(layer) for layer in manifest["layers"]] if manifest["width"] else []
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
        keys = ("version", "model", "dtype", "vocab_size", "width", "layers", "suite")
        compared = {key: (before.get(key), manifest[key]) for key in keys}
        compared |= {key: (before["settings"].get(key), value) for key, value in manifest["settings"].items() if key not in FREE}
        for key, (old, new) in compared.items():
            if old != new:
                raise UsageError(f"{self.folder} was begun with another {key} ({old}, now {new}). Use the same, or another folder.")

    def find(self, id_: str) -> Entry | None:
        """The request of this id if it is finished."""
        return self._by_id.get(id_)

    def add(
        self, item: Item, output: Sequence[int], finish: str, most: int, text: str, top: NDArray[Any], hidden: NDArray[np.float16] | None
    ) -> Entry:
        """Keep one finished request. `top` [m, k]; `hidden` [n + m - 1, layers x width], the layers side by side."""
        prompt, out = np.asarray(item.ids, dtype=np.int32), np.asarray(output, dtype=np.int32)
        fed = np.concatenate([prompt, out])[:-1]
        arrays: dict[str, NDArray[Any]] = {"prompt": prompt, "output": out, "top": top.astype(np.int32)}
        prefix = None
        if hidden is not None:
            prefix = self._shared(fed)
            states = hidden[prefix["tokens"] if prefix else 0 :]
            for layer, part in zip(self.layers, np.split(states, len(self.layers), axis=1), strict=True):
                arrays["hidden" if layer == "norm" else f"hidden.{layer}"] = np.ascontiguousarray(part)
        name = f"{len(self.entries):06d}.safetensors"
        entry = Entry(item.id, item.category, len(prompt), len(out), finish, name, prefix, item.stop, most, text)
        path = self.folder / entry.file
        save_file(arrays, path.with_suffix(UNFINISHED))
        path.with_suffix(UNFINISHED).replace(path)
        with (self.folder / LINES).open("a", encoding="utf-8") as file:
            file.write(_line(entry))
        self.entries.append(entry)
        self._by_id[entry.id] = entry
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
