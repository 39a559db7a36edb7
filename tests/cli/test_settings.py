"""flag > environment > file > default."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outcome import Cli

TOY = ("run", "abc abc", "--backend", "toy", "--json")


def emitted(cli: Cli, *args: str) -> int:
    result = cli(*TOY, *args)
    assert result.code == 0, result.err
    return int(json.loads(result.out)["stats"]["emitted"])


def test_a_flag_wins_over_the_environment_over_the_file_over_the_default(cli: Cli, apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert emitted(cli) == 256
    (apart / "echodraft.toml").write_text("max-new-tokens = 3\n")
    assert emitted(cli) == 3
    (apart / "echodraft.toml").write_text("max-new-tokens = 3\n[run]\nmax_new_tokens = 4\n")
    assert emitted(cli) == 4
    monkeypatch.setenv("ECHODRAFT_MAX_NEW_TOKENS", "5")
    assert emitted(cli) == 5
    assert emitted(cli, "-n", "6") == 6


def test_another_file_may_be_named(cli: Cli, apart: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (apart / "echodraft.toml").write_text("max-new-tokens = 3\n")
    (apart / "other.toml").write_text("max-new-tokens = 7\n")
    monkeypatch.setenv("ECHODRAFT_CONFIG", "other.toml")
    assert emitted(cli) == 7
    monkeypatch.setenv("ECHODRAFT_CONFIG", "nowhere.toml")
    result = cli(*TOY)
    assert result.code == 2
    assert "'nowhere.toml'" in result.err


def test_values_of_every_kind_come_from_the_file(cli: Cli, apart: Path) -> None:
    (apart / "echodraft.toml").write_text(
        'backend = "toy"\nbudget = 3\n'
        '[run]\ndrafter = "prompt-lookup"\noption = ["longest=2", "latest=false"]\ntemperature = 1\nseed = 3\njson = true\nstop = ["zz"]\n'
    )
    result = cli("run", "abc abc abc", "-n", "9")
    assert result.code == 0, result.err
    assert json.loads(result.out)["seed"] == 3


@pytest.mark.parametrize(
    ("held", "words"),
    [
        ("max-new-token = 3", "Unknown setting in echodraft.toml 'max-new-token'. Did you mean 'max-new-tokens'?"),
        ("[run]\ntemprature = 1", "Unknown setting in [run] of echodraft.toml 'temprature'. Did you mean 'temperature'?"),
        ("[rum]\ntemperature = 1", "Unknown table in echodraft.toml 'rum'. Did you mean 'run'?"),
        ("temperature = ", "not valid TOML"),
        ('temperature = "hot"', "(from echodraft.toml)"),
    ],
)
def test_a_file_with_a_mistake_is_an_error(cli: Cli, apart: Path, held: str, words: str) -> None:
    (apart / "echodraft.toml").write_text(held)
    result = cli(*TOY)
    assert (result.code, result.out) == (2, "")
    assert words in result.err


def test_a_bad_value_in_the_environment_is_an_error(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHODRAFT_TEMPERATURE", "hot")
    result = cli(*TOY)
    assert result.code == 2
    assert "(from ECHODRAFT_TEMPERATURE). See: echodraft run -h" in result.err
