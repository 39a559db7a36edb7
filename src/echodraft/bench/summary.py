"""What a run shows: a fold over its measurements."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from itertools import zip_longest
from pathlib import Path
from statistics import median
from typing import Any

from echodraft.bench.result import BASELINE, Measurement, read
from echodraft.bench.rounding import read as read_tokens
from echodraft.bench.statistics import ratio_interval
from echodraft.decoder import Decoder
from echodraft.errors import UsageError


@dataclass(frozen=True, slots=True)
class Timed:
    """One item by one method over all rounds: counts of the first round, medians of the times."""

    first: Measurement
    rounds: tuple[Measurement, ...]
    prefill: float
    decode: float

    @property
    def tokens(self) -> tuple[float, float]:
        """Decoded tokens and the seconds that they took."""
        return self.first.decoded, self.decode

    @property
    def all_tokens(self) -> tuple[float, float]:
        """The same with the token of prefill and its time."""
        return len(self.first.ids), self.prefill + self.decode


@dataclass(frozen=True, slots=True)
class Difference:
    """Where an output leaves plain decoding for the first time.

    index    in the output
    plain    token of plain decoding there, None if it had ended; `other` that of the method. Each with its text
    gap      logit of `plain` less that of `other`, by one forward of the prefix that both share; None where one had ended.
             A gap near zero is a numerical tie; `echodraft verify` measures what rounding explains
    """

    item: str
    repeat: int
    index: int
    plain: int | None
    plain_text: str
    other: int | None
    other_text: str
    gap: float | None


def summarise(measurements: Sequence[Measurement], differences: dict[str, list[Difference]] | None = None) -> list[dict[str, Any]]:
    """One row a method, over the items that both it and plain decoding finished. What the keys mean is told in docs/benchmarks.md.

    `categories` has the same by category, `without_repeated` the same over items whose prompt the suite did not have before (None if there
    is no such prompt). `report` is what the drafter counted itself up to the last item, `growth` what each quarter of the stream brought.
    """
    plain = _timed(m for m in measurements if m.method == BASELINE)
    rows = []
    for method in dict.fromkeys(m.method for m in measurements):
        own = _timed(m for m in measurements if m.method == method)
        pairs = [(timed, plain[item]) for item, timed in own.items() if item in plain]
        if not pairs:
            continue
        label = labels([pair[0].first for pair in pairs])
        groups = {name: [pair for pair in pairs if label[pair[0].first.item] == name] for name in dict.fromkeys(label.values())}
        new = [pair for pair in pairs if not pair[0].first.repeated]
        rows.append(
            {
                "drafter": method,
                **_row(pairs),
                "differences": [asdict(difference) for difference in (differences or {}).get(method, ())],
                "categories": {name: _row(group) for name, group in groups.items()},
                "without_repeated": _row(new) if 0 < len(new) < len(pairs) else None,
                "report": pairs[-1][0].first.report,
                "growth": [_growth(part) for part in _quarters(pairs)],
            }
        )
    return rows


def speedups(measurements: Sequence[Measurement]) -> dict[str, float]:
    """Decode speed of every method over plain decoding so far: cheap enough to be shown after every measurement."""
    plain = {(m.item, m.repeat): m for m in measurements if m.method == BASELINE}
    out = {}
    for method in dict.fromkeys(m.method for m in measurements):
        own = [m for m in measurements if m.method == method and (m.item, m.repeat) in plain]
        beside = [plain[m.item, m.repeat] for m in own]
        if method != BASELINE and (ratio := _ratio(_rate(_decoded(own)), _rate(_decoded(beside)))):
            out[method] = ratio
    return out


def labels(measurements: Iterable[Measurement]) -> dict[str, str]:
    """Category of every item, its suite in front where there are several."""
    held = list(measurements)
    several = len({m.suite for m in held}) > 1
    return {m.item: f"{m.suite}/{m.category}".strip("/") if several else m.category for m in held}


def find_differences(base: Decoder, measurements: Sequence[Measurement], prompts: dict[str, list[int]]) -> dict[str, list[Difference]]:
    """By method, where its outputs leave plain decoding: each place costs one forward. `prompts` are the ids of each item's prompt."""
    plain = {(m.item, m.repeat): m for m in measurements if m.method == BASELINE}
    out: dict[str, list[Difference]] = {}
    seen: set[tuple[str, str, int, int | None]] = set()
    for m in measurements:
        beside = plain.get((m.item, m.repeat))
        if beside is None or beside.ids == m.ids:
            continue
        index = next((i for i, (a, b) in enumerate(zip(beside.ids, m.ids, strict=False)) if a != b), min(len(beside.ids), len(m.ids)))
        kept, other = (ids[index] if index < len(ids) else None for ids in (beside.ids, m.ids))
        key = (m.item, m.method, index, other)
        if key in seen:  # another round said the same
            continue
        seen.add(key)
        gap = None
        if kept is not None and other is not None and m.item in prompts:
            row = _row_behind(base, [*prompts[m.item], *beside.ids[:index]])
            gap = float(row[kept] - row[other])
        texts = ["" if token is None else base.text.decode([token]) for token in (kept, other)]
        out.setdefault(m.method, []).append(Difference(m.item, m.repeat, index, kept, texts[0], other, texts[1], gap))
    return out


