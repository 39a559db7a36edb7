"""One tree of errors. Each says what happened, why, and what to do; each knows its exit code.

EchodraftError            1  run-time failure
├── UsageError            2  a wrong argument: unknown name, missing file, empty prompt, prompt too long
├── CheckFailed           3  a check found a difference
└── Unsupported           4  a combination or an extra that is not there
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

NAN = "The model returned NaN logits. Its weights or its dtype are at fault; try --dtype float32."


class EchodraftError(Exception):
    """Base of all errors that echodraft raises on purpose; `exit_code` is what the command line returns."""

    exit_code = 1


class UsageError(EchodraftError):
    """An argument that cannot be right."""

    exit_code = 2


class CheckFailed(EchodraftError):
    """Something that was to be equal is not."""

    exit_code = 3


class Unsupported(EchodraftError):
    """The model, the machine or the installation cannot do what was asked."""

    exit_code = 4


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is in no registry, with the nearest name if there is one."""
    names = sorted(known)
    near = get_close_matches(name, names, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else ""
    return UsageError(f"Unknown {kind} '{name}'.{hint} Known: {', '.join(names)}.")
