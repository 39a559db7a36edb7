"""`echodraft run --trace` and `echodraft inspect`."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from outcome import Cli

PROMPT = "abc abd abe abc abd"
RUN = ("run", "--backend", "toy", PROMPT, "-n", "400", "--budget", "6", "-d", "prompt-lookup")


@pytest.fixture
def trace(cli: Cli, tmp_path: Path) -> Path:
    path = tmp_path / "a.trace"
    done = cli(*RUN, "--trace", path)
    assert (done.code, done.err) == (0, "")
    return path


def test_a_trace_changes_no_answer_and_holds_it(cli: Cli, trace: Path) -> None:
    answer = json.loads(cli(*RUN, "--json").out)
    found = json.loads(cli("inspect", trace, "--json").out)
    (request,) = found["requests"]
    assert [token for step in request["steps"] for token in step["emitted"]] == answer["ids"]
    assert found["header"]["settings"]["budget"] == 6
    assert found["header"]["drafter"] == "prompt-lookup"
    assert request["finish"] == answer["finish_reason"]


def test_the_comparison_is_not_traced(cli: Cli, trace: Path) -> None:
    steps = trace.read_text().count("\n")
    cli(*RUN, "--compare", "--trace", trace)
    assert trace.read_text().count("\n") == steps


def test_every_step_has_a_line_under_the_output(cli: Cli, trace: Path) -> None:
    answer = json.loads(cli(*RUN, "--json").out)
    done = cli("inspect", trace)
    assert done.code == 0
    assert answer["text"] in done.out
    assert len(re.findall(r"^ *\d+  kept ", done.out, flags=re.M)) == answer["stats"]["steps"] + 1
    assert "\x1b" not in done.out


def test_colour_marks_the_tokens_of_drafters_with_a_legend(cli: Cli, trace: Path) -> None:
    out = cli("inspect", trace, "--color", "always").out
    assert "\x1b[4;32m" in out
    assert "drafted by" in out


def test_one_step_is_shown_with_its_tree(cli: Cli, trace: Path) -> None:
    steps = json.loads(cli("inspect", trace, "--json").out)["requests"][0]["steps"]
    best = max(steps, key=lambda step: len(step["path"]))
    done = cli("inspect", trace, "--step", best["step"])
    assert done.out.count("✓") == len(best["path"]) > 0
    assert done.out.count("prompt-lookup ") == len(best["draft"]["token"])
    assert best["ended"] in done.out
    assert cli("inspect", trace, "--trees").out.count("✓") == sum(len(step["path"]) for step in steps)


def test_several_requests_are_listed_and_chosen(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "two.trace"
    cli(*RUN, "-t", "1", "--seed", "3", "--samples", "2", "--trace", path)
    listed = cli("inspect", path)
    assert "--request" in listed.err
    assert listed.out.count("prompt-lookup") == 2
    assert cli("inspect", path, "--request", 1).out.startswith("request 1")
    assert json.loads(cli("inspect", path, "--request", 1, "--json").out)["requests"][0]["request"] == 1
    assert cli("inspect", path, "--step", 1).code == 2


def test_a_page_is_written(cli: Cli, trace: Path, tmp_path: Path) -> None:
    done = cli("inspect", trace, "--html", tmp_path / "a.html")
    assert (done.code, done.out) == (0, "")
    assert "a.html" in done.err
    page = (tmp_path / "a.html").read_text()
    assert page.startswith("<!doctype html>")
    assert not re.findall(r"(?:src|href)=|https?://", page)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["nowhere.trace"], "no trace 'nowhere.trace'"),
        (["TRACE", "--request", "5"], "no request 5"),
        (["TRACE", "--step", "900"], "no step 900"),
        (["TRACE", "--html", "nowhere/a.html"], "cannot be written"),
    ],
)
def test_wrong_arguments_get_one_line_and_exit_code_two(cli: Cli, trace: Path, args: list[str], said: str) -> None:
    done = cli("inspect", *(str(trace) if arg == "TRACE" else arg for arg in args))
    assert done.code == 2
    assert said in done.err
    assert done.err.count("\n") == 1


def test_a_file_that_is_no_trace_is_not_written_over_and_costs_no_model(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    done = cli("run", "hi", "-m", "no-such-model", "--trace", tmp_path / "notes.txt")
    assert done.code == 2
    assert "notes.txt" in done.err
    assert (tmp_path / "notes.txt").read_text() == "mine"
