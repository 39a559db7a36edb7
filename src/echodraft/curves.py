"""Measured cost curves, kept in the user's cache: written by `echodraft cost`, read when a model is loaded."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from hashlib import sha256
from importlib.resources import files
from pathlib import Path
from typing import Any

from echodraft.core.budget import CostCurve
from echodraft.errors import UsageError, unknown_name
from echodraft.paths import user_cache


def cost_file(model: str | Path, dtype: str, device: str) -> Path:
    """Where the curve of a model, as loaded here, belongs.

    model   the folder or hub name that it was loaded from; a folder is meant by its full path
    dtype   as in "bfloat16" or "torch.bfloat16"
    device  as in "cpu" or "cuda:0"; the index is left out
    """
    folder = Path(model).expanduser()
    name = str(folder.resolve()) if folder.exists() else str(model)
    dtype, device = dtype.removeprefix("torch."), device.partition(":")[0]
    digest = sha256(f"{name}\n{dtype}\n{device}".encode()).hexdigest()[:12]
    short = re.sub(r"[^A-Za-z0-9.]+", "-", Path(name).name) or "model"
    return user_cache() / "cost" / f"{short}-{dtype}-{device}-{digest}.json"


def save_curve(curve: CostCurve, path: Path) -> None:
    """Write a curve as JSON: rows, contexts, cost, name, seconds, read. Never leaves half a file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    held = {name: getattr(curve, name) for name in ("name", "rows", "contexts", "cost", "seconds", "read")}
    unfinished = path.with_suffix(f".{os.getpid()}.tmp")
    unfinished.write_text(json.dumps(held, indent=1) + "\n", encoding="utf-8")
    unfinished.replace(path)


def shipped_curves() -> dict[str, dict[str, Any]]:
    """The curves that come with echodraft, by name: "rows", "contexts", "cost", "name", "about", "assumption"."""
    folder = files("echodraft") / "data" / "curves"
    held = {file.name.removesuffix(".json"): json.loads(file.read_text(encoding="utf-8")) for file in folder.iterdir()}
    return dict(sorted(held.items()))


def find_curve(name: str) -> CostCurve:
    """A curve by the file that holds it, or by the name of one that is shipped. Raises `UsageError`."""
    path = Path(name).expanduser()
    if path.is_file() or path.suffix == ".json":
        return load_curve(path)
    shipped = shipped_curves()
    if name not in shipped:
        raise unknown_name("cost curve", name, shipped)
    return read_curve(shipped[name])


def load_curve(path: Path) -> CostCurve:
    """Read a curve. Raises `UsageError` where the file holds none."""
    try:
        held = json.loads(path.read_text(encoding="utf-8"))
        curve = read_curve(held)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise UsageError(f"The cost curve {path} cannot be read ({error}). Measure it again with: echodraft cost.") from error
    shape = [len(line) for line in curve.cost]
    if not curve.rows or curve.rows[0] != 1 or shape != [len(curve.rows)] * len(curve.contexts) or len(curve.read) not in (0, len(shape)):
        raise UsageError(f"The cost curve {path} is incomplete. Measure it again with: echodraft cost.")
    return curve


def read_curve(held: Mapping[str, Any]) -> CostCurve:
    """A curve from what JSON holds of it."""
    return CostCurve(
        tuple(int(n) for n in held["rows"]),
        tuple(tuple(float(c) for c in line) for line in held["cost"]),
        tuple(int(n) for n in held["contexts"]),
        str(held["name"]),
        tuple(float(t) for t in held.get("seconds", ())),
        tuple(float(t) for t in held.get("read", ())),
    )
