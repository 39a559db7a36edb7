"""What `echodraft verify --json` prints, for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

COUNTS = ("prompts", "tokens", "identical", "ties", "faults")


def table(results: Sequence[Mapping[str, Any]]) -> Any:
    """A rich table: one line a drafter and mode."""
    from rich import box
    from rich.table import Table

    out = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    out.add_column("drafter", overflow="fold", min_width=13)
    out.add_column("mode")
    for head in ("prompts", "tokens", "identical", "ties", "faults", "tokens\na step"):
        out.add_column(head, justify="right", no_wrap=True)
    for row in results:
        mean = "" if row["mean_accepted"] is None else f"{row['mean_accepted']:.2f}"
        out.add_row(row["drafter"], row["mode"], *(str(row[count]) for count in COUNTS), mean)
    return out


def explained(found: Mapping[str, Any]) -> str:
    """One difference, in four lines."""
    forward = f", from a forward of {found['rows']} × {found['columns']} tokens" if found["rows"] else ""
    where = f"prompt {found['prompt']}, output token {found['index']} (position {found['position']})"
    replayed = found["moved"] is not None
    moved = f", logits moved by {found['moved']:.3g}" if replayed else ""
    gap = "nothing to compare" if found["gap"] is None else f"gap {found['gap']:.3g}, rounding explains {found['allowed']:.3g}"
    verdict = "numerical tie" if found["verdict"] == "tie" else "FAULT, rounding does not explain this"
    width = max(len("plain"), len(found["drafter"]))
    return "\n".join(
        (
            f"{found['drafter']}, {found['mode']}, {where}, {found['dtype']}{forward}",
            f"  {'plain':<{width}}  {_candidate(found['kept'], replayed)}",
            f"  {found['drafter']:<{width}}  {_candidate(found['drafted'], replayed)}",
            f"  {gap}{moved}: {verdict}",
        )
    )


def tolerance(found: Mapping[str, Any]) -> str:
    """What the verdicts rest on."""
    batched = f", in batches by {found['batched']:.3g}" if found["settings"]["batch"] > 1 else ""
    return (
        f"tolerance {found['tolerance']:.3g}. One-row forwards and others of the same prefix differed by up to {found['measured']:.3g} in "
        f"a logit{batched} ({found['prefixes']} compared); one unit in the last place is added."
    )


def _candidate(one: Mapping[str, Any] | None, replayed: bool) -> str:
    if one is None:
        return "had ended"
    scores = f"{_score(one['plain'])} by the one-row forward"
    return f"{one['id']} {one['text']!r}: {scores}" + (f", {_score(one['drafted'])} by the draft's" if replayed else "")


def _score(score: float | None) -> str:
    return "excluded" if score is None else f"{score:.6g}"
