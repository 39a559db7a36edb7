"""Where the end of a text stood before, in itself and in the texts before it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

BREAK = -1
"""Stands between texts: no match ends with it, nothing is copied across it."""


class Grams:
    """Texts, the last of which grows, in which n-grams of at most `longest` tokens are found.

    Nothing is indexed: to compare 100,000 tokens takes 0.1 ms, where a dictionary of their n-grams took 0.3 s to fill and 78 MB.
    """

    def __init__(self, longest: int) -> None:
        self.longest = longest
        self._text: NDArray[np.int32] = np.empty(256, np.int32)
        self._length = 0

    def __len__(self) -> int:
        return self._length

    @property
    def text(self) -> NDArray[np.int32]:
        """All texts, a view. Shape [length]."""
        return self._text[: self._length]

    def add(self, tokens: Sequence[int]) -> None:
        """A text of its own; its beginning can be found by breaks before it, as `find` has them."""
        self.extend([*[BREAK] * (self.longest - 1), *tokens, BREAK])

    def extend(self, tokens: Sequence[int]) -> None:
        """The last text goes on."""
        begin, self._length = self._length, self._length + len(tokens)
        if self._length > len(self._text):
            grown = np.empty(max(self._length, 2 * len(self._text)), np.int32)
            grown[:begin] = self._text[:begin]
            self._text = grown
        self._text[begin : self._length] = tokens

    def cut(self, length: int) -> None:
        """Forget all but the first `length` tokens."""
        self._length = min(self._length, length)

    def find(self, context: Sequence[int], shortest: int = 1) -> tuple[int, NDArray[np.int64]]:
        """Longest match of the end of `context`: (n, all places behind it, ascending); (0, none) if it is shorter than `shortest`.

        A context that is the beginning of a text has breaks before it, and the match counts them.
        """
        text, window = self.text, context[-self.longest :]
        nothing = np.empty(0, np.int64)
        if not len(window) or window[-1] == BREAK:
            return 0, nothing
        places = np.flatnonzero(text[:-1] == window[-1]) + 1
        places = places[text[places] != BREAK]  # something follows
        n = min(1, len(places))
        while 0 < n < len(window):
            longer = places[places > n]
            longer = longer[text[longer - n - 1] == window[-n - 1]]
            if not len(longer):
                break
            places, n = longer, n + 1
        return (n, places) if n >= shortest else (0, nothing)

    def read(self, place: int, most: int) -> list[int]:
        """Up to `most` tokens from `place` on, to the end of their text. Where the last text ends, it goes on with what was read."""
        found: list[int] = self.text[place : place + most].tolist()
        return found[: found.index(BREAK)] if BREAK in found else continued(self.text, place, most)


def continued(tokens: Sequence[int] | NDArray[Any], position: int, n: int) -> list[int]:
    """The `n` tokens from `position` on; where the text ends it goes on with what was copied, as a text that repeats itself does."""
    copied = [int(token) for token in tokens[position : position + n]]
    while len(copied) < n:
        copied.append(copied[len(copied) - (len(tokens) - position)])
    return copied
