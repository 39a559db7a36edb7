"""Where the n-grams of several texts occurred, the last of which grows."""

from __future__ import annotations

from collections.abc import Sequence

BREAK = -1
"""Stands between texts: no n-gram ends with it, nothing is copied across it."""


class Grams:
    """An index of the n-grams with shortest to longest tokens. Adding a token costs (longest - shortest + 1) entries; nothing is rescanned.

    hits  places kept of one n-gram, the latest ones
    """

    def __init__(self, shortest: int, longest: int, hits: int) -> None:
        self.shortest, self.longest, self.hits = shortest, longest, hits
        self.text: list[int] = []
        self._at: dict[tuple[int, ...], list[int]] = {}
        self._indexed = 0

    def add(self, tokens: Sequence[int]) -> None:
        """A text of its own; its beginning can be found by breaks before it, as `find` has them."""
        self.text += [*[BREAK] * (self.longest - 1), *tokens, BREAK]
        self.extend(())

    def extend(self, tokens: Sequence[int]) -> None:
        """The last text goes on."""
        text = self.text
        text.extend(tokens)
        for end in range(max(self._indexed, self.shortest), len(text)):
            # The n-gram before `end` is known to be followed by text[end] only now.
            if BREAK not in (text[end], text[end - 1]):
                window = tuple(text[max(0, end - self.longest) : end])
                for n in range(self.shortest, len(window) + 1):
                    places = self._at.setdefault(window[-n:], [])
                    places.append(end)
                    del places[: -self.hits]
        self._indexed = len(text)

    def find(self, context: Sequence[int]) -> tuple[int, list[int]]:
        """Longest match of the end of `context`: (n, the places behind it, the latest first); (0, []) if there is none.

        A context that is the beginning of a text has breaks before it, and the match counts them.
        """
        window = tuple(context[-self.longest :])
        for n in range(len(window), self.shortest - 1, -1):
            places = self._at.get(window[-n:])
            if places:
                return n, places[::-1]
        return 0, []

    def read(self, place: int, most: int) -> list[int]:
        """Up to `most` tokens from `place` on, to the end of their text. Where the last text ends, it goes on with what was read."""
        found = self.text[place : place + most]
        if BREAK in found:
            return found[: found.index(BREAK)]
        period = len(self.text) - place
        while len(found) < most:
            found.append(found[len(found) - period])
        return found
