"""Ablations: every setting runs, says what was remembered, and rows of trees are counted in three ways."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from conforming import draft_model
from echodraft.backends.memo import MemoBackend, Sayings
from echodraft.backends.toy import ToyBackend
from echodraft.bench.ablation import TABLES, TREE, Setting, ablate, leaves, settings_of, verify_trees
from echodraft.bench.methods import parse
from echodraft.bench.record import describe, record
from echodraft.bench.recording import Recording, Writer
from echodraft.bench.replay import Corpus
from echodraft.bench.suites import Item
from echodraft.build import make_drafter
from echodraft.core.budget import CostCurve, Fixed
from echodraft.core.draft import EMPTY, DraftBuilder
from echodraft.core.engine import Engine
from echodraft.decoder import Decoder
from echodraft.drafters.none import NoDrafter
from echodraft.errors import UsageError
from echodraft.render.replay import ablation, ways
from echodraft.text.tokenizer import Text
from models import prompt

CURVE = CostCurve((1, 64), ((1.0, 3.0),), (20,), "of the test", (0.1,))
FLAT = CostCurve((1, 64), ((1.0, 1.0),), (20,), "flat", (0.1,))


def corpus(folder: Path, prompts: list[list[int]]) -> Corpus:
    decoder = Decoder(Engine(ToyBackend(copy=100.0), NoDrafter(), Fixed(0)), Text(None, []), "toy")
    writer = Writer(folder, {**describe(decoder, "suite", ("norm",)), "settings": {"max_new_tokens": 40, "limit": None}}, False)
    record([Item(f"item {i}", "", ids, ()) for i, ids in enumerate(prompts)], decoder, writer, lambda _: 40)
    return Corpus(Recording(folder))


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus(tmp_path_factory.mktemp("own") / "r", [prompt(6) * 3, prompt(9, seed=2), prompt(6) * 3, prompt(9, seed=2)])


@pytest.fixture(scope="module")
def same_task(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return corpus(tmp_path_factory.mktemp("other") / "r", [prompt(6) * 3])


@pytest.fixture
def draft() -> Callable[[], Any]:
    return lambda: draft_model(MemoBackend(ToyBackend(copy=100.0, seed=5), Sayings()), cost=0.2, curve=CURVE)


@pytest.mark.parametrize(("method", "table"), [(method, table) for method in TABLES for table in TABLES[method]])
def test_every_setting_names_a_drafter_and_knobs_that_there_are(method: str, table: str) -> None:
    for setting in settings_of(method, table):
        make_drafter(*parse(setting.method))
        if "history=false" in setting.method:
            assert setting.held == "request"


@pytest.mark.parametrize("table", ["mechanisms", "locality"])
def test_a_table_has_a_row_a_setting_with_what_was_remembered(own: Corpus, same_task: Corpus, draft: Callable[[], Any], table: str) -> None:
    settings, told = settings_of("ouroboros", table), list[str]()
    rows = list(ablate(own, settings, 12, CURVE, draft=draft(), other=same_task, told=told.append))
    assert [(row["setting"], row["held"]) for row in rows] == [(setting.label, setting.held) for setting in settings]
    assert all(row["all"]["speedup"] for row in rows)
    assert len(told) == len(settings) * len(own.entries)
    assert ablation(table, rows).row_count == len(settings)


def test_a_pool_that_another_recording_filled_helps_where_it_is_of_the_same_task(own: Corpus, same_task: Corpus) -> None:
    method = "ouroboros:draft=false:host="
    settings = [Setting("", method, "other"), Setting("", method, "carried"), Setting("", f"{method}:history=false", "request")]
    steps = [row["all"]["steps"] for row in ablate(own, settings, 12, CURVE, other=same_task)]
    assert steps[0] < steps[1] < steps[2]


def test_what_is_taken_away_between_requests_is_gone(own: Corpus) -> None:
    rows = list(ablate(own, [Setting("", "suffix", held) for held in ("carried", "cold")], 8))
    assert rows[0]["all"]["accepted"] > rows[1]["all"]["accepted"]


def test_another_recording_is_asked_for_before_anything_runs(own: Corpus, draft: Callable[[], Any]) -> None:
    with pytest.raises(UsageError, match="--other"):
        next(ablate(own, settings_of("ouroboros", "locality"), 8, draft=draft()))


def test_merged_trees_have_the_fewest_rows_and_single_branches_the_most_forwards(own: Corpus, draft: Callable[[], Any]) -> None:
    rows = list(verify_trees(own, settings_of("ouroboros", TREE)[0], 16, CURVE, draft=draft()))
    forwards, tokens, speed = ([row[key] for row in rows] for key in ("forwards", "rows", "speedup"))
    assert forwards[0] == forwards[1] < forwards[2]
    assert tokens[0] < tokens[1] < tokens[2]
    assert speed[0] > speed[1] > speed[2]
    flat = [row["speedup"] for row in verify_trees(own, settings_of("ouroboros", TREE)[0], 16, FLAT, draft=draft())]
    assert flat[0] == flat[1] > flat[2]  # where rows are free, only forwards count
    assert ways(rows).row_count == 3


def test_leaves_are_the_ends_of_branches() -> None:
    draft = DraftBuilder()
    trunk = draft.add(draft.add(-1, 1, 0.9), 2, 0.8)
    for token in (3, 4):
        draft.add(trunk, token, 0.3)
    draft.add(-1, 5, 0.1)
    assert sorted(leaves(draft.build())) == [1, 3, 3]
    assert leaves(EMPTY) == []


@pytest.mark.parametrize(("method", "table"), [("suffix", "k"), ("ouroboros", "kk")])
def test_an_unknown_table_is_refused_with_those_there_are(method: str, table: str) -> None:
    with pytest.raises(UsageError, match=r"oilbird|mechanisms"):
        settings_of(method, table)
