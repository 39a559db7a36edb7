"""What `echodraft diagnose` found, for a terminal and as a page."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from echodraft.render.html import figure, percent, render

HEADS = ("m", "positions", "present", "missed", "gap", "gaps", "recovered", "verbatim")
MEANINGS = (
    ("m", "the next m tokens, in a row"),
    ("present", "they occur in earlier outputs, or earlier in this one"),
    ("missed", "the lexical draft had no first token that was right"),
    ("gap", "present and missed"),
    ("recovered", "of the gap: the right token is behind one of the nearest states"),
    ("verbatim", "tokens that the best of these copies gets right, from there on"),
)


def cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """A row of the table as text."""
    shares = (percent(row[name], 1) for name in ("present", "missed", "gap"))
    return (
        str(row["span"]),
        f"{row['positions']:,}",
        *shares,
        str(row["gap_positions"]),
        percent(row["recovered"]),
        figure(row["verbatim"], 1),
    )


def table(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A rich table, one line a span."""
    from rich import box
    from rich.table import Table

    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in HEADS:
        out.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        out.add_row(*cells(row))
    return out


def cliff(lengths: Mapping[int, float | None]) -> str:
    """The line of match lengths."""
    return ", ".join(f"{shift:+d}: {figure(length, 0)}" for shift, length in lengths.items())


def page(
    title: str,
    rows: Sequence[Mapping[str, Any]],
    lengths: Mapping[int, float | None],
    cases: Sequence[Any],
    text: Callable[[Sequence[int]], str],
) -> str:
    """A self-contained page with the table and every case; `text` turns ids into text."""
    shown = [
        {
            "request": case.position.request,
            "at": case.position.at,
            "found": case.position.found,
            "verbatim": case.position.verbatim,
            "match": case.position.match,
            "before": text(case.before),
            "truth": text(case.truth),
            "lexical": [(text([token]), prob) for token, prob in case.lexical],
            "neighbours": [
                {
                    "cosine": cosine,
                    "own": text([own]),
                    "agrees": own == case.before[-1],
                    "copy": text(copy),
                    "right": copy[:1] == case.truth[:1],
                }
                for cosine, own, copy in case.neighbours
            ],
        }
        for case in cases
    ]
    return render(
        "diagnosis.html", title=title, heads=HEADS, meanings=MEANINGS, rows=[cells(row) for row in rows], lengths=lengths, cases=shown
    )
