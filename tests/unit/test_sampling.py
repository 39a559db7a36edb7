"""NumPy and torch choose the same tokens, and the rules are those of transformers."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch
from transformers import TopKLogitsWarper, TopPLogitsWarper

from echodraft.backends import transformers_sampling as in_torch
from echodraft.backends.toy import ArrayScores
from echodraft.backends.transformers_sampling import Blocks, Forward, Nucleus, TorchScores, nucleus, warpers
from echodraft.core import sampling
from echodraft.core.sampling import Rule, pick, warp
from echodraft.errors import EchodraftError

VOCAB = 97
EXTREME = (0, 1, -1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
RULES = [
    Rule(temperature, top_k, top_p, min_p, seed=5)
    for temperature, top_k, top_p, min_p in product((0.3, 1.0, 1.7), (0, 1, 20, VOCAB + 1), (1.0, 0.9, 0.2), (0.0, 0.05))
]


def rows(n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(0.0, 3.0, (n, VOCAB)).astype(np.float32)


def torch_scores(logits: np.ndarray) -> TorchScores:
    return TorchScores(Forward(torch.from_numpy(logits)[None], None), 0, 0, len(logits), len(logits))


@pytest.mark.parametrize("key", [*EXTREME, *(Rule(seed=s, stream=t).key(p) for s, t, p in product((0, 9), (0, 3), (1, 70_000)))])
def test_noise_is_the_same_in_numpy_and_torch(key: int) -> None:
    key &= (1 << 64) - 1
    ids = np.asarray([*range(500), 151_935, 262_143, (1 << 31) - 1])
    np.testing.assert_allclose(in_torch.gumbel(key, torch.from_numpy(ids)).numpy(), sampling.gumbel(key, ids), rtol=0, atol=1e-12)


def test_noise_depends_on_every_part_of_its_key() -> None:
    keys = {Rule(seed=s, stream=t).key(p) for s, t, p in product(range(8), range(8), range(8))}
    assert len(keys) == 8**3
    assert Rule(seed=-1).key(0) == Rule(seed=(1 << 64) - 1).key(0)
    assert len({sampling.gumbel(key, np.arange(1))[0] for key in keys}) == 8**3


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_numpy_and_torch_pick_the_same_token(rule: Rule) -> None:
    logits = rows(20)
    scores = torch_scores(logits)
    assert [scores.draw(i, rule, i) for i in range(20)] == [pick(row, rule, i) for i, row in enumerate(logits)]


@pytest.mark.parametrize("rule", RULES, ids=str)
def test_warping_is_that_of_transformers(rule: Rule) -> None:
    for row in rows(5, seed=1):
        theirs = warpers(rule)(None, torch.from_numpy(row)[None].double())[0].numpy()
        np.testing.assert_allclose(warp(row, rule), theirs, rtol=1e-12)


def test_ties_at_the_edge_of_top_k_are_all_kept_as_in_transformers() -> None:
    row = np.asarray([1.0, 2.0, 2.0, 2.0, 0.0])
    rule = Rule(1.0, top_k=2)
    assert np.isfinite(warp(row, rule)).tolist() == [False, True, True, True, False]
    assert np.isfinite(warpers(rule)(None, torch.from_numpy(row)[None])[0].numpy()).tolist() == [False, True, True, True, False]


def test_a_low_temperature_is_greedy() -> None:
    for i, row in enumerate(rows(50)):
        assert pick(row, Rule(1e-4, seed=3), i) == pick(row, Rule(), i) == int(row.argmax())


def test_seeds_streams_and_positions_give_different_tokens() -> None:
    row = rows(1)[0] / 3
    assert len({pick(row, Rule(1.0, seed=seed), 0) for seed in range(300)}) > 20
    assert len({pick(row, Rule(1.0, stream=stream), 0) for stream in range(300)}) > 20
    assert len({pick(row, Rule(1.0), position) for position in range(300)}) > 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_the_lowest_id_wins_a_tie(dtype: torch.dtype) -> None:
    logits = torch.zeros(3, VOCAB, dtype=dtype)
    logits[1, [40, 7, 96]] = 1.0
    logits[2, -1] = 1.0
    assert TorchScores(Forward(logits[None], None), 0, 0, 3, 3).argmax() == [0, 7, 96]
    assert ArrayScores(logits.double().numpy(), np.zeros((0, 1), np.float16)).argmax() == [0, 7, 96]


@pytest.mark.parametrize("where", [0, 2])
@pytest.mark.parametrize("kind", ["torch", "numpy"])
def test_nan_logits_are_an_error_and_not_a_token(kind: str, where: int) -> None:
    logits = rows(3)
    logits[where, 5] = np.nan
    scores = torch_scores(logits) if kind == "torch" else ArrayScores(logits, np.zeros((0, 1), np.float16))
    with pytest.raises(EchodraftError, match="NaN"):
        scores.argmax()
    with pytest.raises(EchodraftError, match="NaN"):
        scores.row(where)
    with pytest.raises(EchodraftError, match="NaN"):
        scores.draw(where, Rule(1.0), 0)


def test_rows_are_copies_that_a_processor_may_change() -> None:
    for scores in (torch_scores(rows(2)), ArrayScores(rows(2), np.zeros((0, 1), np.float16))):
        before = scores.argmax()[0]
        scores.row(0)[before] = -100.0
        assert int(scores.row(0).argmax()) == before


def test_the_best_of_a_small_vocabulary_are_all_of_it() -> None:
    assert torch_scores(np.asarray([[0.0, 2.0, 1.0]])).top_k(8).tolist() == [[1, 2, 0]]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("vocab", [7, 97, 256, 1000, 4096])
def test_the_best_of_blocks_are_the_best_of_all_and_of_equal_ones_the_first_leads(vocab: int, dtype: torch.dtype) -> None:
    values = (8.0 * torch.rand(2, 3, vocab, generator=torch.Generator().manual_seed(vocab))).round().to(dtype)  # with many equal ones
    blocks = Blocks(values)
    best, index = blocks.best()
    assert index.tolist() == [[row.index(max(row)) for row in rows] for rows in values.tolist()]
    assert best.tolist() == values.amax(dim=-1).tolist()
    for k in (1, 3, min(8, vocab)):
        top, ids = blocks.top(k)
        assert top.tolist() == values.topk(k).values.tolist() == values.gather(-1, ids).tolist()
        assert all(len(set(row)) == k for row in ids.flatten(0, 1).tolist())


def test_a_row_with_something_that_is_no_number_has_no_best() -> None:
    values = torch.zeros(1, 2, 256)
    values[0, 1, 200] = torch.nan
    assert Forward(values, None).best() == [[0, -1]]


@pytest.mark.parametrize("top_p", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize("scale", [0.01, 3.0, 8.0])
@pytest.mark.parametrize("top_k", [0, 50])
def test_a_nucleus_found_among_the_likeliest_is_that_of_transformers(scale: float, top_p: float, top_k: int) -> None:
    values = scale * torch.randn(5, 4096, generator=torch.Generator().manual_seed(7)) / 0.7
    if top_k:
        values = TopKLogitsWarper(top_k)(None, values)
    assert torch.equal(Nucleus(top_p)(None, values), TopPLogitsWarper(top_p)(None, values))
    found = [nucleus(row, top_p) for row in values]
    assert all(one is None for one in found) == (scale == 0.01 and not top_k), "a flat row has no small nucleus"


def test_equals_at_the_edge_of_a_nucleus_are_left_to_transformers() -> None:
    row = torch.tensor([2.0, 1.0, 1.0, 1.0, *[-9.0] * 252])
    assert nucleus(row, 0.6) is None
    assert nucleus(row, 0.3) is not None
