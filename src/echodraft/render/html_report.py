"""The page of `echodraft report`: what each method brought, where the time went, and sample outputs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

from echodraft.metrics.traced import shown
from echodraft.render.html import marks, render

Row = Mapping[str, Any]
BASELINE = "none"
PHASES = ("prefill", "propose", "score", "accept", "commit", "decode")
"""In the order of the bars; "decode" is for methods that do not tell its phases."""
DEEPEST = 12
FEW = 10
"""Steps; a share of fewer is shown pale."""
LONGEST = 400
"""Tokens of a sample that are shown."""
MODEL = "the model"
UNKNOWN = "drafted"
"""Whose drafts they were is not told by runs of older versions."""


def page(title: str, runs: Sequence[Row], samples: int = 2) -> str:
    """A self-contained page of these runs (`bench.report.gather`), with so many sample outputs of each category."""
    measurements = [m for run in runs for m in run["measurements"]]
    hues = marks([source for m in own for source in _by_source(m)] for own in _methods(measurements).values())
    return render(
        "report.html",
        title=title,
        few=FEW,
        phases={phase: number for number, phase in enumerate(PHASES)},
        runs=[
            {
                "name": run["name"],
                "about": _about(run["manifest"]),
                "groups": _groups(run["rows"]),
                "rows": run["rows"],
                "depths": _depths(run["rows"]),
                "times": _times(run["measurements"]),
                "sources": _sources(run["measurements"], hues),
                "samples": _samples(run, samples, hues),
            }
            for run in runs
        ],
    )


def _about(manifest: Row) -> list[tuple[str, str]]:
    """The manifest as lines; what lies deeper gets a dotted name."""
    out: list[tuple[str, str]] = []
    for key, value in manifest.items():
        if isinstance(value, Mapping):
            out += [(f"{key}.{name}", said) for name, said in _about(value)]
        elif isinstance(value, list):
            out.append((key, ", ".join(map(str, value)) or "–"))
        else:
            out.append((key, "–" if value is None else str(value)))
    return out


def _groups(rows: Sequence[Row]) -> list[dict[str, Any]]:
    """Bars of speed-up: over everything, and by category where there are several. All share one scale."""
    names = list(dict.fromkeys(name for row in rows for name in row["categories"]))
    groups = {"all": {row["drafter"]: row for row in rows}}
    if len(names) > 1:
        groups |= {name: {row["drafter"]: row["categories"][name] for row in rows if name in row["categories"]} for name in names}
    drawn = {
        name: [(method, row) for method, row in group.items() if method != BASELINE and row["speedup"]] for name, group in groups.items()
    }
    ends = [end for bars in drawn.values() for _, row in bars for end in (row["speedup"], (row["speedup_interval"] or [0])[-1])]
    scale = 100 / (1.05 * max([1.2, *ends]))
    return [
        {
            "name": "all items" if name == "all" else name,
            "items": max(row["items"] for row in groups[name].values()),
            "plain": groups[name].get(BASELINE),
            "base": scale,
            "bars": [_bar(method, row, scale) for method, row in bars],
        }
        for name, bars in drawn.items()
    ]


def _bar(method: str, row: Row, scale: float) -> dict[str, Any]:
    low, high = row["speedup_interval"] or (None, None)
    drawn = None if low is None else (low * scale, high * scale)
    return {"method": method, "speedup": row["speedup"], "low": low, "high": high, "width": row["speedup"] * scale, "drawn": drawn}


def _depths(rows: Sequence[Row]) -> dict[str, Any]:
    """Acceptance by position: of the steps that came to a depth with a draft there, how many kept it."""
    told = {row["drafter"]: list(zip_longest(row["kept"], row["reached"], fillvalue=0))[:DEEPEST] for row in rows if any(row["reached"])}
    return {"most": max(map(len, told.values()), default=0), "methods": told}


def _times(measurements: Sequence[Row]) -> list[dict[str, Any]]:
    """Milliseconds of each phase for an output token, by method; a bar is as long as its share of the slowest."""
    out = []
    for method, own in _methods(measurements).items():
        seconds: Counter[str] = Counter()
        for m in own:
            seconds.update(m["seconds"] or {"prefill": m["prefill_seconds"], "decode": m["decode_seconds"]})
        tokens = sum(len(m["ids"]) for m in own)
        each = {phase: 1000 * seconds[phase] / tokens for phase in PHASES if seconds[phase]} if tokens else {}
        out.append({"method": method, "each": each, "total": sum(each.values())})
    slowest = max((row["total"] for row in out), default=0)
    for row in out:
        row["parts"] = _stacked((phase, ms / slowest) for phase, ms in row["each"].items())
    return out


def _sources(measurements: Sequence[Row], hues: Mapping[str, int]) -> list[dict[str, Any]]:
    """Shares of the output tokens by who guessed them; methods that drafted nothing, or do not tell, are left out."""
    out = []
    for method, own in _methods(measurements).items():
        by_source: Counter[str] = Counter()
        for m in own:
            by_source.update(_by_source(m))
        tokens = sum(len(m["ids"]) for m in own)
        if by_source:
            shares = {source: count / tokens for source, count in by_source.most_common()}
            own_share = 1 - sum(shares.values())
            parts = [part | {"hue": hues.get(part["name"])} for part in _stacked([*shares.items(), (MODEL, own_share)])]
            out.append({"method": method, "parts": parts[:-1], "bar": parts, "own": own_share})
    return out


def _by_source(m: Row) -> dict[str, int]:
    return m["by_source"] or ({UNKNOWN: m["accepted"]} if m["accepted"] else {})


def _stacked(shares: Iterable[tuple[str, float]]) -> list[dict[str, Any]]:
    """Parts of a bar one behind the other, in percent of its whole."""
    out, at = [], 0.0
    for name, share in shares:
        out.append({"name": name, "at": 100 * at, "width": 100 * share, "share": share})
        at += share
    return out


def _methods(measurements: Sequence[Row]) -> dict[str, list[Row]]:
    return {name: [m for m in measurements if m["method"] == name] for name in dict.fromkeys(m["method"] for m in measurements)}


def _samples(run: Row, most: int, hues: Mapping[str, int]) -> list[dict[str, Any]]:
    """The first items of each category, those first on which a method leaves plain decoding."""
    items: dict[str, dict[str, Row]] = {}
    for row in run["rows"]:  # in the order of the methods, plain decoding first
        for m in run["measurements"]:
            if m["repeat"] == 0 and m["method"] == row["drafter"]:
                items.setdefault(m["item"], {})[m["method"]] = m
    gaps = {(row["drafter"], d["item"]): d["gap"] for row in run["rows"] for d in row["differences"] if d.get("repeat", 0) == 0}
    chosen: dict[str, list[dict[str, Any]]] = {}
    for item, by_method in items.items():
        if BASELINE in by_method:
            label = by_method[BASELINE]["label"]
            chosen.setdefault(label, []).append(_sample(item, label, by_method, gaps, hues))
    return [sample for held in chosen.values() for sample in sorted(held, key=lambda sample: sample["same"])[:most]]


def _sample(item: str, label: str, by_method: Mapping[str, Row], gaps: Row, hues: Mapping[str, int]) -> dict[str, Any]:
    plain = by_method[BASELINE]
    # A text that is plain decoding's and has no colours of its own is shown once.
    alike = [name for name, m in by_method.items() if name != BASELINE and m["ids"] == plain["ids"] and not any(s for s, _ in m["sources"])]
    drawn = [m for name, m in by_method.items() if name not in (BASELINE, *alike)]
    same = all(m["ids"] == plain["ids"] for m in drawn)
    panels = [_panel(m, plain, gaps.get((m["method"], item)), hues) for m in (drawn if same and drawn else [plain, *drawn])]
    return {"item": item, "label": label, "same": same, "alike": alike, "prompt_tokens": plain["prompt_tokens"], "panels": panels}


def _panel(m: Row, plain: Row, gap: float | None, hues: Mapping[str, int]) -> dict[str, Any]:
    ids, pieces = m["ids"], m["pieces"] or [""] * len(m["ids"])
    earned = [source for source, count in m["sources"] for _ in range(count)]
    earned += [None] * (len(ids) - len(earned))
    parted = _parted(ids, plain["ids"])
    tokens = [
        {"text": piece, "id": token, "source": source, "hue": hues.get(source or ""), "parted": i == parted}
        for i, (piece, token, source) in enumerate(zip(pieces, ids, earned, strict=False))
    ]
    return {
        "method": m["method"],
        "tokens": tokens[:LONGEST],
        "more": max(len(tokens) - LONGEST, 0),
        "parted": parted,
        "said": _said(plain, parted),
        "gap": gap,
        "steps": m["steps"],
        "emitted": len(ids),
        "finish": m["finish"],
        "hues": {source: hues[source] for source in dict.fromkeys(earned[:LONGEST]) if source in hues},
    }


def _parted(ids: Sequence[int], plain: Sequence[int]) -> int | None:
    """Where an output leaves plain decoding; None where it does not."""
    if list(ids) == list(plain):
        return None
    return next((i for i, (a, b) in enumerate(zip(ids, plain, strict=False)) if a != b), min(len(ids), len(plain)))


def _said(plain: Row, parted: int | None) -> str | None:
    """What plain decoding said there; None where it had ended."""
    if parted is None or parted >= len(plain["ids"]):
        return None
    return shown(plain["pieces"][parted] if plain["pieces"] else "", plain["ids"][parted])
