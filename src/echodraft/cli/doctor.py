"""`echodraft doctor`."""

from __future__ import annotations

from typing import Annotated

import typer

from echodraft.cli import console


def command(json: Annotated[bool, typer.Option("--json", help="JSON instead of lines.")] = False) -> None:
    """Example: echodraft doctor --json

    Versions, devices, kernels, caches: what to look at, or to send along, when something does not work or is slow.
    """
    from echodraft.cli.settings import config_file
    from echodraft.diagnosis import diagnosis, lines

    found = diagnosis()
    config = config_file()
    found["settings_file"] = None if config is None else str(config.resolve())
    if json:
        console.json_object(found)
    else:
        console.answer(lines(found) + "\n")
