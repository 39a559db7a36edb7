"""Streamers and stop strings, which `generate` does not hand to a loop that is not its own."""

from __future__ import annotations

from threading import Thread
from typing import Any

import pytest
import torch
import transformers as hf
from against_generate import batch, longest_block, oracle

import echodraft
from echodraft.errors import Unsupported, UsageError
from models import SIZE, prompt, tiny
from tinychat import byte_level


class Puts:
    """Notes what comes, as shape and ids."""

    def __init__(self) -> None:
        self.seen: list[Any] = []

    def put(self, ids: torch.Tensor) -> None:
        assert ids.device.type == "cpu"
        self.seen.append(ids.tolist())

    def end(self) -> None:
        self.seen.append("end")


def ways(model: Any, loop: Any, streamer: Any) -> dict[str, Any]:
    """The three ways to give a streamer."""

    def bound(**options: Any) -> Any:
        loop.streamer = streamer
        return model.generate(**options, custom_generate=loop)

    return {
        "echodraft.generate": lambda **options: echodraft.generate(model, **options, streamer=streamer, custom_generate=loop),
        "custom_generate": bound,
        "generate": lambda **options: model.generate(**options, streamer=streamer, custom_generate=loop),
    }


@pytest.mark.parametrize("way", ["echodraft.generate", "custom_generate", "generate"])
@pytest.mark.parametrize("eos", [True, False])
@pytest.mark.parametrize("lengths", [(7,), (7, 4, 5)])
def test_a_streamer_gets_the_prompt_then_one_token_a_put_then_the_end(way: str, eos: bool, lengths: tuple[int, ...]) -> None:
    model, inputs = tiny("llama"), batch(*lengths)
    known = model.generate(**inputs, max_new_tokens=40, do_sample=False)
    options: dict[str, Any] = dict(inputs) | {"max_new_tokens": 20, "do_sample": False}
    if eos:
        options |= {"eos_token_id": [int(known[0, 14]), int(known[-1, 20])], "pad_token_id": 96}
    theirs, ours = Puts(), Puts()
    expected = model.generate(**options, streamer=theirs)
    loop = oracle(known[:1], inputs["attention_mask"][:1], k=6)  # the other rows are guessed wrong and fall behind
    found = ways(model, loop, ours)[way](**options)
    assert torch.equal(found, expected)
    assert loop.plain is None
    assert longest_block(loop) >= 3
    assert ours.seen == theirs.seen


def test_a_call_that_runs_plain_streams_too() -> None:
    model, inputs = tiny("llama"), batch(7)
    options = dict(inputs) | {"max_new_tokens": 9, "do_sample": False, "use_cache": False}
    theirs = Puts()
    model.generate(**options, streamer=theirs)
    for way in ("echodraft.generate", "custom_generate", "generate"):
        ours, loop = Puts(), echodraft.custom_generate()
        ways(model, loop, ours)[way](**options)
        assert loop.plain == "use_cache is False"
        assert ours.seen == theirs.seen


class Raising(hf.LogitsProcessor):
    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if input_ids.shape[1] == 12:
            raise RuntimeError("no further")
        return scores


@pytest.mark.parametrize("way", ["echodraft.generate", "custom_generate", "generate"])
@pytest.mark.parametrize("plain", [True, False])
def test_a_streamer_is_ended_once_when_something_is_raised(way: str, plain: bool) -> None:
    model, inputs, ours = tiny("llama"), batch(7), Puts()
    loop = oracle(model.generate(**inputs, max_new_tokens=20, do_sample=False), inputs["attention_mask"])
    options = dict(inputs) | {"max_new_tokens": 20, "logits_processor": hf.LogitsProcessorList([Raising()]), "use_cache": not plain}
    with pytest.raises(RuntimeError, match="no further"):
        ways(model, loop, ours)[way](**options)
    assert ours.seen.count("end") == 1
    assert ours.seen[-1] == "end"
    again = model.generate(
        **inputs, max_new_tokens=20, do_sample=False, custom_generate=oracle(loop_known(model, inputs), torch.ones(1, 7))
    )
    assert torch.equal(again, loop_known(model, inputs))


