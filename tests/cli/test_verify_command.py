"""`echodraft verify`, as a command."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echodraft.drafters import DRAFTERS
from outcome import Cli

FLOAT = ("--dtype", "float32")
BROKEN = """
import numpy as np
from echodraft.backends.toy import ToyBackend
from echodraft.drafters.none import NoDrafter
from echodraft.drafters.prompt_lookup import PromptLookup

score = ToyBackend.score

def wrong(self, requests, want):
    found = score(self, requests, want)
    for scores in found:
        if len(scores.logits) > 1:
            scores.logits[:] = np.roll(scores.logits, 1, axis=1)
    return found

class Breaking(PromptLookup):
    '''Breaks the backend: the rows of a draft are wrong.'''
    name = "breaking"
    def __init__(self):
        super().__init__()
        ToyBackend.score = wrong

class Interrupting(NoDrafter):
    name = "interrupting"
    def propose(self, sessions, budgets):
        raise KeyboardInterrupt
"""


@pytest.fixture
def mine(apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module `mine` with drafters that misbehave."""
    from echodraft.backends.toy import ToyBackend

    (apart / "mine.py").write_text(BROKEN)
    monkeypatch.syspath_prepend(apart)
    monkeypatch.delitem(__import__("sys").modules, "mine", raising=False)
    monkeypatch.setattr(ToyBackend, "score", ToyBackend.score)


def test_every_registered_drafter_is_verified_in_both_modes(cli: Cli) -> None:
    done = cli("verify", "--backend", "toy", "--draft-model", "toy", "one two one two one", "-n", "250", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    names = [name for name in DRAFTERS if name not in ("none", "rest")]
    assert "'rest' needs a corpus" in done.err
    assert {(row["drafter"], row["mode"]) for row in found["results"]} == {(name, mode) for name in names for mode in ("greedy", "sampled")}
    assert all(row["identical"] == row["prompts"] == 1 and row["tokens"] == 250 for row in found["results"])
    assert found["differences"] == []
    assert found["settings"]["dtype"] == "float64"
    rows = {(row["drafter"], row["mode"]): row for row in found["results"]}
    assert rows["prompt-lookup", "greedy"]["accepted"] > 20
    assert rows["prompt-lookup", "greedy"]["mean_accepted"] > 1.1


def test_the_table_names_drafters_and_the_tolerance_goes_to_stderr(cli: Cli) -> None:
    done = cli(
        "verify", "one two one two one", "--raw", "--backend", "toy", "--drafters", "prompt-lookup:longest=2", "-n", "300", "--batch", 2
    )
    assert done.code == 0, done.err
    assert "identical" in done.out
    assert "longest=2" in done.out.replace("\n", "")
    assert "tolerance" in done.err
    assert "Nothing verified" not in done.err


def test_a_drafter_without_an_accepted_draft_is_told_to_have_verified_nothing(cli: Cli) -> None:
    done = cli("verify", "xyz", "--backend", "toy", "--drafters", "none,prompt-lookup", "--modes", "greedy", "-n", "2")
    assert done.code == 0
    assert "Nothing verified for prompt-lookup (greedy)" in done.err
    assert "none (" not in done.err


@pytest.mark.usefixtures("mine")
def test_a_fault_has_exit_code_three_and_says_where_and_by_how_much(cli: Cli) -> None:
    done = cli("verify", "--backend", "toy", "--drafters", "mine:Breaking", "-n", "60", "-t", "0.5")
    assert done.code == 3
    assert done.err.strip().split("\n")[-1].startswith("Error: 6 of 6 answers differ from plain decoding")
    assert done.out.count("FAULT, rounding does not explain this") == 6
    assert "by the one-row forward" in done.out
    assert "by the draft's" in done.out


@pytest.mark.usefixtures("mine")
def test_json_holds_every_difference_whole(cli: Cli) -> None:
    done = cli("verify", "--backend", "toy", "--drafters", "mine:Breaking", "--modes", "greedy", "-n", "60", "--json")
    assert done.code == 3
    found = json.loads(done.out)
    assert found["faults"] == 3
    for difference in found["differences"]:
        assert difference["verdict"] == "fault"
        assert difference["gap"] > difference["allowed"] > 0
        assert difference["kept"]["plain"] - difference["drafted"]["plain"] == pytest.approx(difference["gap"])
        assert difference["drafted"]["drafted"] > difference["kept"]["drafted"]
        assert len(difference["kept"]["text"]) == 1
        assert difference["columns"] > 1


@pytest.mark.usefixtures("mine")
def test_an_interrupt_keeps_what_is_done(cli: Cli) -> None:
    done = cli("verify", "--backend", "toy", "--drafters", "prompt-lookup,mine:Interrupting", "--modes", "greedy")
    assert done.code == 130
    assert "prompt-lookup" in done.out
    assert "Interrupted after 1 comparisons" in done.err
    whole = cli("verify", "--backend", "toy", "--drafters", "mine:Interrupting", "--modes", "greedy", "--json")
    assert whole.code == 130
    assert json.loads(whole.out)["results"] == []


def test_a_real_model_agrees_with_generate_and_a_suite_gives_the_prompts(cli: Cli, folder: Path, tmp_path: Path) -> None:
    suite = tmp_path / "suite.jsonl"
    rows = [
        {"id": f"p{i}", "prompt": text, "stop": ["a"]} for i, text in enumerate(("the cat sat on the cat", "on the mat on the mat", "x"))
    ]
    suite.write_text("".join(json.dumps(row) + "\n" for row in rows))
    more = ("--suite", suite, "--limit", 2, "--batch", 2, "-n", "24", "--against", "generate", "--json")
    done = cli("verify", "-m", folder, *FLOAT, "--drafters", "prompt-lookup", *more)
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert [(row["drafter"], row["mode"], row["prompts"]) for row in found["results"]] == [
        ("prompt-lookup", "greedy", 2),
        ("generate", "greedy", 2),
        ("prompt-lookup", "sampled", 2),
    ]
    assert all(row["identical"] == 2 for row in found["results"])
    assert found["settings"]["dtype"] == "float32"
    assert 0 < found["tolerance"] < 1e-3


@pytest.mark.usefixtures("mine")
def test_the_rule_of_the_sampled_mode_is_the_one_asked_for(cli: Cli) -> None:
    def found(*args: str) -> list[tuple[int, float]]:
        done = cli("verify", "abc", "--backend", "toy", "--drafters", "mine:Breaking", "--modes", "sampled", "-n", "40", "--json", *args)
        return [(difference["index"], difference["gap"]) for difference in json.loads(done.out)["differences"]]

    usual = found()
    assert usual == found("--seed", "0", "-t", "0.8")
    for other in (["--seed", "1"], ["-t", "0.7"], ["--top-k", "3"], ["--top-p", "0.5"], ["--min-p", "0.3"]):
        assert found(*other) != usual


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--modes", "greedily"], "--modes"),
        (["--modes", ""], "--modes"),
        (["--drafters", "prompt-lokup"], "prompt-lookup"),
        (["--against", "vllm"], "generate"),
        (["--against", "generate"], "toy"),
        (["--against", "generate", "--modes", "sampled"], "greedy"),
        (["-t", "0"], "temperature"),
        (["--top-p", "2"], "top_p"),
        (["--budget", "many"], "--budget"),
        (["--suite", "nowhere.jsonl"], "no suite"),
        (["hello", "--suite", "nowhere.jsonl"], "not from both"),
    ],
)
def test_wrong_arguments_get_one_line_and_exit_code_two(args: list[str], said: str, cli: Cli) -> None:
    done = cli("verify", "--backend", "toy", *args)
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1
