"""Scores in torch tensors, the keyed sampler in torch, and Hugging Face processors and criteria in the walk."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    MinPLogitsWarper,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from echodraft.core.sampling import GOLDEN, MIX_A, MIX_B, Processor, Rule, Sampler
from echodraft.core.scores import Scores
from echodraft.errors import NAN, EchodraftError

BLOCK = 128


class Blocks:
    """The best of many values, by the best of every block of them: half to a seventh of the time of PyTorch's own on a CPU.

    values  [..., n]
    """

    def __init__(self, values: Tensor) -> None:
        size = gcd(values.shape[-1], BLOCK) if values.device.type == "cpu" else 1
        # Where nothing is gained each value is a block. A block of bfloat16 is compared more slowly than it is widened.
        self.size = size if size >= 16 else 1
        narrow = self.size > 1 and values.dtype in (torch.bfloat16, torch.float16)
        self.values = (values.float() if narrow else values).unflatten(-1, (-1, self.size))
        self.tops = self.values.amax(dim=-1) if self.size > 1 else self.values[..., 0]

    def best(self) -> tuple[Tensor, Tensor]:
        """The largest value and its index, the first of equal ones. Shapes [...]."""
        value, block = self.tops.max(dim=-1)
        if self.size == 1:
            return value, block
        return value, block * self.size + self._of(block[..., None]).argmax(dim=-1)

    def top(self, k: int) -> tuple[Tensor, Tensor]:
        """The k largest values and their indices, best first, equal ones in any order. Shapes [..., k]."""
        if self.size == 1 or k > self.tops.shape[-1]:
            return self.values.flatten(-2).topk(k, dim=-1)
        blocks = self.tops.topk(k, dim=-1).indices
        value, at = self._of(blocks).topk(k, dim=-1)
        return value, blocks.gather(-1, at // self.size) * self.size + at % self.size

    def _of(self, blocks: Tensor) -> Tensor:
        """The values of these blocks [..., m], one behind the other. Shape [..., m x size]."""
        found: Tensor = self.values.gather(-2, blocks[..., None].expand(*blocks.shape, self.size))
        return found.flatten(-2)


@dataclass(slots=True)
class Forward:
    """Logits [rows, kept, vocab] and hidden states [rows, width, size] of one forward, shared by the sessions in it."""

    logits: Tensor
    hidden: Tensor | None
    _best: list[list[int]] | None = None
    _blocks: Blocks | None = None

    @property
    def blocks(self) -> Blocks:
        if self._blocks is None:
            self._blocks = Blocks(self.logits)
        return self._blocks

    def best(self) -> list[list[int]]:
        """Argmax of every row, brought to the host in one transfer; -1 where a row holds NaN."""
        if self._best is None:
            value, index = self.blocks.best()
            self._best = torch.where(value.isnan(), -1, index).tolist()
        return self._best

    def top(self, k: int) -> Tensor:
        """The ids of the k largest of every row, best first. Shape [rows, kept, k]."""
        return self.blocks.top(min(k, self.logits.shape[-1]))[1]


@dataclass(frozen=True, slots=True)
class TorchScores:
    """One session's part of a `Forward`: logits rows `first`…, hidden states up to `end`."""

    forward: Forward
    row_of: int
    first: int
    count: int
    end: int

    @property
    def logits(self) -> Tensor:
        return self.forward.logits[self.row_of, self.first : self.first + self.count]

    def argmax(self) -> Sequence[int]:
        best = self.forward.best()[self.row_of][self.first : self.first + self.count]
        if -1 in best:
            raise EchodraftError(NAN)
        return best

    def top_k(self, k: int) -> NDArray[np.int64]:
        if k == 1 and -1 not in (best := self.forward.best()[self.row_of][self.first : self.first + self.count]):
            return np.asarray(best, np.int64)[:, None]  # on the host already, where decoding is greedy
        ids: NDArray[np.int64] = self.forward.top(k)[self.row_of, self.first : self.first + self.count].cpu().numpy()
        return ids

    def row(self, i: int) -> Tensor:
        values = self.logits[i].to(torch.float32, copy=True)
        if values.isnan().any():
            raise EchodraftError(NAN)
        return values

    def pick(self, values: Any, rule: Rule, position: int) -> int:
        if rule.greedy:
            return int(values.argmax())
        x = warped(values, rule)
        ids = (x > -torch.inf).nonzero()[:, 0]
        return int(ids[(x[ids].double() + gumbel(rule.key(position), ids)).argmax()])

    def draw(self, i: int, rule: Rule, position: int) -> int:
        return self.pick(self.row(i), rule, position)

    def best(self, i: int, rule: Rule, position: int, k: int) -> tuple[list[int], list[float]]:
        compared = self.logits[i].float()
        if not rule.greedy:
            x = warped(compared, rule)
            kept = (x > -torch.inf).nonzero()[:, 0]
            compared = torch.full_like(x, -torch.inf, dtype=torch.float64)
            compared[kept] = rule.temperature * (x[kept].double() + gumbel(rule.key(position), kept))
        values, ids = Blocks(compared).top(min(max(k, 2), len(compared)))  # two, so that equals are seen
        # One transfer; ids up to 2^53 are exact in float64.
        tokens, probs = torch.stack([ids.double(), (values - compared.logsumexp(0)).exp().double()]).tolist()
        found = [int(token) for token in tokens]
        if len(found) > 1 and probs[0] == probs[1]:
            first = int(compared.argmax())  # the chosen one leads, whatever order `topk` gives to equals
            found = [first, *(token for token in found if token != first)][: len(found)]
        keep = sum(p > 0.0 for p in probs[:k])  # none where a logit is no number
        return found[:keep], probs[:keep]

    def hidden(self) -> NDArray[np.float16]:
        if self.forward.hidden is None:
            raise RuntimeError("hidden states were not asked for")
        states: NDArray[np.float16] = self.forward.hidden[self.row_of, : self.end].to(torch.float16).cpu().numpy()
        return states


