"""What a benchmark compares: drafters of ours, and Hugging Face's own decoding beside them, all behind one call."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, Protocol

from echodraft.bench.suites import Item
from echodraft.build import redraft, takes
from echodraft.decoder import Decoder
from echodraft.errors import UsageError, unknown_name
from echodraft.memory import Limits, Memory
from echodraft.metrics.stats import Stats, by_depth
from echodraft.options import read_options

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

    def answer(self, item: Item, most: int, warm_up: bool = False) -> Answer:
        """The answer of at most `most` tokens. A warm-up leaves nothing behind."""
        ...

    def keep(self) -> None:
        """The last answer is on record: what was learned from it may be kept."""
        ...


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A method with its knobs: "name:key=value:key=value"; values are numbers, true, false or text."""
    parts = text.split(":")
    pairs = [part for part in parts if "=" in part]
    return ":".join(part for part in parts if "=" not in part), read_options(pairs)


class Drafted:
    """A drafter of ours over the model of `base`. `budget` is a knob of the engine: "name:budget=8" overrides it for one.

    folder  where its memory lasts; None = as long as the run. Every method has its own
    carry   whether it remembers from one request to the next
    tenant  in whose name
    """

    WARM_UP = "warm-up of a benchmark"

    def __init__(
        self, base: Decoder, text: str, budget: str | int, folder: Path | None, carry: bool, limits: Limits, tenant: str = ""
    ) -> None:
        name, knobs = parse(text)
        own = knobs.pop("budget", budget)
        lasts = folder is not None and takes(name, "memory")
        self.carry, self.tenant = carry, tenant
        self.memory = Memory(folder / re.sub(r"[^a-z0-9.=-]+", "-", text.lower()) if folder and lasts else None, limits)
        if self.memory.folder is not None:
            self.memory.folder.must_write()
        self.decoder = redraft(base, name, knobs, 0 if name == "none" else own, self.memory)

    def answer(self, item: Item, most: int, warm_up: bool = False) -> Answer:
        tenant = self.WARM_UP if warm_up else self.tenant
        with self.decoder.stream(item.ids, max_new_tokens=most, stop=item.stop, tenant=tenant) as stream:
            pieces = list(stream)
        result = stream.result
        if warm_up or not self.carry:
            self.memory.forget(tenant)
        stats = result.stats
        details = {
            "finish": result.finish_reason,
            "sources": [(source, len(list(run))) for source, run in groupby(piece.source for piece in pieces)],
            "pieces": [piece.text for piece in pieces] if self.decoder.text.tokenizer is not None else [],
            **counts(stats),
        }
        return Answer(result.ids, stats.prefill_seconds, stats.decode_seconds, details)

    def keep(self) -> None:
        self.memory.save()


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

    `packed=true` lends it our linear kernels.
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
        packed = base.engine.backend.packed if knobs.pop("packed", False) else None  # type: ignore[attr-defined]
        self.base, self.peer = base, HuggingFace(model, base.text.tokenizer, packed, name, knobs, assistant)

    def answer(self, item: Item, most: int, warm_up: bool = False) -> Answer:
        ids, prefill, decode = self.peer.generate(item.ids, most, item.stop, sorted(self.base.text.eos))
        ids, finish, pieces = cut(self.base, item, ids, most)
        return Answer(ids, prefill, decode, {"finish": finish, "pieces": pieces})

    def keep(self) -> None:
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
