"""What a benchmark compares: drafters of ours, and Hugging Face's own decoding beside them, all behind one call."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from echodraft.bench.suites import Item
from echodraft.build import redraft
from echodraft.decoder import Decoder
from echodraft.errors import UsageError, unknown_name
from echodraft.options import read_options

PEERS = ("hf", "hf-pld", "hf-assisted")


@dataclass(frozen=True, slots=True)
class Answer:
    """What one method made of one item. Seconds of prefill end with the first token.

    The counts of a peer are zero: it does not report them.
    """

    ids: list[int]
    prefill_seconds: float
    decode_seconds: float
    counts: dict[str, int] = field(default_factory=dict)


Method = Callable[[Item, int], Answer]
"""(item, max new tokens) -> answer"""


def parse(text: str) -> tuple[str, dict[str, Any]]:
    """A method with its knobs: "name:key=value:key=value"; values are numbers, true, false or text."""
    parts = text.split(":")
    pairs = [part for part in parts if "=" in part]
    return ":".join(part for part in parts if "=" not in part), read_options(pairs)


def drafter_method(base: Decoder, text: str, budget: str | int) -> Method:
    """A drafter of ours over the model of `base`. `budget` is a knob of the engine: "name:budget=8" overrides it for one."""
    name, knobs = parse(text)
    own = knobs.pop("budget", budget)
    decoder = redraft(base, name, knobs, 0 if name == "none" else own)

    def method(item: Item, most: int) -> Answer:
        result = decoder.generate(item.ids, max_new_tokens=most, stop=item.stop)
        stats = result.stats
        counts = {key: getattr(stats, key) for key in ("steps", "drafted", "verified", "accepted")}
        return Answer(result.ids, stats.prefill_seconds, stats.decode_seconds, counts)

    return method


def peer_method(base: Decoder, text: str, draft_model: str | None) -> Method:
    """Hugging Face's `generate` on the same weights: hf, hf-pld[:tokens=10:ngram=2], hf-assisted.

    `packed=true` lends it our linear kernels.
    Stops are the item's own; what a peer emits beyond the stopping token is cut off and not counted.
    """
    name, knobs = parse(text)
    if name not in PEERS:
        raise unknown_name("peer", name, PEERS)
    from echodraft.integrations.hf_peers import Peer

    model = getattr(base.engine.backend, "model", None)
    if model is None:
        raise UsageError("Peers need a Hugging Face model. Leave out --peers for the toy backend.")
    if name == "hf-assisted" and draft_model is None:
        raise UsageError("hf-assisted needs a draft model. Name one with --draft-model.")
    packed = base.engine.backend.packed if knobs.pop("packed", False) else None  # type: ignore[attr-defined]
    peer = Peer(model, base.text.tokenizer, packed, name, knobs, draft_model)

    def method(item: Item, most: int) -> Answer:
        ids, prefill, decode = peer.generate(item.ids, most, item.stop, sorted(base.text.eos))
        return Answer(cut(base, item, ids, most), prefill, decode)

    return method


def cut(base: Decoder, item: Item, ids: Sequence[int], most: int) -> list[int]:
    """`ids` up to the token at which our own engine would have stopped."""
    transcript = base.text.transcript(item.stop, [])
    for i, token in enumerate(ids[:most]):
        transcript.follow(ids[: i + 1], 0)
        if token in base.text.eos or transcript.stopped:
            return list(ids[: i + 1])
    return list(ids[:most])
