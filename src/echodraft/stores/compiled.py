"""Numba's machine code, kept between processes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, wraps
from hashlib import sha256
from pathlib import Path
from threading import Timer
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS: Any = numba.config
PATIENCE = 1.0
"""Seconds of silence; code that was compiled before is there in less."""

log = logging.getLogger("echodraft")


def compiler(name: str, *files: Path) -> Callable[[F], F]:
    """A decorator that compiles functions and keeps them in one folder for this state of all `files` together.

    Numba sees that a function's own file has changed, but not that a file has whose functions were compiled into it.
    """
    state = sha256(b"".join(file.read_bytes() for file in files)).hexdigest()
    folder = Path(SETTINGS.CACHE_DIR or files[0].parent / "__pycache__") / f"{name}-{state[:16]}"

    def compiled(function: F) -> F:
        usual, SETTINGS.CACHE_DIR = SETTINGS.CACHE_DIR, str(folder)
        try:
            return cast("F", numba.njit(cache=True, nogil=True)(function))
        except RuntimeError:  # no folder to keep it in: compiled by each process
            return cast("F", numba.njit(nogil=True)(function))
        finally:
            SETTINGS.CACHE_DIR = usual

    return compiled


def once(bring: Callable[[], None]) -> Callable[[], None]:
    """`bring`, which uses compiled code so that no request waits for it, once a process; who has to wait for it is told why."""

    @cache
    @wraps(bring)
    def brought() -> None:
        notice = Timer(PATIENCE, _tell)
        notice.daemon = True
        notice.start()
        try:
            bring()
        finally:
            notice.cancel()

    return brought


@cache
def _tell() -> None:
    log.warning("Compiling the drafter for this machine. It takes 10 to 30 seconds, the first time only.")
