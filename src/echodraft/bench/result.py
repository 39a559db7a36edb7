"""Measurements on disk, and what ran where."""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import Any

from echodraft.errors import UsageError
from echodraft.text.tokenizer import Text

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
    suite          where the item is from
    report         what the drafter counts itself, since the round began, the run was resumed or (memory cold) the request came
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
    suite: str = ""
    report: dict[str, float] = field(default_factory=dict)

    @property
    def decoded(self) -> int:
        """Output tokens without the one that prefill yields."""
        return len(self.ids) - 1


class Run:
    """A folder that keeps what is done: manifest.json, then one line in measurements.jsonl for each measurement, flushed at once.

    Once `finish` has written summary.json and put its time into the manifest, the folder is never changed again. Without a folder
    everything is kept in memory.
    """

    def __init__(self, folder: Path | None, manifest: Mapping[str, Any], resume: bool) -> None:
        self.folder, self.manifest = folder, {**manifest, "finished": None}
        self.done: list[Measurement] = []
        self._have: dict[tuple[str, str, int], Measurement] = {}
        if folder is None:
            if resume:
                raise UsageError("--resume goes on with the run in a folder. Name it with --out.")
            return
        lines = folder / "measurements.jsonl"
        if lines.exists():
            self._continue(resume, read(lines))
            # A kill may have left half a line.
            self._write(lines.name, "".join(line(m) for m in self.done))
        else:
            if (folder / "manifest.json").exists():
                raise UsageError(f"{folder} holds something else, such as a recording. Name another folder with --out.")
            folder.mkdir(parents=True, exist_ok=True)
            lines.touch()
            self._write("manifest.json", as_json(self.manifest))

    def _continue(self, resume: bool, done: Iterator[Measurement]) -> None:
        """Take over what an unfinished run did. Raises `UsageError` where it is finished, was not asked for, or had other settings."""
        assert self.folder is not None
        before = read_manifest(self.folder)
        if before.get("finished"):
            raise UsageError(f"{self.folder} holds a finished run, which is not changed any more. Name another folder with --out.")
        if not resume:
            raise UsageError(f"{self.folder} holds an unfinished run. Continue it with --resume or name another folder with --out.")
        old, new = before["settings"], json.loads(json.dumps(self.manifest["settings"]))
        changed = [key for key, value in new.items() if key in old and old[key] != value]
        if changed:
            key = changed[0]
            raise UsageError(f"{self.folder} was begun with another {key} ({old[key]}, now {new[key]}). Use the same, or another folder.")
        self.manifest = before
        for measurement in done:
            self._take(measurement)

    def _take(self, measurement: Measurement) -> None:
        self.done.append(measurement)
        self._have[measurement.item, measurement.method, measurement.repeat] = measurement

    def has(self, item: str, method: str, repeat: int = 0) -> bool:
        return (item, method, repeat) in self._have

    def text(self, item: str, repeat: int, text: Text) -> str | None:
        """What plain decoding answered; None if it did not."""
        found = self._have.get((item, BASELINE, repeat))
        return None if found is None else "".join(found.pieces) if found.pieces else text.decode(found.ids)

    def add(self, measurement: Measurement) -> None:
        self._take(measurement)
        if self.folder is not None:
            with (self.folder / "measurements.jsonl").open("a", encoding="utf-8") as file:
                file.write(line(measurement))

    def finish(self, summary: Sequence[Mapping[str, Any]], complete: bool = True) -> None:
        """Write the summary; if the run is `complete`, the folder is closed for good."""
        if self.folder is not None:
            self._write("summary.json", as_json(summary))
            if complete:
                self.manifest["finished"] = now()
                self._write("manifest.json", as_json(self.manifest))

    def _write(self, name: str, text: str) -> None:
        """A whole file or none."""
        assert self.folder is not None
        beside = self.folder / f"{name}.unfinished"
        beside.write_text(text, encoding="utf-8")
        beside.replace(self.folder / name)


def as_json(value: Any) -> str:
    """A value as a file of JSON."""
    return json.dumps(value, indent=1) + "\n"


def read_manifest(folder: Path) -> dict[str, Any]:
    """What ran where. Raises `UsageError` where the folder holds no run."""
    try:
        found: dict[str, Any] = json.loads((folder / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{folder} holds no run: manifest.json is missing or damaged. Name a folder of echodraft bench --out.") from error
    return found


def line(measurement: Measurement) -> str:
    """A measurement as a line of JSON."""
    return json.dumps(asdict(measurement)) + "\n"


def read(path: Path) -> Iterator[Measurement]:
    """Measurements of a file, up to the first incomplete line."""
    known = {each.name for each in fields(Measurement)}
    for text in path.read_text(encoding="utf-8").splitlines():
        try:
            held = json.loads(text)
        except ValueError:
            return
        # A newer version may write more.
        yield Measurement(**{key: value for key, value in held.items() if key in known})


def manifest(settings: Mapping[str, Any]) -> dict[str, Any]:
    """What ran where: settings, versions, revision, machine, time."""
    return {
        "settings": dict(settings),
        "versions": {name: version(name) for name in ("echodraft", "torch", "transformers", "numpy")}
        | {"python": platform.python_version()},
        **revision(),
        "machine": {"processor": processor(), "system": platform.platform(), "threads": threads(), "memory": memory(), "gpu": gpu()},
        "started": now(),
    }


def now() -> str:
    """The time, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def revision() -> dict[str, Any]:
    """The git revision of this code, and whether a file of it differs from that; None where it is installed without git."""

    def git(*args: str) -> str | None:
        try:
            done = subprocess.run(["git", "-C", str(Path(__file__).parent), *args], capture_output=True, text=True, check=True)
        except (OSError, subprocess.CalledProcessError):
            return None
        return done.stdout.strip()

    # The folder may lie in somebody else's repository.
    ours = git("ls-files", "--error-unmatch", Path(__file__).name) is not None
    return (
        {"revision": git("rev-parse", "HEAD"), "dirty": bool(git("status", "--porcelain"))} if ours else {"revision": None, "dirty": None}
    )


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


def memory() -> int | None:
    """Bytes of the machine, None where the system does not say."""
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return None


def gpu() -> str | None:
    """Name of the GPU, None without one."""
    import torch

    return str(torch.cuda.get_device_name()) if torch.cuda.is_available() else None
