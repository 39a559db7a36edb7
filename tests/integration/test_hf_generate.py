"""Every clause of the contract of a decoding loop, against `model.generate` of the same arguments."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from against_generate import batch, both, longest_block, oracle, same_rows

import echodraft
from models import CONFIGS, generate, logits_behind, tiny
from oracle import KINDS

NAMES = ("llama", "gpt2", "gemma3", "mistral", "phi3")
PAD = 0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", NAMES)
def test_greedy_output_is_generates_whatever_is_drafted(name: str, kind: str) -> None:
    right = KINDS[kind].right(4)
    both(tiny(name), batch(7), {"max_new_tokens": 24}, kind=kind, at_least=min(right, 3) if right is not None else 0)


@pytest.mark.parametrize("name", [name for name in CONFIGS if name not in NAMES])
def test_greedy_output_is_generates_on_every_architecture(name: str) -> None:
    both(tiny(name), batch(7), {"max_new_tokens": 24}, kind="right-last")


@pytest.mark.parametrize("n", range(1, 9))
def test_never_more_tokens_than_asked_for(n: int) -> None:
    model, inputs = tiny("llama"), batch(7)
    known = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    for options in ({"max_new_tokens": n}, {"max_length": 7 + n}):
        expected, _, loop = both(model, inputs, options, k=16, known=known, at_least=int(n > 2))
        assert expected.shape[1] == 7 + n
        assert loop.stats.emitted == n
        assert loop.results[0].finish_reason == "length"


def test_the_default_length_is_generates() -> None:
    with pytest.warns(UserWarning, match="max_length"):
        expected, _, _ = both(tiny("llama"), batch(7), {})
    assert expected.shape[1] == 27


def test_a_length_limit_of_ones_own_replaces_generates() -> None:
    criteria = [hf.MaxLengthCriteria(12)]
    both(tiny("llama"), batch(7), {"max_new_tokens": 30, "stopping_criteria": hf.StoppingCriteriaList(criteria)})
    reached = [hf.MaxLengthCriteria(3)]
    options = {"max_new_tokens": 30, "stopping_criteria": hf.StoppingCriteriaList(reached)}
    expected, _, _ = both(tiny("llama"), batch(7), options, at_least=0)
    assert expected.shape[1] == 8


@pytest.mark.parametrize("options", [{"max_length": 7}, {"max_length": 3}, {"max_new_tokens": 0}])
def test_a_limit_that_leaves_no_room_is_generates_error(options: dict[str, Any]) -> None:
    model, inputs = tiny("llama"), batch(7)
    with pytest.raises(ValueError) as theirs:  # noqa: PT011
        model.generate(**inputs, **options)
    with pytest.raises(ValueError) as ours:  # noqa: PT011
        model.generate(**inputs, **options, custom_generate=echodraft.custom_generate())
    assert str(ours.value) == str(theirs.value)


@pytest.mark.parametrize("length", [61, 120])
def test_a_model_runs_past_its_context_where_generate_lets_it(length: int) -> None:
    model = tiny("llama") if length == 120 else tiny("gpt2")
    both(model, batch(length), {"max_new_tokens": 3 if length == 61 else 20}, k=3, at_least=1)


def test_a_prompt_of_one_token() -> None:
    both(tiny("llama"), batch(1), {"max_new_tokens": 24})


# Stops


@pytest.mark.parametrize("at", range(8))
def test_an_eos_inside_an_accepted_block_ends_the_output(at: int) -> None:
    model, inputs = tiny("llama"), batch(7)
    known = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    eos = int(known[0, 7 + at])
    for ids in (eos, [eos, 95, 96]):
        expected, _, loop = both(model, inputs, {"max_new_tokens": 30, "eos_token_id": ids}, k=16, known=known, at_least=min(at, 1))
        assert expected[0, -1] == eos
        assert loop.stats.emitted == expected.shape[1] - 7
        assert loop.results[0].finish_reason == "eos"


class StopAt(hf.StoppingCriteria):
    """Ends at a length and notes what it was called with."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.seen: list[list[int]] = []
        self.scores: list[int | None] = []

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self.seen.append(input_ids[0].tolist())
        self.scores.append(None if scores is None else len(scores))
        return torch.full((len(input_ids),), input_ids.shape[1] >= self.length)


def test_no_draft_reaches_beyond_the_last_position() -> None:
    """GPT-2 has 64 positions; a deep draft in front of the last one would ask for more, though the output ends in time."""

    def options() -> dict[str, Any]:
        return {"max_new_tokens": 30, "stopping_criteria": hf.StoppingCriteriaList([StopAt(64)])}

    both(tiny("gpt2"), batch(52), options, kind="deep")


