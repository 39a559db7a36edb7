"""`--memory` and `echodraft store`, as commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from echodraft.memory import Memory
from echodraft.stores.folder import Folder
from outcome import Cli

RUN = ("run", "--backend", "toy", "--raw", "-n", "40", "-d", "suffix", "--json")


@pytest.fixture
def held(tmp_path: Path) -> Path:
    return tmp_path / "memory"


@pytest.fixture
def ask(cli: Cli, held: Path) -> Cli:
    """Run a prompt with the memory."""
    return lambda *args: cli(*RUN, "--memory", held, *args)


def info(cli: Cli, held: Path, *args: str) -> list[dict[str, object]]:
    done = cli("store", "info", "--memory", held, "--json", *args)
    assert done.code == 0, done.err
    rows: list[dict[str, object]] = json.loads(done.out)["stores"]
    return rows


def test_a_repeated_prompt_takes_fewer_steps_with_a_memory_and_says_the_same(ask: Cli) -> None:
    first, second = (json.loads(ask("hello there").out) for _ in range(2))
    assert second["ids"] == first["ids"]
    assert second["stats"]["steps"] < first["stats"]["steps"]


def test_one_tenant_never_profits_from_another(ask: Cli, cli: Cli, held: Path) -> None:
    alone = json.loads(ask("hello there", "--tenant", "alice").out)
    stolen = json.loads(ask("hello there", "--tenant", "bob").out)
    assert stolen["stats"]["drafted"] == alone["stats"]["drafted"]
    assert {row["tenant"]: row["tokens"] for row in info(cli, held)} == {"alice": 40, "bob": 40}


def test_no_memory_wins_over_the_setting(cli: Cli, held: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHODRAFT_MEMORY", str(held))
    assert cli(*RUN, "hello", "--no-memory").code == 0
    assert not held.exists()
    assert cli(*RUN, "hello").code == 0
    assert info(cli, held)


def test_limits_of_a_run_bound_what_is_kept(ask: Cli, cli: Cli, held: Path) -> None:
    for prompt in ("one", "two", "three"):
        ask(prompt, "--memory-limit", "tokens=80")
    assert [row["tokens"] for row in info(cli, held)] == [80]


def test_prune_holds_every_tenant_to_the_limits(ask: Cli, cli: Cli, held: Path) -> None:
    for tenant in ("a", "b"):
        for prompt in ("one", "two"):
            ask(prompt, "--tenant", tenant)
    done = cli("store", "prune", "--memory", held, "--memory-limit", "tokens=50", "--json")
    assert json.loads(done.out) == {"tokens_before": 160, "tokens_after": 80, "tenants_forgotten": []}
    done = cli("store", "prune", "--memory", held, "--memory-limit", "bytes=0")
    assert "2 tenants forgotten" in done.out
    assert info(cli, held) == []


def test_forget_deletes_one_tenant_or_all(ask: Cli, cli: Cli, held: Path) -> None:
    for tenant in ("a", "b", ""):
        ask("one", "--tenant", tenant)
    assert cli("store", "forget", "--memory", held, "--tenant", "a").code == 0
    assert {row["tenant"] for row in info(cli, held)} == {"b", ""}
    again = cli("store", "forget", "--memory", held, "--tenant", "a")
    assert again.code == 2
    assert "Nothing is remembered" in again.err
    (damaged,) = held.glob("b-*/*.safetensors")
    damaged.write_bytes(b"rubbish")
    assert cli("store", "info", "--memory", held).code == 1
    assert cli("store", "forget", "--memory", held, "--all").code == 0
    assert info(cli, held) == []


def test_export_gives_every_text_with_its_tenant(ask: Cli, cli: Cli, held: Path, tmp_path: Path) -> None:
    said = json.loads(ask("one", "--tenant", "a").out)["ids"]
    ask("two", "--tenant", "b")
    done = cli("store", "export", "--memory", held, "--tenant", "a")
    (row,) = map(json.loads, done.out.splitlines())
    assert (row["tenant"], row["kind"], row["ids"]) == ("a", "suffix", said)
    assert cli("store", "export", "--memory", held, "--out", tmp_path / "all.jsonl").code == 0
    assert len((tmp_path / "all.jsonl").read_text().splitlines()) == 2


def test_a_second_process_reads_and_says_so(ask: Cli, held: Path) -> None:
    ask("hello there")
    with Memory(held):
        done = ask("hello there")
    assert done.code == 0
    assert "read only" in done.err


def test_a_memory_of_another_model_is_refused(ask: Cli, cli: Cli, folder: Path, held: Path) -> None:
    ask("hello")
    done = cli("run", "-m", folder, "-d", "suffix", "--memory", held, "-n", "4", "hello")
    assert done.code == 2
    assert "belongs to another model (toy)" in done.err


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (("store", "info"), "--memory"),
        (("store", "info", "--memory", "nowhere"), "no memory folder"),
        (("store", "forget", "--memory", "."), "--tenant NAME, or --all"),
        (("store", "forget", "--memory", ".", "--tenant", "a", "--all"), "--tenant NAME, or --all"),
        ((*RUN, "hi", "--memory-limit", "tokns=3"), "tokens"),
        ((*RUN, "hi", "--memory-limit", "tokens=many"), "number"),
        ((*RUN, "hi", "--memory-limit", "days=-1"), "from 0 on"),
    ],
)
def test_what_cannot_be_right_is_told_in_a_line(cli: Cli, args: tuple[str, ...], said: str) -> None:
    done = cli(*args)
    assert done.code == 2
    assert said in done.err


def test_prune_by_age_empties_stores_of_fixed_size_too(cli: Cli, held: Path) -> None:
    assert cli("run", "--backend", "toy", "--raw", "-n", "20", "-d", "recycling", "--memory", held, "hello").code == 0
    assert cli("store", "export", "--memory", held).out
    assert cli("store", "prune", "--memory", held, "--memory-limit", "days=0").code == 0
    assert cli("store", "export", "--memory", held).out == ""


def test_who_only_reads_is_in_nobodys_way(ask: Cli, held: Path) -> None:
    ask("hello there")
    reader = Folder(held, write=False)
    assert not reader.writable
    assert [header.tokens for header in reader.headers()] == [40]
    with Memory(held) as memory:
        assert memory.folder is not None
        assert memory.folder.writable
