"""One call of `generate` twice: as Hugging Face runs it, and with our loop in it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

import echodraft
from echodraft.integrations.hf_generate import Loop
from models import DEVICE, prompt
from oracle import Oracle

Options = Callable[[], dict[str, Any]]


def batch(*lengths: int, seed: int = 0) -> dict[str, Tensor]:
    """Random prompts of these lengths, padded on the left; the padding's ids are ordinary ones."""
    width = max(lengths)
    ids = [prompt(width - n, seed + 50) + prompt(n, seed) if n < width else prompt(n, seed) for n in lengths]
    mask = [[0] * (width - n) + [1] * n for n in lengths]
    return {"input_ids": torch.tensor(ids, device=DEVICE), "attention_mask": torch.tensor(mask, device=DEVICE)}


def oracle(sequences: Tensor, mask: Tensor, kind: str = "right", k: int = 4) -> Loop:
    """A loop whose drafts are what is known to come, with an error of `kind`."""
    padding = (mask == 0).sum(dim=1).tolist()
    known = [row[n:].tolist() for row, n in zip(sequences, padding, strict=True)]
    return echodraft.custom_generate(Oracle(kind, known, k), budget=400)


def longest_block(loop: Loop) -> int:
    return max(loop.stats.histogram, default=0)


def both(
    model: Any,
    inputs: dict[str, Tensor],
    options: Options | dict[str, Any],
    *,
    kind: str = "right",
    k: int = 4,
    seed: int | None = None,
    known: Tensor | None = None,
    at_least: int = 3,
) -> tuple[Any, Any, Loop]:
    """What `generate` returns, what it returns with drafts, and the loop. Equal sequences, by drafts that were accepted in blocks.

    options   arguments, or a function that makes them anew where they keep state
    known     what the oracle drafts; by default what `generate` returned
    at_least  the longest accepted block must be this long
    """
    make = options if callable(options) else lambda: options
    sampled = {"do_sample": seed is not None}
    torch.manual_seed(seed or 0)
    expected = model.generate(**inputs, **(sampled | make()))
    state = torch.get_rng_state()
    sequences = sequences_of(expected)
    copies = len(sequences) // len(inputs["attention_mask"])
    loop = oracle(sequences if known is None else known, inputs["attention_mask"].repeat_interleave(copies, 0), kind, k)
    torch.manual_seed(seed or 0)
    found = model.generate(**inputs, **(sampled | make()), custom_generate=loop)
    assert sequences_of(found).tolist() == sequences.tolist()
    assert sequences_of(found).dtype == sequences.dtype
    assert loop.plain is None
    assert longest_block(loop) >= at_least
    if len(sequences) == 1:
        assert torch.equal(torch.get_rng_state(), state)
    return expected, found, loop


def sequences_of(out: Any) -> Tensor:
    return out if isinstance(out, Tensor) else out.sequences


def cache_in(out: Any) -> Any:
    """The cache of a returned dict, by whichever name."""
    return out["cache"] if "cache" in out else out["past_key_values"]


def same_rows(left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
    """Scores or logits, token by token."""
    return len(left) == len(right) and all(
        a.shape == b.shape and a.dtype == b.dtype and torch.allclose(a, b, rtol=0, atol=1e-5) for a, b in zip(left, right, strict=True)
    )
