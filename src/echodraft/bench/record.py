"""Making a recording: a model answers a suite, and what it computed on the way is kept."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.bench.recording import TOP, VERSION, Entry, Writer
from echodraft.bench.rounding import dtype_of
from echodraft.bench.suites import Item
from echodraft.core.backend import Backend, Need, Request
from echodraft.core.budget import Budget
from echodraft.core.draft import Draft
from echodraft.core.drafter import Context, Drafter
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.errors import UsageError


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

    def price(self, session: Context) -> float:
        return self.inner.price(session)

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


def describe(decoder: Decoder, suite: str, layers: Sequence[str]) -> dict[str, Any]:
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
    }


def _width(backend: Backend) -> int:
    """Numbers in what the backend gives as the hidden states of one token."""
    slot = backend.open()
    try:
        return int(backend.score([Request(slot, [0])], frozenset({Need.HIDDEN}))[0].hidden().shape[1])
    finally:
        backend.close(slot)


def record(
    items: Sequence[Item],
    decoder: Decoder,
    writer: Writer,
    most: Callable[[Item], int],
    told: Callable[[Entry], None] = lambda _: None,
) -> list[str]:
    """Answer the items that the recording lacks, greedily, and keep what was said and computed; `told` hears of each.

    `most` says how many tokens an item may have. A later turn's prompt holds the recorded answers to the earlier ones.

    Returns the ids of items that were left out since their prompts leave no room in the model's context.
    """
    engine, too_long = decoder.engine, []
    if len(writer.layers) > 1 and Need.HIDDEN in engine.drafter.needs:
        raise UsageError(f"Drafter '{engine.drafter.name}' reads the final norm and would get more. Record layers with another drafter.")
    heard = Heard(engine.drafter, bool(writer.layers))
    listening = Decoder(Engine(engine.backend, heard, engine.policy), decoder.text, decoder.name, decoder.memory)
    for item in items:
        if writer.find(item.id) is not None:
            continue
        if item.turns:
            earlier = [writer.find(id_) for id_ in item.earlier]
            item = item if None in earlier else item.after([entry.text for entry in earlier if entry is not None], decoder.text)
        if not item.ids or (engine.backend.context is not None and len(item.ids) >= engine.backend.context):
            too_long.append(item.id)
            continue
        answer = listening.generate(item.ids, max_new_tokens=most(item), stop=item.stop)
        hidden = np.concatenate(heard.hidden) if writer.layers else None
        top = np.concatenate(heard.top)
        told(writer.add(item, answer.ids, str(answer.finish_reason), most(item), answer.text, top, hidden))
    return too_long
