"""The diagnosis of a recording whose gaps are known: a form with a new value in each request."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from echodraft.backends.replay import ReplayBackend, Trajectory
from echodraft.bench.diagnose import diagnose
from echodraft.errors import UsageError
from echodraft.render.diagnosis import page

BODY = list(range(40, 52))
REQUESTS = 5


def form(request: int) -> tuple[list[int], list[int]]:
    return [request, 7, 8], [30, 31, 60 + request, *BODY, 99]


def states(tokens: list[int], known: bool) -> np.ndarray:
    """States that know the place in the form, or nothing at all."""
    random = np.random.default_rng(0 if known else tokens[0])
    return random.standard_normal((len(tokens) - 1, 16)).astype(np.float16)


def recording(known: bool = True, width: int = 16) -> Any:
    trajectories = []
    for request in range(REQUESTS):
        prompt, output = form(request)
        held = states(prompt + output, known)
        trajectories.append(Trajectory(prompt, output, np.asarray([[token] for token in output], np.int32), lambda held=held: held))
    return SimpleNamespace(
        folder=Path("forms"),
        width=width,
        entries=[SimpleNamespace(id=i, finish="length") for i in range(REQUESTS)],
        trajectory=lambda entry: trajectories[entry.id],
        backend=lambda some: ReplayBackend(some, 200),
        most=lambda entry: len(trajectories[entry.id].output),
    )


def test_the_place_behind_a_new_value_is_the_gap_and_the_states_hold_what_follows() -> None:
    found = diagnose(recording())
    gaps = [p for p in found.positions if p.missed and p.present.get(4)]
    assert [(p.request, p.at) for p in gaps] == [(request, 3) for request in range(1, REQUESTS)]
    assert all(p.found and p.verbatim == len(BODY) + 1 for p in gaps)
    (row,) = [row for row in found.table() if row["span"] == 4]
    places = REQUESTS * (len(form(0)[1]) - 4)  # without the first, and those with fewer than four tokens left
    assert row["positions"] == places
    assert row["gap"] == pytest.approx((REQUESTS - 1) / places)
    assert row["recovered"] == 1.0
    assert [case.truth[:3] for case in found.cases] == [BODY[:3]] * (REQUESTS - 1)


def test_states_that_know_nothing_recover_less() -> None:
    (row,) = [row for row in diagnose(recording(known=False)).table() if row["span"] == 4]
    assert row["gap_positions"] == REQUESTS - 1
    assert row["recovered"] < 1.0


def test_the_match_breaks_off_at_the_gap() -> None:
    lengths = diagnose(recording()).cliff()
    assert lengths[-1] == 2
    assert lengths[0] == 0
    assert lengths[2] == 2


def test_the_page_shows_each_case_and_no_text_of_it_is_markup() -> None:
    found = diagnose(recording(), most_cases=2)
    text = page("<b>forms</b>", found.table(), found.cliff(), found.cases, lambda ids: "<script>" + " ".join(map(str, ids)))
    assert text.count("<details>") == 2
    assert "<script>" not in text
    assert "&lt;b&gt;forms" in text
    assert "recovered, 13 verbatim" in text


def test_a_recording_without_states_is_refused() -> None:
    with pytest.raises(UsageError, match="no hidden states"):
        diagnose(recording(width=0))
