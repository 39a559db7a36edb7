"""What `_sample` returns: sequences with padding behind rows that ended early, and all else that was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation.utils import GenerateDecoderOnlyOutput

from echodraft.core.backend import Request
from echodraft.core.draft import Draft
from echodraft.integrations.hf_generate_cache import fill
from echodraft.integrations.hf_generate_call import CACHES, Call
from echodraft.integrations.hf_generate_rows import Row


def result(backend: Any, rows: Sequence[Row], call: Call) -> Any:
    """Sequences [rows, columns], or a `GenerateDecoderOnlyOutput`; the cache is filled where anyone will look at it."""
    longest = max(len(row.session.output) for row in rows)
    output = torch.full((len(rows), longest), call.pad, device=call.input_ids.device)
    for row in rows:
        output[row.index, : len(row.session.output)] = torch.tensor(row.session.output)
    sequences = torch.cat([call.input_ids, output], dim=1)
    if call.wants_cache:
        for row in rows:
            _run_on(backend, row, call.pad, longest - len(row.session.output))
        fill(backend, rows, call.cache)
    if not call.returns:
        return sequences
    name = next(name for name in CACHES if name in GenerateDecoderOnlyOutput.__dataclass_fields__)
    logits, scores = [row.sampler.logits for row in rows], [row.sampler.scores for row in rows]
    return GenerateDecoderOnlyOutput(sequences=sequences, logits=_by_step(logits), scores=_by_step(scores), **{name: call.cache})


def _by_step(rows: Sequence[Any]) -> tuple[Tensor, ...] | None:
    """Kept rows [1, vocab] as `generate` returns them: one tensor [rows, vocab] a token."""
    return None if rows[0] is None else tuple(torch.cat(step) for step in zip(*rows, strict=True))


def _run_on(backend: Any, row: Row, pad: int, n: int) -> None:
    """Feed a finished row what `generate` feeds it while others go on: its last token, then `pad`, n tokens in all.

    Its cache and its scores go on with it. Nothing is decided here, and nothing depends on it but what is returned.
    """
    tokens = [*row.session.tokens, *[pad] * (n - 1)]
    at = len(row.session.tokens)  # tokens before the next scores
    while n > 0:
        more = max(0, min(n - 1, backend.room(row.session.slot, at)))
        scores = backend.score([Request(row.session.slot, [tokens[at - 1]], Draft.chain(tokens[at : at + more]))], frozenset())[0]
        backend.commit(row.session.slot, range(more))
        if row.sampler.keeps:
            for i in range(more + 1):
                row.sampler.values(scores, i, tokens[: at + i])
        at, n = at + more + 1, n - more - 1
