"""`echodraft replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.inputs import DraftCost, DraftModel, DraftQuantize, Tuned, open_draft, read_budget
from echodraft.cli.progress import Bar
from echodraft.drafters import DEFAULTS, chosen

BUDGET = "Draft where it pays; nodes each step; or the best of fixed sizes (needs --cost). Several, comma-separated."
COST = "What a forward of n tokens costs: a file of echodraft cost, or a name from echodraft cost --list."


def command(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="Folder made by echodraft record.")],
    drafters: Annotated[
        str | None, typer.Option("--drafters", help=f"Comma-separated, knobs as name:key=value. Default: {DEFAULTS}.", show_default=False)
    ] = None,
    profile: Tuned = None,
    budget: Annotated[str, typer.Option("--budget", metavar="auto|N|best[,…]", help=BUDGET)] = "auto",
    cost: Annotated[str | None, typer.Option("--cost", metavar="FILE|NAME", help=COST, show_default=False)] = None,
    draft_model: DraftModel = None,
    draft_quantize: DraftQuantize = None,
    draft_cost: DraftCost = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests.", show_default=False)] = None,
    memory: Annotated[str, typer.Option("--memory", metavar="carry|cold", help="Remember from request to request, or not.")] = "carry",
    layer: Annotated[str, typer.Option("--layer", help="Whose recorded hidden states drafters get: norm, or a decoder layer.")] = "norm",
    no_repeats: Annotated[bool, typer.Option("--no-repeats", help="Only count prompts that did not occur before.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="For drafters that read text. Default: the recorded model's.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Example: echodraft replay recordings/humaneval --drafters suffix,prompt-lookup:longest=3 --budget auto,16 --cost gpu-flat

    Try drafters on recorded outputs, without the model: real drafters, real engine, real budgets. Counts equal those of a live run for
    drafters that use tokens and hidden states; those marked ≈ also learn from rejected drafts, of which a recording knows nothing.

    A draft model runs for real, once: what it says is kept beside the recording, and the next replay asks it for what is new.
    """
    from echodraft.bench.recording import Recording
    from echodraft.bench.replay import Corpus, compare, count_runs, text_of
    from echodraft.curves import find_curve
    from echodraft.errors import UsageError

    if memory not in ("carry", "cold"):
        raise UsageError(f"--memory is carry or cold, not '{memory}'.")
    names, sizes = ([part.strip() for part in text.split(",") if part.strip()] for text in (chosen(drafters, draft_model), budget))
    if not names or not sizes:
        raise UsageError("Name at least one drafter with --drafters and one size with --budget.")
    budgets = [read(part) for part in sizes]
    curve = find_curve(cost) if cost is not None else None
    corpus = Corpus(Recording(recording), limit, layer)
    words = text_of(corpus.recording, names, tokenizer)
    drafting = open_draft(corpus.recording, words, draft_model, draft_quantize, draft_cost, curve)
    model = drafting and drafting.model
    rows: list[dict[str, Any]] = []
    interrupted = False
    try:
        with Bar(count_runs(names, budgets) * len(corpus.entries)) as bar:
            made = compare(corpus, names, budgets, curve, memory == "carry", words, model, lambda name: bar.advance(1, name))
            rows.extend(made if drafting is None else drafting.keeping(made))
    except KeyboardInterrupt:
        interrupted = True
    repeats = sum(corpus.repeated)
    if no_repeats:
        for row in rows:
            del row["all"]
    if as_json:
        manifest = corpus.recording.manifest
        about = {"recording": str(recording), **{key: manifest.get(key) for key in ("model", "dtype", "suite")}}
        counts = {"requests": len(corpus.entries), "repeats": repeats, "memory": memory, "cost": curve and curve.name}
        counts |= {"draft_model": draft_model, "draft_quantize": draft_quantize, "draft_cost": model and model.cost}
        console.json_object({**about, **counts, "results": rows})
    else:
        from rich.console import Console

        from echodraft.render.replay import notes, tables

        screen = Console() if Console().is_terminal else Console(width=110)
        for table in tables(rows, repeats > 0 and not no_repeats, curve is not None) if rows else ():
            screen.print(table)
        for line in notes(rows, len(corpus.entries), repeats, memory, curve and curve.name, model and model.cost):
            console.note(line)
    if interrupted:
        console.note(f"Interrupted: {'what was finished is shown' if rows else 'no drafter was finished'}.")
        raise typer.Exit(console.INTERRUPTED)


def read(part: str) -> str | int:
    """A budget: "auto", "best" or a number. Raises `UsageError`."""
    return part if part == "best" else read_budget(part)
