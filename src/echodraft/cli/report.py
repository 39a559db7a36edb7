"""`echodraft report`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echodraft.cli import console


def command(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Folder of echodraft bench --out, or one of several.", show_default=False)],
    html: Annotated[Path, typer.Option("--html", metavar="FILE", help="The page to write.")] = Path("report.html"),
    samples: Annotated[int, typer.Option("--samples", min=0, help="Sample outputs of each category.")] = 2,
    title: Annotated[str | None, typer.Option("--title", help="Default: the folder's name.", show_default=False)] = None,
) -> None:
    """Example: echodraft report results/my-run --html my-run.html

    One page from a bench: speed-up by category, acceptance by position, where the time goes, sample outputs coloured by source.

    The page is self-contained: it loads nothing and can be sent as it is.
    """
    from echodraft.bench.report import gather
    from echodraft.render.html import write
    from echodraft.render.html_report import page

    runs = gather(folder)
    write(html, page(title or f"Benchmark {folder.resolve().name}", runs, samples))
    console.note(f"The page is {html}.")
