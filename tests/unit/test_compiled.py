"""Compiled code: who has to wait for it is told why, and nobody else."""

from __future__ import annotations

from collections.abc import Iterator
from time import sleep

import pytest

from echodraft.stores import compiled


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    found: list[str] = []
    monkeypatch.setattr(compiled.log, "warning", found.append)
    compiled._tell.cache_clear()
    yield found
    compiled._tell.cache_clear()


@pytest.mark.parametrize(("patience", "seconds", "notices"), [(0.01, 0.3, 1), (60.0, 0.0, 0)])
def test_a_long_wait_is_explained_once(
    said: list[str], monkeypatch: pytest.MonkeyPatch, patience: float, seconds: float, notices: int
) -> None:
    monkeypatch.setattr(compiled, "PATIENCE", patience)
    for _ in range(2):
        compiled.once(lambda: sleep(seconds))()
    assert len(said) == notices


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
