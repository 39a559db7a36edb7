"""The benchmark of the suffix store as people and programs see it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from outcome import Cli


def test_the_costs_are_a_table(cli: Cli) -> None:
    result = cli("bench-store", "--tokens", "3000", "--depth", "4,8")
    assert result.code == 0
    assert [line.split()[:2] for line in result.out.splitlines() if "3,000" in line] == [["3,000", "4"], ["3,000", "8"]]
    assert "synthetic" in result.err


def test_the_costs_are_json_and_add_up(cli: Cli) -> None:
    found = json.loads(cli("bench-store", "--tokens", "3000", "--depth", "8", "--json").out)
    (costs,) = found["results"]
    assert (costs["tokens"], costs["depth"]) == (3000, 8)
    assert costs["append"] == pytest.approx(1e6 * costs["build_seconds"] / 3000)
    assert 0 < costs["bytes_kept"] < costs["bytes"]
    assert 0 < costs["draft"] <= costs["draft_p99"]
    assert costs["remove"] > 0
    assert found["distinct_tokens"] >= 3000


def test_the_phrase_pool_is_measured_before_and_after_a_long_life(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("echodraft.bench.phrases.LATER", 20)
    found = json.loads(cli("bench-store", "--kind", "phrases", "--tokens", "500", "--json").out)
    (costs,) = found["results"]
    assert costs["phrases"] == 500
    assert 0 < costs["best"] <= costs["best_p99"]
    assert costs["later_bytes"] == costs["bytes"] > 0
    table = cli("bench-store", "--kind", "phrases", "--tokens", "500")
    assert table.code == 0
    assert any(line.split()[:1] == ["500"] for line in table.out.splitlines())


def test_the_text_comes_from_suites(cli: Cli, folder: Path, tmp_path: Path) -> None:
    suites = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for i, suite in enumerate(suites):
        suite.write_text("".join(json.dumps({"prompt": f"text {i} {j}"}) + "\n" for j in range(3)))
    result = cli("bench-store", "--tokens", "200", "--depth", "4", "--suite", suites[0], "--suite", suites[1], "-m", folder, "--json")
    found = json.loads(result.out)
    assert found["text"] == "a.jsonl, b.jsonl"
    assert found["distinct_tokens"] < 200
    assert found["results"][0]["texts"] > 6


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--tokens", "many"], "--tokens is a list of numbers"),
        (["--kind", "phrase"], "Did you mean 'phrases'"),
        (["--depth", "1"], "from 2 to 255"),
        (["--depth", "300"], "from 2 to 255"),
        (["--suite", "a.jsonl"], "--model"),
    ],
)
def test_what_cannot_be_measured_is_refused_in_a_line(cli: Cli, arguments: list[str], told: str) -> None:
    result = cli("bench-store", *arguments)
    assert result.code == 2
    assert told in result.err
    assert result.err.count("\n") == 1


def test_the_store_of_hidden_states_is_measured_against_exact_search(cli: Cli) -> None:
    found = json.loads(cli("bench-store", "--kind", "hidden", "--tokens", "300,2000", "--json").out)
    small, large = found["results"]
    assert (small["keys"], small["width"], small["share_of_step"]) == (300, 1536, None)
    assert small["recall"] == 1.0
    assert 0.8 < large["recall"] <= 1.0
    assert large["bytes"] < small["bytes"]
    assert 0 < large["query"] <= large["query_p99"]
    assert large["distinct"] == large["real"] < 2000  # some are kept apart to be asked for
    table = cli("bench-store", "--kind", "hidden", "--tokens", "300")
    assert table.code == 0
    assert "made up" in table.err


def test_a_recording_that_is_none_is_told(cli: Cli, tmp_path: Path) -> None:
    result = cli("bench-store", "--kind", "hidden", "--recording", tmp_path)
    assert result.code == 2
    assert "holds no recording" in result.err


def test_a_state_that_was_recorded_twice_is_counted_and_can_be_left_out(cli: Cli, tmp_path: Path) -> None:
    suite = tmp_path / "suite.jsonl"
    suite.write_text("".join(json.dumps({"id": str(i), "prompt": "one two three"}) + "\n" for i in range(2)))
    assert cli("record", "--backend", "toy", "--suite", suite, "-n", "30", "--out", tmp_path / "held").code == 0
    counts = []
    for more in ((), ("--distinct",)):
        arguments = ("--kind", "hidden", "--tokens", "100", "--recording", tmp_path / "held", "--json", *more)
        counts.append(json.loads(cli("bench-store", *arguments).out)["results"][0])
    twice, once = counts
    assert twice["real"] > twice["distinct"]
    assert once["real"] == once["distinct"] < twice["real"]


def test_a_search_is_compared_with_a_measured_step(cli: Cli, tmp_path: Path) -> None:
    curve = {"name": "measured", "rows": [1, 2], "contexts": [100], "cost": [[1.0, 1.5]], "seconds": [0.5]}
    (tmp_path / "curve.json").write_text(json.dumps(curve))
    found = json.loads(cli("bench-store", "--kind", "hidden", "--tokens", "300", "--cost", tmp_path / "curve.json", "--json").out)
    assert found["step_seconds"] == 0.5
    (costs,) = found["results"]
    assert costs["share_of_step"] == pytest.approx(costs["query"] / 1e6 / 0.5)
    assert "seconds" in cli("bench-store", "--kind", "hidden", "--tokens", "300", "--cost", "gpu-flat").err
