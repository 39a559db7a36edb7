"""What every test shares: the whole matrix on request only, and properties that try the same examples on every run."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# A shell's background job ignores interrupts and hands that down, also to what the tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

settings.register_profile("repeatable", derandomize=True, deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("repeatable")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--full", action="store_true", help="run the whole conformance matrix, not only its pairwise cover")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if config.getoption("--full"):
        return
    left_out = [item for item in items if "full" in item.keywords]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if "full" not in item.keywords]
