"""`echodraft inspect`."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.run import Color


def command(
    trace: Annotated[Path, typer.Argument(help="A file written by --trace.", show_default=False)],
    request: Annotated[int | None, typer.Option("--request", help="This request only.", show_default=False)] = None,
    step: Annotated[int | None, typer.Option("--step", help="This step only, with its tree.", show_default=False)] = None,
    trees: Annotated[bool, typer.Option("--trees", help="The tree of every step.")] = False,
    html: Annotated[Path | None, typer.Option("--html", metavar="FILE", help="Write a page to FILE instead.", show_default=False)] = None,
    color: Annotated[Color, typer.Option("--color", help="Mark drafted tokens by their drafter.")] = Color.auto,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of text.")] = False,
) -> None:
    """Example: echodraft inspect answer.trace --step 12

    What every step drafted, what was kept and refused, and why it ended. Record one with: echodraft run "…" --trace answer.trace

    More: echodraft inspect answer.trace --html answer.html
    """
    from echodraft.errors import UsageError
    from echodraft.metrics.traced import read
    from echodraft.render.trace import as_dict, overview

    found = read(trace)
    if step is not None and request is None:
        if len(found.requests) > 1:
            raise UsageError("The trace has several requests. Say whose step with --request.")
        request = next(iter(found.requests), 0)
    chosen = list(found.requests.values()) if request is None else [found.request(request)]
    if step is not None:
        chosen = [chosen[0].only(step)]
    if html is not None:
        from echodraft.render.html import write
        from echodraft.render.html_trace import page

        write(html, page(found, chosen))
        console.note(f"The page is {html}.")
    if as_json:
        console.json_object(as_dict(found, chosen))
    elif html is None and len(chosen) == 1:
        _request(chosen[0], trees or step is not None, color)
    elif html is None:
        from rich.console import Console

        Console().print(overview(found))
        console.note("Look at one with --request N, or at all with --html FILE.")


def _request(request: Any, trees: bool, color: Color) -> None:
    from rich.console import Console

    from echodraft.render.terminal import Painter, wants_color
    from echodraft.render.trace import harmless, line, output, tree

    colored = wants_color(color.value, sys.stdout.isatty())
    screen = Console(force_terminal=colored, no_color=not colored, highlight=False, soft_wrap=True)
    painter = Painter() if colored else None
    console.answer(f"{harmless(request.name)}\n\n{output(request, painter)}\n\n")
    if painter and painter.legend():
        console.answer(f"{painter.legend()}\n\n")
    for step in request.steps:
        if trees:
            screen.print(tree(step), soft_wrap=True)
        else:
            screen.out(line(step, len(request.steps)), highlight=False)
