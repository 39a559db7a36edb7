"""`echodraft compare`, as a command."""

from __future__ import annotations

import json
import re
from dataclasses import asdict, replace
from pathlib import Path

import pytest

from echodraft.bench.result import Measurement
from outcome import Cli


def write(folder: Path, speed: float, threads: int = 2) -> Path:
    folder.mkdir()
    (folder / "manifest.json").write_text(json.dumps({"settings": {"budget": "auto"}, "machine": {"threads": threads}, "versions": {}}))
    plain = [Measurement(f"p{i}", "code", "none", list(range(30)), 0.5, 1.0 + i / 10, steps=29) for i in range(8)]
    fast = [replace(m, method="suffix", decode_seconds=m.decode_seconds / speed, steps=15) for m in plain]
    (folder / "measurements.jsonl").write_text("".join(json.dumps(asdict(m)) + "\n" for m in (*plain, *fast)))
    return folder


def test_a_loss_is_told_and_fails_and_a_gain_does_not(cli: Cli, tmp_path: Path) -> None:
    slow, fast = write(tmp_path / "slow", 1.5), write(tmp_path / "fast", 2.0)
    lost = cli("compare", fast, slow)
    assert lost.code == 3
    assert "suffix" in lost.err
    assert "2.00→1.50" in lost.out
    assert "worse" in lost.out
    assert max(map(len, lost.out.splitlines())) <= 100
    assert re.search(r"^ suffix *\n   code +8 +2.00→1.50 +-25% ±0.0% .* 8→8 +worse", lost.out, re.MULTILINE), lost.out
    assert cli("compare", slow, fast).code == 0
    assert cli("compare", fast, slow, "--threshold", "30%").code == 0


def test_json_holds_changes_and_what_is_unlike(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", write(tmp_path / "a", 2.0), write(tmp_path / "b", 1.0, threads=4), "--json")
    assert done.code == 0  # another machine: speeds are not judged
    found = json.loads(done.out)
    assert found["unlike"] == [{"what": "threads", "before": 2, "after": 4}]
    assert {row["drafter"]: row["speedup"]["change"] for row in found["results"]}["suffix"] == pytest.approx(-0.5)


def test_another_machine_is_named_at_the_top(cli: Cli, tmp_path: Path) -> None:
    done = cli("compare", write(tmp_path / "a", 2.0), write(tmp_path / "b", 1.0, threads=4))
    assert done.err.startswith("Note: Different threads: 2 before, 4 after.")


@pytest.mark.parametrize("threshold", ["5 percent", "-1%", "100%", "nan"])
def test_a_threshold_that_is_no_share_is_refused(threshold: str, cli: Cli, tmp_path: Path) -> None:
    folder = write(tmp_path / "a", 2.0)
    assert cli("compare", folder, folder, "--threshold", threshold).code == 2


def test_folders_without_a_run_and_runs_without_a_common_item_are_refused(cli: Cli, tmp_path: Path) -> None:
    held = write(tmp_path / "a", 2.0)
    (tmp_path / "empty").mkdir()
    for other in ("empty", "nowhere"):
        done = cli("compare", held, tmp_path / other)
        assert done.code == 2
        assert other in done.err
    stranger = write(tmp_path / "b", 2.0)
    lines = (stranger / "measurements.jsonl").read_text().replace('"item": "p', '"item": "q')
    (stranger / "measurements.jsonl").write_text(lines)
    assert "nothing to compare" in cli("compare", held, stranger).err
