"""Does a replay say what a live run of the same requests measured?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from echodraft.bench.methods import parse
from echodraft.bench.recording import Recording
from echodraft.bench.replay import Corpus, replay, text_of
from echodraft.bench.result import BASELINE, Measurement, read_manifest
from echodraft.bench.statistics import ratio_interval
from echodraft.bench.summary import load_run
from echodraft.errors import UsageError
from echodraft.metrics.stats import Stats


def agreement(
    run: Path, recording: Path, threshold: float, told: Callable[[str], None] = lambda _: None
) -> tuple[list[dict[str, Any]], list[str]]:
    """Every drafter of a bench, replayed over a recording of the same requests: the rows, and why the drafters without one have none.

    items, same     requests, and those whose output was the recorded one: in low precision a near tie may part them. Only these count
    live, replayed  mean accepted tokens over their steps; `change` is the second over the first, less 1. None where no output was the same
    interval        of the change, 95 % over requests
    agrees          the change is at most the threshold, either way

    Raises `UsageError` where the two are not of the same requests, or where the drafts were planned on a curve that the run does not hold.
    """
    held, corpus, settings = load_run(run), Corpus(Recording(recording)), read_manifest(run)["settings"]
    first = {(m.method, m.item): m for m in held if m.repeat == 0}
    items = list(dict.fromkeys(item for _, item in first))
    if [entry.id for entry in corpus.entries[: len(items)]] != items:
        raise UsageError(f"{run} and {recording} are not of the same requests in the same order. Record the suite of the run, as it was.")
    corpus = Corpus(corpus.recording, len(items))
    texts = {entry.id: path.output for entry, path in zip(corpus.entries, corpus.trajectories, strict=True)}
    if settings.get("memory") not in ("carry", "cold"):
        raise UsageError(
            f"The memory of {run} began with a folder, and that of a replay begins empty. Measure with --memory carry or cold."
        )
    methods = [name for name in settings["drafters"] if name != BASELINE]
    words = text_of(corpus.recording, methods, None)
    rows, skipped = [], []
    for method in methods:
        budget = parse(method)[1].get("budget", settings["budget"])
        if budget == "auto":
            raise UsageError(
                f"{run} planned its drafts on a cost curve that it does not hold. Measure with a number of nodes: --budget 16."
            )
        try:
            found = replay(
                corpus, method, int(budget), carry=settings["memory"] == "carry", words=words, told=lambda _, name=method: told(name)
            )
        except UsageError as error:
            skipped.append(str(error))
            continue
        pairs = [(first[method, record.entry.id], record.stats) for record in found if (method, record.entry.id) in first]
        rows.append(_row(method, pairs, texts, threshold))
    if not rows:
        raise UsageError(f"No drafter of {run} can be replayed on {recording}. {' '.join(skipped)}".rstrip())
    if not any(row["same"] for row in rows):
        raise UsageError(f"No output of {run} is the one in {recording}. Record with the same model, dtype, length and stops.")
    return rows, skipped


def _row(method: str, pairs: Sequence[tuple[Measurement, Stats]], texts: Mapping[str, list[int]], threshold: float) -> dict[str, Any]:
    same = [(m, stats) for m, stats in pairs if m.ids == texts[m.item] and m.steps]
    measured, counted = [(m.decoded, m.steps) for m, _ in same], [(m.decoded, stats.steps) for m, stats in same]
    live, replayed = (sum(n for n, _ in each) / sum(steps for _, steps in each) if each else None for each in (measured, counted))
    change = replayed / live - 1 if live and replayed else None
    interval = ratio_interval(counted, measured)
    return {
        "drafter": method,
        "items": len(pairs),
        "same": len(same),
        "live": live,
        "replayed": replayed,
        "change": change,
        "interval": interval and [bound - 1 for bound in interval],
        "agrees": change is not None and abs(change) <= threshold,
    }
