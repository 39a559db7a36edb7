"""`echodraft models`."""

from __future__ import annotations

from typing import Annotated

import typer

from echodraft.cli import console

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)


@app.callback()
def root() -> None:
    """Example: echodraft models pull

    The embedded model, which answers where no other is named.
    """


@app.command("list", short_help="The embedded model and whether it is here.")
def list_models(json: Annotated[bool, typer.Option("--json", help="JSON instead of a line.")] = False) -> None:
    """Example: echodraft models list

    The embedded model and whether it is here.
    """
    from echodraft.models import LICENCE, NAME, TITLE, find

    folder = find()
    if json:
        console.json_object([{"name": NAME, "title": TITLE, "licence": LICENCE, "path": folder and str(folder)}])
    else:
        console.answer(f"{NAME}  {TITLE}, {LICENCE}  {folder or 'not here yet: echodraft models pull'}\n")


@app.command(short_help="Fetch it unless it is here; print its folder.")
def pull() -> None:
    """Example: echodraft models pull

    Fetch the embedded model unless it is here, and print its folder.
    """
    from echodraft.models import embedded

    console.answer(f"{embedded()}\n")


@app.command(short_help="Print its folder; fetch nothing.")
def path() -> None:
    """Example: ls $(echodraft models path)

    Print the folder of the embedded model. Fails if it is not here; fetches nothing.
    """
    from echodraft.errors import EchodraftError
    from echodraft.models import TITLE, find

    folder = find()
    if folder is None:
        raise EchodraftError(f"{TITLE} is not here yet. Fetch it with: echodraft models pull.")
    console.answer(f"{folder}\n")
