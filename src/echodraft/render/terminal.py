"""Answers and counts for a terminal, as text."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from echodraft.decoder import Piece, Result
from echodraft.metrics.stats import Stats

HUES = {"green": "32", "cyan": "36", "magenta": "35", "yellow": "33", "blue": "34"}
OFF = "\x1b[0m"


def wants_color(choice: str, terminal: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to colour: "always", "never", or "auto": on a terminal, as NO_COLOR and FORCE_COLOR (no-color.org) allow."""
    if choice != "auto":
        return choice == "always"
    if environment.get("NO_COLOR"):
        return False
    return bool(environment.get("FORCE_COLOR")) or (terminal and environment.get("TERM") != "dumb")


class Painter:
    """Marks text by the drafter that guessed it: a hue for each, underlined as well, since not everyone sees hues."""

    def __init__(self) -> None:
        self.sources: dict[str, str] = {}
        self._hue_names = tuple(HUES)

    def paint(self, piece: Piece) -> str:
        """The piece's text, marked if it was drafted."""
        if piece.source is None or not piece.text:
            return piece.text
        code = self._code(piece.source)
        # No line carries its colour over its end.
        return "\n".join(f"{code}{line}{OFF}" if line else "" for line in piece.text.split("\n"))

    def legend(self) -> str:
        """Which mark is whose; empty if nothing was marked."""
        marks = [f"{self._code(source)}{source}{OFF} ({hue})" for source, hue in self.sources.items()]
        return f"drafted by {', '.join(marks)}; unmarked: the model itself" if marks else ""

    def _code(self, source: str) -> str:
        hue = self.sources.setdefault(source, self._hue_names[len(self.sources) % len(self._hue_names)])
        return f"\x1b[4;{HUES[hue]}m"


def stats_table(stats: Stats, drafter: str) -> str:
    """The counts of an answer, a line each."""
    scored = stats.verified + stats.probes
    rows = [
        (
            "tokens",
            f"{stats.emitted} in {stats.seconds:.2f} s (prompt {stats.prefill_seconds:.2f} s, decoding {stats.decode_seconds:.2f} s)",
        ),
        ("speed", f"{stats.tokens_per_second:.1f} tokens/s decoding"),
        ("steps", f"{stats.steps}, {stats.mean_accepted:.2f} tokens each"),
        ("drafted", f"{stats.drafted}, {scored} verified, {stats.accepted} accepted" + (f" ({stats.acceptance:.0%})" if scored else "")),
        ("accepted by", ", ".join(f"{source} {n}" for source, n in stats.by_source.most_common()) or "-"),
        ("lengths", ", ".join(f"{length}: {stats.histogram[length]}" for length in sorted(stats.histogram)) or "-"),
        ("time", _shares(stats)),
    ]
    lines = _align(rows)
    if stats.steps and not stats.drafted and drafter != "none":
        lines += f"\nNote: drafter '{drafter}' proposed nothing in this answer, so it was decoded plainly."
    return lines


def report_table(report: Mapping[str, float]) -> str:
    """What a drafter counts itself, a line each."""
    return _align([(name.replace("_", " "), f"{value:,.0f}" if value == int(value) else f"{value:.3f}") for name, value in report.items()])


def compare_table(drafted: Result, plain: Result, drafter: str) -> str:
    """An answer against plain decoding of the same prompt."""
    ours, theirs = drafted.stats, plain.stats
    ratio = speedup(ours, theirs)
    verdict = "faster" if ratio > 1.0 else "slower: draft less (--budget) or otherwise (-d)"
    same = agreement(drafted.ids, plain.ids)
    rows = [
        ("plain", f"{theirs.tokens_per_second:.1f} tokens/s, {theirs.steps} steps"),
        (drafter, f"{ours.tokens_per_second:.1f} tokens/s, {ours.steps} steps"),
        ("speed-up", f"{ratio:.2f}x ({verdict})"),
        ("tokens agree", "yes" if same is None else f"no, they part at output token {same}"),
    ]
    return _align(rows)


def speedup(ours: Stats, plain: Stats) -> float:
    """Tokens per second of decoding over those of plain decoding; 1 where there is nothing to compare."""
    return ours.tokens_per_second / plain.tokens_per_second if ours.tokens_per_second and plain.tokens_per_second else 1.0


def agreement(ours: Sequence[int], plain: Sequence[int]) -> int | None:
    """None if both outputs are the same, else the first place where they differ."""
    if list(ours) == list(plain):
        return None
    return next((i for i, (a, b) in enumerate(zip(ours, plain, strict=False)) if a != b), min(len(ours), len(plain)))


def _shares(stats: Stats) -> str:
    whole = stats.decode_seconds
    if not whole:
        return "-"
    parts = (
        ("draft", stats.propose_seconds),
        ("score", stats.score_seconds),
        ("accept", stats.accept_seconds),
        ("commit", stats.commit_seconds),
    )
    return ", ".join(f"{name} {seconds / whole:.0%}" for name, seconds in parts)


def _align(rows: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in rows)
    return "\n".join(f"{name:>{width}}  {value}" for name, value in rows)
