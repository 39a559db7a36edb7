"""Which of a session's output lies in a store that requests share."""

from __future__ import annotations

from dataclasses import dataclass, field
from time import time
from typing import Protocol


class Sequences(Protocol):
    """A store of sequences that grow and end."""

    def begin(self) -> int: ...

    def end(self, seq: int, when: float) -> None: ...

    def remove(self, seq: int) -> bool: ...


@dataclass(slots=True)
class Stretch:
    """Sequence `seq` holds tokens[begin:end] of the session."""

    seq: int
    begin: int
    end: int


@dataclass(slots=True)
class Written:
    """A session's output in `store`, stretch by stretch; the last one may be `growing`.

    A stretch ends where context comes that is no output, such as the next turn of a chat.
    """

    store: Sequences
    stretches: list[Stretch] = field(default_factory=list)
    growing: bool = False

    def place(self, begin: int, end: int) -> int:
        """The sequence that the output tokens[begin:end] are to be appended to: the one before them if nothing lies between."""
        if self.growing and self.stretches[-1].end != begin:
            self.close()
        if not self.growing:
            self.stretches.append(Stretch(self.store.begin(), begin, begin))
            self.growing = True
        self.stretches[-1].end = end
        return self.stretches[-1].seq

    def at_end(self, length: int) -> int | None:
        """The growing sequence, if it reaches to the end of a text of `length` tokens."""
        return self.stretches[-1].seq if self.growing and self.stretches[-1].end == length else None

    def close(self) -> None:
        """The last stretch grows no more."""
        if self.growing:
            self.store.end(self.stretches[-1].seq, time())
            self.growing = False

    def rewind(self, length: int) -> Stretch | None:
        """The text ends at `length`: later stretches are removed. One that reaches across is closed and returned, to be shortened."""
        if not self.stretches or self.stretches[-1].end <= length:
            return None
        self.close()
        while self.stretches and self.stretches[-1].begin >= length:
            self.drop()
        return self.stretches[-1] if self.stretches and self.stretches[-1].end > length else None

    def drop(self) -> None:
        """Remove the last stretch, which is closed."""
        self.store.remove(self.stretches.pop().seq)
