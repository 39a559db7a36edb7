"""Numba's machine code, kept between processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
from numba.core import event

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS: Any = numba.config
OPTIONS: Any = {"nogil": True, "no_cfunc_wrapper": True}
"""Nothing is called from C; a way in for it takes a quarter of the time of compiling."""
log = logging.getLogger("echodraft")


def compiler(name: str, *files: Path, **options: Any) -> Callable[[F], F]:
    """A decorator that compiles functions, with `options` of Numba, and keeps them in one folder for this state of all `files` together.

    Numba sees that a function's own file has changed, but not that a file has whose functions were compiled into it.
    """
    state = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    options = OPTIONS | options
    folder = Path(SETTINGS.CACHE_DIR or files[0].parent / "__pycache__") / f"{name}-{state[:16]}"

    def compiled(function: F) -> F:
        usual, SETTINGS.CACHE_DIR = SETTINGS.CACHE_DIR, str(folder)
        try:
            return cast("F", numba.njit(cache=True, **options)(function))
        except RuntimeError:  # no folder to keep it in: compiled by each process
            return cast("F", numba.njit(**options)(function))
        finally:
            SETTINGS.CACHE_DIR = usual

    return compiled


def once(bring: Callable[[], None]) -> Callable[[], None]:
    """`bring`, which uses compiled code so that no request waits for it, once a process. If it has to be compiled, that is told."""

    @cache
    @wraps(bring)
    def brought() -> None:
        with event.install_listener("numba:compile", Notice()):
            bring()

    return brought


class Notice(event.Listener):
    """Explains the wait, once a process. Code that is kept from before is loaded in less than a second and told of by no event."""

    def on_start(self, event: Any) -> None:
        _tell()

    def on_end(self, event: Any) -> None:
        pass


@cache
def _tell() -> None:
    log.warning("Compiling the drafter for this machine. It takes 10 to 30 seconds, the first time only.")