@pytest.mark.parametrize("at", range(8, 20))
def test_a_criterion_of_ones_own_is_asked_after_every_token(at: int) -> None:
    model, inputs = tiny("llama"), batch(7)
    known = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    made: list[StopAt] = []

    def options() -> dict[str, Any]:
        made.append(StopAt(at))
        kept = {"return_dict_in_generate": True, "output_scores": True} if at % 2 else {}
        return {"max_new_tokens": 30, "stopping_criteria": hf.StoppingCriteriaList([made[-1]]), **kept}

    _, _, loop = both(model, inputs, options, k=16, known=known, at_least=min(at - 8, 1))
    assert made[0].seen == made[1].seen
    assert [len(ids) for ids in made[1].seen] == list(range(8, at + 1))
    assert made[0].scores == made[1].scores
    assert loop.results[0].finish_reason == "criterion"


def test_max_time_is_looked_at_after_every_token(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = iter(range(10_000))
    monkeypatch.setattr(time, "time", lambda: float(next(clock)))
    known = tiny("llama").generate(**batch(7), max_new_tokens=40, do_sample=False)
    expected, _, _ = both(tiny("llama"), batch(7), {"max_new_tokens": 30, "max_time": 9.5}, k=16, known=known)
    assert 7 < expected.shape[1] < 30


# Processors

PROCESSORS: dict[str, dict[str, Any]] = {
    "repetition penalty": {"repetition_penalty": 1.3},
    "repetition reward": {"repetition_penalty": 0.8},
    "no repeated n-gram": {"no_repeat_ngram_size": 2},
    "bad words": {"bad_words_ids": [[5], [17, 30], [60]]},
    "suppressed": {"suppress_tokens": list(range(0, 90, 3))},
    "suppressed at the beginning": {"begin_suppress_tokens": list(range(0, 90, 2))},
    "allowed by prefix": {"prefix_allowed_tokens_fn": lambda row, ids: list(range(int(ids[-1]) % 7, 97, 7))},
    "forced end": {"forced_eos_token_id": 3, "eos_token_id": 3},
    "minimum": {"min_new_tokens": 15, "eos_token_id": list(range(40))},
    "minimum length": {"min_length": 20, "eos_token_id": list(range(40))},
    "bias": {"sequence_bias": [[[11], 4.0], [[11, 12], 9.0]]},
    "decay": {"exponential_decay_length_penalty": (4, 1.4), "eos_token_id": 3},
    "watermark": {"watermarking_config": hf.WatermarkingConfig(bias=2.5, seeding_scheme="selfhash")},
    "renormalised": {"renormalize_logits": True, "repetition_penalty": 1.2},
    "encoder repetition": {"encoder_repetition_penalty": 1.5},
    "guidance": {"guidance_scale": 1.5, "negative_prompt_ids": torch.tensor([[3, 4, 5]])},
    "several": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "min_new_tokens": 10, "suppress_tokens": [1, 2, 3]},
}


@pytest.mark.parametrize("options", PROCESSORS.values(), ids=PROCESSORS)
@pytest.mark.parametrize("kind", ["right", "wrong-middle", "random"])
def test_processors_see_the_true_prefix_once_a_token(options: dict[str, Any], kind: str) -> None:
    options = {"pad_token_id": PAD} | options | {"max_new_tokens": 24, "return_dict_in_generate": True, "output_scores": True}
    expected, found, _ = both(tiny("llama"), batch(9), options, kind=kind, at_least=3 if kind == "right" else 0)
    assert same_rows(expected.scores, found.scores)


class Counting(hf.LogitsProcessor):
    """A processor with a state: what it does depends on how often it was called."""

    def __init__(self) -> None:
        self.seen: list[list[int]] = []

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        assert scores.dtype == torch.float32
        self.seen.append(input_ids[0].tolist())
        return scores.roll(len(self.seen) % 5, dims=-1)


def test_a_processor_of_ones_own_is_called_once_a_token_in_order_and_never_on_a_rejected_branch() -> None:
    made: list[Counting] = []

    def options() -> dict[str, Any]:
        made.append(Counting())
        return {"max_new_tokens": 24, "logits_processor": hf.LogitsProcessorList([made[-1]]), "repetition_penalty": 1.1}

    both(tiny("llama"), batch(7), options, kind="right-last")
    assert made[0].seen == made[1].seen


# Sampling

