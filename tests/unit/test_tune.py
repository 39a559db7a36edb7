"""Tuning: a search that finds the top of a hill in few trials, forgets none of them, and writes a profile that is checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from echodraft.backends.toy import ToyBackend, ToyTokenizer
from echodraft.bench.suites import Item
from echodraft.bench.tune import BUDGET, LADDERS, Setting, Trials, ladders_of, live, race, search
from echodraft.build import knobs_of, make_drafter
from echodraft.core.budget import Fixed
from echodraft.core.engine import Engine
from echodraft.decoder import Decoder
from echodraft.drafters import drafter_class
from echodraft.drafters.none import NoDrafter
from echodraft.errors import UsageError
from echodraft.profile import Profile, load_profile
from echodraft.text.tokenizer import Text

HILL = {"a": (1, 2, 3, 4, 5, 6), "b": (0, 10, 20)}


def height(setting: Setting, best: float = 0.0) -> float:
    """Highest at a = 5, b = 20; b matters more for large a."""
    at = dict(setting.options)
    return 10.0 - (at["a"] - 5) ** 2 + at["b"] * at["a"] / 100


def start(a: int = 2, b: int = 0) -> Setting:
    return Setting("x", (("a", a), ("b", b)))


@pytest.mark.parametrize("begin", [start(), start(6, 20), start(1, 10)])
def test_the_search_finds_the_top_of_a_hill(begin: Setting) -> None:
    trials = Trials(None, {}, False)
    found = search(begin, HILL, height, trials, patience=1, rounds=2)
    assert dict(found.options) == {"a": 5, "b": 20}
    assert trials.best()[0] == found
    assert len(trials.speed) < len(HILL["a"]) * len(HILL["b"])


def test_patience_crosses_a_dip_and_no_setting_is_measured_twice() -> None:
    speeds, asked = {1: 1.0, 2: 2.0, 3: 1.5, 4: 3.0, 5: 0.0, 6: 0.0}, list[Setting]()

    def measure(setting: Setting, best: float) -> float:
        asked.append(setting)
        return speeds[dict(setting.options)["a"]]

    found = [dict(search(Setting("x", (("a", 1),)), {"a": HILL["a"]}, measure, Trials(None, {}, False), n, 3).options)["a"] for n in (1, 2)]
    assert found == [2, 4]
    assert len(asked) == 3 + 6


def test_a_measure_hears_the_best_so_far() -> None:
    heard: list[float] = []

    def measure(setting: Setting, best: float) -> float:
        heard.append(best)
        return height(setting)

    search(start(), HILL, measure, Trials(None, {}, False), 1, 1)
    assert heard == sorted(heard)
    assert heard[0] == 0.0 < heard[-1]


def test_a_default_between_two_values_begins_beside_it() -> None:
    trials = Trials(None, {}, False)
    search(Setting("x", (("a", 7), ("b", 0))), HILL, lambda setting, _: float(dict(setting.options)["a"] == 5), trials, 1, 1)
    assert trials.best()[0].options[0] == ("a", 5)


def test_a_search_that_is_interrupted_goes_on_where_it_was(tmp_path: Path) -> None:
    path, asked = tmp_path / "trials.jsonl", list[Setting]()

    def measure(setting: Setting, best: float) -> float:
        if len(asked) == 4:
            raise KeyboardInterrupt
        asked.append(setting)
        return height(setting)

    with pytest.raises(KeyboardInterrupt):
        search(start(), HILL, measure, Trials(path, {"limit": 4}, False), 1, 2)
    with path.open("a") as file:
        file.write('{"drafter": "x", "opt')
    with pytest.raises(UsageError, match="--resume"):
        Trials(path, {"limit": 4}, False)
    with pytest.raises(UsageError, match="other settings"):
        Trials(path, {"limit": 5}, True)
    trials = Trials(path, {"limit": 4}, True)
    assert set(trials.speed) == set(asked)
    again: list[Setting] = []
    search(start(), HILL, lambda setting, best: again.append(setting) or height(setting), trials, 1, 2)  # type: ignore[func-returns-value]
    assert not set(again) & set(asked)
    assert len(Trials(path, {"limit": 4}, True).speed) == len(asked) + len(again)
    begun = tmp_path / "begun.jsonl"
    Trials(begun, {"limit": 4}, False)
    assert not Trials(begun, {"limit": 5}, False).speed  # nothing was tried: nothing is in the way
    with pytest.raises(UsageError, match="--save"):
        Trials(tmp_path / "nowhere" / "t.jsonl", {}, False)


@pytest.mark.parametrize("drafter", LADDERS)
def test_every_knob_that_is_searched_exists_and_takes_its_values(drafter: str) -> None:
    for knob, ladder in LADDERS[drafter].items():
        assert knob in knobs_of(drafter_class(drafter))
        for value in ladder:
            make_drafter(drafter, {knob: value})


def test_a_drafter_without_knobs_to_search_has_its_budget() -> None:
    assert list(ladders_of("suffix", budgets=False)) == [BUDGET]
    assert list(ladders_of("ouroboros", budgets=False)) == ["gamma", "window", "beta", "k", "top_k", "width"]
    assert Setting("suffix").put(BUDGET, 8).method == "suffix:budget=8"


def test_a_profile_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "code.json"
    profile = Profile(drafter="ouroboros", options={"gamma": 8, "branch": False}, budget=16, draft_model="small", found={"speedup": 2.0})
    profile.save(path)
    assert load_profile(path) == profile
    assert profile.method == "ouroboros:gamma=8:branch=false"
    assert profile.flags()["option"] == ["gamma=8", "branch=false"]
    assert "draft_quantize" not in profile.flags()


@pytest.mark.parametrize(
    "held",
    ["", "{}", '{"drafter": ""}', '{"drafter": "x", "budget": "much"}', '{"drafter": "x", "knobs": {}}', '{"drafter": "x", "version": 2}'],
)
def test_what_is_no_profile_is_refused_in_words(tmp_path: Path, held: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(held)
    with pytest.raises(UsageError, match="no profile"):
        load_profile(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="no profile"):
        load_profile(path)
    with pytest.raises(UsageError, match="no profile"):
        load_profile(tmp_path / "nowhere.json")
    with pytest.raises(UsageError, match="--save"):
        Profile(drafter="x").save(tmp_path / "nowhere" / "p.json")


def test_a_race_decodes_beside_plain_decoding_and_a_slow_trial_ends_early() -> None:
    base = Decoder(Engine(ToyBackend(), NoDrafter(), Fixed(0)), Text(ToyTokenizer()), "toy")
    items = [Item(str(i), "", ToyTokenizer().encode(f"one two one two {i}"), ()) for i in range(5)]
    settings, told = [Setting("suffix", (), 4), Setting("prompt-lookup")], list[Any]()
    found = race(base, items, lambda _: 12, settings, told=told.append)
    assert list(found) == settings
    assert all(speed > 0.0 for speed in found.values())
    assert len(told) == 3 * len(items)
    asked: list[Any] = []
    race(base, items, lambda _: 12, settings[:1], least=1e9, told=asked.append)
    assert len(asked) == 2 * 2
    assert live(base, items[:2], lambda _: 6)(settings[0], 0.0) > 0.0


def test_trials_are_json_lines(tmp_path: Path) -> None:
    trials = Trials(tmp_path / "t.jsonl", {"limit": 1}, False)
    trials.add(Setting("suffix", (("a", "b"),), 8), 1.5)
    lines = [json.loads(line) for line in (tmp_path / "t.jsonl").read_text().splitlines()]
    assert lines == [{"limit": 1}, {"drafter": "suffix", "options": [["a", "b"]], "budget": 8, "speedup": 1.5}]
