"""How a token is chosen from a row of logits.

Sampling is *keyed*: argmax of processed logit + Gumbel noise, the noise a hash of (seed, stream, position, token id). Given the prefix
the choice is a function, so sampled output does not depend on drafter, tree or batch (Daliri, Musco and Suresh, arXiv 2408.07978,
use the same noise on both sides). The integer part is the same here and in torch (`backends/transformers_sampling.py`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from echodraft.core.scores import Scores

GOLDEN, MIX_A, MIX_B = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_WORD = (1 << 64) - 1

Processor = Callable[[Sequence[int], Any], Any]
"""Changes a row of scores given the true prefix: (prefix ids, row [vocab]) -> row [vocab]; called once per emitted token, in order."""


@dataclass(frozen=True, slots=True)
class Rule:
    """How to draw: temperature 0 is greedy; top_k 0, top_p 1 and min_p 0 are off; `stream` is the sample's index."""

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    stream: int = 0

    @property
    def greedy(self) -> bool:
        return self.temperature == 0.0

    def key(self, position: int) -> int:
        """The 64-bit key of the noise at an absolute `position` of the sequence."""
        key = 0  # the seed is mixed too: seed 1 of stream 0 and seed 0 of stream 1 must differ
        for part in (self.seed, self.stream, position):
            key = _mix(key + GOLDEN + part)
        return key


def _mix(z: int) -> int:
    """The finaliser of SplitMix64."""
    z &= _WORD
    z = ((z ^ (z >> 30)) * MIX_A) & _WORD
    z = ((z ^ (z >> 27)) * MIX_B) & _WORD
    return z ^ (z >> 31)


def gumbel(key: int, ids: NDArray[np.int64]) -> NDArray[np.float64]:
    """Standard Gumbel noise of the tokens `ids` under `key`. Shape of `ids`."""
    z = ids.astype(np.uint64) * np.uint64(GOLDEN) + np.uint64(key)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(MIX_A)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(MIX_B)
    z = z ^ (z >> np.uint64(31))
    uniform = ((z >> np.uint64(11)).astype(np.float64) + 0.5) * 2.0**-53
    noise: NDArray[np.float64] = -np.log(-np.log(uniform))
    return noise


def warp(row: NDArray[np.floating[Any]], rule: Rule) -> NDArray[np.float64]:
    """Temperature, top-k, top-p, min-p, in this order; excluded tokens get -inf. Shape [vocab]."""
    x = row.astype(np.float64) / rule.temperature
    if 0 < rule.top_k < len(x):
        x = np.where(x < np.partition(x, -rule.top_k)[-rule.top_k], -np.inf, x)
    if rule.top_p < 1.0:
        order = np.argsort(x, kind="stable")
        p = np.exp(x[order] - x.max())
        drop = np.cumsum(p / p.sum()) <= 1.0 - rule.top_p
        drop[-1] = False
        x[order[drop]] = -np.inf
    if rule.min_p > 0.0:
        x = np.where(x - x.max() < np.log(rule.min_p), -np.inf, x)
    return x


def pick(row: NDArray[np.floating[Any]], rule: Rule, position: int) -> int:
    """The token that `rule` chooses from `row` at `position`."""
    if rule.greedy:
        return int(np.argmax(row))
    x = warp(row, rule)
    ids = np.flatnonzero(x > -np.inf)
    return int(ids[np.argmax(x[ids] + gumbel(rule.key(position), ids))])


def best(row: NDArray[np.floating[Any]], rule: Rule, position: int, k: int) -> tuple[list[int], list[float]]:
    """`Scores.best` of a row [vocab]."""
    compared = row.astype(np.float64)
    with np.errstate(invalid="ignore"):  # infinite scores make no probabilities
        if not rule.greedy:
            compared = rule.temperature * (warp(row, rule) + gumbel(rule.key(position), np.arange(len(row))))
        # Stable: of equals the lowest id comes first, as in `pick`.
        ids = np.argsort(-compared, kind="stable")[:k]
        ids = ids[compared[ids] > -np.inf]
        share = np.exp(compared - compared[ids[0]])
        return ids.tolist(), (share[ids] / share.sum()).tolist()


@dataclass(slots=True)
class Sampler:
    """Chooses the token for one position from the target's processed scores given the exact prefix."""

    rule: Rule = Rule()
    processors: tuple[Processor, ...] = ()

    def choose(self, scores: Scores, row: int, prefix: Sequence[int]) -> int:
        """The token behind `prefix`, from row `row` of `scores` (0 = the anchor's row, i + 1 = node i's)."""
        if self.processors:
            values = scores.row(row)
            for processor in self.processors:
                values = processor(prefix, values)
            return scores.pick(values, self.rule, len(prefix))
        if self.rule.greedy:
            return scores.argmax()[row]
        return scores.draw(row, self.rule, len(prefix))
