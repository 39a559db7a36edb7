"""Where the end of a text occurred before: a suffix automaton that grows with the text (Blumer et al. 1985)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(slots=True)
class Automaton:
    """A suffix automaton of one text. At most two states a token; adding one is amortised O(1).

    A state stands for the substrings that end at the same places of the text.

    follow[s]  token -> state
    link[s]    the state of the longest suffix that also ends elsewhere; -1 for the empty string, state 0
    length[s]  tokens of its longest substring
    end[s]     where it first occurred: the number of tokens up to its end
    """

    follow: list[dict[int, int]] = field(default_factory=lambda: [{}])
    link: list[int] = field(default_factory=lambda: [-1])
    length: list[int] = field(default_factory=lambda: [0])
    end: list[int] = field(default_factory=lambda: [0])
    size: int = 0
    _last: int = 0  # the state of the whole text

    def extend(self, tokens: Sequence[int]) -> None:
        """Add what `tokens` has beyond the text so far; what was added already is taken as known."""
        for token in tokens[self.size :]:
            self._add(token)

    def _add(self, token: int) -> None:
        follow, link = self.follow, self.link
        self.size += 1
        new = self._state({}, -1, self.size, self.size)
        state, self._last = self._last, new
        while state != -1 and token not in follow[state]:
            follow[state][token] = new
            state = link[state]
        if state == -1:
            link[new] = 0
            return
        target = follow[state][token]
        if self.length[target] != self.length[state] + 1:
            # Only the shorter substrings of `target` end here too: they become a state of their own, which occurred first where it did.
            short = self._state(dict(follow[target]), link[target], self.length[state] + 1, self.end[target])
            link[target] = short
            while state != -1 and follow[state].get(token) == target:
                follow[state][token] = short
                state = link[state]
            target = short
        link[new] = target

    def _state(self, follow: dict[int, int], link: int, length: int, end: int) -> int:
        self.follow.append(follow)
        self.link.append(link)
        self.length.append(length)
        self.end.append(end)
        return len(self.link) - 1

    def match(self) -> tuple[int, int]:
        """The longest end of the text that occurred before: (its length, the position behind its first occurrence); (0, 0) if none did.

        It is the suffix link of the whole text, so following the match costs nothing beside adding tokens.
        """
        return self._at(max(self.link[self._last], 0))

    def followed(self, wanted: int, shortest: int) -> tuple[int, int]:
        """`match`, or the longest shorter end that `wanted` tokens follow, where fewer follow the match.

        No end shorter than `shortest` is taken; if nothing is followed by so many, the one that most tokens follow.
        """
        state = max(self.link[self._last], 0)
        while self.size - self.end[state] < wanted and (above := self.link[state]) > 0 and self.length[above] >= shortest:
            state = above
        return self._at(state)

    def _at(self, state: int) -> tuple[int, int]:
        return self.length[state], self.end[state]
