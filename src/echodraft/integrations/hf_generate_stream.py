"""A streamer, fed one token after another however many a step yields."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor

from echodraft.core.session import Session


class Feed:
    """A streamer, fed as `_sample` feeds it: the prompt [rows, length] once, then one token a row [rows] a `put`; ended once."""

    def __init__(self, streamer: Any, prompt_told: bool = False) -> None:
        self.streamer, self.prompt_told, self._told, self._ended = streamer, prompt_told, 0, streamer is None

    def put(self, ids: Tensor) -> None:
        if self.streamer is not None:
            self.streamer.put(ids)

    def end(self) -> None:
        if not self._ended:
            self._ended = True
            self.streamer.end()

    def prompt(self, ids: Tensor) -> None:
        """The prompt, if `generate` has not told it."""
        if not self.prompt_told:
            self.prompt_told = True
            self.put(ids.cpu())

    def follow(self, sessions: Sequence[Session], pad: int) -> None:
        """Every position that all rows have reached; a finished row has `pad` from its end on."""
        if self.streamer is None:
            return
        outputs = [session.output for session in sessions]
        going = [len(output) for session, output in zip(sessions, outputs, strict=True) if session.finish is None]
        for i in range(self._told, min(going) if going else max(map(len, outputs))):
            self._told += 1
            self.put(torch.tensor([output[i] if i < len(output) else pad for output in outputs]))

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Whatever is raised inside also ends the stream, so that nobody waits for more."""
        try:
            yield
        except BaseException:
            with suppress(Exception):
                self.end()
            raise
