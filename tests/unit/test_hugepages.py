"""Large pages are asked for where they are to be had and nobody has decided, and the command then runs as it would have."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from echodraft import hugepages


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[Any]:
    """The restarts; of a machine that gives large pages to who asks."""
    calls: list[Any] = []
    mode = tmp_path / "enabled"
    mode.write_text("always [madvise] never\n")
    monkeypatch.setattr(hugepages, "MODE", mode)
    monkeypatch.setattr(os, "confstr", lambda _: "glibc 2.36")
    monkeypatch.setattr(os, "execve", lambda *call: calls.append(call))
    monkeypatch.setattr(sys, "gettrace", lambda: None)
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    return calls


def test_a_process_begins_anew_with_its_own_arguments_and_what_was_set(begun: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.check=3")
    hugepages.restart()
    ((program, argv, environment),) = begun
    assert program == sys.executable
    assert argv == [sys.executable, *sys.orig_argv[1:]]
    assert environment == {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.check=3:glibc.malloc.hugetlb=1"}


@pytest.mark.parametrize(
    ("mode", "library", "tunables", "state"),
    [
        ("always [madvise] never", "glibc 2.36", "glibc.malloc.hugetlb=1", "set"),
        ("always [madvise] never", "glibc 2.36", "glibc.malloc.hugetlb=0", "set"),
        ("always [madvise] never", "glibc 2.31", "", "none"),
        ("always [madvise] never", "musl", "", "none"),
        ("[always] madvise never", "glibc 2.36", "", "always"),
        ("always madvise [never]", "glibc 2.36", "", "none"),
        (None, "glibc 2.36", "", "none"),
    ],
)
def test_where_that_would_bring_nothing_or_was_decided_it_goes_on(
    begun: list[Any], monkeypatch: pytest.MonkeyPatch, mode: str | None, library: str, tunables: str, state: str
) -> None:
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    monkeypatch.setattr(os, "confstr", lambda _: library)
    hugepages.MODE.write_text(mode or "")
    if mode is None:
        hugepages.MODE.unlink()
    assert hugepages.state() == state
    hugepages.restart()
    assert not begun


def test_a_process_that_is_watched_or_cannot_begin_anew_goes_on(begun: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "gettrace", lambda: print)
    hugepages.restart()
    assert not begun
    monkeypatch.setattr(sys, "gettrace", lambda: None)

    def refused(*_: Any) -> None:
        raise OSError("no")

    monkeypatch.setattr(os, "execve", refused)
    hugepages.restart()


def test_a_command_answers_what_comes_through_the_pipe_all_the_same() -> None:
    command = [sys.executable, "-m", "echodraft", "run", "--backend", "toy", "-n", "4", "-"]
    plain = {**os.environ, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=0"}
    asking = {name: value for name, value in os.environ.items() if name != "GLIBC_TUNABLES"}
    one, other = (subprocess.run(command, input="hi", capture_output=True, text=True, env=env, check=True) for env in (plain, asking))
    assert one.stdout == other.stdout != ""
