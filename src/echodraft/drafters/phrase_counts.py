"""What Ouroboros counts: the paper's A, #Match, c and equation (6), and what the pool earns."""

from __future__ import annotations

from dataclasses import dataclass

from echodraft.core.guess import Guess
from echodraft.core.step import Step
from echodraft.drafters.phrase_tree import PhraseTree


@dataclass(slots=True)
class Counts:
    """What happened since the drafter was made.

    prefix, match   the paper's A and #Match (equation 10) of the draft model's draft, summed
    accepted        draft tokens that were kept; suffix: those of them that no draft model said
    cost            of draft forwards, in plain steps of the target
    lookups, hits   places of drafts where the pool was asked, and those where it had phrases; pool_phrases: of the pool asked last
    drafting, pooling  seconds
    """

    steps: int = 0
    emitted: int = 0
    prefix: int = 0
    match: int = 0
    accepted: int = 0
    suffix: int = 0
    drafts: int = 0
    draft_tokens: int = 0
    draft_forwards: int = 0
    cost: float = 0.0
    lookups: int = 0
    hits: int = 0
    pool_phrases: int = 0
    drafting: float = 0.0
    pooling: float = 0.0

    def drafted(self, guess: Guess, tree: PhraseTree) -> None:
        self.drafts += 1
        self.draft_tokens += len(guess.tokens)
        self.draft_forwards += guess.forwards
        self.cost += guess.cost
        self.lookups += len(tree.asked)
        self.hits += sum(map(bool, tree.asked.values()))

    def verified(self, right: int, match: int, step: Step, model: str) -> None:
        self.steps += 1
        self.emitted += len(step.verdict.tokens)
        self.prefix += right
        self.match += match
        self.accepted += step.verdict.accepted
        self.suffix += sum(not step.draft.source[node].startswith(model) for node in step.verdict.path)

    @property
    def draft_tokens_per_forward(self) -> float:
        """The paper's c; 1 before there are counts."""
        return self.draft_tokens / self.draft_forwards if self.draft_forwards else 1.0

    def report(self) -> dict[str, float]:
        """Means a step, and ratios."""
        steps, tokens = max(1, self.steps), self.emitted / max(1, self.steps)
        return {
            "steps": self.steps,
            "accepted_prefix": self.prefix / steps,
            "match": self.match / steps,
            "tokens_per_step": tokens,
            "suffix_tokens": self.suffix / steps,
            "draft_tokens_per_forward": self.draft_tokens_per_forward,
            "draft_forwards": self.draft_forwards / max(1, self.drafts),
            "draft_cost": self.cost / max(1, self.drafts),
            "equation_6": tokens / (1.0 + self.cost / steps),
            "hit_rate": self.hits / max(1, self.lookups),
            "pool_phrases": self.pool_phrases,
            "drafting_seconds": self.drafting,
            "pooling_seconds": self.pooling,
        }