NUCLEUS, NEARLY = 128, 2e-5
"""Tokens among which those of `top_p` are looked for first; how near to it a sum may come before rounding decides."""


def warped(values: Tensor, rule: Rule) -> Tensor:
    """A row [vocab] with temperature applied; tokens that the rule excludes are -inf."""
    out: Tensor = warpers(rule)(None, values[None])[0]  # type: ignore[arg-type]
    return out


class Nucleus(TopPLogitsWarper):
    """Hugging Face's warper, the same rows bit for bit, without its sort of the vocabulary where the tokens that stay are few."""

    def __call__(self, input_ids: Any, scores: Tensor) -> Tensor:
        found = [nucleus(row, self.top_p) for row in scores] if scores.device.type == "cpu" else []
        if found and all(row is not None for row in found):
            return torch.stack(found)
        out: Tensor = super().__call__(input_ids, scores)
        return out


def nucleus(x: Tensor, top_p: float) -> Tensor | None:
    """A row [vocab] without what is beyond `top_p`, found among the likeliest: a sort of 150,000 tokens takes 15 ms.

    A token stays while those that are likelier come to less than `top_p`. None where that is not clear: they are many, or a sum is so near
    that rounding decides, or equals stand on both sides.
    """
    top, ids = Blocks(x).top(min(NUCLEUS, len(x)))
    probs = (top - x.logsumexp(0)).exp().double()
    likelier = probs.cumsum(0) - probs
    n = int((likelier < top_p).sum())
    clear = 0 < n < len(top) and float((likelier - top_p).abs().min()) > NEARLY and bool(top[n - 1] > top[n])
    if not clear:
        return None
    out = torch.full_like(x, -torch.inf)
    out[ids[:n]] = top[:n]
    return out


