"""tune and --profile as people and programs see them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echodraft.bench import tune as tuning
from outcome import Cli

PROMPTS = ["the cat sat on the mat, the cat sat on", "on the dog on the dog", "the cat sat on the cat sat on the mat"]
FEW = {"speculative": {"gamma": (2, 4), "top_k": (1, 2)}}


@pytest.fixture
def suite(apart: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(tuning, "LADDERS", FEW)
    monkeypatch.setattr(tuning, "BUDGETS", ("auto", 4))
    path = apart / "cats.jsonl"
    path.write_text("".join(json.dumps({"id": f"cats/{i}", "prompt": text}) + "\n" for i, text in enumerate(PROMPTS)))
    return path


def arguments(folder: Path, suite: Path) -> list[str | Path]:
    models = ["-m", folder, "--draft-model", folder, "--drafter", "speculative", "--draft-cost", "0.2", "--cost", "cpu-zen3"]
    return ["tune", *models, "--suite", suite, "-n", "10", "--check", "2"]


def test_what_tune_finds_is_a_profile_for_run_bench_and_replay(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    made = cli(*arguments(folder, suite), "--recording", "r", "--save", "p.json", "--json")
    assert made.code == 0, made.err
    told = json.loads(made.out)
    assert [row["speedup"] for row in told["trials"]] == sorted((row["speedup"] for row in told["trials"]), reverse=True)
    assert sum(row["checked"] is not None for row in told["trials"]) == 2
    profile = json.loads((apart / "p.json").read_text())
    assert profile == told["profile"]
    assert (profile["drafter"], profile["draft_model"], profile["found"]["trials"]) == ("speculative", str(folder), len(told["trials"]))
    assert not list(apart.glob("*.trials.jsonl"))
    assert len(list((apart / "r").glob("memo-*"))) == 1

    run = cli("run", "--raw", "the cat", "-m", folder, "-n", 8, "--profile", "p.json", "--json")
    assert run.code == 0, run.err
    assert json.loads(run.out)["drafter"] == "speculative"
    assert (
        json.loads(cli("run", "--raw", "the cat", "-m", folder, "-n", 8, "--profile", "p.json", "--budget", 0, "--json").out)["stats"][
            "drafted"
        ]
        == 0
    )
    other = json.loads(cli("run", "--raw", "the cat", "-m", folder, "-n", 8, "--profile", "p.json", "-d", "suffix", "--json").out)
    assert other["drafter"] == "suffix"
    method = "speculative:" + ":".join(f"{name}={value}" for name, value in profile["options"].items())
    bench = cli("bench", "-m", folder, "--suite", suite, "-n", 8, "--profile", "p.json", "--json")
    assert [row["drafter"] for row in json.loads(bench.out)["results"]] == ["none", method]
    replay = cli("replay", "r", "--profile", "p.json", "--draft-cost", "0.2", "--json")
    assert [(row["drafter"], row["budget"]) for row in json.loads(replay.out)["results"]] == [(method, profile["budget"])]


def test_an_interrupted_search_is_kept_and_goes_on(
    cli: Cli, suite: Path, folder: Path, apart: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    add, kept = tuning.Trials.add, list[object]()

    def interrupted(self: tuning.Trials, setting: tuning.Setting, speed: float) -> None:
        if len(kept) == 2:
            raise KeyboardInterrupt
        kept.append(setting)
        add(self, setting, speed)

    call = [*arguments(folder, suite), "--recording", "r", "--save", "p.json", "--no-check"]
    with monkeypatch.context() as patch:
        patch.setattr(tuning.Trials, "add", interrupted)
        stopped = cli(*call)
    assert stopped.code == 130
    assert "--resume" in stopped.err
    assert not (apart / "p.json").exists()
    assert cli(*call).code == 2
    done = cli(*call, "--resume")
    assert done.code == 0, done.err
    assert (apart / "p.json").exists()


def test_a_search_by_decoding_needs_no_recording_that_stays(cli: Cli, suite: Path, folder: Path, apart: Path) -> None:
    done = cli(*arguments(folder, suite), "--live", "--limit", 1, "--json")
    assert done.code == 0, done.err
    assert json.loads(done.out)["saved"] is None
    assert {path.name for path in apart.iterdir()} <= {"cats.jsonl", "cache"}


def test_a_search_that_failed_before_its_first_trial_is_not_in_the_way_of_the_next(
    cli: Cli, suite: Path, folder: Path, apart: Path
) -> None:
    call = [*arguments(folder, suite), "--recording", "r", "--save", "p.json", "--no-check", "--limit", 1]
    assert cli(*call, "--suite", "nowhere.jsonl").code == 2
    done = cli(*call)
    assert done.code == 0, done.err


@pytest.mark.parametrize(
    ("more", "told"),
    [
        (["--suite", "nowhere.jsonl"], "no suite"),
        (["--drafter", "speculativ"], "speculative"),
        (["--resume"], "--save"),
    ],
)
def test_mistakes_are_refused_in_a_line(cli: Cli, suite: Path, folder: Path, more: list[str], told: str) -> None:
    done = cli(*arguments(folder, suite), *more)
    assert done.code == 2
    assert told in done.err
    assert cli("tune", "-m", folder).code == 2
    assert "no profile" in cli("run", "hi", "--profile", "nowhere.json").err
