"""What the engine costs beside `model.generate` and a bare `model.forward`, and what a batch brings. Interleaved; medians.

    python benchmarks/overhead.py MODEL [--contexts 200,4000] [--rounds 5] [--tokens 16] [--rows 1,9] [--json FILE]

generate   Hugging Face `generate` from a filled `DynamicCache`, milliseconds a token
none       `Engine.step` without drafts, milliseconds a token
forward n  bare `model.forward` of n tokens on a `DynamicCache`, argmax included, as loaded from disk
step n     `Engine.step` with a draft of n - 1 nodes, all phases
bare n     the same forward as in the step (packed weights, tree cache), without the engine around it; paired with step n
batch      tokens a second of 4 ragged sessions in one batch, and of the same one after another
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any

import torch
from transformers import DynamicCache

import echodraft
from echodraft.bench.result import processor, threads
from echodraft.core.backend import Request
from echodraft.core.budget import Fixed
from echodraft.core.draft import Draft
from echodraft.core.drafter import Drafter
from echodraft.core.engine import Engine


class Rubbish(Drafter):
    """Always drafts a chain of the same wrong token."""

    def propose(self, sessions: Any, budgets: Any) -> list[Draft]:
        return [Draft.chain([7] * budget.nodes) for budget in budgets]


def copied(backend: Any, row: int, length: int, config: Any) -> DynamicCache:
    """The first `length` cached columns of a row as Hugging Face's own cache."""
    cache = DynamicCache(config=config)
    for layer, own in zip(cache.layers, backend._cache.layers, strict=True):
        layer.update(own.keys[row : row + 1, :, :length].clone(), own.values[row : row + 1, :, :length].clone())
    return cache


def interleaved(parts: dict[str, Callable[[], float]], rounds: int) -> dict[str, float]:
    """Median of what each part returns, over rounds in which all take their turn; the first round warms up."""
    found: dict[str, list[float]] = {name: [] for name in parts}
    for round_ in range(rounds + 1):
        # Back and forth, so that none always runs behind the same other.
        for name, part in list(parts.items())[:: 1 if round_ % 2 else -1]:
            value = part()
            if round_:
                found[name].append(value)
    return {name: median(values) for name, values in found.items()}


def at_context(decoder: echodraft.Decoder, context: int, tokens: int, rows: list[int], rounds: int) -> dict[str, float]:
    backend: Any = decoder.engine.backend
    model = backend.model
    prompt = torch.randint(1000, 40000, (context,), generator=torch.Generator().manual_seed(0)).tolist()
    plain = Engine(backend, Rubbish(), Fixed(0))
    session = plain.open(prompt)
    plain.step()
    # The cache holds the prompt, the anchor is pending.
    filled = copied(backend, backend._slots[session.slot].row, context, model.config)
    anchor = session.tokens[-1:]

    def generate() -> float:
        cache = copied(backend, backend._slots[session.slot].row, context, model.config)
        ids = torch.tensor([[*prompt, *anchor]])
        start = perf_counter()
        model.generate(ids, cache=cache, max_new_tokens=tokens, min_new_tokens=tokens, do_sample=False, pad_token_id=0)
        return 1e3 * (perf_counter() - start) / tokens

    def none() -> float:
        start = perf_counter()
        for _ in range(tokens):
            plain.step([session])
        seconds = perf_counter() - start
        plain.rewind(session, context + 1)
        return 1e3 * seconds / tokens

    def forward(n: int) -> float:
        with torch.inference_mode():
            start = perf_counter()
            out = model(torch.tensor([[*anchor, *[7] * (n - 1)]]), cache=filled, use_cache=True)
            out.logits.argmax(-1).tolist()
            seconds = perf_counter() - start
        filled.crop(-n)
        return 1e3 * seconds

    def step(n: int) -> float:
        engine.policy = Fixed(n - 1)
        start = perf_counter()
        engine.step([session])
        seconds = perf_counter() - start
        engine.rewind(session, context + 1)
        return 1e3 * seconds

    def bare(n: int) -> float:
        requests = [Request(session.slot, anchor, Draft.chain([7] * (n - 1)))]
        start = perf_counter()
        backend.score(requests, frozenset())[0].argmax()
        return 1e3 * (perf_counter() - start)

    engine = Engine(backend, Rubbish(), Fixed(0))
    found = interleaved({"generate": generate, "none": none}, rounds)
    for n in rows:
        found |= interleaved({f"forward {n}": lambda n=n: forward(n), f"step {n}": lambda n=n: step(n)}, rounds)
        # Pairs of their own: what runs behind the unpacked weights of `forward` finds cold caches.
        found |= interleaved({f"step {n}, paired": lambda n=n: step(n), f"bare {n}, paired": lambda n=n: bare(n)}, 3 * rounds)
    plain.close(session)
    return found


def batch(decoder: echodraft.Decoder, tokens: int, rounds: int) -> dict[str, float]:
    """Tokens a second of four prompts of different length, as one batch and one after another; prefill not counted."""
    engine = Engine(decoder.engine.backend, Rubbish(), Fixed(0))
    sessions = [engine.open(torch.randint(1000, 40000, (n,)).tolist()) for n in (40, 80, 120, 160)]
    engine.step()

    def together() -> float:
        start = perf_counter()
        for _ in range(tokens):
            engine.step()
        return 4 * tokens / (perf_counter() - start)

    def alone() -> float:
        start = perf_counter()
        for session in sessions:
            for _ in range(tokens):
                engine.step([session])
        return 4 * tokens / (perf_counter() - start)

    return interleaved({"batch of 4": together, "one after another": alone}, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--contexts", default="200,4000")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=16)
    parser.add_argument("--rows", default="1,9")
    parser.add_argument("--json", type=Path)
    asked = parser.parse_args()
    decoder = echodraft.load(asked.model, drafter="none")
    held = decoder.engine.backend
    result: dict[str, Any] = {
        "command": f"python benchmarks/overhead.py {Path(asked.model).name} --contexts {asked.contexts} --rounds {asked.rounds}",
        "model": Path(asked.model).name,
        "dtype": str(held.model.dtype),  # type: ignore[attr-defined]
        "machine": f"{processor()}, {threads()} threads",
        "torch": torch.__version__,
    }
    print(result, flush=True)
    for context in map(int, asked.contexts.split(",")):
        result[f"context {context}"] = at_context(decoder, context, asked.tokens, [int(n) for n in asked.rows.split(",")], asked.rounds)
        print(context, {k: round(v, 2) for k, v in result[f"context {context}"].items()}, flush=True)
    result["throughput"] = batch(decoder, asked.tokens, asked.rounds)
    print(result["throughput"], flush=True)
    if asked.json:
        asked.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
