"""What `echodraft bench --json` and `echodraft compare --json` print, for a terminal of 100 columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

SHOWN = 5
"""Differences told in full."""


def table(results: Sequence[Mapping[str, Any]], by_category: bool = False) -> Any:
    """A rich table: one line a method, all categories together or one after another."""
    out = _table("category\n  method" if by_category else "method")
    heads = (
        "tokens\na step",
        *(() if by_category else ("tokens\na call",)),
        "nodes a step:\nmade seen kept",
        "draft\ntime",
        "decode\ntokens/s",
        "×",
        "all\n×",
        "same",
    )
    for head in heads:
        out.add_column(head, justify="right", no_wrap=True)
    if not by_category:
        for row in results:
            out.add_row(row["drafter"], *_cells(row))
        return out
    for name in dict.fromkeys(name for row in results for name in row["categories"]):
        out.add_row(name or "(none)")
        for row in results:
            if name in row["categories"]:
                out.add_row(f"  {row['drafter']}", *_cells(row["categories"][name], calls=False))
        out.add_section()
    return out


def reports(results: Sequence[Mapping[str, Any]]) -> Any:
    """A rich table of what drafters count themselves, one column a method, and the measured speed-up below; None where none does."""
    told = [row for row in results if row["report"]]
    if not told:
        return None
    out = _table("since the run began")
    for row in told:
        out.add_column(row["drafter"], justify="right", overflow="fold")
    for name in dict.fromkeys(name for row in told for name in row["report"]):
        values = [row["report"].get(name) for row in told]
        out.add_row(name.replace("_", " "), *("" if v is None else f"{v:,.0f}" if v == int(v) else f"{v:.3f}" for v in values))
    out.add_row("measured ×", *(_number(row["speedup"]) for row in told))
    return out


def growth(results: Sequence[Mapping[str, Any]]) -> Any:
    """A rich table of the quarters of the stream, tokens a step and speed-up, of methods that draft; None for a short stream."""
    told = [row for row in results if row["drafter"] != "none" and row["growth"] and row["steps"]]
    if not told:
        return None
    out = _table("growth over the stream: tokens a step, ×")
    for i in range(4):
        out.add_column(f"quarter {i + 1}", justify="right", no_wrap=True)
    for row in told:
        out.add_row(row["drafter"], *(f"{_number(part['mean_accepted'])}, {_number(part['speedup'])}" for part in row["growth"]))
    return out


def _table(*names: str) -> Any:
    from rich import box
    from rich.table import Table

    out = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for name in names:
        out.add_column(name, overflow="fold")
    return out


def _cells(row: Mapping[str, Any], calls: bool = True) -> list[str]:
    nodes = [row[key] / row["steps"] for key in ("drafted", "verified", "accepted")] if row["steps"] else []
    return [
        _number(row["mean_accepted"]),
        *([_number(row["block_efficiency"])] if calls else []),
        " ".join(f"{n:4.1f}" for n in nodes),
        "" if row["draft_share"] is None else f"{row['draft_share']:.1%}",
        _number(row["decode_tokens_per_second"]),
        _number(row["speedup"]) + _interval(row["speedup_interval"]),
        _number(row["speedup_end_to_end"]),
        f"{row['identical']}/{row['items']}",
    ]


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _interval(bounds: Sequence[float] | None) -> str:
    return "" if bounds is None or bounds[0] == bounds[1] else f" ({bounds[0]:.2f}–{bounds[1]:.2f})"


def notes(results: Sequence[Mapping[str, Any]], settings: Mapping[str, Any]) -> list[str]:
    """What the table does not say."""
    rounds = f", medians of {settings['repeats']} rounds" if settings["repeats"] > 1 else ""
    start = {"cold": "empty for every request", "start": "carried, beginning with a folder"}.get(settings["memory"], "carried")
    out = [
        f"× is decode speed against plain decoding (none), in brackets 95 % of what other prompts of the kind would give{rounds}; "
        f"all × counts prefill; same: outputs with exactly the tokens of none. Memory: {start}."
    ]
    again = [row for row in results if row["without_repeated"] and row["drafter"] != "none"]
    if again:
        count = again[0]["items"] - again[0]["without_repeated"]["items"]
        told = ", ".join(f"{row['drafter']} {_without(row['without_repeated'])}" for row in again)
        out.append(f"Without the {count} requests whose prompt had come before: {told}.")
    peak = max((row["peak_memory"] or 0 for row in results), default=0)
    if peak:
        out.append(f"Peak memory of the process: {peak / 2**30:.2f} GiB.")
    return out + differences(results)


def _without(row: Mapping[str, Any]) -> str:
    steps = "" if row["mean_accepted"] is None else f", {row['mean_accepted']:.2f} tokens a step"
    return f"{row['speedup'] or 0:.2f}×{steps}"


def differences(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Where outputs left plain decoding, the first few of all."""
    told = [(row["drafter"], found) for row in results for found in row["differences"]]
    out = []
    for drafter, found in told[:SHOWN]:
        kept, other = ("the end" if found[key] is None else f"{found[f'{key}_text']!r} ({found[key]})" for key in ("plain", "other"))
        gap = "" if found["gap"] is None else f", {abs(found['gap']):.3g} apart in the logits"
        out.append(f"{drafter} left none in {found['item']} at output token {found['index']}: {other} for {kept}{gap}.")
    if len(told) > SHOWN:
        out.append(f"{len(told) - SHOWN} more differences: see --json.")
    if told:
        out.append("A gap near zero is a numerical tie; echodraft verify measures what rounding explains here.")
    return out


def compared(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A rich table of `bench.compare`: by method one line a category, what was and what is."""
    out = _table("method\n  category")
    for head in ("items", "×", "change", "tokens\na step", "change", "decode\ntokens/s", "same", ""):
        out.add_column(head, justify="right", no_wrap=True)
    for method in dict.fromkeys(row["drafter"] for row in rows):
        out.add_row(method)
        for row in (row for row in rows if row["drafter"] == method):
            cells = (
                *(_values(row["speedup"]), _change(row["speedup"])),
                *(_values(row["mean_accepted"]), _change(row["mean_accepted"], noise=False)),
                _change(row["decode_tokens_per_second"]),
            )
            same = f"{row['identical']['before']}→{row['identical']['after']}"
            out.add_row(f"  {row['category'] or '(none)'}", str(row["items"]), *cells, same, row["verdict"])
        out.add_section()
    return out


def agreeing(rows: Sequence[Mapping[str, Any]]) -> Any:
    """A rich table of `bench.agreement`: by method what was measured and what a replay says."""
    out = _table("method")
    for head in ("same", "tokens a step\nlive", "in replay", "change", ""):
        out.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        cells = (_number(row["live"]), _number(row["replayed"]), _change(row if row["change"] is not None else None))
        out.add_row(row["drafter"], f"{row['same']}/{row['items']}", *cells, "agrees" if row["agrees"] else "differs")
    return out


def _values(found: Mapping[str, Any] | None) -> str:
    return "" if found is None else f"{found['before']:.2f}→{found['after']:.2f}"


def _change(found: Mapping[str, Any] | None, noise: bool = True) -> str:
    """A change in percent, with half the width of its interval."""
    if found is None:
        return ""
    sign = "-" if found["change"] < 0 else "+"
    low, high = found["interval"] or (0.0, 0.0)
    return f"{sign}{_share(abs(found['change']))}" + (f" ±{_share((high - low) / 2)}" if noise and found["interval"] else "")


def _share(value: float) -> str:
    return f"{value:.1%}" if value < 0.1 else f"{value:.0%}"
