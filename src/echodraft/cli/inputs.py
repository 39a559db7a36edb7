"""From what was typed to what the library takes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.errors import UsageError, unknown_name

LIMITS = "What the memory may hold; repeatable. Default: tokens=1000000 a tenant, bytes=1073741824, no end of days."
MemoryLimit = Annotated[list[str] | None, typer.Option("--memory-limit", metavar="tokens|bytes|days=N", help=LIMITS, show_default=False)]
"""The option --memory-limit, for `read_limits`."""

DRAFT = "A smaller model for drafters that need one: folder, .gguf file or hub name."
DraftModel = Annotated[str | None, typer.Option("--draft-model", metavar="MODEL", help=DRAFT, show_default=False)]
"""The option --draft-model."""
QUANTIZE = "int8 or int4: the draft model's weights in 8 or 4 bits on a CPU; the output stays as it is."
DraftQuantize = Annotated[str | None, typer.Option("--draft-quantize", metavar="int8|int4", help=QUANTIZE, show_default=False)]
"""The option --draft-quantize."""


def _profile(context: typer.Context, given: Path | None) -> Path | None:
    """What a profile says stands for flags that are not given."""
    if given is not None:
        from echodraft.profile import load_profile

        own = {parameter.name for parameter in context.command.params}
        flags = {name: value for name, value in load_profile(given).flags().items() if name in own}
        context.default_map = {**(context.default_map or {}), **flags}
    return given


def knobs(profile: Path | None, drafter: str, option: Sequence[str]) -> list[str]:
    """The knobs that hold: those of a profile are of its own drafter, not of one that a flag names instead."""
    if profile is not None:
        from echodraft.profile import load_profile

        held = load_profile(profile)
        if drafter != held.drafter and list(option) == held.flags()["option"]:
            return []
    return list(option)


PROFILE = "What echodraft tune found: drafter, knobs, budget, draft model. Flags win."
Tuned = Annotated[
    Path | None, typer.Option("--profile", metavar="FILE", help=PROFILE, is_eager=True, callback=_profile, show_default=False)
]
"""The option --profile."""
PRICE = "A forward of the draft model: plain steps of the model (0.3), or a curve as for --cost. Default: as measured by echodraft cost."
DraftCost = Annotated[str | None, typer.Option("--draft-cost", metavar="X|FILE|NAME", help=PRICE, show_default=False)]
"""The option --draft-cost of what runs on recordings."""


def open_draft(recording: Any, text: Any, name: str | None, quantize: str | None, price: str | None, curve: Any) -> Any:
    """The `Drafting` of a replay (`bench.draft.load_draft`), loaded while the screen says so; None without a name."""
    if name is None:
        return None
    from echodraft.bench.draft import load_draft

    console.status("Loading the draft model…")
    try:
        return load_draft(recording, text, name, quantize, price, curve)
    finally:
        console.status("")


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


def read_limits(pairs: Sequence[str]) -> Any:
    """`Limits` from "tokens=200000", "days=30" and the like. Raises `UsageError`."""
    from echodraft.memory import Limits
    from echodraft.options import read_options

    given = read_options(pairs)
    for name, value in given.items():
        if name not in Limits.__slots__:
            raise unknown_name("limit of a memory", name, Limits.__slots__)
        if isinstance(value, bool | str) or (name != "days" and not isinstance(value, int)):
            raise UsageError(f"A memory's limit of {name} is a number, not '{value}'.")
    return Limits(**given)


def open_memory(folder: Path | None, off: bool, limits: Sequence[str]) -> AbstractContextManager[Any]:
    """The memory that was asked for, which saves itself in the end; None without a folder. Raises `UsageError`."""
    bounds = read_limits(limits)
    if folder is None or off:
        return nullcontext()
    from echodraft.memory import Memory

    return Memory(folder, bounds)
