"""What a request cost and what drafting brought: a fold over steps. The only place where these counts are defined."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from echodraft.core.draft import ANCHOR
from echodraft.core.step import Step


@dataclass(slots=True)
class Stats:
    """Counts of one request, or of many added up.

    A *step* is a forward that continues the output; the forward that reads the prompt is a *prefill*, and the token that it yields is no
    step's. Seconds of a forward that several sessions shared are divided among them, so that they add up to the time it took.

    steps      forwards that continued the output
    prefills   prompts (and continuations) read
    emitted    output tokens, all of them
    drafted    nodes that the drafter proposed
    verified   nodes that the target scored, without probes
    probes     nodes scored that were there to learn from
    accepted   draft tokens kept in the output
    by_source  accepted, by the drafter that guessed them
    histogram  steps by how many draft tokens they kept
    reached    by depth: steps whose accepted path came to depth - 1 and had a child there that was asked about
    kept       by depth: those of them in which a child was accepted
    prefill_seconds, propose_seconds, score_seconds, accept_seconds, commit_seconds: the first is prefills, the others are steps
    """

    steps: int = 0
    prefills: int = 0
    emitted: int = 0
    prefill_emitted: int = 0
    drafted: int = 0
    verified: int = 0
    probes: int = 0
    accepted: int = 0
    by_source: Counter[str] = field(default_factory=Counter)
    histogram: Counter[int] = field(default_factory=Counter)
    reached: Counter[int] = field(default_factory=Counter)
    kept: Counter[int] = field(default_factory=Counter)
    prefill_seconds: float = 0.0
    propose_seconds: float = 0.0
    score_seconds: float = 0.0
    accept_seconds: float = 0.0
    commit_seconds: float = 0.0

    def add(self, step: Step) -> None:
        """Count one step."""
        kept = step.verdict.accepted
        self.emitted += len(step.verdict.tokens)
        if step.prefill:
            self.prefills += 1
            self.prefill_emitted += len(step.verdict.tokens)
            self.prefill_seconds += step.times.total / step.batch
            return
        self.steps += 1
        probes = int(step.draft.probe.sum())
        self.drafted += step.proposed
        self.verified += len(step.draft) - probes
        self.probes += probes
        self.accepted += kept
        self.histogram[kept] += 1
        self._count_depths(step)
        self.by_source.update(step.draft.source[node] for node in step.verdict.path)
        self.propose_seconds += step.times.propose / step.batch
        self.score_seconds += step.times.score / step.batch
        self.accept_seconds += step.times.accept / step.batch
        self.commit_seconds += step.times.commit / step.batch

    def _count_depths(self, step: Step) -> None:
        path = step.verdict.path
        on_path = range(1, len(path) + 1)
        self.kept.update(on_path)
        self.reached.update(on_path)
        # An output that ended on an accepted node did not ask about what follows it.
        went_on = len(step.verdict.tokens) > len(path)
        # A probe is no guess.
        if went_on and (path[-1] if path else ANCHOR) in step.draft.parent[~step.draft.probe]:
            self.reached[len(path) + 1] += 1

    @staticmethod
    def total(parts: Iterable[Stats]) -> Stats:
        """Many requests added up (micro averages: every step weighs the same)."""
        out = Stats()
        for part in parts:
            for name in Stats.__dataclass_fields__:
                value = getattr(part, name)
                if isinstance(value, Counter):
                    getattr(out, name).update(value)
                else:
                    setattr(out, name, getattr(out, name) + value)
        return out

    @property
    def mean_accepted(self) -> float:
        """Tokens emitted by steps / steps: 1 for plain decoding, 0 where there was no step."""
        return (self.emitted - self.prefill_emitted) / self.steps if self.steps else 0.0

    @property
    def block_efficiency(self) -> float:
        """All output tokens / all target calls, prefill included (a prompt read in chunks is one call)."""
        calls = self.steps + self.prefills
        return self.emitted / calls if calls else 0.0

    @property
    def acceptance(self) -> float:
        """Draft tokens kept / nodes scored; low for wide trees, whatever they bring."""
        scored = self.verified + self.probes
        return self.accepted / scored if scored else 0.0

    @property
    def decode_seconds(self) -> float:
        return self.propose_seconds + self.score_seconds + self.accept_seconds + self.commit_seconds

    @property
    def seconds(self) -> float:
        return self.prefill_seconds + self.decode_seconds

    @property
    def draft_share(self) -> float:
        """Share of the decode time that drafting took."""
        return self.propose_seconds / self.decode_seconds if self.decode_seconds else 0.0

    @property
    def tokens_per_second(self) -> float:
        """Tokens emitted by steps / seconds of decoding."""
        return (self.emitted - self.prefill_emitted) / self.decode_seconds if self.decode_seconds else 0.0

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON; ratios included."""
        return {
            "steps": self.steps,
            "prefills": self.prefills,
            "emitted": self.emitted,
            "drafted": self.drafted,
            "verified": self.verified,
            "probes": self.probes,
            "accepted": self.accepted,
            "mean_accepted": self.mean_accepted,
            "block_efficiency": self.block_efficiency,
            "acceptance": self.acceptance,
            "accepted_by_source": dict(sorted(self.by_source.items())),
            "accepted_histogram": {str(n): self.histogram[n] for n in sorted(self.histogram)},
            "reached_by_depth": by_depth(self.reached),
            "kept_by_depth": by_depth(self.kept),
            "seconds": {
                "total": self.seconds,
                "prefill": self.prefill_seconds,
                "decode": self.decode_seconds,
                "propose": self.propose_seconds,
                "score": self.score_seconds,
                "accept": self.accept_seconds,
                "commit": self.commit_seconds,
            },
            "draft_share": self.draft_share,
            "tokens_per_second": self.tokens_per_second,
        }


def by_depth(counts: Counter[int]) -> list[int]:
    """Counts of depth 1, 2, … as a list."""
    return [counts[depth] for depth in range(1, max(counts, default=0) + 1)]
