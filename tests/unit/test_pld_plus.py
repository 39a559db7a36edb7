"""PLD+: which occurrence is copied, and which state belongs to which token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from conforming import NEW
from echodraft.backends.toy import ToyBackend
from echodraft.core.accept import Stops
from echodraft.core.backend import Need
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import Draft
from echodraft.core.engine import Engine
from echodraft.drafters.pld_plus import PldPlus
from harness import Recorder, Scripted, drive
from models import prompt

ONE = np.eye(97)


class Feeling(Scripted):
    """Says `then`, in the state of the last token but for tokens that are named."""

    def __init__(self, then: int, states: dict[int, list[float]]) -> None:
        super().__init__(lambda _: ONE[then])
        self.states = states

    def _state(self, path: list[int]) -> NDArray[np.float16]:
        return np.asarray(self.states.get(path[-1], [0.0, 0.0, 1.0]), dtype=np.float16)


def drafted(backend: ToyBackend, ids: list[int], **knobs: Any) -> Draft:
    engine = Engine(backend, PldPlus(**knobs), Fixed(64))
    session = engine.open(ids, stops=Stops(max_new_tokens=64))
    engine.step()
    (draft,) = engine.drafter.propose([session], [Budget(64, 3, 8)])
    return draft


# The anchor 9 stands behind 1, 2 and 3; it comes again behind 4.
TEXT = [1, 9, 11, 12, 13, 2, 9, 21, 22, 23, 3, 9, 31, 32, 33, 4]


@pytest.mark.parametrize(
    ("similar", "copied"),
    [(1, [11, 12, 13]), (2, [21, 22, 23]), (3, [31, 32, 33]), (0, [31, 32, 33])],  # among equals the latest
)
def test_the_occurrence_with_the_most_similar_state_before_it_is_copied(similar: int, copied: list[int]) -> None:
    # Length says nothing, direction all.
    states = {token: [1.0, 5.0, 0.0] for token in (1, 2, 3)} | {4: [9.0, 0.0, 0.0]} | ({similar: [0.1, 0.01, 0.0]} if similar else {})
    assert drafted(Feeling(9, states), TEXT, spans=1).token.tolist() == copied


def test_several_occurrences_make_a_tree_the_most_similar_first() -> None:
    states = {1: [1.0, 0.5, 0.0], 2: [1.0, 0.0, 0.0], 3: [0.0, 1.0, 0.0], 4: [1.0, 0.1, 0.0]}
    draft = drafted(Feeling(9, states), TEXT, spans=2)
    assert draft.token.tolist() == [21, 22, 23, 11, 12, 13]
    assert draft.prob[0] > draft.prob[3]


def test_only_the_latest_occurrences_are_compared() -> None:
    states = {1: [1.0, 0.0, 0.0], 2: [0.0, 1.0, 0.0], 3: [0.0, 1.0, 0.0], 4: [1.0, 0.0, 0.0]}
    assert drafted(Feeling(9, states), TEXT, spans=1, recent=2).token.tolist() == [31, 32, 33]


def test_states_that_are_no_numbers_make_no_occurrence_likely() -> None:
    states = {1: [float("nan"), 1.0, 0.0], 2: [1.0, 0.0, 0.0], 3: [float("inf"), 0.0, 0.0], 4: [1.0, 0.0, 0.0]}
    assert drafted(Feeling(9, states), TEXT, spans=1).token.tolist() == [21, 22, 23]


def test_every_token_but_the_last_has_its_own_state_whatever_was_accepted() -> None:
    """Chunks, accepted blocks, wrong nodes before right ones, a session that goes back and on."""
    backend = ToyBackend(copy=100.0, chunk=5)
    drafter = PldPlus()
    engine = Engine(backend, Recorder(drafter), Fixed(24))
    assert engine.drafter.needs == {Need.HIDDEN}
    session = engine.open(prompt(7) * 2 + prompt(6, seed=1) * 2, stops=Stops(max_new_tokens=NEW))

    def check() -> None:
        known = drafter._known[session.id]
        assert known.length == len(session.tokens) - 1
        states = np.stack([backend._state(session.tokens[: i + 1]).astype(np.float32) for i in range(known.length)])
        states /= np.linalg.norm(states, axis=1, keepdims=True)
        np.testing.assert_allclose(known.states[: known.length], states, atol=2e-3)

    accepted = []
    while session.finish is None:
        accepted += [step.verdict.accepted for step in engine.step()]
        check()
    assert max(accepted) >= 3
    engine.rewind(session, len(session.tokens) - 9)
    engine.step()
    check()
    engine.extend(session, prompt(8, seed=2), Stops(max_new_tokens=NEW))
    drive(engine)
    check()
