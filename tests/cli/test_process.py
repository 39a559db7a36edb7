"""What only a process of its own shows: Ctrl-C, a reader that leaves, `python -m`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

SLOW = """
import time
from echodraft.drafters.none import NoDrafter

class Slow(NoDrafter):
    name = "slow"
    def propose(self, sessions, budgets):
        time.sleep(0.02)
        return super().propose(sessions, budgets)
"""
COMMAND = [sys.executable, "-W", "error", "-m", "echodraft"]


@pytest.fixture
def environment(apart: Path) -> dict[str, str]:
    (apart / "slow.py").write_text(SLOW)
    return {**os.environ, "PYTHONPATH": str(apart)}


def interrupted(environment: dict[str, str], *more: str) -> tuple[int, str, str]:
    args = [*COMMAND, "run", "abc abc", "--backend", "toy", "-d", "slow:Slow", "-n", "3000", *more]
    with subprocess.Popen(args, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        begun = process.stdout.read(5) if "--json" not in more else b""
        if "--json" in more:
            import time

            time.sleep(1.5)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=20)
    return process.returncode, (begun + out).decode(), err.decode()


def test_an_interrupt_leaves_the_partial_answer(environment: dict[str, str]) -> None:
    code, out, err = interrupted(environment, "--stats")
    whole = subprocess.run([*COMMAND, "run", "abc abc", "--backend", "toy", "-n", "3000"], env=environment, capture_output=True, text=True)
    assert code == 130
    assert out.endswith("\n")
    assert 5 <= len(out) < 2000
    assert whole.stdout.startswith(out[:-1])
    assert "tokens/s" in err
    assert "Traceback" not in err


def test_an_interrupt_leaves_whole_json(environment: dict[str, str]) -> None:
    code, out, err = interrupted(environment, "--json")
    found = json.loads(out)
    assert code == 130
    assert found["finish_reason"] is None
    assert len(found["ids"]) == found["stats"]["emitted"] < 2000
    assert "Traceback" not in err


def test_a_reader_that_leaves_ends_the_answer_quietly(environment: dict[str, str]) -> None:
    args = [*COMMAND, "run", "abc abc", "--backend", "toy", "-d", "slow:Slow", "-n", "3000"]
    with subprocess.Popen(args, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.read(3)
        process.stdout.close()
        assert process.wait(timeout=20) == 141
        assert process.stderr.read() == b""
