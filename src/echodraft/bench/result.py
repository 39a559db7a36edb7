"""Measurements on disk, and the summary of a run: a fold over measurements."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from echodraft.errors import UsageError

BASELINE = "none"


@dataclass(frozen=True, slots=True)
class Measurement:
    """One item by one method, one JSON line. Peers report no steps: their counts are zero and empty.

    repeat         which round, from 0
    ids            of the output, the stopping token included
    prompt_tokens  length of the prompt
    finish         "eos", "stop", "length"
    steps … probes and histogram, by_source, reached, kept: as in `metrics.Stats`; the last two by depth from 1, the keys of JSON are text
    seconds        of the phases: prefill, propose, score, accept, commit
    sources        who guessed the output tokens, run-length: [drafter or null, how many tokens in a row]
    pieces         text of each output token; empty without a tokenizer
    peak_memory    most bytes that the process held so far: resident, or of the GPU where the model lies there
    repeated       the suite had the same prompt before
    """

    item: str
    category: str
    method: str
    ids: list[int]
    prefill_seconds: float
    decode_seconds: float
    steps: int = 0
    drafted: int = 0
    verified: int = 0
    accepted: int = 0
    repeat: int = 0
    prompt_tokens: int = 0
    finish: str | None = None
    probes: int = 0
    histogram: dict[str, int] = field(default_factory=dict)
    by_source: dict[str, int] = field(default_factory=dict)
    reached: list[int] = field(default_factory=list)
    kept: list[int] = field(default_factory=list)
    seconds: dict[str, float] = field(default_factory=dict)
    sources: list[tuple[str | None, int]] = field(default_factory=list)
    pieces: list[str] = field(default_factory=list)
    peak_memory: int = 0
    repeated: bool = False

    @property
    def decoded(self) -> int:
        """Output tokens without the one that prefill yields."""
        return len(self.ids) - 1


class Run:
    """A folder that keeps what is done: manifest.json, then one line in measurements.jsonl for each measurement, flushed at once.

    Without a folder everything is kept in memory.
    """

    def __init__(self, folder: Path | None, manifest: Mapping[str, Any], resume: bool) -> None:
        self.done: list[Measurement] = []
        self.folder = folder
        if folder is None:
            return
        lines = folder / "measurements.jsonl"
        if lines.exists() and not resume:
            raise UsageError(f"{folder} holds a run already. Continue it with --resume or name another folder with --out.")
        folder.mkdir(parents=True, exist_ok=True)
        if lines.exists():
            self._check(folder / "manifest.json", manifest)
            self.done = list(read(lines))
        else:
            (folder / "manifest.json").write_text(json.dumps(manifest, indent=1) + "\n", encoding="utf-8")
        if lines.exists():
            # A kill may have left half a line.
            lines.write_text("".join(line(m) for m in self.done), encoding="utf-8")

    def _check(self, path: Path, manifest: Mapping[str, Any]) -> None:
        before = json.loads(path.read_text(encoding="utf-8"))["settings"]
        changed = [
            key for key, value in manifest["settings"].items() if before.get(key) != value and key not in ("drafters", "peers", "limit")
        ]
        if changed:
            raise UsageError(
                f"{path.parent} was begun with another {changed[0]} ({before.get(changed[0])}). Use the same, or another folder."
            )

    def has(self, item: str, method: str) -> bool:
        return any(m.item == item and m.method == method for m in self.done)

    def add(self, measurement: Measurement) -> None:
        self.done.append(measurement)
        if self.folder is not None:
            with (self.folder / "measurements.jsonl").open("a", encoding="utf-8") as file:
                file.write(line(measurement))

    def finish(self, summary: Sequence[Mapping[str, Any]]) -> None:
        if self.folder is not None:
            (self.folder / "summary.json").write_text(json.dumps(summary, indent=1) + "\n", encoding="utf-8")


def line(measurement: Measurement) -> str:
    """A measurement as a line of JSON."""
    return json.dumps(asdict(measurement)) + "\n"


def read(path: Path) -> Iterator[Measurement]:
    """Measurements of a file, up to the first incomplete line."""
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            yield Measurement(**json.loads(text))
        except (ValueError, TypeError):
            return


def manifest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What ran where: settings, versions, revision, machine, time."""
    revision = subprocess.run(
        ["git", "-C", str(Path(__file__).parent), "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    ).stdout.strip()
    return {
        "settings": dict(settings),
        "versions": {name: version(name) for name in ("echodraft", "torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
        "revision": revision or None,
        "machine": {"processor": processor(), "system": platform.platform(), "threads": threads()},
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
    }


def processor() -> str:
    """Name of the processor, with the widest vector instructions that PyTorch uses on it."""
    import torch

    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.exists():
        names = [row.partition(":")[2].strip() for row in info.read_text().splitlines() if row.startswith("model name")]
        name = names[0] if names else name
    return f"{name} ({torch.backends.cpu.get_cpu_capability()})"


def threads() -> int:
    """Threads that PyTorch computes with."""
    import torch

    return int(torch.get_num_threads())


def summarise(measurements: Sequence[Measurement]) -> list[dict[str, Any]]:
    """One row a method, over the items that both it and plain decoding finished.

    speedup is decode time per token of plain decoding over that of the method; speedup_end_to_end counts prefill too; identical counts the
    items with exactly the tokens of plain decoding.
    """
    plain = {m.item: m for m in measurements if m.method == BASELINE}
    rows = []
    for method in dict.fromkeys(m.method for m in measurements):
        own = [m for m in measurements if m.method == method and m.item in plain]
        if own:
            rows.append(_row(method, own, [plain[m.item] for m in own]))
    return rows


def _row(method: str, own: Sequence[Measurement], plain: Sequence[Measurement]) -> dict[str, Any]:
    steps = sum(m.steps for m in own)
    decoded = sum(m.decoded for m in own)
    return {
        "drafter": method,
        "items": len(own),
        "steps": steps,
        "emitted": sum(len(m.ids) for m in own),
        "drafted": sum(m.drafted for m in own),
        "verified": sum(m.verified for m in own),
        "accepted": sum(m.accepted for m in own),
        "mean_accepted": decoded / steps if steps else None,
        "tokens_per_second": _rate(own),
        "decode_tokens_per_second": _decode_rate(own),
        "speedup": _ratio(_decode_rate(own), _decode_rate(plain)),
        "speedup_end_to_end": _ratio(_rate(own), _rate(plain)),
        "identical": sum(a.ids == b.ids for a, b in zip(own, plain, strict=True)),
    }


def _rate(group: Sequence[Measurement]) -> float:
    seconds = sum(m.prefill_seconds + m.decode_seconds for m in group)
    return sum(len(m.ids) for m in group) / seconds if seconds else 0.0


def _decode_rate(group: Sequence[Measurement]) -> float:
    seconds = sum(m.decode_seconds for m in group)
    return sum(m.decoded for m in group) / seconds if seconds else 0.0


def _ratio(own: float, plain: float) -> float | None:
    return own / plain if plain else None
