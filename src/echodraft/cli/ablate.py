"""`echodraft ablate`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.inputs import DraftCost, DraftModel, DraftQuantize, open_draft, read_budget
from echodraft.cli.progress import Bar
from echodraft.cli.replay import COST

OTHER = "A recording of another task of the same model, for the table locality."
LIST = "Only print the settings of --tables, for echodraft bench --drafters."


def command(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="ouroboros or oilbird.")],
    recording: Annotated[Path | None, typer.Argument(metavar="RECORDING", help="Folder of echodraft record.", show_default=False)] = None,
    tables: Annotated[str, typer.Option("--tables", help="Comma-separated; ouroboros: mechanisms, switches, k, locality, tree, …")] = "",
    draft_model: DraftModel = None,
    draft_quantize: DraftQuantize = None,
    draft_cost: DraftCost = None,
    budget: Annotated[str, typer.Option("--budget", metavar="auto|N", help="Draft where it pays, or N nodes each step.")] = "auto",
    cost: Annotated[str | None, typer.Option("--cost", metavar="FILE|NAME", help=COST, show_default=False)] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests.", show_default=False)] = None,
    other: Annotated[Path | None, typer.Option("--other", metavar="RECORDING", help=OTHER, show_default=False)] = None,
    listing: Annotated[bool, typer.Option("--list", help=LIST)] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Example: echodraft ablate ouroboros recordings/humaneval --tables mechanisms,k --draft-model path/to/small --cost large.json

    What each part of a method brings, by replay: the paper's tables, every row with what was remembered when a request began.

    The same settings live: echodraft bench --drafters "$(echodraft ablate ouroboros --tables mechanisms --list)"
    """
    from echodraft.bench.ablation import TABLES, TREE, ablate, require, settings_of, verify_trees
    from echodraft.bench.recording import Recording
    from echodraft.bench.replay import Corpus, text_of
    from echodraft.curves import find_curve
    from echodraft.errors import UsageError

    names = [part.strip() for part in tables.split(",") if part.strip()] or [name for name in TABLES.get(method, {}) if name != "locality"]
    chosen = {name: settings_of(method, name) for name in names or [""]}
    methods = [setting.method for held in chosen.values() for setting in held]
    if listing:
        return console.answer(",".join(dict.fromkeys(methods)) + "\n")
    if recording is None:
        raise UsageError("Name the folder of a recording, made by echodraft record.")
    size, curve = read_budget(budget), find_curve(cost) if cost is not None else None
    corpus, beside = Corpus(Recording(recording), limit), Corpus(Recording(other), limit) if other is not None else None
    words = text_of(corpus.recording, methods, None)
    drafting = open_draft(corpus.recording, words, draft_model, draft_quantize, draft_cost, curve)
    model = drafting and drafting.model
    require(corpus, [setting for held in chosen.values() for setting in held], words, model, beside)
    found: dict[str, list[dict[str, Any]]] = {}
    interrupted = False
    try:
        with Bar(len(methods) * len(corpus.entries)) as bar:
            for name, held in chosen.items():
                rows = found.setdefault(name, [])
                if name == TREE:
                    made = verify_trees(corpus, held[0], size, curve, words, model, lambda said: bar.advance(1, said))
                else:
                    made = ablate(corpus, held, size, curve, words, model, beside, lambda said: bar.advance(1, said))
                rows.extend(made if drafting is None else drafting.keeping(made))
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        about = {"recording": str(recording), "requests": len(corpus.entries), "budget": size, "cost": curve and curve.name}
        console.json_object({**about, "draft_model": draft_model, "draft_cost": model and model.cost, "tables": found})
    else:
        from rich.console import Console

        from echodraft.render.replay import ablation, notes, ways

        screen = Console() if Console().is_terminal else Console(width=110)
        for name, rows in found.items():
            screen.print(ways(rows) if name == TREE else ablation(name, rows))
        rows = [row for name, rows in found.items() if name != TREE for row in rows]
        for line in notes(rows, len(corpus.entries), sum(corpus.repeated), "as told", curve and curve.name, model and model.cost):
            console.note(line)
    if interrupted:
        console.note("Interrupted: what was finished is shown.")
        raise typer.Exit(console.INTERRUPTED)
