"""The tree of `lookahead` is the published attention mask, built here from rows and columns as the authors describe it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget, Fixed
from echodraft.core.draft import Draft
from echodraft.core.engine import Engine
from echodraft.drafters.lookahead import Lookahead, Window
from harness import Scripted

MANY = 1000


@dataclass
class Published:
    """All rows behind the anchor: level by level, then guess by guess.

    token     of each row
    position  behind the anchor, from 1 on
    sees      [rows, rows]; the context and the anchor are seen by all
    newest    rows of the newest level, by column; None where that is the anchor
    """

    token: list[int]
    position: list[int]
    sees: NDArray[np.bool_]
    newest: list[int | None]


def published(levels: Sequence[Sequence[int]], guesses: Sequence[Sequence[int]]) -> Published:
    """`levels[0]` are columns 1, 2, …, the others columns 0, 1, …"""
    token: list[int] = []
    position: list[int] = []
    place: dict[tuple[int, int], int] = {}
    for n, level in enumerate(levels):
        for column, t in enumerate(level, start=1 if n == 0 else 0):
            place[n, column] = len(token)
            token.append(t)
            position.append(column + n)
    window = len(token)
    for guess in guesses:
        token += guess
        position += range(1, len(guess) + 1)
    sees = np.zeros((len(token), len(token)), dtype=bool)
    for (level, column), row in place.items():
        for (other, at), seen in place.items():
            sees[row, seen] = (other == 0 and at <= column) or (1 <= other <= level and at == column)
    row = window
    for guess in guesses:
        sees[row : row + len(guess), row : row + len(guess)] = np.tri(len(guess), dtype=bool)
        row += len(guess)
    last = len(levels) - 1
    return Published(token, position, sees, [place.get((last, column)) for column in range(len(levels[0]) + 1)])


def spelled(draft: Draft) -> dict[tuple[int, ...], int]:
    """Nodes by the tokens that they see, in order of depth."""
    out = {}
    for node, seen in enumerate(draft.ancestors):
        nodes = np.flatnonzero(seen)
        out[tuple(draft.token[nodes[np.argsort(draft.depth[nodes])]].tolist())] = node
    assert len(out) == len(draft)
    return out


def assert_same_mask(draft: Draft, rows: Published) -> list[int]:
    """Every row has a node with its token, position and view, and every node has a row; the nodes of the rows."""
    nodes = spelled(draft)
    found = []
    for row in range(len(rows.token)):
        seen = sorted(np.flatnonzero(rows.sees[row]).tolist(), key=rows.position.__getitem__)
        assert [rows.position[other] for other in seen] == list(range(1, rows.position[row] + 1))
        found.append(nodes[tuple(rows.token[other] for other in seen)])
    for row, node in enumerate(found):
        assert draft.token[node] == rows.token[row]
        assert draft.depth[node] == rows.position[row]
        assert {found[other] for other in np.flatnonzero(rows.sees[row])} == set(np.flatnonzero(draft.ancestors[node]).tolist())
    assert set(found) == set(range(len(draft)))
    return found


@settings(max_examples=60, deadline=None)
@given(
    window=st.integers(2, 6),
    level=st.integers(2, 5),
    guesses=st.integers(1, 4),
    vocab=st.integers(2, 6),  # few tokens, so that paths merge
    prompt=st.lists(st.integers(0, 1), min_size=2, max_size=8),
    text=st.booleans(),
    salt=st.integers(0, 99),
)
def test_the_tree_is_the_published_mask_while_the_window_fills_and_after(
    window: int, level: int, guesses: int, vocab: int, prompt: list[int], text: bool, salt: int
) -> None:
    one_hot = np.eye(vocab)

    def said(path: Sequence[int]) -> int:
        return hash((salt, *path[-3:])) % vocab

    engine = Engine(
        Scripted(lambda path: one_hot[said(path)], vocab), Lookahead(window, level, guesses, from_text=text, carry=False), Fixed(MANY)
    )
    session = engine.open(prompt, stops=Stops(max_new_tokens=40))
    engine.step()
    known: Any = engine.drafter._known[session.id]  # type: ignore[attr-defined]
    steps = 0
    while session.finish is None and session.room > 12:
        before = list(session.tokens)
        levels = [list(part) for part in known.window.levels]
        assert len(levels) == min(steps + 1, level - 1)
        assert [len(part) for part in levels] == [window + level - 1 - len(levels) - (n == 0) for n in range(len(levels))]
        seen = [list(phrase.tokens) for phrase in known.seen.best(before[-1], guesses)]
        made = [list(phrase.tokens) for phrase in known.made.best(before[-1], guesses - len(seen))]
        rows = published(levels, seen + made)
        (draft,) = engine.drafter.propose([session], [Budget(MANY, MANY, MANY)])
        nodes = assert_same_mask(draft, rows)
        assert not any(draft.probe[nodes[row]] for row in range(sum(map(len, levels)), len(nodes)))
        (step,) = engine.step()
        # What the window was told is what the model says behind the rows that each row sees.
        told = []
        for row in rows.newest:
            view = [] if row is None else sorted(np.flatnonzero(rows.sees[row]).tolist(), key=rows.position.__getitem__)
            told.append(said(before + [rows.token[other] for other in view]))
        if len(levels) < level - 1:
            expected = [part[1:] for part in [*levels, told]]
        else:
            key = [before[-1], *levels[0]]
            grams = [[key[i], *(part[i] for part in levels[1:]), told[i]] for i in range(window)]
            for gram in grams[-guesses:]:
                best = [list(phrase.tokens) for phrase in known.made.best(gram[0], guesses)]
                assert sum(other[0] == gram[0] for other in grams) > guesses or gram[1:] in best
            expected = [[*levels[1:], told][0][1:], *[*levels[1:], told][1:]]
        if len(step.verdict.tokens) == 1:
            assert known.window.levels == expected
        steps += 1


def test_a_window_follows_the_anchor_however_many_tokens_are_accepted() -> None:
    """The model says by place; what of the window it said is right for the place where it stands, the rest comes from the prompt."""
    text = list(range(100, 200))
    window = Window(5, 3, [7, 8])
    at = 0  # place of the anchor
    filled = []
    for emitted in (1, 1, 1, 2, 1, 3, 1, 1, 1, 1, 1, 4, 1, 1, 9, 1, 1):
        height = len(window.levels)
        told = [text[at + column + height] for column in range(window.columns(height))]
        window.advance(told, emitted)
        at += emitted
        right = 0
        for n, level in enumerate(window.levels):
            for column, token in enumerate(level, start=1 if n == 0 else 0):
                assert token in (7, 8, text[at + column + n])
                right += token > 8
        filled.append(right / sum(map(len, window.levels)))
    assert max(filled) == 1.0
    assert window.levels
    assert len(window.levels) == 3
