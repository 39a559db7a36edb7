"""Compiled code: who has to wait for it is told why, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator

import numba
import pytest

from echodraft.stores import compiled


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    found: list[str] = []
    monkeypatch.setattr(compiled.log, "warning", found.append)
    compiled._tell.cache_clear()
    yield found
    compiled._tell.cache_clear()


def test_compiling_is_told_once_and_code_that_is_there_is_not(said: list[str]) -> None:
    @numba.njit
    def double(x: int) -> int:
        return 2 * x

    compiled.once(lambda: double(1))()
    compiled.once(lambda: double(1.5))()
    assert len(said) == 1
    compiled._tell.cache_clear()
    compiled.once(lambda: double(2))()
    assert len(said) == 1


def test_code_is_brought_in_once_a_process_unless_that_failed() -> None:
    calls = 0

    @compiled.once
    def bring() -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        bring()
    bring()
    bring()
    assert calls == 2
