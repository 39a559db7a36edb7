"""The only place that decides tokens.

Sample-and-match: the token for a position is drawn from the target's own processed distribution given the true prefix, then the walk
follows the child that carries it, or ends. For drafts that are fixed before the target's randomness no rule accepts more, and the output
has the target's law whatever the draft is (Leviathan et al. 2023 with a one-hot q; SpecInfer's tree form).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.sampling import Sampler
from echodraft.core.scores import Scores

Check = Callable[[Sequence[int], int], str | None]
"""A stopping rule beyond ids and lengths: (all tokens, prompt length) -> a finish reason or None; called after every emitted token."""


@dataclass(frozen=True, slots=True)
class Stops:
    """When a session ends. The stopping token is kept in the output.

    eos             ids that end the output, possibly none
    max_new_tokens  output tokens at most
    max_length      prompt and output at most (the context limit)
    checks          anything else: stop strings, Hugging Face criteria, time
    """

    eos: frozenset[int] = frozenset()
    max_new_tokens: int | None = None
    max_length: int | None = None
    checks: tuple[Check, ...] = ()

    def reason(self, tokens: Sequence[int], prompt_length: int) -> str | None:
        """Why the sequence ends with its last token, or None. All checks are called, since some keep state."""
        found = [check(tokens, prompt_length) for check in self.checks]
        if tokens[-1] in self.eos:
            return "eos"
        for reason in found:
            if reason is not None:
                return reason
        if self.room(tokens, prompt_length) == 0:
            return "length"
        return None

    def room(self, tokens: Sequence[int], prompt_length: int) -> int:
        """How many more tokens the limits allow; a large number where there is no limit."""
        room = 1 << 30
        if self.max_new_tokens is not None:
            room = min(room, self.max_new_tokens - (len(tokens) - prompt_length))
        if self.max_length is not None:
            room = min(room, self.max_length - len(tokens))
        return max(room, 0)


@dataclass(frozen=True, slots=True)
class Verdict:
    """What one step yields: `tokens` emitted, the accepted `path` of nodes (one token each), why it `finish`ed or None.

    `len(tokens) == len(path) + 1` with a bonus token; equal lengths when the output ended on an accepted node.
    """

    tokens: tuple[int, ...]
    path: tuple[int, ...]
    finish: str | None

    @property
    def accepted(self) -> int:
        """Draft tokens kept."""
        return len(self.path)


def accept(draft: Draft, scores: Scores, sampler: Sampler, stops: Stops, tokens: list[int], prompt_length: int) -> Verdict:
    """Walk the tree from the anchor and append what the target says to `tokens` (prompt and output so far, changed in place)."""
    child = draft.child
    emitted: list[int] = []
    path: list[int] = []
    node = ANCHOR
    while True:
        token = sampler.choose(scores, node + 1, tokens)
        tokens.append(token)
        emitted.append(token)
        following = child.get((node, token))
        if following is not None:
            path.append(following)
        finish = stops.reason(tokens, prompt_length)
        if finish is not None or following is None:
            return Verdict(tuple(emitted), tuple(path), finish)
        node = following
