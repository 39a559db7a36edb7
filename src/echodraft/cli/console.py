"""What is printed, and where: answers and JSON to stdout, all else to stderr."""

from __future__ import annotations

import json
import logging
import os
import sys
from contextlib import suppress
from typing import Any

CLEAR = "\r\x1b[2K"
_shown: list[str] = []  # the status on the line, if there is one

INTERRUPTED = 130
"""Exit code after Ctrl-C."""


class _Notes(logging.Handler):
    """The library's messages, one line each."""

    def emit(self, record: logging.LogRecord) -> None:
        note(record.getMessage())


def prepare(debug: bool) -> None:
    """Set up streams and messages, once per process."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            # A terminal that cannot show a character shows a mark; it must not end the answer.
            stream.reconfigure(errors="replace")
    log = logging.getLogger("echodraft")
    log.handlers[:] = [_Notes()]
    log.setLevel(logging.DEBUG if debug else logging.INFO)
    log.propagate = False
    if not sys.stderr.isatty():
        os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
        os.environ.setdefault("TQDM_DISABLE", "1")
    if not debug:
        os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")


def error(message: str) -> None:
    """One line on stderr."""
    _stderr(f"Error: {' '.join(message.split())}")


def note(message: str) -> None:
    """Something the user should know, on stderr."""
    _stderr(f"Note: {message}")


def table(text: str) -> None:
    """A block on stderr."""
    _stderr(text)


def status(message: str) -> None:
    """What is going on, on a line that the next one replaces; nothing where nobody watches. An empty message clears the line."""
    if sys.stderr.isatty():
        _shown[:] = [message] if message else []
        sys.stderr.write(f"{CLEAR}{message}")
        sys.stderr.flush()


def answer(text: str) -> None:
    """Part of the answer, at once."""
    sys.stdout.write(text)
    sys.stdout.flush()


def json_object(value: Any) -> None:
    """One JSON object, the only thing on stdout."""
    answer(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def finish(code: int) -> int:
    """Flush stdout; the reader may be gone by now."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        abandon()
    return code


def abandon() -> None:
    """Nobody reads stdout any more: what is left in its buffer goes nowhere, without a complaint at exit."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _stderr(text: str) -> None:
    clear = CLEAR if _shown else ""
    _shown.clear()
    with suppress(BrokenPipeError):
        print(clear + text, file=sys.stderr, flush=True)
