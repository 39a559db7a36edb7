"""Numba's machine code, kept between processes."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

F = TypeVar("F", bound=Callable[..., Any])

SETTINGS: Any = numba.config


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
