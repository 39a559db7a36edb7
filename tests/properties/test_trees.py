"""Random trees: their shape, what may be scored of them, what each node sees, and what a model says behind it."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from echodraft.backends.transformers import TransformersBackend
from echodraft.backends.transformers_attention import positions, visible
from echodraft.backends.transformers_cache import Placement
from echodraft.core.backend import Request
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft, DraftBuilder, sane
from models import VOCAB, WINDOW, logits_behind, prompt, tiny
from oracle import raw


@st.composite
def trees(draw: st.DrawFn, most: int = 12, tokens: int = 6) -> Draft:
    """A sane draft of few different tokens; half of the nodes hang from the one before, so that some paths are long."""
    n = draw(st.integers(0, most))
    parents = [draw(st.one_of(st.just(i - 1), st.integers(-1, i - 1))) for i in range(n)]
    return sane(raw([draw(st.integers(0, tokens - 1)) for _ in range(n)], parents), tokens, most + 1, most + 1)


@st.composite
def anything(draw: st.DrawFn, most: int = 12, tokens: int = 6) -> tuple[list[int], list[int]]:
    """Tokens and parents, mostly valid."""
    n = draw(st.integers(0, most))
    token = st.one_of(st.integers(0, tokens - 1), st.integers(-2, tokens + 2))
    return (
        [draw(token) for _ in range(n)],
        [draw(st.one_of(st.integers(-1, i - 1), st.integers(-1, i - 1), st.integers(-3, n + 1))) for i in range(n)],
    )


def path(draft: Draft, node: int) -> list[int]:
    """Nodes from the anchor's child down to `node`."""
    out: list[int] = []
    while node != ANCHOR:
        out.insert(0, node)
        node = int(draft.parent[node])
    return out


@given(trees())
def test_depth_and_ancestors_are_those_of_the_paths(draft: Draft) -> None:
    for i in range(len(draft)):
        assert draft.depth[i] == len(path(draft, i))
        assert np.flatnonzero(draft.ancestors[i]).tolist() == sorted(path(draft, i))


@given(anything(), st.integers(1, 12), st.integers(1, 5), st.booleans())
def test_what_may_be_scored_is_a_tree_within_its_limits_and_all_of_it(
    arrays: tuple[list[int], list[int]], nodes: int, depth: int, chain: bool
) -> None:
    tokens, parents = arrays
    kept = sane(raw(tokens, parents), 6, nodes, depth, chain)
    # By brute force: the paths that each node spells, in order; None for what hangs from nothing.
    spelled: list[tuple[int, ...] | None] = []
    taken: list[tuple[int, ...]] = []
    for t, p in zip(tokens, parents, strict=True):
        above: tuple[int, ...] | None = () if p == ANCHOR else spelled[p] if 0 <= p < len(spelled) else None
        mine = None if above is None or not 0 <= t < 6 else (*above, t)
        if mine is not None and chain and any(other[:-1] == mine[:-1] for other in taken):
            mine = None
        if mine is None or len(mine) > depth or mine in taken or len(taken) == nodes:
            spelled.append(None)
            continue
        spelled.append(mine)
        taken.append(mine)
    assert [tuple(kept.token[path(kept, i)].tolist()) for i in range(len(kept))] == taken
    assert all(p < i for i, p in enumerate(kept.parent.tolist()))


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=4), max_size=8))
def test_a_builder_holds_every_path_once(paths: list[list[int]]) -> None:
    builder, best = DraftBuilder(), {}
    for i, tokens in enumerate(paths):
        node = ANCHOR
        for depth, token in enumerate(tokens, 1):
            prob = 1.0 / (1 + (7 * i) % 5) ** depth
            node = builder.add(node, token, prob, str(i))
            spelled = tuple(tokens[:depth])
            best[spelled] = max(best.get(spelled, 0.0), prob)
    draft = builder.build()
    assert {tuple(draft.token[path(draft, i)].tolist()): draft.prob[i] for i in range(len(draft))} == best
    assert all(p < i for i, p in enumerate(draft.parent.tolist()))
    if len(draft):
        # The first rows are the path that is likeliest at every node.
        node, row = ANCHOR, 0
        while (children := np.flatnonzero(draft.parent == node)).size:
            assert children[0] == row
            assert draft.prob[row] == draft.prob[children].max()
            node, row = row, row + 1


