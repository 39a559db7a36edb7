"""A command line in this process, in a folder and an environment of its own, without network."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import tinychat
from echodraft.cli import main
from echodraft.stores import hidden, suffix
from outcome import Cli, Outcome


@pytest.fixture(scope="session", autouse=True)
def compiled() -> None:
    """Drafters are compiled before, so that no test meets the note which says so."""
    suffix.warm()
    hidden.warm()


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny random chat model."""
    return tinychat.save_model(tmp_path_factory.mktemp("model"))


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One without a chat template, which says the same thing over and over."""
    return tinychat.save_model(tmp_path_factory.mktemp("base"), template=None, spread=0.02)


@pytest.fixture
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A working directory and a cache of their own; what the command line sets up for its process is undone."""
    for name in [name for name in os.environ if name.startswith("ECHODRAFT_")]:
        monkeypatch.delenv(name)
    for name, value in {
        "ECHODRAFT_CACHE": str(tmp_path / "cache"),
        "HF_HUB_OFFLINE": "1",
        "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        "TRANSFORMERS_VERBOSITY": "error",
        "TQDM_DISABLE": "1",
    }.items():
        monkeypatch.setenv(name, value)
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    log = logging.getLogger("echodraft")
    log.handlers[:] = []
    log.setLevel(logging.NOTSET)
    log.propagate = True


@pytest.fixture
def cli(apart: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """`cli("run", "hi", stdin="…")` as if typed; stdin is a pipe."""

    def call(*args: str | Path, stdin: str | bytes = "") -> Outcome:
        data = stdin if isinstance(stdin, bytes) else stdin.encode()
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(data), encoding="utf-8"))
        with pytest.raises(SystemExit) as end:
            main([str(arg) for arg in args])
        out, err = capsys.readouterr()
        return Outcome(int(end.value.code or 0), out, err)

    return call
