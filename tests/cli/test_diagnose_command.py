"""`echodraft diagnose` as people and programs see it."""

from __future__ import annotations

import json
from pathlib import Path

from outcome import Cli


def test_a_recording_is_diagnosed(cli: Cli, folder: Path, apart: Path) -> None:
    suite = apart / "cats.jsonl"
    suite.write_text("".join(json.dumps({"prompt": f"the cat {i} sat on the mat, the cat"}) + "\n" for i in range(3)))
    assert cli("record", "-m", folder, "--suite", suite, "--out", apart / "r", "-n", 12).code == 0
    told = json.loads(cli("diagnose", apart / "r", "--json").out)
    assert [row["span"] for row in told["spans"]] == [1, 2, 4, 8]
    assert told["spans"][0]["positions"] > 0
    result = cli("diagnose", apart / "r", "--html", apart / "gaps.html", "--k", 4)
    assert result.code == 0
    assert "recovered" in result.out
    assert "cases" in result.err
    assert (apart / "gaps.html").read_text().startswith("<!doctype html>")


def test_what_is_no_recording_is_told(cli: Cli, apart: Path) -> None:
    result = cli("diagnose", apart)
    assert result.code == 2
    assert "holds no recording" in result.err
