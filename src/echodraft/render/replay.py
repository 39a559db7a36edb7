"""A replay as tables: counts, acceptance by depth, acceptance by who guessed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich import box
from rich.table import Table

DEPTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24)


def tables(rows: Sequence[Mapping[str, Any]], repeats: bool, costed: bool) -> list[Table]:
    """The tables of `rows` as `echodraft replay --json` has them.

    repeats  show the counts of all requests and those without repeated prompts, not one of them only
    costed   show the estimated speed-up
    """

    drafting = any(row.get("all", row["without_repeats"])["draft_forwards"] for row in rows)
    heads = ("budget", "requests", "steps", "tokens\na step", "mean of\nrequests", "block\neff.", "drafted", "verified", "accepted")
    counts = _table("", "drafter", *heads, *(["drafting\na step"] if drafting else []), *(["×"] if costed else []))
    depths = _table("Accepted at each depth, of the steps that came there and had a child", "drafter", "budget", *map(str, DEPTHS))
    sources = _table("Accepted, by who guessed", "drafter", "budget", "guessed by", "verified", "accepted", "share")
    for row in rows:
        name, budget = ("≈ " if row["replay"] == "approximate" else "") + row["drafter"], str(row["budget"])
        held = row.get("all", row["without_repeats"])
        counts.add_row(name, budget, *_cells(held, drafting, costed))
        if repeats:
            counts.add_row("  no repeats", "", *_cells(row["without_repeats"], drafting, costed))
        shares = [f"{kept / reached:.0%}" if reached else "" for reached, kept in zip(held["reached"], held["kept"], strict=False)]
        depths.add_row(name, budget, *(shares[d - 1] if d <= len(shares) else "" for d in DEPTHS))
        for source, n in held["by_source"].items():
            sources.add_row(name, budget, source, f"{n['scored']:,}", f"{n['accepted']:,}", f"{n['accepted'] / n['scored']:.0%}")
    return [counts, depths, sources]


def ablation(title: str, rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of `bench.ablation.ablate`."""
    extra = [(name, head) for name, head in REPORTED if any(name in row["report"] for row in rows)]
    table = _table(
        title, "", "remembered", "steps", "tokens\na step", *(head for _, head in extra), "rows\na step", "drafting\na step", "×"
    )
    for row in rows:
        held, steps = row["all"], max(1, row["all"]["steps"])
        table.add_row(
            ("≈ " if row["replay"] == "approximate" else "") + row["setting"],
            HELD[row["held"]],
            f"{held['steps']:,}",
            f"{held['mean_accepted']:.2f}",
            *(f"{row['report'][name]:.2f}" if name in row["report"] else "" for name, _ in extra),
            f"{1 + (held['verified'] + held['probes']) / steps:.1f}",
            f"{held['draft_cost'] / steps:.2f}" if held["draft_cost"] else "",
            f"{held['speedup']:.2f}" if held["speedup"] else "",
        )
    return table


HELD = {"carried": "its own, carried", "request": "this request's", "cold": "nothing", "other": "another task's first", "none": "-"}
REPORTED = (
    ("accepted_prefix", "A"),
    ("suffix_tokens", "by\nphrases"),
    ("draft_tokens_per_forward", "c"),
)
"""What a drafter counts itself that an ablation shows."""


def ways(rows: Sequence[Mapping[str, Any]]) -> Table:
    """A table of `bench.ablation.verify_trees`."""
    table = _table("tree", rows[0]["drafter"] if rows else "", "forwards", "rows", "×")
    for row in rows:
        table.add_row(row["way"], f"{row['forwards']:,}", f"{row['rows']:,}", f"{row['speedup']:.2f}" if row["speedup"] else "")
    return table


def trials(found: Sequence[tuple[str, float, float | None]], live: bool) -> Table:
    """What a search found: method, speed-up, and speed-up of the live check."""
    table = _table("", "best settings", "×, live" if live else "×, estimated", *([] if live else ["×, live"]))
    for method, speed, checked in found:
        table.add_row(method, f"{speed:.2f}", *([] if live else ["" if checked is None else f"{checked:.2f}"]))
    return table


def _table(title: str, first: str, *heads: str) -> Table:
    made = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0), title=title, title_justify="left")
    made.add_column(first, overflow="fold", min_width=13)
    for head in heads:
        made.add_column(head, justify="right", no_wrap=True)
    return made


def _cells(held: Mapping[str, Any], drafting: bool, costed: bool) -> list[str]:
    cells = [f"{held[key]:,}" for key in ("requests", "steps")]
    cells += [f"{held[key]:.2f}" for key in ("mean_accepted", "mean_accepted_macro", "block_efficiency")]
    cells += [f"{held[key]:,}" for key in ("drafted", "verified", "accepted")]
    if drafting:
        cells.append(f"{held['draft_cost'] / max(1, held['steps']):.2f}")
    return cells + ([f"{held['speedup']:.2f}" if held["speedup"] else ""] if costed else [])


def notes(
    rows: Sequence[Mapping[str, Any]], requests: int, repeats: int, memory: str, curve: str | None, draft: float | None = None
) -> list[str]:
    """What has to be said beside the tables."""
    out = [f"{requests} requests, of which {repeats} repeat an earlier prompt; memory: {memory}."]
    if curve is not None:
        models = "all that the draft model reads and says is in it, what else drafting takes" if draft else "the time that drafting takes"
        out.append(f"× is estimated from the cost curve '{curve}'; {models} is not.")
    if draft is not None:
        out.append(f"A forward of the draft model costs {draft:.2f} plain steps; drafting a step is in plain steps, too.")
    if any(row["replay"] == "approximate" for row in rows):
        out.append("≈ approximate: live, this drafter also learns from rejected drafts, of which a recording knows nothing.")
    return out
