"""`echodraft ls`."""

from __future__ import annotations

from typing import Annotated

import typer

from echodraft.cli import console

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="JSON instead of lines.")]


@app.callback()
def root() -> None:
    """Example: echodraft ls drafters

    List what can be named on the command line.
    """


@app.command(short_help="Drafters: needs, knobs, idea.")
def drafters(json: Json = False) -> None:
    """Example: echodraft ls drafters

    Every drafter: what it needs from the model, its knobs and its idea.
    """
    from echodraft.cli.listing import drafters_table, known_drafters

    found = known_drafters()
    if json:
        console.json_object(found)
    else:
        console.answer(drafters_table(found) + "\n")


@app.command(short_help="Backends.")
def backends(json: Json = False) -> None:
    """Example: echodraft ls backends

    Every backend.
    """
    from echodraft.backends import BACKENDS

    if json:
        console.json_object([{"name": name, "about": about} for name, about in BACKENDS.items()])
    else:
        console.answer("".join(f"{name:<14}{about}\n" for name, about in BACKENDS.items()))
