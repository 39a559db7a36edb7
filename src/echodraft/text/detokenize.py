"""Text of a growing sequence of ids, one token at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

UNFINISHED = "\ufffd"
"""What decoders print for bytes that are no character (yet)."""
CONTEXT = 4
LONGEST = 16
"""A character has four bytes, so no honest one needs more than a few tokens; beyond this many the bytes are simply wrong."""


class Detokenizer:
    """Turns ids into text as they come, at a cost that does not grow with the text.

    A token's text depends on its neighbours (a leading space, a character whose bytes are split), so a short window is decoded again with
    every token and what is new in it is returned. The half of a character is held back until the other half is there.

    decode   ids -> text
    context  ids before the first one, whose text is not returned; they decide about the first leading space
    """

    def __init__(self, decode: Callable[[Sequence[int]], str], context: Sequence[int] = ()) -> None:
        self._decode = decode
        self._window = _whole(decode, context)
        self._told = len(decode(self._window)) if self._window else 0
        # Where the window may be cut: between whole characters only, since decoders of bytes spoil a run that begins inside one.
        self._settled = deque([len(self._window)] if self._window else [], maxlen=CONTEXT)

    def push(self, token: int) -> str:
        """The text that `token` completes; may be empty."""
        self._window.append(token)
        text = self._decode(self._window)
        open_tokens = len(self._window) - sum(self._settled)
        if text.endswith(UNFINISHED) and open_tokens < LONGEST:
            # One unfinished character prints as one mark, or as one mark a byte.
            new = text[self._told :].rstrip(UNFINISHED)
            self._told += len(new)
            return new
        new = text[self._told :]
        self._settled.append(open_tokens)
        self._window = self._window[-sum(self._settled) :]
        self._told = len(self._decode(self._window))
        return new


def _whole(decode: Callable[[Sequence[int]], str], context: Sequence[int]) -> list[int]:
    """The last few ids of `context`, from the beginning of a character on."""
    for n in range(CONTEXT, LONGEST):
        window = list(context[-n:])
        if n >= len(context) or not decode(window).startswith(UNFINISHED):
            return window
    return []
