"""`echodraft run`: what is printed where."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echodraft.drafters import DEFAULT
from outcome import Cli

TOY = ("run", "--backend", "toy")
PROMPT = "abc abd abe abc abd"


def test_the_answer_alone_is_on_stdout(cli: Cli) -> None:
    plain = cli(*TOY, PROMPT, "-n", "20")
    assert (plain.code, plain.err) == (0, "")
    assert len(plain.out) == 21
    assert plain.out.endswith("\n")


def test_statistics_go_to_stderr(cli: Cli) -> None:
    result = cli(*TOY, PROMPT, "-n", "20", "--stats")
    assert len(result.out) == 21
    for word in ("tokens/s", "steps", "drafted", "accepted by", "prompt"):
        assert word in result.err


def test_a_real_model_answers_through_its_chat_template_or_raw(cli: Cli, folder: Path) -> None:
    from echodraft import load

    decoder = load(folder)
    chat = cli("run", "the cat", "-m", folder, "-n", "12", "--system", "be kind")
    raw = cli("run", "the cat", "-m", folder, "-n", "12", "--raw")
    say = [{"role": "system", "content": "be kind"}, {"role": "user", "content": "the cat"}]
    assert (chat.code, chat.err, raw.code) == (0, "", 0)
    assert chat.out == decoder.generate(say, max_new_tokens=12).text + "\n"
    assert raw.out == decoder.generate("the cat", max_new_tokens=12).text + "\n"


@pytest.mark.parametrize("args", [(), ("-",)])
def test_a_pipe_is_a_prompt(cli: Cli, args: tuple[str, ...]) -> None:
    typed = cli(*TOY, PROMPT, "-n", "10")
    piped = cli(*TOY, *args, "-n", "10", stdin=PROMPT + "\n")
    assert typed.out == piped.out


def test_raw_text_from_a_pipe_keeps_its_last_newline(cli: Cli) -> None:
    found = json.loads(cli(*TOY, "--raw", "--json", "-n", "3", stdin="ab\n").out)
    assert found["prompt_tokens"] == 3


def test_json_is_one_object_with_counts(cli: Cli) -> None:
    result = cli(*TOY, PROMPT, "-n", "15", "--json")
    found = json.loads(result.out)
    assert set(found) == {"text", "ids", "finish_reason", "prompt_tokens", "seed", "model", "drafter", "stats"}
    assert (len(found["ids"]), found["finish_reason"], found["seed"], found["drafter"]) == (15, "length", None, DEFAULT)
    assert {"steps", "drafted", "verified", "accepted", "emitted", "mean_accepted", "block_efficiency"} <= set(found["stats"])
    assert found["stats"]["emitted"] == 15
    assert found["text"] + "\n" == cli(*TOY, PROMPT, "-n", "15").out


def test_a_comparison_says_that_the_tokens_agree(cli: Cli, base: Path) -> None:
    result = cli("run", "the cat sat on the cat sat", "-m", base, "-n", "25", "--raw", "--compare", "--budget", "6")
    assert result.code == 0
    assert "tokens agree  yes" in result.err
    assert "speed-up" in result.err
    sampled = json.loads(cli(*TOY, PROMPT, "-n", "25", "--compare", "--json", "-t", "1").out)
    assert sampled["compare"]["tokens_agree"] is True
    assert sampled["compare"]["plain"]["steps"] == 24
    assert isinstance(sampled["seed"], int)


def test_a_drawn_seed_is_told_and_repeats_the_answer(cli: Cli) -> None:
    first = cli(*TOY, PROMPT, "-n", "15", "-t", "1")
    assert first.err.startswith("Note: drawn seed: ")
    again = cli(*TOY, PROMPT, "-n", "15", "-t", "1", "--seed", first.err.split()[-1])
    assert (again.out, again.err) == (first.out, "")


def test_several_samples_are_set_apart(cli: Cli) -> None:
    args = (*TOY, PROMPT, "-n", "8", "-t", "1", "--seed", "3", "--samples", "2")
    shown = cli(*args).out.splitlines()
    found = json.loads(cli(*args, "--json").out)["results"]
    assert shown == ["--- sample 1 of 2 ---", found[0]["text"], "--- sample 2 of 2 ---", found[1]["text"]]


def test_a_stop_string_is_not_printed(cli: Cli) -> None:
    whole = cli(*TOY, PROMPT, "-n", "30").out
    stop = whole[11:14]
    assert cli(*TOY, PROMPT, "-n", "30", "--stop", stop, "--stop", "never there").out == whole[: whole.find(stop)] + "\n"


def test_colour_marks_drafted_tokens_with_a_legend_and_the_text_stays(cli: Cli, base: Path) -> None:
    import re

    args = ("run", "the cat sat on the cat sat", "-m", base, "-n", "40", "--budget", "6", "--raw", "-d", "prompt-lookup")
    plain, marked = cli(*args), cli(*args, "--color", "always")
    assert "\x1b[" not in plain.out
    assert "\x1b[4;32m" in marked.out
    assert re.sub(r"\x1b\[[0-9;]*m", "", marked.out) == plain.out
    assert "prompt-lookup" in marked.err
    assert not any(line.count("\x1b[4") != line.count("\x1b[0m") for line in marked.out.split("\n"))


def test_a_drafter_that_never_proposed_is_told_of_once(cli: Cli) -> None:
    result = cli(*TOY, "q", "-n", "2", "--stats")
    assert result.err.count("proposed nothing") == 1
    assert "proposed nothing" not in cli(*TOY, "q", "-n", "2", "--stats", "-d", "none").err


def test_a_model_without_a_template_is_completed_with_a_note(cli: Cli, base: Path) -> None:
    result = cli("run", "the cat", "-m", base, "-n", "5")
    assert result.err == "Note: The model has no chat template: it completes the plain text of the messages.\n"
    assert result.out == cli("run", "the cat", "-m", base, "-n", "5", "--raw").out


def test_knobs_reach_the_drafter(cli: Cli) -> None:
    found = json.loads(
        cli(*TOY, PROMPT, "-d", "prompt-lookup", "-n", "20", "--json", "-o", "longest=2", "-o", "latest=false", "--budget", "3").out
    )
    assert 0 < found["stats"]["verified"] <= 3 * found["stats"]["steps"]
