"""A cache that goes in, comes out and is continued from, by either loop."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from against_generate import batch, both, cache_in, oracle
from transformers import DynamicCache, LlamaForCausalLM
from transformers.cache_utils import StaticCache

import echodraft
from models import tiny

NAMES = ("llama", "gpt2", "gemma3", "mistral", "phi3")
OWN = "cache" if "cache" in inspect.signature(LlamaForCausalLM.forward).parameters else "past_key_values"


def same_cache(left: Any, right: Any, padding: list[int]) -> None:
    """Equal keys and values wherever anything attends to them."""
    assert type(left) is type(right)
    assert left.get_seq_length() == right.get_seq_length()
    for a, b in zip(left.layers, right.layers, strict=True):
        assert type(a) is type(b)
        assert a.keys.shape == b.keys.shape
        dropped = left.get_seq_length() - a.keys.shape[-2]
        for row, n in enumerate(padding):
            seen = slice(max(0, n - dropped), None)
            assert torch.allclose(a.keys[row, :, seen], b.keys[row, :, seen], atol=1e-9)
            assert torch.allclose(a.values[row, :, seen], b.values[row, :, seen], atol=1e-9)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("n", [1, 2, 24, 40])
def test_the_returned_cache_holds_all_but_the_last_token(name: str, n: int) -> None:
    options = {"max_new_tokens": n, "return_dict_in_generate": True}
    expected, found, _ = both(tiny(name), batch(9), options, at_least=3 if n > 4 else 0)
    assert cache_in(found).get_seq_length() == found.sequences.shape[1] - 1
    same_cache(cache_in(expected), cache_in(found), [0])


@pytest.mark.parametrize("name", NAMES)
def test_the_cache_of_a_ragged_batch_is_generates(name: str) -> None:
    model, inputs = tiny(name), batch(9, 3, 6)
    known = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    options = {"max_new_tokens": 24, "eos_token_id": [int(known[0, 22]), int(known[1, 12])], "pad_token_id": 0}
    expected, found, _ = both(model, inputs, options | {"return_dict_in_generate": True}, at_least=2)
    same_cache(cache_in(expected), cache_in(found), [0, 6, 3])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("first", ["theirs", "ours"])
@pytest.mark.parametrize("then", ["theirs", "ours"])
@pytest.mark.parametrize("given", ["all", "new"])
def test_a_conversation_goes_on_from_the_cache(name: str, first: str, then: str, given: str) -> None:
    """Two turns with one cache equal two turns without any."""
    model, inputs = tiny(name), batch(9, 5)
    turn = torch.tensor([[3, 1, 4], [1, 5, 9]])
    plain = model.generate(**inputs, max_new_tokens=8, do_sample=False)
    mask = torch.cat([inputs["attention_mask"], torch.ones(2, 8 + 3, dtype=torch.long)], dim=1)
    following = {"input_ids": torch.cat([plain, turn], dim=1), "attention_mask": mask}
    expected = model.generate(**following, max_new_tokens=12, do_sample=False)

    def loop(who: str) -> dict[str, Any]:
        return {"custom_generate": oracle(expected, mask)} if who == "ours" else {}

    cache = DynamicCache(config=model.config)
    own = loop(first)
    out = model.generate(**inputs, max_new_tokens=8, do_sample=False, **{OWN: cache}, **own)
    assert torch.equal(out, plain)
    assert cache.get_seq_length() == 9 + 8 - 1
    if given == "new":
        following["input_ids"] = following["input_ids"][:, -4:]
    own = loop(then)
    out = model.generate(**following, max_new_tokens=12, do_sample=False, **{OWN: cache}, **own)
    assert out[:, -12:].tolist() == expected[:, -12:].tolist()
    assert cache.get_seq_length() == 20 + 12 - 1
    if then == "ours":
        assert own["custom_generate"].plain == (None if given == "all" else "the tokens in the cache are not given")
        if given == "all":
            assert own["custom_generate"].stats.accepted > 6


@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_a_cache_without_a_config_is_filled_and_continued(name: str) -> None:
    model, inputs = tiny(name), batch(9)
    expected = model.generate(**inputs, max_new_tokens=24, do_sample=False)
    cache = DynamicCache()
    for n in (10, 24):
        loop = oracle(expected, inputs["attention_mask"])
        so_far = expected[:, : 9 if n == 10 else 19]
        arguments = {"input_ids": so_far, "attention_mask": torch.ones_like(so_far), "max_length": 9 + n, OWN: cache}
        out = model.generate(**arguments, do_sample=False, custom_generate=loop)
        assert torch.equal(out, expected[:, : 9 + n])
        assert loop.plain is None
        assert cache.get_seq_length() == 9 + n - 1


def test_the_cache_in_a_returned_dict_is_the_one_that_was_given() -> None:
    model, cache = tiny("llama"), DynamicCache()
    options = {"max_new_tokens": 5, "do_sample": False, "return_dict_in_generate": True, OWN: cache}
    out = model.generate(**batch(9), **options, custom_generate=echodraft.custom_generate())
    assert cache_in(out) is cache


@pytest.mark.parametrize("kind", ["static", "user"])
def test_a_cache_of_another_kind_is_left_to_generate(kind: str) -> None:
    model, inputs, loop = tiny("llama"), batch(9), echodraft.custom_generate()
    own = {"cache_implementation": "static"} if kind == "static" else {OWN: StaticCache(config=model.config, max_cache_len=64)}
    out = model.generate(**inputs, max_new_tokens=12, do_sample=False, **own, custom_generate=loop)
    assert loop.plain is not None
    assert torch.equal(out, model.generate(**inputs, max_new_tokens=12, do_sample=False))
