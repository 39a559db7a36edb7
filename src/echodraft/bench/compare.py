"""Two runs: what changed, and whether it is more than noise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import exp, log
from statistics import median
from typing import Any

from echodraft.bench.result import BASELINE, Measurement
from echodraft.bench.statistics import mean_interval
from echodraft.bench.summary import labels

Pair = tuple[float, float]
FREE = ("drafters", "peers", "limit")
"""Settings that only say what was measured: what both runs have is compared."""


def compare(
    before: Sequence[Measurement], after: Sequence[Measurement], threshold: float, same_machine: bool = True
) -> list[dict[str, Any]]:
    """One row a method and category, and one for all categories ("all") where there are several, over the items that both runs finished.

    speedup, mean_accepted, decode_tokens_per_second hold `before`, `after`, the `change` as a share, its 95 % `interval` over items, and
    `worse`: the change is beyond `threshold` and the whole interval is on the bad side of zero. All three are geometric means over items,
    every item the same weight, since that is what pairs. None where there is nothing to compare.
    identical counts items with exactly the tokens of plain decoding, in both runs.
    Speeds are judged only on the `same_machine`.
    """
    old, new = _by_method(before), _by_method(after)
    rows = []
    for method in [name for name in old if name in new]:
        items = [item for item in old[method] if item in new[method]]
        label = labels(old[method][item][0] for item in items)
        groups = {name: [item for item in items if label[item] == name] for name in dict.fromkeys(label.values())}
        if len(groups) > 1:
            groups["all"] = items
        for category, group in groups.items():
            rows.append(
                {"drafter": method, "category": category, "items": len(group), **_row(method, group, old, new, threshold, same_machine)}
            )
    return rows


Runs = Mapping[str, Mapping[str, Sequence[Measurement]]]


def _row(method: str, items: Sequence[str], old: Runs, new: Runs, threshold: float, same_machine: bool) -> dict[str, Any]:
    def paired(value: Callable[[Runs, str], float | None]) -> list[Pair]:
        both = [(value(old, item), value(new, item)) for item in items]
        return [(a, b) for a, b in both if a and b]

    def speed(runs: Runs, item: str) -> float | None:
        return _speed(runs[method][item])

    def speedup(runs: Runs, item: str) -> float | None:
        own, plain = _speed(runs[method][item]), _speed(runs.get(BASELINE, {}).get(item, ()))
        return own / plain if own and plain else None

    def accepted(runs: Runs, item: str) -> float | None:
        first = runs[method][item][0]
        return first.decoded / first.steps if first.steps else None

    judged = same_machine
    found = {
        "speedup": _changed(paired(speedup), threshold, judged and method != BASELINE),
        "mean_accepted": _changed(paired(accepted), threshold, True),
        "decode_tokens_per_second": _changed(paired(speed), threshold, judged),
    }
    same = [(_identical(old, method, item), _identical(new, method, item)) for item in items]
    lost = [b - a for a, b in same]
    interval = mean_interval(lost)
    less = {
        "before": sum(a for a, _ in same),
        "after": sum(b for _, b in same),
        "worse": bool(items) and sum(lost) / len(items) < -threshold and interval is not None and interval[1] < 0,
    }
    worse = any(value is not None and value["worse"] for value in found.values()) or less["worse"]
    return {**found, "identical": less, "verdict": "worse" if worse else ""}


def _changed(pairs: Sequence[Pair], threshold: float, judged: bool) -> dict[str, Any] | None:
    if not pairs:
        return None
    ratios = [log(b / a) for a, b in pairs]
    mean = sum(ratios) / len(ratios)
    interval = mean_interval(ratios)
    change = exp(mean) - 1
    return {
        "before": _geometric([a for a, _ in pairs]),
        "after": _geometric([b for _, b in pairs]),
        "change": change,
        "interval": None if interval is None else [exp(bound) - 1 for bound in interval],
        "worse": judged and change < -threshold and interval is not None and interval[1] < 0,
    }


def _geometric(values: Sequence[float]) -> float:
    return exp(sum(map(log, values)) / len(values))


def _by_method(measurements: Sequence[Measurement]) -> dict[str, dict[str, list[Measurement]]]:
    out: dict[str, dict[str, list[Measurement]]] = {}
    for m in measurements:
        out.setdefault(m.method, {}).setdefault(m.item, []).append(m)
    return out


def _speed(rounds: Sequence[Measurement]) -> float | None:
    """Decoded tokens a second, with the median time of the rounds."""
    if not rounds:
        return None
    seconds = median(m.decode_seconds for m in rounds)
    return rounds[0].decoded / seconds if seconds else None


def _identical(runs: Runs, method: str, item: str) -> bool:
    plain = runs.get(BASELINE, {}).get(item)
    return plain is not None and all(m.ids == plain[0].ids for m in runs[method][item])


def unlike(before: Mapping[str, Any], after: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    """What the manifests of two runs differ in, with both values: machine, settings, versions, revision."""
    out = []
    for part in ("machine", "settings", "versions"):
        old, new = before.get(part) or {}, after.get(part) or {}
        for key in dict.fromkeys((*old, *new)):
            # What an older run did not write down is not a difference.
            if key in old and key in new and old[key] != new[key] and not (part == "settings" and key in FREE):
                out.append((key, old[key], new[key]))
    if _short(before) != _short(after):
        out.append(("revision", _short(before), _short(after)))
    return out


def _short(manifest: Mapping[str, Any]) -> str:
    return f"{str(manifest.get('revision') or '?')[:10]}{' with changes' if manifest.get('dirty') else ''}"
