"""`echodraft bench --trace` and `echodraft report`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from outcome import Cli

PROMPTS = ["hello hello hello world", "one two one two"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.jsonl"
    path.write_text("".join(json.dumps({"id": f"p{i}", "category": "c", "prompt": prompt}) + "\n" for i, prompt in enumerate(PROMPTS)))
    return path


@pytest.fixture
def bench(cli: Cli, suite: Path) -> Cli:
    return lambda *args: cli("bench", "--backend", "toy", "--suite", suite, "-n", "300", "--budget", "4", *args)


def test_a_bench_traces_every_measured_answer_and_counts_the_same(cli: Cli, bench: Cli, tmp_path: Path) -> None:
    rows = json.loads(bench("--json").out)["results"]
    done = bench("--json", "--trace", tmp_path / "b.trace", "--out", tmp_path / "run")
    assert done.code == 0, done.err
    keys = ("steps", "emitted", "drafted", "verified", "accepted")
    assert [[row[key] for key in keys] for row in json.loads(done.out)["results"]] == [[row[key] for key in keys] for row in rows]
    requests = json.loads(cli("inspect", tmp_path / "b.trace", "--json").out)["requests"]
    measured = [json.loads(line) for line in (tmp_path / "run" / "measurements.jsonl").read_text().splitlines()]
    traced = {(one["item"], one["drafter"]): [token for step in one["steps"] for token in step["emitted"]] for one in requests}
    assert traced == {(one["item"], one["method"]): one["ids"] for one in measured}
    assert len(requests) == 4


def test_a_report_is_one_file_that_loads_nothing(cli: Cli, bench: Cli, tmp_path: Path) -> None:
    assert bench("--out", tmp_path / "run").code == 0
    done = cli("report", tmp_path / "run", "--html", tmp_path / "run.html", "--title", "A & B")
    assert (done.code, done.out) == (0, "")
    made = (tmp_path / "run.html").read_text()
    assert "<title>A &amp; B</title>" in made
    assert not re.findall(r"src=|https?://|@import|url\(", made)
    for heading in ("Speed-up", "Figures", "Acceptance by position", "Where the time goes", "Who guessed the output", "Sample outputs"):
        assert f"<h2>{heading}</h2>" in made
    cli("report", tmp_path / "run", "--html", tmp_path / "run.html", "--samples", 0)
    assert "Sample outputs" not in (tmp_path / "run.html").read_text()


@pytest.mark.parametrize("args", [("nowhere",), (".", "--html", "nowhere/a.html")])
def test_wrong_arguments_get_one_line_and_exit_code_two(cli: Cli, bench: Cli, args: tuple[str, ...]) -> None:
    bench("--out", "run", "--limit", "1")
    done = cli("report", *args)
    assert done.code == 2
    assert done.err.count("\n") == 1
