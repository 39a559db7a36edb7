"""`echodraft compare`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from echodraft.cli import console

THRESHOLD = "A loss up to this is none: 5% or 0.05. Default: 5%; for a recording 3%, either way."


def command(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Folder of echodraft bench --out.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another, held against the first; or a recording of the same requests.")],
    threshold: Annotated[str | None, typer.Option("--threshold", metavar="SHARE", help=THRESHOLD, show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Example: echodraft compare results/monday results/tuesday --threshold 3%

    What changed from one run of bench to another, item by item of those that both have, per method and category.

    "worse" stands where a loss is beyond the threshold and beyond the noise (95 % bootstrap over items); then the exit code is 3.
    Speeds of different machines are shown, not judged.

    With a recording for AFTER: does its replay say what the run measured? A drafter agrees if its tokens a step are within the
    threshold; if one does not, the exit code is 3.
    """
    from rich.console import Console

    from echodraft.bench.compare import compare, unlike
    from echodraft.bench.recording import LINES
    from echodraft.bench.result import read_manifest
    from echodraft.bench.summary import load_run
    from echodraft.errors import CheckFailed, UsageError
    from echodraft.render.bench import compared

    recorded = (after / LINES).is_file()
    least = read_share(threshold or ("3%" if recorded else "5%"))
    if recorded:
        return _replayed(before, after, least, as_json)
    manifests = [read_manifest(folder) for folder in (before, after)]
    differing = unlike(*manifests)
    same_machine = manifests[0].get("machine") == manifests[1].get("machine") or not any(
        key in ("processor", "threads", "gpu") for key, _, _ in differing
    )
    rows = compare(load_run(before), load_run(after), least, same_machine)
    if not rows:
        raise UsageError(f"{before} and {after} have no item by the same method in common, so there is nothing to compare.")
    if as_json:
        told = [{"what": key, "before": a, "after": b} for key, a, b in differing]
        console.json_object({"before": str(before), "after": str(after), "threshold": least, "unlike": told, "results": rows})
    else:
        for key, a, b in differing:
            console.note(f"Different {key}: {a} before, {b} after.")
        if not same_machine:
            console.note("The machines differ, so speeds are shown and not judged.")
        screen = Console()
        (screen if screen.is_terminal else Console(width=100)).print(compared(rows))
        console.note("Means over the items that both runs have, every item alike; ± is 95 % over items; same: outputs as plain decoding.")
    worse = [f"{row['drafter']} ({row['category']})" if row["category"] else row["drafter"] for row in rows if row["verdict"]]
    if worse:
        raise CheckFailed(f"Worse by more than {least:.3g} and more than the noise: {', '.join(worse)}.")


def _replayed(run: Path, recording: Path, least: float, as_json: bool) -> None:
    """Hold a run against a replay of its requests."""
    from rich.console import Console

    from echodraft.bench.agreement import agreement
    from echodraft.errors import CheckFailed
    from echodraft.render.bench import agreeing

    rows, skipped = agreement(run, recording, least)
    if as_json:
        console.json_object({"run": str(run), "recording": str(recording), "threshold": least, "results": rows, "skipped": skipped})
    else:
        Console().print(agreeing(rows))
        for why in skipped:
            console.note(why)
        console.note("Tokens a step over the requests whose output was the recorded one (same); ± is 95 % over requests.")
    if apart := [row["drafter"] for row in rows if not row["agrees"]]:
        raise CheckFailed(f"The replay is more than {least:.3g} away from the run, so it does not count here: {', '.join(apart)}.")


def read_share(text: str) -> float:
    """ "5%" or "0.05". Raises `UsageError`."""
    from echodraft.errors import UsageError

    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = -1.0
    if not 0 <= share < 1:
        raise UsageError(f"--threshold is a share such as 5% or 0.05, not '{text}'.")
    return share
