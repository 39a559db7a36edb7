"""What a benchmark compares: drafters of ours, and Hugging Face's own decoding beside them, all behind one call."""

from __future__ import annotations

import json
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from echodraft.bench.state import restore, state
from echodraft.bench.suites import Item
from echodraft.build import redraft, takes
from echodraft.decoder import Decoder
from echodraft.errors import UsageError, unknown_name
from echodraft.memory import Limits, Memory
from echodraft.metrics.stats import Stats, by_depth
from echodraft.metrics.trace import Trace
from echodraft.options import read_options
from echodraft.stores.folder import Folder

PEERS = ("hf", "hf-pld", "hf-assisted")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one method made of one item. Seconds of prefill end with the first token.

    details  further fields of a `Measurement`; those that a peer does not report are missing
    """

    ids: list[int]
    prefill_seconds: float
    decode_seconds: float
    details: dict[str, Any] = field(default_factory=dict)


class Method(Protocol):
    """One way to answer."""

    def begin(self, fresh: bool) -> None:
        """A round over the suite begins from the same state as every other, or goes on after an interrupt (not `fresh`)."""
        ...

    def warm_up(self, ids: list[int], most: int) -> None:
        """Answer once for nothing: it leaves no trace."""
        ...

    def answer(self, item: Item, most: int) -> Answer:
        """The answer of at most `most` tokens."""
        ...

    def keep(self) -> None:
        """The last answer is on record: what was learned from it may be kept."""
        ...

    def close(self) -> None:
        """The run is over."""
        ...


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A method with its knobs: "name:key=value:key=value"; values are numbers, true, false or text."""
    parts = text.split(":")
    pairs = [part for part in parts if "=" in part]
    return ":".join(part for part in parts if "=" not in part), read_options(pairs)


@dataclass(frozen=True, slots=True)
class Remembering:
    """How drafters remember from request to request.

    carry   False = every request starts with an empty memory and a budget that has learned nothing
    start   a memory folder that every round starts from, for each method a copy of its own; None = empty
    folder  where memories last, for a run that may be resumed; None = as long as the run
    tenant  in whose name
    """

    carry: bool = True
    start: Path | None = None
    folder: Path | None = None
    limits: Limits = field(default_factory=Limits)
    tenant: str = ""


class Drafted:
    """A drafter of ours over the model of `base`, with a memory of its own.

    `budget` is a knob of the engine: "name:budget=8" overrides it for one. `trace` gets the steps of every measured answer. `sampling`:
    what `Decoder.stream` takes for it.
    """

    def __init__(
        self,
        base: Decoder,
        text: str,
        budget: str | int,
        remembering: Remembering,
        trace: Trace | None = None,
        sampling: Mapping[str, Any] | None = None,
    ) -> None:
        self.base, self.remembering, self.trace, self.method, self.sampling = base, remembering, trace, text, sampling or {}
        self.name, self.knobs = parse(text)
        self.budget = self.knobs.pop("budget", budget) if self.name != "none" else 0
        self._files = re.sub(r"[^a-z0-9.=-]+", "-", text.lower())
        self._stay: tempfile.TemporaryDirectory[str] | None = None
        self.memory = Memory()
        self.decoder = self._make(None)  # a wrong name or knob is told at once

    def _make(self, memory: Memory | None) -> Decoder:
        return redraft(self.base, self.name, self.knobs, self.budget, memory)

    @property
    def _folder(self) -> Path | None:
        """Where the memory lies, if files are needed."""
        if not takes(self.name, "memory") or not self.remembering.carry:
            return None
        if self.remembering.folder is not None:
            return self.remembering.folder / self._files
        if self.remembering.start is None:
            return None
        if self._stay is None:
            self._stay = tempfile.TemporaryDirectory(prefix="echodraft-")
        return Path(self._stay.name) / self._files

    @property
    def _learned(self) -> Path | None:
        """What the budget has learned."""
        folder = self.remembering.folder
        return folder / f"{self._files}.json" if folder is not None and self.remembering.carry else None

    def begin(self, fresh: bool) -> None:
        self._release()
        folder, start = self._folder, self.remembering.start
        if folder is not None and (fresh or not folder.exists()):
            shutil.rmtree(folder, ignore_errors=True)
            if start is not None:
                _copy(start, self.remembering.tenant, folder)
        self.memory = Memory(folder, self.remembering.limits)
        if self.memory.folder is not None:
            self.memory.folder.must_write()
        self.decoder = self._make(self.memory)
        if self._learned is not None and not fresh and self._learned.exists():
            restore(self.decoder.engine.policy, json.loads(self._learned.read_text(encoding="utf-8")))

    def warm_up(self, ids: list[int], most: int) -> None:
        self._make(Memory()).generate(ids, max_new_tokens=most, **self.sampling)

    def answer(self, item: Item, most: int) -> Answer:
        tenant = self.remembering.tenant
        if self.trace is not None:
            self.decoder.watchers = [self.trace.watch(self.decoder.text, self.method, item.id)]
        with self.decoder.stream(item.ids, max_new_tokens=most, stop=item.stop, tenant=tenant, **self.sampling) as stream:
            pieces = list(stream)
        result, report = stream.result, self.decoder.engine.drafter.report()
        if not self.remembering.carry:
            # Some of what a drafter learns lies outside its memory.
            self.memory = Memory(limits=self.remembering.limits)
            self.decoder = self._make(self.memory)
        stats = result.stats
        details = {
            "finish": result.finish_reason,
            "sources": [(source, len(list(run))) for source, run in groupby(piece.source for piece in pieces)],
            "pieces": [piece.text for piece in pieces] if self.decoder.text.tokenizer is not None else [],
            "report": report,
            **counts(stats),
        }
        return Answer(result.ids, stats.prefill_seconds, stats.decode_seconds, details)

    def keep(self) -> None:
        if self.remembering.folder is None or not self.remembering.carry:
            return
        self.memory.save()
        if self._learned is not None:
            self._learned.parent.mkdir(parents=True, exist_ok=True)
            beside = self._learned.with_suffix(".unfinished")
            beside.write_text(json.dumps(state(self.decoder.engine.policy)), encoding="utf-8")
            beside.replace(self._learned)

    def close(self) -> None:
        self._release()
        if self._stay is not None:
            self._stay.cleanup()

    def _release(self) -> None:
        """Let go of the files."""
        if self.memory.folder is not None:
            self.memory.folder.close()


