"""The answer as text while it grows: one piece a token, cut at a stop string."""

from __future__ import annotations

from collections.abc import Sequence

from echodraft.errors import UsageError
from echodraft.text.detokenize import Detokenizer


class Transcript:
    """The text of one output. `pieces[i]` is the text that token i completed; joined they are the answer.

    `check` is a stopping rule for `core.accept.Stops`: called after every emitted token, so a stop string is seen inside an accepted block,
    across tokens and in the middle of one. The stop string itself is cut off; the ids keep the token that completed it.

    stops  strings that end the output, none of them empty
    """

    def __init__(self, detokenizer: Detokenizer, stops: Sequence[str] = ()) -> None:
        if any(not stop for stop in stops):
            raise UsageError("A stop string is empty, so nothing could ever be said. Leave it out.")
        self.stops = tuple(stops)
        self.pieces: list[str] = []
        self.stopped = False
        self._detokenizer = detokenizer
        self._reach = max(map(len, self.stops), default=0)
        self._length = 0
        self._tail = ""

    @property
    def text(self) -> str:
        return "".join(self.pieces)

    def check(self, tokens: Sequence[int], prompt_length: int) -> str | None:
        """'stop' once a stop string is complete."""
        self.follow(tokens, prompt_length)
        return "stop" if self.stopped else None

    def follow(self, tokens: Sequence[int], prompt_length: int) -> None:
        """Take in the output tokens that are new; what is known already costs nothing."""
        for token in tokens[prompt_length + len(self.pieces) :]:
            self._take(self._detokenizer.push(token))

    def ready(self) -> int:
        """How many pieces can be shown: a later one may still turn out to belong to a stop string."""
        if self.stopped or not self.stops:
            return len(self.pieces)
        shown = self._length - self._held()
        count, end = len(self.pieces), self._length
        while count and end > shown:
            count -= 1
            end -= len(self.pieces[count])
        return count

    def _held(self) -> int:
        """Characters at the end that may be the beginning of a stop string."""
        for n in range(min(self._reach - 1, len(self._tail)), 0, -1):
            end = self._tail[-n:]
            if any(stop.startswith(end) for stop in self.stops):
                return n
        return 0

    def _take(self, piece: str) -> None:
        if self.stopped:
            piece = ""
        self.pieces.append(piece)
        self._length += len(piece)
        if not self.stops or not piece:
            return
        window = self._tail + piece
        found = [at for at in (window.find(stop) for stop in self.stops) if at >= 0]
        if found:
            self.stopped = True
            self._cut(len(window) - min(found))
            return
        self._tail = window[-(self._reach - 1) :] if self._reach > 1 else ""

    def _cut(self, surplus: int) -> None:
        """Take `surplus` characters from the end of the text."""
        self._length -= surplus
        i = len(self.pieces) - 1
        while surplus > 0:
            gone = min(surplus, len(self.pieces[i]))
            self.pieces[i] = self.pieces[i][: len(self.pieces[i]) - gone]
            surplus -= gone
            i -= 1