WARPERS: dict[str, dict[str, Any]] = {
    "default": {},
    "pure": {"top_k": 0},
    "top-k": {"top_k": 5, "temperature": 1.5},
    "top-p": {"top_p": 0.8, "top_k": 0},
    "min-p": {"min_p": 0.05, "temperature": 0.7},
    "typical": {"typical_p": 0.7},
    "epsilon": {"epsilon_cutoff": 0.02},
    "eta": {"eta_cutoff": 0.02},
    "top-h": {"top_h": 0.6},
    "cold": {"temperature": 1e-4},
    "watermark": {"watermarking_config": hf.WatermarkingConfig()},
    "synthid": {"watermarking_config": hf.SynthIDTextWatermarkingConfig(ngram_len=3, keys=[5, 7, 11, 13])},
    "penalty": {"repetition_penalty": 1.2, "top_p": 0.9},
}


@pytest.mark.parametrize("options", WARPERS.values(), ids=WARPERS)
@pytest.mark.parametrize("seed", [1, 2])
def test_sampling_under_one_seed_gives_generates_tokens_and_leaves_its_random_state(options: dict[str, Any], seed: int) -> None:
    for kind in ("right", "wrong-last"):
        both(tiny("gpt2"), batch(7), {"max_new_tokens": 30} | options, kind=kind, seed=seed, at_least=3)


def test_other_seeds_give_other_tokens() -> None:
    loop, found = echodraft.custom_generate(), set()
    for seed in range(20):
        torch.manual_seed(seed)
        out = tiny("llama").generate(**batch(5), max_new_tokens=5, do_sample=True, custom_generate=loop)
        found.add(tuple(out[0].tolist()))
    assert len(found) > 15


def test_rows_that_sample_have_the_law_of_the_model() -> None:
    """Chi-square of three tokens, two choices each, over the rows of one batch; 7 degrees of freedom, 1 in 1000 beyond 24.3."""
    model, inputs, rows = tiny("llama"), batch(6), 600
    known = model.generate(**inputs, max_new_tokens=20, do_sample=False)
    loop = oracle(known, inputs["attention_mask"])
    torch.manual_seed(2)
    options = {"max_new_tokens": 3, "do_sample": True, "top_k": 2, "temperature": 4.0, "num_return_sequences": rows}
    found = [tuple(row) for row in model.generate(**inputs, **options, custom_generate=loop)[:, 6:].tolist()]
    assert loop.plain is None
    assert loop.stats.accepted > 100
    law = {(): 1.0}
    for _ in range(3):
        law = {
            (*path, token): chance * share
            for path, chance in law.items()
            for token, share in two_best(model, [*inputs["input_ids"][0].tolist(), *path])
        }
    assert set(found) <= set(law)
    assert sum((found.count(path) - rows * chance) ** 2 / (rows * chance) for path, chance in law.items()) < 24.3


def two_best(model: Any, ids: list[int]) -> list[tuple[int, float]]:
    """The two likeliest tokens behind `ids` with their shares at temperature 4."""
    best = logits_behind(model, ids).topk(2)
    return list(zip(best.indices.tolist(), (best.values / 4).softmax(0).tolist(), strict=True))


# What is returned