def loop_known(model: Any, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
    return model.generate(**inputs, max_new_tokens=20, do_sample=False)


def test_a_streamer_is_ended_when_generate_refuses_before_the_loop_begins() -> None:
    ours = Puts()
    with pytest.raises(ValueError, match="max_length"):
        echodraft.generate(tiny("llama"), **batch(7), max_length=5, streamer=ours)
    with pytest.raises(UsageError, match="promt-lookup"):
        echodraft.generate(tiny("llama"), **batch(7), max_new_tokens=5, streamer=ours, drafter="promt-lookup")
    assert ours.seen == ["end", "end"]


@pytest.mark.parametrize("way", ["echodraft.generate", "custom_generate", "generate"])
def test_what_is_refused_ends_the_streamer(way: str) -> None:
    ours = Puts()
    with pytest.raises(Unsupported, match="assisted"):
        ways(tiny("llama"), echodraft.custom_generate(), ours)[way](**batch(7), max_new_tokens=5, prompt_lookup_num_tokens=3)
    assert ours.seen[-1] == "end"


def chatty() -> Any:
    """A Llama for the byte-level tokenizer's 300 ids."""
    torch.manual_seed(0)
    return hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE | {"vocab_size": 300})).double().eval()


@pytest.mark.parametrize("fails", [True, False])
def test_who_iterates_over_a_streamer_in_another_thread_comes_to_an_end(fails: bool) -> None:
    tokenizer, model = byte_level(), chatty()
    streamer = hf.TextIteratorStreamer(tokenizer, skip_prompt=True, timeout=20)
    ids = torch.tensor([prompt(7)])
    processors = hf.LogitsProcessorList([Raising()] if fails else [])
    options = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "max_new_tokens": 24, "logits_processor": processors}

    def run() -> None:
        try:
            echodraft.generate(model, **options, do_sample=False, streamer=streamer)
        except RuntimeError:
            assert fails

    thread = Thread(target=run)
    thread.start()
    text = "".join(streamer)
    thread.join(20)
    assert not thread.is_alive()
    if not fails:
        out = model.generate(**options, do_sample=False)
        assert text == tokenizer.decode(out[0, 7:])


@pytest.mark.parametrize("width", [1, 2, 3])
def test_every_window_of_the_text_works_as_a_stop_string(width: int) -> None:
    tokenizer, model = byte_level(), chatty()
    ids = torch.tensor([prompt(7)])
    broken = [token for token in range(300) if "\ufffd" in tokenizer.decode([token])]  # parts of characters
    options = {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "max_new_tokens": 16,
        "do_sample": False,
        "suppress_tokens": broken,
    }
    known = model.generate(**options | {"max_new_tokens": 30})
    for start in range(7, 24 - width):
        stop = tokenizer.decode(known[0, start : start + width])
        expected = model.generate(**options, stop_strings=[stop, "never said"], tokenizer=tokenizer)
        bound = echodraft.custom_generate(tokenizer=tokenizer)
        assert torch.equal(model.generate(**options, stop_strings=[stop, "never said"], custom_generate=bound), expected)
        loop = oracle(known, options["attention_mask"], k=16)
        found = echodraft.generate(model, **options, stop_strings=[stop, "never said"], tokenizer=tokenizer, custom_generate=loop)
        assert torch.equal(found, expected)
        assert loop.plain is None
        assert expected.shape[1] <= start + width
        assert loop.results[0].finish_reason == "stop"


def test_stop_strings_of_a_batch_and_of_a_config_are_honoured() -> None:
    tokenizer, model = byte_level(), chatty()
    inputs = batch(7, 5)
    options: dict[str, Any] = {"max_new_tokens": 16, "do_sample": False, "eos_token_id": 299, "pad_token_id": 299}
    known = model.generate(**inputs, **options)
    stop = tokenizer.decode(known[0, 12:13])
    expected = model.generate(**inputs, **options, stop_strings=stop, tokenizer=tokenizer)
    loop = oracle(known, inputs["attention_mask"])
    found = echodraft.generate(model, **inputs, **options, stop_strings=stop, tokenizer=tokenizer, custom_generate=loop)
    assert torch.equal(found, expected)
    assert loop.plain is None
    config = hf.GenerationConfig(**options, stop_strings=stop)
    found = echodraft.generate(model, **inputs, generation_config=config, tokenizer=tokenizer, custom_generate=loop)
    assert torch.equal(found, expected)
    assert config.stop_strings == stop


def test_stop_strings_without_a_tokenizer_are_refused_in_words() -> None:
    for tokenizer in ({}, {"tokenizer": byte_level()}):
        with pytest.raises(UsageError, match="custom_generate"):
            tiny("llama").generate(
                **batch(7), stop_strings=["a"], custom_generate=echodraft.custom_generate(), max_new_tokens=3, **tokenizer
            )