@given(st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=8), st.integers(0, 9), st.integers(0, 4), st.integers(1, 3))
def test_chains_grow_a_tree_as_far_as_the_budget_goes(paths: list[list[int]], nodes: int, depth: int, branching: int) -> None:
    builder, spelled = DraftBuilder(), [()]
    for tokens in paths:
        found = builder.chain(ANCHOR, tokens, [0.5] * len(tokens), Budget(nodes, depth, branching))
        walked: tuple[int, ...] = ()
        for token in tokens:
            if (*walked, token) not in spelled:
                siblings = sum(len(other) == len(walked) + 1 and other[:-1] == walked for other in spelled)
                if len(spelled) > nodes or len(walked) >= depth or siblings >= branching:
                    break
                spelled.append((*walked, token))
            walked = (*walked, token)
        assert [builder.token[node] for node in found] == list(walked)
    draft = builder.build()
    assert sorted(tuple(draft.token[path(draft, i)].tolist()) for i in range(len(draft))) == sorted(spelled[1:])


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], list[int], list[Draft], int]:
    """Offsets, fed tokens and drafts of one to three rows, and columns of padding."""
    n = draw(st.integers(1, 3))
    offsets = draw(st.lists(st.integers(0, 9), min_size=n, max_size=n))
    fed = draw(st.lists(st.integers(1, 4), min_size=n, max_size=n))
    return offsets, fed, [draw(trees(6)) for _ in range(n)], draw(st.integers(0, 2))


@given(batches(), st.sampled_from([None, 1, 3, 8]))
def test_masks_show_each_column_its_context_and_its_path_within_the_window(
    batch: tuple[list[int], list[int], list[Draft], int], window: int | None
) -> None:
    offsets, fed, drafts, padding = batch
    width = max(n + len(d) for n, d in zip(fed, drafts, strict=True)) + padding
    place = Placement(0, offsets, width)
    mask, where = visible(place, fed, drafts, window), positions(place, fed, drafts)
    low = place.low(window)
    for row, (offset, n, draft) in enumerate(zip(offsets, fed, drafts, strict=True)):
        for column in range(width):
            node = column - n
            if node < 0:
                seen = {c: c for c in range(offset + column + 1)}
            elif node < len(draft):
                seen = {c: c for c in range(offset + n)}
                seen |= {offset + n + i: offset + n + depth for depth, i in enumerate(path(draft, node))}
            else:
                seen = {offset + column: int(where[row, column])}
            own = seen[offset + column]
            assert where[row, column] == own
            assert set(np.flatnonzero(mask[row, column]) + low) == {c for c, at in seen.items() if window is None or at > own - window}


@pytest.mark.parametrize("arch", ["llama", "gemma3"])
@settings(max_examples=40)
@given(data=st.data())
def test_a_scored_tree_is_what_plain_forwards_over_its_paths_say(arch: str, data: st.DataObject) -> None:
    model, backend = tiny(arch), TransformersBackend(tiny(arch))
    texts = [prompt(data.draw(st.integers(1, 2 * WINDOW)), seed) for seed in range(data.draw(st.integers(1, 2)))]
    drafts = [data.draw(trees(8, VOCAB)) for _ in texts]
    cached = [data.draw(st.integers(0, len(text) - 1)) for text in texts]
    slots = [backend.open() for _ in texts]
    for slot, text, n in zip(slots, texts, cached, strict=True):
        if n:
            backend.score([Request(slot, text[:n], logits=False)], frozenset())
            backend.commit(slot, [])
    requests = [Request(slot, text[n:], draft) for slot, text, n, draft in zip(slots, texts, cached, drafts, strict=True)]
    for text, draft, scores in zip(texts, drafts, backend.score(requests, frozenset()), strict=True):
        for node in range(-1, len(draft)):
            plain = logits_behind(model, text + draft.token[path(draft, node)].tolist())
            torch.testing.assert_close(scores.logits[node + 1], plain, rtol=0, atol=1e-10)
