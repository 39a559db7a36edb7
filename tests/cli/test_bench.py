"""`echodraft bench` and `echodraft cost`, as commands."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outcome import Cli

FLOAT = ("--dtype", "float32")
PROMPTS = ["hello hello hello world", "one two one two", "a b c a b c a"]


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    path = tmp_path / "suite.jsonl"
    rows = [{"id": f"p{i}", "category": "odd" if i % 2 else "even", "prompt": prompt} for i, prompt in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


@pytest.fixture
def toy(cli: Cli, suite: Path) -> Cli:
    """The command on the toy model and the suite."""
    return lambda *args: cli("bench", "--backend", "toy", "--suite", suite, "-n", "60", *map(str, args))


def test_json_holds_counts_and_ratios_of_every_drafter_and_outputs_agree(toy: Cli) -> None:
    done = toy("--drafters", "prompt-lookup,prompt-lookup:longest=2:budget=4", "--json")
    assert done.code == 0, done.err
    results = {row["drafter"]: row for row in json.loads(done.out)["results"]}
    assert list(results) == ["none", "prompt-lookup", "prompt-lookup:longest=2:budget=4"]
    for row in results.values():
        assert row["identical"] == row["items"] == 3
        assert row["emitted"] == 180
        assert row["mean_accepted"] == pytest.approx((180 - 3) / row["steps"])
        assert row["accepted"] == 177 - row["steps"]
        assert row["accepted"] <= row["verified"] <= row["drafted"]
        assert row["tokens_per_second"] > 0
        assert row["decode_tokens_per_second"] > 0
    assert results["none"]["steps"] == 177
    assert results["none"]["speedup"] == 1.0


def test_two_runs_count_the_same(toy: Cli) -> None:
    keys = ("steps", "drafted", "verified", "accepted", "emitted")
    runs = [json.loads(toy("--json").out)["results"] for _ in range(2)]
    assert [[row[key] for key in keys] for row in runs[0]] == [[row[key] for key in keys] for row in runs[1]]


def test_limit_and_category_choose_requests(toy: Cli) -> None:
    done = toy("--category", "even", "--limit", 1, "--json")
    assert {row["items"] for row in json.loads(done.out)["results"]} == {1}


def test_a_finished_run_is_kept_and_not_overwritten(toy: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert toy("--out", out).code == 0
    manifest = json.loads((out / "manifest.json").read_text())
    assert manifest["settings"]["max_new_tokens"] == 60
    assert manifest["versions"]["echodraft"]
    again = toy("--out", out)
    assert again.code == 2
    assert "--resume" in again.err


def test_resume_does_only_what_is_missing_even_after_half_a_line(toy: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert toy("--out", out, "--limit", 2).code == 0
    lines = out / "measurements.jsonl"
    before = lines.read_text().splitlines()
    lines.write_text("\n".join(before[:-1]) + "\n" + before[-1][:20])
    done = toy("--out", out, "--resume", "--json")
    assert done.code == 0, done.err
    after = lines.read_text().splitlines()
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) == 6
    assert {row["items"] for row in json.loads(done.out)["results"]} == {3}


def test_resume_under_other_settings_is_refused(toy: Cli, tmp_path: Path) -> None:
    out = tmp_path / "run"
    toy("--out", out, "--limit", 1)
    done = toy("--out", out, "--resume", "--budget", 7)
    assert done.code == 2
    assert "budget" in done.err


def test_an_interrupt_keeps_what_is_done(suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    args = [sys.executable, "-m", "echodraft", "bench", "--backend", "toy", "--suite", str(suite), "-n", "3000", "--out", str(out)]
    running = subprocess.Popen(args, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    lines = out / "measurements.jsonl"
    for _ in range(600):
        if lines.exists() and lines.read_text():
            break
        time.sleep(0.1)
    running.send_signal(signal.SIGINT)
    _, errors = running.communicate(timeout=60)
    assert running.returncode == 130
    assert "--resume" in errors
    assert lines.read_text().endswith("\n")
    assert (out / "summary.json").exists()


def test_peers_run_beside_ours_with_the_same_tokens(cli: Cli, folder: Path, suite: Path) -> None:
    peers = "hf,hf-pld:tokens=4:ngram=3,hf:packed=true,hf-assisted"
    done = cli("bench", "-m", folder, "--suite", suite, "-n", "24", *FLOAT, "--peers", peers, "--draft-model", folder, "--json")
    assert done.code == 0, done.err
    results = {row["drafter"]: row for row in json.loads(done.out)["results"]}
    assert list(results) == ["none", "prompt-lookup", *peers.split(",")]
    assert all(row["identical"] == row["items"] == 3 for row in results.values())
    assert results["hf"]["mean_accepted"] is None


def test_stops_of_the_suite_cut_ours_and_peers_at_the_same_token(cli: Cli, folder: Path, tmp_path: Path) -> None:
    plain = cli("run", "--raw", "-m", folder, "-n", "24", *FLOAT, "--json", "the cat")
    text = json.loads(plain.out)["text"]
    path = tmp_path / "stops.jsonl"
    path.write_text(json.dumps({"prompt": "the cat", "stop": [text[6:8]]}) + "\n")
    done = cli("bench", "-m", folder, "--suite", path, "-n", "24", *FLOAT, "--peers", "hf,hf-pld", "--json")
    assert done.code == 0, done.err
    rows = json.loads(done.out)["results"]
    assert {row["identical"] for row in rows} == {1}
    assert len({row["emitted"] for row in rows}) == 1
    assert rows[0]["emitted"] < 24


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--suite", "nowhere.jsonl"], "no suite"),
        ([], "--suite"),
        (["--suite", "SUITE", "--drafters", "prompt-lokup"], "prompt-lookup"),
        (["--suite", "SUITE", "--peers", "hff"], "hf"),
        (["--suite", "SUITE", "--peers", "hf"], "toy"),
        (["--suite", "SUITE", "--category", "none-such"], "none-such"),
        (["--suite", "BROKEN"], "Line 1"),
    ],
)
def test_wrong_arguments_get_one_line_and_exit_code_two(args: list[str], said: str, cli: Cli, suite: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.jsonl"
    broken.write_text('{"id": 1}\n')
    names = {"SUITE": str(suite), "BROKEN": str(broken)}
    done = cli("bench", "--backend", "toy", *(names.get(arg, arg) for arg in args))
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_cost_is_measured_and_kept(cli: Cli, folder: Path, apart: Path) -> None:
    done = cli("cost", "-m", folder, "--contexts", "20,100", "--repeats", "1", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["contexts"] == [20, 100]
    assert all(len(line) == len(found["rows"]) and line[0] == 1.0 for line in found["cost"])
    assert Path(found["file"]).is_relative_to(apart)
    wrong = cli("cost", "-m", folder, "--contexts", "20,100000")
    assert wrong.code == 2
    assert "context" in wrong.err


def test_a_measurement_tells_counts_depths_phases_sources_and_text(toy: Cli, suite: Path, tmp_path: Path) -> None:
    with suite.open("a") as file:
        file.write(json.dumps({"id": "again", "prompt": PROMPTS[1]}) + "\n")
    assert toy("--out", tmp_path / "run", "--drafters", "suffix").code == 0
    rows = [json.loads(line) for line in (tmp_path / "run" / "measurements.jsonl").read_text().splitlines()]
    assert [row["repeated"] for row in rows if row["method"] == "none"] == [False, False, False, True]
    for row in rows:
        assert (row["repeat"], row["finish"], len(row["ids"])) == (0, "length", 60)
        assert sum(n for _, n in row["sources"]) == len(row["pieces"]) == 60
        guessed = {name: sum(n for source, n in row["sources"] if source == name) for name in row["by_source"]}
        assert guessed == row["by_source"]
        assert sum(row["histogram"].values()) == row["steps"]
        assert sum(int(n) * steps for n, steps in row["histogram"].items()) == sum(row["kept"]) == row["accepted"]
        assert all(kept <= reached for kept, reached in zip(row["kept"], row["reached"], strict=False))
        assert set(row["seconds"]) == {"prefill", "propose", "score", "accept", "commit"}
        assert row["prefill_seconds"] + row["decode_seconds"] == pytest.approx(sum(row["seconds"].values()))
        assert row["peak_memory"] > 1 << 20
    assert {row["prompt_tokens"] for row in rows} == {len(prompt) for prompt in PROMPTS}
    assert [row["accepted"] > 30 for row in rows if row["method"] == "suffix"][3]  # it had said all of that before


def test_measurements_of_older_runs_are_still_read(tmp_path: Path) -> None:
    from echodraft.bench.result import read

    old = {"item": "a", "category": "", "method": "none", "ids": [1, 2], "prefill_seconds": 1.0, "decode_seconds": 2.0, "steps": 1}
    (tmp_path / "old.jsonl").write_text(json.dumps(old) + "\n")
    found = next(read(tmp_path / "old.jsonl"))
    assert (found.steps, found.repeat, found.pieces, found.reached) == (1, 0, [], [])
