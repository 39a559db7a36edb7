"""From what was typed to what the library takes."""

from __future__ import annotations

import sys

from echodraft.errors import UsageError


def read_prompt(given: str | None, raw: bool) -> str:
    """The prompt: as typed, or stdin for "-" and for a pipe. Raises `UsageError` where it is missing or empty."""
    if given is None and sys.stdin.isatty():
        raise UsageError('There is no prompt. Type one: echodraft run "Write a haiku about rain", or pipe one in.')
    text = given
    if text is None or text == "-":
        try:
            text = sys.stdin.read()
        except UnicodeDecodeError as error:
            raise UsageError(f"The prompt on stdin is not {error.encoding} text. Convert it first.") from error
        if not raw:
            # The newline that ends a line of a pipe is no part of a question; in raw text it may be.
            text = text.removesuffix("\n")
    if not text.strip():
        raise UsageError("The prompt is empty. Give at least one word.")
    return text


def read_budget(text: str) -> str | int:
    """ "auto" or a number of nodes. Raises `UsageError`."""
    if text == "auto":
        return text
    try:
        return int(text)
    except ValueError as error:
        raise UsageError(f"--budget is 'auto' or a number of nodes, not '{text}'.") from error
