"""A draft model with another tokenizer: the target's text in its ids, and its guesses in the target's."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod

from echodraft.core.drafter import Words

Claim = tuple[list[int], list[float]]
"""Candidates for one token, the chosen one first, with their probabilities given the tokens before."""

UNFINISHED = "\ufffd"
WINDOW = 48
"""Target tokens at the end of the text that are encoded again at every step, at most about as many."""
TAIL = 6
"""Tokens before a guess that are decoded and encoded with it, since neighbours change how text is cut."""


@dataclass(slots=True)
class OtherIds:
    """One session of the target as the draft model reads it, by way of its text. A wrong turn here is a wrong guess and no more.

    Text is encoded from the last settled place on: the beginning of a word that is no longer near the end.

    target  the target's words
    draft   the draft model's
    shift   None: positions differ, so the target's noise means nothing to the draft model
    """

    target: Words
    draft: Words
    shift: int | None = None
    _known: list[int] = field(default_factory=list)  # the target's tokens whose text is settled
    _settled: list[int] | None = None  # that text in the draft model's ids
    _read: list[int] = field(default_factory=list)

    def read(self, tokens: Sequence[int]) -> list[int]:
        """The text of the target's `tokens` in the draft model's ids. What is not yet a whole character is left out."""
        if self._settled is None or list(tokens[: len(self._known)]) != self._known:
            self._known, self._settled = [], self.draft.encode("")  # the begin token, where there is one
        if len(tokens) - len(self._known) > WINDOW:
            self._settle(tokens)
        text = _behind(self.target, tokens, len(self._known)).rstrip(UNFINISHED)
        self._read = self._settled + self.draft.split(text)
        return self._read

    def _settle(self, tokens: Sequence[int]) -> None:
        assert self._settled is not None
        start = len(self._known)
        text = _behind(self.target, tokens, start)
        for words in (True, False):  # a text without spaces is cut between two of its characters
            for end in range(len(tokens) - WINDOW // 2, max(start, len(tokens) - 2 * WINDOW), -1):
                rest = _behind(self.target, tokens, end)
                if text.endswith(rest) and (rest[:1].isspace() if words else rest[:1] not in ("", UNFINISHED)):
                    self._settled = self._settled + self.draft.split(text.removesuffix(rest))
                    self._known = list(tokens[:end])
                    return

    def write(self, tokens: Sequence[int], claims: Sequence[Claim]) -> list[Claim]:
        """The draft model's guess behind the text of `tokens` as a chain in the target's ids."""
        guess = [ids[0] for ids, _ in claims]
        before = self._read[-TAIL:]
        lead = len(self.draft.spell(before))
        ends = [len(self.draft.spell(before + guess[: i + 1])) - lead for i in range(len(guess))]
        new = self.draft.spell(before + guess)[lead:].rstrip(UNFINISHED)
        found = self._cut(tokens, new) if new else []
        path = [prod(probs[0] for _, probs in claims[: i + 1]) for i in range(len(claims))]
        out: list[Claim] = []
        above, tail = 1.0, list(tokens[-TAIL:])
        lead = len(self.target.spell(tail))
        for i, token in enumerate(found):
            end = len(self.target.spell(tail + found[: i + 1])) - lead
            own = next((p for p, reached in zip(path, ends, strict=True) if reached >= end), path[-1])
            out.append(([token], [own / above if above > 0.0 else 0.0]))
            above = own
        return out

    def _cut(self, tokens: Sequence[int], new: str) -> list[int]:
        """The text `new` behind `tokens` in the target's ids: as the tokenizer cuts it there, if it cuts what is before as it is."""
        start = max(0, len(tokens) - TAIL)
        tail = list(tokens[start:])
        whole = self.target.split(_behind(self.target, tokens, start) + new)
        return whole[len(tail) :] if whole[: len(tail)] == tail else self.target.split(new)


def _behind(words: Words, tokens: Sequence[int], start: int) -> str:
    """The text of tokens[start:], told with the token before it, which decides about the first space."""
    if start == 0:
        return words.spell(tokens)
    return words.spell(tokens[start - 1 :])[len(words.spell(tokens[start - 1 : start])) :]