def _copy(start: Path, tenant: str, folder: Path) -> None:
    """Files of one tenant from a folder of a memory into another, private ones."""
    held = Folder(start, write=False).file(tenant, "").parent
    copy = folder / held.name
    copy.mkdir(parents=True, mode=0o700)
    for file in held.glob("*.safetensors"):
        shutil.copyfile(file, copy / file.name)
        (copy / file.name).chmod(0o600)


def counts(stats: Stats) -> dict[str, Any]:
    """Statistics as fields of a `Measurement`."""
    return {
        **{key: getattr(stats, key) for key in ("steps", "drafted", "verified", "accepted", "probes")},
        "histogram": {str(n): stats.histogram[n] for n in sorted(stats.histogram)},
        "by_source": dict(sorted(stats.by_source.items())),
        "reached": by_depth(stats.reached),
        "kept": by_depth(stats.kept),
        "seconds": {name: getattr(stats, f"{name}_seconds") for name in ("prefill", "propose", "score", "accept", "commit")},
    }


class Peer:
    """Hugging Face's `generate` on the same weights: hf, hf-pld[:tokens=10:ngram=2], hf-assisted.

    `packed=true` lends it our linear kernels, and the assistant's: an int8 draft model is int8 for hf-assisted too.
    Stops are the item's own; what a peer emits beyond the stopping token is cut off and not counted.
    """

    def __init__(self, base: Decoder, text: str) -> None:
        name, knobs = parse(text)
        if name not in PEERS:
            raise unknown_name("peer", name, PEERS)
        from echodraft.integrations.hf_peers import HuggingFace

        model = getattr(base.engine.backend, "model", None)
        if model is None:
            raise UsageError("Peers need a Hugging Face model. Leave out --peers for the toy backend.")
        assistant = None if base.draft is None else base.draft.engine.backend.model  # type: ignore[attr-defined]
        if name == "hf-assisted" and assistant is None:
            raise UsageError("hf-assisted needs a draft model. Name one with --draft-model.")
        if name == "hf-assisted" and base.draft is not None and not base.text.same_ids(base.draft.text):
            raise UsageError("hf-assisted needs a draft model with the model's own tokenizer. Leave it out of --peers.")
        lenders = [base, base.draft] if knobs.pop("packed", False) else []
        kernels = [getattr(lender.engine.backend, "packed", None) for lender in lenders if lender is not None]
        packed = [each for each in kernels if each is not None]
        self.base, self.peer = base, HuggingFace(model, base.text.tokenizer, packed, name, knobs, assistant)

    def begin(self, fresh: bool) -> None:
        pass

    def warm_up(self, ids: list[int], most: int) -> None:
        self.peer.generate(ids, most, (), sorted(self.base.text.eos))

    def answer(self, item: Item, most: int) -> Answer:
        ids, prefill, decode = self.peer.generate(item.ids, most, item.stop, sorted(self.base.text.eos))
        ids, finish, pieces = cut(self.base, item, ids, most)
        return Answer(ids, prefill, decode, {"finish": finish, "pieces": pieces})

    def keep(self) -> None:
        pass

    def close(self) -> None:
        pass


def cut(base: Decoder, item: Item, ids: Sequence[int], most: int) -> tuple[list[int], str | None, list[str]]:
    """`ids` up to the token at which our own engine would have stopped, why it ended there, and the text of each token."""
    transcript = base.text.transcript(item.stop, item.ids)
    finish, kept = None, list(ids[:most])
    for i, token in enumerate(kept):
        transcript.follow(kept[: i + 1], 0)
        finish = "eos" if token in base.text.eos else "stop" if transcript.stopped else "length" if i + 1 == most else None
        if finish is not None:
            kept = kept[: i + 1]
            break
    return kept, finish, transcript.pieces if base.text.tokenizer is not None else []
