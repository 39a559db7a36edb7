"""`echodraft replay`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.progress import Bar

BUDGET = "Draft where it pays; nodes each step; or the best of fixed sizes (needs --cost). Several, comma-separated."
COST = "What a forward of n tokens costs: a file of echodraft cost, or a name from echodraft cost --list."
DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def command(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="Folder made by echodraft record.")],
    drafters: Annotated[str, typer.Option("--drafters", help="Comma-separated; name:key=value sets a knob.")] = "suffix",
    budget: Annotated[str, typer.Option("--budget", metavar="auto|N|best[,…]", help=BUDGET)] = "auto",
    cost: Annotated[str | None, typer.Option("--cost", metavar="FILE|NAME", help=COST, show_default=False)] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests.", show_default=False)] = None,
    memory: Annotated[str, typer.Option("--memory", metavar="carry|cold", help="Remember from request to request, or not.")] = "carry",
    no_repeats: Annotated[bool, typer.Option("--no-repeats", help="Only count prompts that did not occur before.")] = False,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="For drafters that read text. Default: the recorded model's.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of tables.")] = False,
) -> None:
    """Example: echodraft replay recordings/humaneval --drafters suffix,prompt-lookup:longest=3 --budget auto,16 --cost gpu-flat

    Try drafters on recorded outputs, without the model: real drafters, real engine, real budgets. Counts equal those of a live run for
    drafters that use tokens and hidden states; those marked ≈ also learn from rejected drafts, of which a recording knows nothing.
    """
    from echodraft.bench.recording import Recording
    from echodraft.bench.replay import GRID, Corpus, Replayed, fidelity_of, replay, speedup, summarise, text_of
    from echodraft.core.budget import CPU_CURVE
    from echodraft.curves import find_curve
    from echodraft.errors import UsageError

    if memory not in ("carry", "cold"):
        raise UsageError(f"--memory is carry or cold, not '{memory}'.")
    names, budgets = [name for name in drafters.split(",") if name], [read(part) for part in budget.split(",") if part]
    if "best" in budgets and cost is None:
        raise UsageError("The best of several budgets is the one that is fastest: say what forwards cost with --cost.")
    curve = find_curve(cost) if cost is not None else CPU_CURVE
    corpus = Corpus(Recording(recording), limit)
    words = text_of(corpus.recording, names, tokenizer)
    runs = sum(len(GRID) if size == "best" else 1 for size in budgets) * len(names)
    rows: list[dict[str, Any]] = []
    with Bar(runs * len(corpus.entries)) as bar:

        def run(name: str, size: str | int) -> list[Replayed]:
            told = f"{name} {size}"
            return replay(corpus, name, size, curve=curve, carry=memory == "carry", words=words, told=lambda _: bar.advance(1, told))

        for name in names:
            for size in budgets:
                found, best = run(name, GRID[0] if size == "best" else size), GRID[0]
                for other in GRID[1:] if size == "best" else ():
                    tried = run(name, other)
                    if (speedup(tried, curve) or 0.0) > (speedup(found, curve) or 0.0):
                        found, best = tried, other
                told = curve if cost is not None else None
                fresh = summarise([record for record in found if not record.repeated], told)
                row = {
                    "drafter": name,
                    "budget": f"best: {best}" if size == "best" else size,
                    "replay": fidelity_of(name, corpus.recording.top),
                }
                rows.append({**row, **({} if no_repeats else {"all": summarise(found, told)}), "without_repeats": fresh})
    repeats = sum(corpus.repeated)
    if as_json:
        about = {
            "recording": str(recording),
            "model": corpus.recording.manifest.get("model"),
            "suite": corpus.recording.manifest.get("suite"),
        }
        console.json_object(
            {**about, "requests": len(corpus.entries), "repeats": repeats, "memory": memory, "cost": cost and curve.name, "results": rows}
        )
        return
    if not repeats or no_repeats:
        for row in rows:
            row.pop("all", None)
    _print(rows, cost is not None)
    console.note(
        f"{len(corpus.entries)} requests, of which {repeats} repeat an earlier prompt; memory: {memory}."
        + (f" × is estimated from '{curve.name}', drafting not counted." if cost is not None else "")
    )
    if any(row["replay"] == "approximate" for row in rows):
        console.note("≈ approximate: live, this drafter also learns from rejected drafts, of which a recording knows nothing.")


def read(part: str) -> str | int:
    """A budget: "auto", "best" or a number. Raises `UsageError`."""
    from echodraft.cli.inputs import read_budget

    return part if part == "best" else read_budget(part)


def _print(rows: list[dict[str, Any]], costed: bool) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    def table(title: str, *heads: str) -> Table:
        made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
        made.add_column("drafter", overflow="fold", min_width=13)
        for head in heads:
            made.add_column(head, justify="right", no_wrap=True)
        return made

    heads = ("budget", "requests", "steps", "tokens\na step", "mean of\nrequests", "block\neff.", "drafted", "verified", "accepted")
    counts = table("", *heads, *(["×"] if costed else []))
    depths = table("Accepted at each depth, of the steps that came there and had a child", "budget", *map(str, DEPTHS))
    sources = table("Accepted, by who guessed", "budget", "guessed by", "verified", "accepted", "share")
    for row in rows:
        name, budget = ("≈ " if row["replay"] == "approximate" else "") + row["drafter"], str(row["budget"])
        for part, label in (("all", name), ("without_repeats", "  no repeats" if "all" in row else name)):
            if part in row:
                counts.add_row(label, budget, *_cells(row[part], costed))
        held = row.get("all", row["without_repeats"])
        shares = [f"{kept / reached:.0%}" if reached else "" for reached, kept in zip(held["reached"], held["kept"], strict=False)]
        depths.add_row(name, budget, *(shares[d - 1] if d <= len(shares) else "" for d in DEPTHS))
        for source, n in held["by_source"].items():
            sources.add_row(name, budget, source, f"{n['scored']:,}", f"{n['accepted']:,}", f"{n['accepted'] / n['scored']:.0%}")
    screen = Console()
    if not screen.is_terminal:
        screen.width = 110
    for made in (counts, depths, sources):
        screen.print(made)


def _cells(held: dict[str, Any], costed: bool) -> list[str]:
    cells = [f"{held[key]:,}" for key in ("requests", "steps")]
    cells += [f"{held[key]:.2f}" for key in ("mean_accepted", "mean_accepted_macro", "block_efficiency")]
    cells += [f"{held[key]:,}" for key in ("drafted", "verified", "accepted")]
    return cells + ([f"{held['speedup']:.2f}" if held["speedup"] else ""] if costed else [])
