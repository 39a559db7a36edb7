"""One row of a batch inside `generate`: what its processors and criteria see, how its tokens are chosen, what is kept of its scores."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers import (
    EosTokenCriteria,
    LogitsProcessorList,
    MaxLengthCriteria,
    PrefixConstrainedLogitsProcessor,
    RepetitionPenaltyLogitsProcessor,
    StopStringCriteria,
)

from echodraft.core.accept import Stops
from echodraft.core.sampling import Rule, Sampler
from echodraft.core.scores import Scores
from echodraft.core.session import Session
from echodraft.integrations.hf_generate_call import Call
from echodraft.metrics.stats import Stats


class Padded:
    """The growing prefix of a row as `generate` shows it: ids [1, padding + length], the padding in front.

    Tokens are only ever added, so a tensor that was handed out stays as it was.
    """

    def __init__(self, ids: Tensor, padding: int) -> None:
        self._buffer = torch.empty(2 * len(ids) + 64, dtype=torch.long, device=ids.device)
        self._buffer[: len(ids)] = ids
        self._padding, self._known = padding, len(ids) - padding

    @property
    def device(self) -> torch.device:
        return self._buffer.device

    def of(self, tokens: Sequence[int]) -> Tensor:
        end = self._padding + len(tokens)
        while end > len(self._buffer):
            self._buffer = torch.cat([self._buffer, torch.empty_like(self._buffer)])
        if len(tokens) > self._known:
            self._buffer[self._padding + self._known : end] = torch.tensor(tokens[self._known :], dtype=torch.long)
            self._known = len(tokens)
        return self._buffer[None, :end]


@dataclass(slots=True, kw_only=True)
class RowSampler(Sampler):
    """Chooses as `_sample` does: processors on the padded prefix and a float32 row, then argmax or one `torch.multinomial`.

    seen       the prefix as the processors see it
    chain      the processors, in order
    draws      sample, or take the best
    generator  None = torch's own, as `generate` draws
    logits     rows [1, vocab] before the processors, and
    scores     after them, one for every token chosen; None = not kept
    """

    seen: Padded
    chain: LogitsProcessorList
    draws: bool = False
    generator: torch.Generator | None = None
    logits: list[Tensor] | None = None
    scores: list[Tensor] | None = None

    @property
    def keeps(self) -> bool:
        return self.logits is not None or self.scores is not None

    def choose(self, scores: Scores, row: int, prefix: Sequence[int]) -> int:
        if not (self.draws or self.chain or self.keeps):
            return scores.argmax()[row]
        values = self.values(scores, row, prefix)
        if self.draws:
            return int(torch.multinomial(values.softmax(dim=-1), 1, generator=self.generator))
        return int(values.argmax(dim=-1))

    def values(self, scores: Scores, row: int, prefix: Sequence[int]) -> Tensor:
        """The processed scores [1, vocab] behind `prefix`; kept, where they are to be."""
        raw = scores.row(row)[None].to(self.seen.device)
        values: Tensor = self.chain(self.seen.of(prefix), raw)
        if self.logits is not None:
            self.logits.append(raw)
        if self.scores is not None:
            self.scores.append(values)
        return values


@dataclass(slots=True)
class Criteria:
    """Hugging Face criteria as one `core.accept.Check`: every one is called after every token, with the scores so far if they are kept."""

    criteria: Sequence[Any]
    sampler: RowSampler

    def __call__(self, tokens: Sequence[int], _: int) -> str | None:
        ids, scores = self.sampler.seen.of(tokens), self.sampler.scores
        kept = None if scores is None else tuple(scores)
        done = [criterion for criterion in self.criteria if bool(torch.as_tensor(criterion(ids, kept)).all())]
        if not done:
            return None
        return "stop" if isinstance(done[0], StopStringCriteria) else "criterion"


@dataclass(slots=True)
class Row:
    """A row of the batch: its padding in front, its tokens, how they are chosen, what it cost. `session` is set once it is open."""

    index: int
    padding: int
    tokens: list[int]
    sampler: RowSampler
    session: Session = field(init=False)
    stats: Stats = field(default_factory=Stats)

    def stops(self, criteria: Sequence[Any]) -> Stops:
        """When the row ends: ids and lengths as numbers, all else called after every token.

        A limit that the prompt has reached already still allows the one token that `generate` makes before it looks.
        """
        eos = [criterion for criterion in criteria if type(criterion) is EosTokenCriteria]
        limits = [criterion.max_length - self.padding for criterion in criteria if type(criterion) is MaxLengthCriteria]
        others = [criterion for criterion in criteria if type(criterion) not in (EosTokenCriteria, MaxLengthCriteria)]
        return Stops(
            frozenset(token for criterion in eos for token in criterion.eos_token_id.flatten().tolist()),
            max_length=max(min(limits), len(self.tokens) + 1) if limits else None,
            checks=(Criteria(others, self.sampler),) if others else (),
        )


def rows_of(call: Call) -> Iterator[Row]:
    """The rows of a call. Several that sample draw from generators of their own, seeded from torch's: they advance at different speeds."""
    config, count = call.config, len(call.input_ids)
    seeds = torch.randint(1 << 62, (count,)).tolist() if config.do_sample and count > 1 else [None] * count
    for index, (ids, padding, seed) in enumerate(zip(call.input_ids, call.paddings(), seeds, strict=True)):
        sampler = RowSampler(
            rule=_rule(config),
            seen=Padded(ids, padding),
            chain=_for_row(call.processors, index) if count > 1 else call.processors,
            draws=bool(config.do_sample),
            generator=None if seed is None else torch.Generator(ids.device).manual_seed(seed),
            logits=[] if call.returns and config.output_logits else None,
            scores=[] if call.returns and config.output_scores else None,
        )
        yield Row(index, padding, ids[padding:].tolist(), sampler)


def _rule(config: Any) -> Rule:
    """What a drafter may know of the sampling; the tokens come from the processors."""
    if not config.do_sample:
        return Rule()
    return Rule(config.temperature or 1.0, config.top_k or 0, config.top_p or 1.0, config.min_p or 0.0)


def _for_row(processors: Sequence[Any], row: int) -> LogitsProcessorList:
    """Processors of a batch as row `row` alone needs them: with its own padding, its own index, its own state."""
    chain = LogitsProcessorList()
    for processor in processors:
        own = copy.copy(processor)
        if isinstance(own, RepetitionPenaltyLogitsProcessor) and isinstance(own.prompt_ignore_length, Tensor):
            own.prompt_ignore_length = own.prompt_ignore_length[row : row + 1]
        elif isinstance(own, PrefixConstrainedLogitsProcessor):
            allowed, index = own._prefix_allowed_tokens_fn, row // own._num_beams
            own = PrefixConstrainedLogitsProcessor(lambda _, ids, allowed=allowed, index=index: allowed(index, ids), 1)
        chain.append(own)
    return chain