def _row_behind(base: Decoder, tokens: list[int]) -> Any:
    """The logits behind `tokens`."""
    backend = base.engine.backend
    slot = backend.open()
    try:
        return read_tokens(backend, slot, tokens)
    finally:
        backend.close(slot)


def _timed(measurements: Iterable[Measurement]) -> dict[str, Timed]:
    """By item."""
    rounds: dict[str, list[Measurement]] = {}
    for m in measurements:
        rounds.setdefault(m.item, []).append(m)
    return {
        item: Timed(held[0], tuple(held), median(m.prefill_seconds for m in held), median(m.decode_seconds for m in held))
        for item, held in rounds.items()
    }


def _row(pairs: Sequence[tuple[Timed, Timed]]) -> dict[str, Any]:
    own, plain = [a for a, _ in pairs], [b for _, b in pairs]
    first = [timed.first for timed in own]
    every = [m for timed in own for m in timed.rounds]
    steps, decoded = sum(m.steps for m in first), sum(m.decoded for m in first)
    stepped = [m for m in first if m.steps]
    seconds = _sums(m.seconds for m in every)
    decoding = sum(seconds.get(name, 0.0) for name in ("propose", "score", "accept", "commit"))
    fast, slow = [timed.tokens for timed in own], [timed.tokens for timed in plain]
    fast_all, slow_all = [timed.all_tokens for timed in own], [timed.all_tokens for timed in plain]
    speedup, end_to_end = _ratio(_rate(fast), _rate(slow)), _ratio(_rate(fast_all), _rate(slow_all))
    return {
        "items": len(pairs),
        "rounds": max(len(timed.rounds) for timed in own),
        "steps": steps,
        "emitted": sum(len(m.ids) for m in first),
        "drafted": sum(m.drafted for m in first),
        "verified": sum(m.verified for m in first),
        "probes": sum(m.probes for m in first),
        "accepted": sum(m.accepted for m in first),
        "mean_accepted": decoded / steps if steps else None,
        "mean_accepted_macro": sum(m.decoded / m.steps for m in stepped) / len(stepped) if stepped else None,
        "block_efficiency": sum(len(m.ids) for m in first) / (steps + len(first)) if steps else None,
        "histogram": _sums(m.histogram for m in first),
        "by_source": _sums(m.by_source for m in first),
        "reached": _columns(m.reached for m in first),
        "kept": _columns(m.kept for m in first),
        "tokens_per_second": _rate(fast_all),
        "decode_tokens_per_second": _rate(fast),
        "speedup": speedup,
        "speedup_interval": ratio_interval(fast, slow) if speedup else None,
        "speedup_end_to_end": end_to_end,
        "speedup_end_to_end_interval": ratio_interval(fast_all, slow_all) if end_to_end else None,
        "seconds": seconds,
        "draft_share": seconds.get("propose", 0.0) / decoding if decoding else None,
        "identical": sum(all(m.ids == b.first.ids for m in a.rounds) for a, b in pairs),
        "peak_memory": max(m.peak_memory for m in every) or None,
    }


def _quarters(pairs: Sequence[tuple[Timed, Timed]]) -> list[Sequence[tuple[Timed, Timed]]]:
    """Four runs of items in their order, as long as each other to within one; none of fewer than four items."""
    n = len(pairs)
    return [pairs[n * i // 4 : n * (i + 1) // 4] for i in range(4)] if n >= 4 else []


def _growth(pairs: Sequence[tuple[Timed, Timed]]) -> dict[str, Any]:
    """A quarter of the stream; `report` as it stood at its end."""
    row = _row(pairs)
    return {key: row[key] for key in ("items", "mean_accepted", "speedup")} | {"report": pairs[-1][0].first.report}


def _sums(parts: Iterable[dict[str, Any]]) -> dict[str, Any]:
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return {key: total[key] for key in sorted(total, key=lambda key: (len(key), key) if key.isdigit() else (0, key))}


def _columns(lists: Iterable[list[int]]) -> list[int]:
    return [sum(column) for column in zip_longest(*lists, fillvalue=0)]


def _decoded(group: Iterable[Measurement]) -> list[tuple[float, float]]:
    return [(m.decoded, m.decode_seconds) for m in group]


def _rate(pairs: Sequence[tuple[float, float]]) -> float:
    """Tokens a second."""
    seconds = sum(pair[1] for pair in pairs)
    return sum(pair[0] for pair in pairs) / seconds if seconds else 0.0


def _ratio(own: float, plain: float) -> float | None:
    return own / plain if plain else None


def load_run(path: Path) -> list[Measurement]:
    """Measurements of a run's folder. Raises `UsageError` where there are none."""
    lines = path / "measurements.jsonl"
    found = list(read(lines)) if lines.is_file() else []
    if not found:
        raise UsageError(f"{path} holds no measurements. Name a folder of echodraft bench --out.")
    return found
