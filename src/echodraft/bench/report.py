"""What `echodraft report` shows: the runs of a folder, read back."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from echodraft.bench.result import read
from echodraft.bench.summary import labels, summarise
from echodraft.errors import UsageError


def gather(folder: Path) -> list[dict[str, Any]]:
    """The run in `folder`, or the runs in its folders: name, manifest, rows (of `summarise`), measurements (with their category's label).

    Rows are worked out anew, so that a run that was interrupted, or made by an older version, is shown as any other. Raises `UsageError`
    where there is no run.
    """
    found = [folder] if _is_run(folder) else sorted(path for path in folder.glob("*/") if _is_run(path))
    runs = [_run(path) for path in found]
    runs = [run for run in runs if run["measurements"]]
    if not runs:
        raise UsageError(f"There is no run with measurements in '{folder}'. Make one with: echodraft bench … --out {folder}")
    return runs


def _run(path: Path) -> dict[str, Any]:
    measurements = list(read(path / "measurements.jsonl"))
    label = labels(measurements)
    rows = summarise(measurements)
    told = {row.get("drafter"): row.get("differences") for row in _json(path / "summary.json", [])}
    for row in rows:
        row["differences"] = told.get(row["drafter"]) or []
    return {
        "name": path.resolve().name,
        "manifest": _json(path / "manifest.json", {}),
        "rows": rows,
        "measurements": [asdict(m) | {"label": label[m.item]} for m in measurements],
    }


def _is_run(path: Path) -> bool:
    return (path / "measurements.jsonl").is_file()


def _json(path: Path, missing: Any) -> Any:
    """What a file holds; `missing` where it is not there, as in a run that was interrupted."""
    if not path.is_file():
        return missing
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UsageError(f"'{path}' is no JSON: {error}. Run the bench again, or delete the file.") from error
    return held if isinstance(held, type(missing)) else missing