def warpers(rule: Rule) -> LogitsProcessorList:
    """Hugging Face's warpers in `generate`'s order."""
    chain = LogitsProcessorList()
    if rule.temperature not in (0.0, 1.0):
        chain.append(TemperatureLogitsWarper(rule.temperature))
    if rule.top_k:
        chain.append(TopKLogitsWarper(rule.top_k))
    if rule.top_p < 1.0:
        chain.append(Nucleus(rule.top_p))
    if rule.min_p > 0.0:
        chain.append(MinPLogitsWarper(rule.min_p))
    return chain


def _signed(word: int) -> int:
    return word - (1 << 64) if word >> 63 else word


def _shift(z: Tensor, bits: int) -> Tensor:
    """Logical shift right: torch shifts signed integers arithmetically."""
    return (z >> bits) & ((1 << (64 - bits)) - 1)


def gumbel(key: int, ids: Tensor) -> Tensor:
    """The same noise as `core.sampling.gumbel`, in float64 on the device of `ids`."""
    z = ids * _signed(GOLDEN) + _signed(key)
    z = (z ^ _shift(z, 30)) * _signed(MIX_A)
    z = (z ^ _shift(z, 27)) * _signed(MIX_B)
    z = z ^ _shift(z, 31)
    uniform = (_shift(z, 11).double() + 0.5) * 2.0**-53
    return -(-uniform.log()).log()


@dataclass(slots=True)
class Prefix:
    """The growing prefix as a [1, length] tensor: appends what is new, copies all where an earlier token changed."""

    device: torch.device
    _buffer: Tensor = field(default_factory=lambda: torch.empty(0, dtype=torch.long))
    _known: list[int] = field(default_factory=list)

    def of(self, tokens: Sequence[int]) -> Tensor:
        n, known = len(tokens), len(self._known)
        if n > len(self._buffer) or list(tokens[:known]) != self._known:
            self._buffer = torch.empty(max(256, 2 * n), dtype=torch.long, device=self.device)
            known = 0
        self._buffer[known:n] = torch.tensor(tokens[known:], dtype=torch.long)
        self._known = list(tokens)
        return self._buffer[None, :n]


def hf_processors(processors: Sequence[Any], device: torch.device) -> tuple[Processor, ...]:
    """Hugging Face logits processors as one processor of the walk: once per emitted token, in order, on the true prefix."""
    chain = LogitsProcessorList(processors)
    if not chain:
        return ()
    prefix = Prefix(device)

    def process(tokens: Sequence[int], row: Tensor) -> Tensor:
        out: Tensor = chain(prefix.of(tokens), row[None])[0]
        return out

    return (process,)


def hf_criteria(criteria: Sequence[Any], device: torch.device) -> tuple[Callable[[Sequence[int], int], str | None], ...]:
    """Hugging Face stopping criteria as checks: called after every emitted token."""
    if not criteria:
        return ()
    prefix = Prefix(device)

    def check(tokens: Sequence[int], _: int) -> str | None:
        ids = prefix.of(tokens)
        done = [bool(torch.as_tensor(criterion(ids, None)).all()) for criterion in criteria]
        return "criterion" if any(done) else None

    return (check,)


@dataclass(slots=True)
class TorchSampler(Sampler):
    """`torch.multinomial`, one draw per emitted token from the session's own generator.

    Alone in a batch it gives the tokens of `model.generate(do_sample=True)` under the same `torch.manual_seed`.
    """

    generator: torch.Generator | None = None

    def choose(self, scores: Scores, row: int, prefix: Sequence[int]) -> int:
        values = scores.row(row)
        for processor in self.processors:
            values = processor(prefix, values)
        if self.rule.greedy:
            return int(values.argmax())
        values = warpers(self.rule)(None, values[None])  # type: ignore[arg-type]
        return int(torch.multinomial(values.softmax(dim=-1), 1, generator=self.generator))
