"""record, replay and cost --list as people and programs see them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echodraft.bench import record as recorder
from echodraft.curves import find_curve, load_curve, save_curve, shipped_curves
from echodraft.errors import UsageError
from outcome import Cli

PROMPTS = ["the cat sat on the mat, the cat sat on", "on the dog on the dog", "the cat sat on the mat, the cat sat on"]


@pytest.fixture
def suite(apart: Path) -> Path:
    path = apart / "cats.jsonl"
    rows = [{"id": f"cats/{i}", "prompt": text, "category": "ab"[i % 2]} for i, text in enumerate(PROMPTS)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_suite_is_recorded_and_replayed(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    made = cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 20, "--json")
    assert made.code == 0, made.err
    told = json.loads(made.out)
    assert (told["requests"], told["of"], told["output_tokens"] <= 60) == (3, 3, True)
    manifest = json.loads((apart / "r" / "manifest.json").read_text())
    assert (manifest["model"], manifest["suite"], manifest["settings"]["max_new_tokens"]) == (str(folder), "cats", 20)
    assert manifest["eos"] == [299]

    held = json.loads(
        cli("replay", apart / "r", "--drafters", "suffix,recycling", "--budget", "auto,8", "--cost", "gpu-flat", "--json").out
    )
    assert (held["requests"], held["repeats"], held["memory"], held["suite"]) == (3, 1, "carry", "cats")
    assert [(row["drafter"], row["budget"], row["replay"]) for row in held["results"]] == [
        ("suffix", "auto", "exact"),
        ("suffix", 8, "exact"),
        ("recycling", "auto", "approximate"),
        ("recycling", 8, "approximate"),
    ]
    row = held["results"][1]
    assert (row["all"]["requests"], row["without_repeats"]["requests"]) == (3, 2)
    assert row["all"]["speedup"] == pytest.approx(row["all"]["mean_accepted"])  # flat to 64


def test_counts_of_a_replay_are_those_of_a_bench(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    """A number of nodes: a bench warms up, which teaches the planning of "auto"."""
    cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 20)
    for budget in ("4", "16"):
        methods = ("--drafters", "suffix,prompt-lookup", "--budget", budget, "--json")
        live = {row["drafter"]: row for row in json.loads(cli("bench", "-m", folder, "--suite", suite, "-n", 20, *methods).out)["results"]}
        for row in json.loads(cli("replay", apart / "r", *methods).out)["results"]:
            for key in ("steps", "drafted", "verified", "accepted", "mean_accepted"):
                assert row["all"][key] == live[row["drafter"]][key], key


def test_the_tables_tell_counts_depths_and_sources(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 20)
    shown = cli("replay", apart / "r", "--drafters", "suffix,recycling", "--budget", "4,best", "--cost", "cpu-zen3")
    assert shown.code == 0
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert any(line.startswith("suffix 4 3 ") for line in lines)
    assert any(line.startswith("no repeats 2 ") for line in lines)
    assert any(line.startswith("≈ recycling best: ") for line in lines)
    assert any(line.startswith("suffix 4 suffix-memory ") for line in lines)
    assert "1 repeat an earlier prompt; memory: carry" in shown.err
    assert "Zen 3" in shown.err
    assert "approximate" in shown.err
    fresh = cli("replay", apart / "r", "--no-repeats")
    assert "no repeats" not in fresh.out
    assert any(" ".join(line.split()).startswith("≈ oilbird auto 2 ") for line in fresh.out.splitlines())
    assert "×" not in fresh.out


def test_without_memory_every_request_is_the_first(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 20)
    accepted = {
        memory: json.loads(cli("replay", apart / "r", "--budget", 16, "--memory", memory, "--json").out)["results"][0]["all"]["accepted"]
        for memory in ("carry", "cold")
    }
    assert accepted["carry"] > accepted["cold"]


def test_an_interrupted_recording_is_kept_and_goes_on(
    cli: Cli, suite: Path, folder: Path, apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 8)
    add, kept = recorder.Writer.add, []

    def interrupted(*args: Any) -> Any:
        if kept:
            raise KeyboardInterrupt
        kept.append(add(*args))
        return kept[0]

    with monkeypatch.context() as patch:
        patch.setattr(recorder.Writer, "add", interrupted)
        result = cli(*arguments)
    assert result.code == 130
    assert "--resume" in result.err
    assert len((apart / "r" / "requests.jsonl").read_text().splitlines()) == 1
    assert cli(*arguments).code == 2
    assert cli(*arguments, "--resume").out.startswith("3 requests, ")


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["record"], "--suite"),
        (["record", "--backend", "toy", "--suite", "cats.jsonl"], "--out"),
        (["record", "--backend", "toy", "--suite", "cats.jsonl", "--out", "r", "--layers", "middle"], "norm,12"),
        (["replay", "nowhere"], "echodraft record"),
        (["replay", "r", "--drafters", "sufix"], "suffix"),
        (["replay", "r", "--budget", "much"], "--budget"),
        (["replay", "r", "--budget", "best"], "--cost"),
        (["replay", "r", "--memory", "warm"], "carry or cold"),
        (["replay", "r", "--cost", "gpu"], "gpu-flat"),
        (["replay", "r", "--cost", "none.json"], "none.json"),
        (["replay", "r", "--drafters", "speculative"], "draft model"),
    ],
)
def test_mistakes_are_refused_in_a_line(cli: Cli, suite: Path, arguments: list[str], told: str) -> None:
    if arguments[0] == "replay":
        assert cli("record", "--backend", "toy", "--suite", suite, "--out", "r", "-n", 3).code == 0
    result = cli(*arguments)
    assert result.code == 2
    assert told in result.err
    assert len(result.err.splitlines()) <= 2


def test_the_shipped_curves_are_listed_and_found(cli: Cli, tmp_path: Path) -> None:
    shown, held = cli("cost", "--list"), json.loads(cli("cost", "--list", "--json").out)
    assert sorted(held) == sorted(shipped_curves())
    for name, curve in held.items():
        assert name in shown.out
        assert curve["about"]
        assert isinstance(curve["assumption"], bool)
        found = find_curve(name)
        assert found.rows[0] == 1
        assert all(line[0] == 1.0 and len(line) == len(found.rows) for line in found.cost)
        save_curve(found, tmp_path / f"{name}.json")
        assert find_curve(str(tmp_path / f"{name}.json")) == found == load_curve(tmp_path / f"{name}.json")
    assert held["gpu-flat"]["assumption"]
    assert find_curve("gpu-flat").table(64, 100)[64] == 1.0
    with pytest.raises(UsageError, match="gpu-flat"):
        find_curve("gpu-flatt")


def test_a_replay_is_held_against_a_live_run_of_the_same_requests(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 20)
    cli("bench", "-m", folder, "--suite", suite, "-n", 20, "--drafters", "suffix,lookahead", "--budget", 8, "--out", apart / "live")
    done = cli("compare", apart / "live", apart / "r")
    assert done.code == 0, done.err
    assert "lookahead" in done.err
    held = json.loads(cli("compare", apart / "live", apart / "r", "--json").out)["results"]
    assert [(row["drafter"], row["same"], row["items"], row["change"], row["agrees"]) for row in held] == [("suffix", 3, 3, 0.0, True)]

    lines = (apart / "live" / "measurements.jsonl").read_text().splitlines()
    slower = [json.dumps({**row, "steps": 2 * row["steps"]}) for row in map(json.loads, lines)]
    (apart / "live" / "measurements.jsonl").write_text("\n".join(slower) + "\n")
    done = cli("compare", apart / "live", apart / "r")
    assert done.code == 3
    assert "differs" in done.out
    assert "suffix" in done.err


@pytest.mark.parametrize(
    ("made", "told"),
    [
        (("--budget", 8, "--limit", 1, "--category", "b"), "not of the same requests"),
        (("--budget", "auto"), "--budget 16"),
    ],
)
def test_a_run_that_a_replay_cannot_repeat_is_refused(
    made: tuple[str, ...], told: str, cli: Cli, suite: Path, folder: Path, apart: Path
) -> None:
    cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 8)
    cli("bench", "-m", folder, "--suite", suite, "-n", 8, "--drafters", "suffix", "--out", apart / "live", *map(str, made))
    done = cli("compare", apart / "live", apart / "r")
    assert done.code == 2
    assert told in done.err


def test_a_draft_model_is_asked_once_and_its_answers_are_kept_beside_the_recording(
    cli: Cli, suite: Path, folder: Path, apart: Path
) -> None:
    cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 12, "--dtype", "float32")
    call = ("replay", apart / "r", "--drafters", "speculative", "--budget", "3", "--cost", "gpu-flat", "--draft-model", folder)
    unknown = cli(*call)
    assert unknown.code == 2
    assert "--draft-cost" in unknown.err
    told = [json.loads(cli(*call, "--draft-cost", "0.1", "--json").out) for _ in range(2)]
    assert told[0] == told[1]
    assert len(list((apart / "r").glob("memo-*.safetensors"))) == 1
    (row,) = told[0]["results"]
    assert (told[0]["draft_cost"], row["replay"]) == (0.1, "exact")
    assert row["all"]["draft_cost"] == pytest.approx(0.1 * row["all"]["draft_forwards"])
    tokens, steps = row["all"]["emitted"] - 3, row["all"]["steps"]
    assert row["all"]["speedup"] == pytest.approx(tokens / (steps + row["all"]["draft_cost"]))
    shown = cli(*call, "--draft-cost", "0.1")
    assert "drafting" in shown.out
    assert "0.10 plain steps" in shown.err


def test_an_ablation_prints_its_tables_and_lists_its_settings(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 12, "--dtype", "float32")
    model = ("--draft-model", folder, "--draft-cost", "0.2", "--cost", "cpu-zen3")
    shown = cli("ablate", "ouroboros", apart / "r", "--tables", "mechanisms,tree", "--budget", 8, *model)
    assert shown.code == 0, shown.err
    assert "+ 4 phrases from history" in shown.out
    assert "one forward a branch" in shown.out
    told = json.loads(cli("ablate", "oilbird", apart / "r", "--tables", "k", "--budget", 8, "--json").out)
    assert [row["drafter"] for row in told["tables"]["k"]] == [f"oilbird:host=suffix:k={k}" for k in (1, 2, 4, 8, 16)]
    listed = cli("ablate", "ouroboros", "--tables", "mechanisms", "--list").out
    assert listed.startswith("speculative:gamma=12:top_k=1,ouroboros:")
    for wrong in (("suffix", apart / "r"), ("ouroboros",), ("ouroboros", apart / "r", "--tables", "locality", *model)):
        assert cli("ablate", *wrong).code == 2