@pytest.mark.parametrize("seed", [None, 3])
def test_scores_and_logits_are_returned_for_every_token(seed: int | None) -> None:
    model, inputs = tiny("llama"), batch(7)
    options = {
        "max_new_tokens": 24,
        "repetition_penalty": 1.2,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    expected, found, _ = both(model, inputs, options, seed=seed)
    assert type(found) is type(expected)
    assert set(found) == set(expected)
    assert same_rows(expected.scores, found.scores)
    assert same_rows(expected.logits, found.logits)
    for normalised in (False, True):
        theirs = model.compute_transition_scores(expected.sequences, expected.scores, normalize_logits=normalised)
        ours = model.compute_transition_scores(found.sequences, found.scores, normalize_logits=normalised)
        assert torch.allclose(theirs, ours, atol=1e-5)


def test_what_is_not_asked_for_is_not_returned() -> None:
    expected, found, _ = both(tiny("llama"), batch(7), {"max_new_tokens": 12, "return_dict_in_generate": True})
    assert set(found) == set(expected)
    assert found.scores is None
    assert found.logits is None


# Batches


@pytest.mark.parametrize("padding", range(8))
@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3"])
def test_left_padding_of_any_width(name: str, padding: int) -> None:
    model, inputs = tiny(name), batch(10, 10 - padding)
    _, found, _ = both(model, inputs, {"max_new_tokens": 20})
    alone = generate(model, inputs["input_ids"][1, padding:].tolist(), 20)
    assert found[1, 10:].tolist() == alone
    padded = {key: value[1:] for key, value in inputs.items()}
    both(model, padded, {"max_new_tokens": 20, "repetition_penalty": 1.3}, seed=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("kind", ["right", "wrong-middle", "random"])
def test_rows_that_stop_at_different_times_are_padded_with_scores_as_generate_has_them(name: str, kind: str) -> None:
    model, inputs = tiny(name), batch(9, 3, 6)
    known = model.generate(**inputs, max_new_tokens=40, do_sample=False, pad_token_id=PAD)
    options = {
        "max_new_tokens": 24,
        "eos_token_id": [int(known[0, 22]), int(known[1, 12])],
        "pad_token_id": PAD,
        "repetition_penalty": 1.05,
        "return_dict_in_generate": True,
        "output_scores": True,
        "output_logits": True,
    }
    expected, found, loop = both(model, inputs, options, kind=kind, at_least=2 if kind == "right" else 0)
    assert same_rows(expected.scores, found.scores)
    assert same_rows(expected.logits, found.logits)
    lengths = [len(row.ids) for row in loop.results]
    assert loop.stats.emitted == sum(lengths)


def test_rows_stop_at_different_times() -> None:
    model, inputs = tiny("llama"), batch(9, 3, 6)
    known = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    options = {"max_new_tokens": 24, "eos_token_id": [int(known[0, 12]), int(known[1, 18])], "pad_token_id": 96}
    expected, _, loop = both(model, inputs, options, k=6, known=known)
    assert len({len(row.ids) for row in loop.results}) > 1
    assert (expected == 96).any()


@pytest.mark.parametrize(
    "options",
    [
        {"repetition_penalty": 1.3},
        {"no_repeat_ngram_size": 2},
        {"prefix_allowed_tokens_fn": lambda row, ids: list(range(row, 97, 2))},
        {"bad_words_ids": [[5], [17, 30]]},
        {"min_new_tokens": 12},
        {"watermarking_config": hf.WatermarkingConfig(bias=2.0)},
        {"sequence_bias": [[[11], 4.0], [[11, 12], 9.0]]},
    ],
    ids=lambda options: next(iter(options)),
)
def test_processors_of_a_batch_treat_every_row_as_generate_does(options: dict[str, Any]) -> None:
    model, inputs = tiny("llama"), batch(9, 3, 6)
    options = options | {"max_new_tokens": 20, "eos_token_id": [7, 50], "pad_token_id": PAD}
    kept = {"return_dict_in_generate": True, "output_scores": True}
    expected, found, _ = both(model, inputs, options | kept, at_least=2)
    assert same_rows(expected.scores, found.scores)


def test_several_sequences_of_one_prompt() -> None:
    model, inputs = tiny("llama"), batch(7, 5)
    loop = echodraft.custom_generate()
    torch.manual_seed(4)
    out = model.generate(**inputs, max_new_tokens=12, do_sample=True, num_return_sequences=3, custom_generate=loop)
    assert loop.plain is None
    assert len({tuple(row) for row in out.tolist()}) == 6
    torch.manual_seed(4)
    again = model.generate(**inputs, max_new_tokens=12, do_sample=True, num_return_sequences=3, custom_generate=loop)
    assert torch.equal(out, again)


def test_by_default_drafts_come_from_the_prompt_and_are_counted() -> None:
    ids = torch.tensor([[5, 6, 7, 8, 9, 10] * 4])
    model, loop = tiny("llama"), echodraft.custom_generate(budget=6)
    options = {"attention_mask": torch.ones_like(ids), "max_new_tokens": 20, "sequence_bias": [[[5], 50.0]]}
    out = model.generate(ids, **options, do_sample=False, custom_generate=loop)
    assert torch.equal(out, model.generate(ids, **options, do_sample=False))
    assert loop.stats.emitted == 20
    assert longest_block(loop) >= 3
    assert [row.stats.emitted for row in loop.results] == [20]


def test_a_loop_keeps_its_memory_in_a_folder(tmp_path: Path) -> None:
    model, inputs, options = tiny("llama"), batch(7), {"max_new_tokens": 40, "do_sample": False}
    steps, outputs = [], []
    for _ in range(2):
        loop = echodraft.custom_generate(drafter="suffix", memory=tmp_path, tenant="alice", budget=8)
        outputs.append(model.generate(**inputs, **options, custom_generate=loop))
        loop.memory.close()
        steps.append(loop.stats.steps)
    assert torch.equal(*outputs)
    assert steps[1] < steps[0]
