"""What is refused in words, what runs plain with the same output, and what a loop keeps and leaves alone."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from collections.abc import Callable, Sequence
from threading import Thread
from typing import Any

import pytest
import torch
import transformers as hf
from against_generate import batch, both, cache_in, longest_block, same_rows, sequences_of

import echodraft
from echodraft import Drafter
from echodraft.backends import transformers_support
from echodraft.core.draft import Draft
from echodraft.errors import EchodraftError, Unsupported, UsageError
from echodraft.metrics.stats import Stats
from models import GPT2, SIZE, tiny

REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "beams": ({"num_beams": 2}, "beam search"),
    "sampled beams": ({"num_beams": 2, "do_sample": True}, "beam sample"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "contrastive search"),
    "prompt lookup": ({"prompt_lookup_num_tokens": 3}, "assisted"),
    "DoLa": ({"dola_layers": "high"}, "dola"),
    "synced": ({"synced_gpus": True}, "synced_gpus"),
}


@pytest.mark.parametrize(("options", "word"), REFUSED.values(), ids=REFUSED)
def test_what_is_no_decoding_of_one_token_after_another_is_refused(options: dict[str, Any], word: str) -> None:
    for loop in (echodraft.custom_generate(), echodraft.custom_generate("none")):
        with pytest.raises(Unsupported, match=word):
            tiny("llama").generate(**batch(7), max_new_tokens=5, **options, custom_generate=loop)


def test_a_draft_model_of_generate_is_refused() -> None:
    with pytest.raises(Unsupported, match="assisted"):
        tiny("llama").generate(**batch(7), max_new_tokens=5, assistant_model=tiny("llama"), custom_generate=echodraft.custom_generate())


def test_token_healing_is_refused_by_generate_which_has_no_tokenizer_for_it() -> None:
    with pytest.raises(ValueError, match="tokenizer"):
        echodraft.generate(tiny("llama"), **batch(7), max_new_tokens=5, token_healing=True)


def test_a_model_in_training_mode_is_refused() -> None:
    model = copy.deepcopy(tiny("llama")).train()
    with pytest.raises(Unsupported, match="eval"):
        echodraft.generate(model, **batch(7), max_new_tokens=5)


def test_an_encoder_decoder_is_refused() -> None:
    config = hf.T5Config(vocab_size=97, d_model=16, d_kv=4, d_ff=16, num_layers=1, num_heads=2, decoder_start_token_id=0)
    with pytest.raises(Unsupported, match="T5ForConditionalGeneration"):
        echodraft.generate(hf.T5ForConditionalGeneration(config).eval(), **batch(7), max_new_tokens=5)


def test_logits_that_are_not_a_number_are_refused() -> None:
    model = copy.deepcopy(tiny("llama"))
    with torch.no_grad():
        model.lm_head.weight[3] = torch.nan
    with pytest.raises(EchodraftError, match="NaN"):
        echodraft.generate(model, **batch(7), max_new_tokens=5)


def test_options_of_a_loop_that_is_made_already_are_refused() -> None:
    with pytest.raises(UsageError, match="drafter"):
        echodraft.generate(tiny("llama"), **batch(7), custom_generate=echodraft.custom_generate(), drafter="none", max_new_tokens=3)


# Plain


class Last(hf.LogitsProcessor):
    """Looks at the whole batch."""

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return scores.scatter(1, input_ids[:, -1].flip(0)[:, None], -torch.inf)


class Both(hf.StoppingCriteria):
    """Ends a row by what another row holds."""

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return input_ids[:, -1].flip(0) % 5 == 0


def embeds() -> dict[str, Any]:
    return {"inputs_embeds": tiny("llama").get_input_embeddings()(batch(7)["input_ids"]), "input_ids": None}


def right_padded() -> dict[str, Any]:
    return {"attention_mask": torch.tensor([[1] * 7, [1, 1, 1, 1, 1, 0, 0]]), "input_ids": batch(7, 7)["input_ids"]}


PLAIN: dict[str, tuple[Callable[[], dict[str, Any]], str]] = {
    "no cache": (lambda: {"use_cache": False}, "use_cache"),
    "attentions": (lambda: {"output_attentions": True, "return_dict_in_generate": True}, "output_attentions"),
    "hidden states": (lambda: {"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    "embeddings": (embeds, "inputs_embeds"),
    "right padding": (right_padded, "left"),
    "positions": (lambda: {"position_ids": torch.arange(7)[None] + 3}, "position ids"),
    "invalid values": (lambda: {"remove_invalid_values": True}, "remove_invalid_values"),
    "batch processor": (lambda: batch(7, 5) | {"logits_processor": hf.LogitsProcessorList([Last()])}, "Last"),
    "batch criterion": (lambda: batch(7, 5) | {"stopping_criteria": hf.StoppingCriteriaList([Both()]), "eos_token_id": 3}, "Both"),
    "batch guidance": (lambda: batch(7, 5) | {"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidance"),
    "no eos": (lambda: batch(7, 5) | {"max_time": 1000.0}, "eos"),
}


@pytest.mark.parametrize(("make", "word"), PLAIN.values(), ids=PLAIN)
def test_what_cannot_be_drafted_for_runs_plain_and_says_so_once(
    make: Callable[[], dict[str, Any]], word: str, caplog: pytest.LogCaptureFixture
) -> None:
    model, loop = tiny("llama"), echodraft.custom_generate()
    options = batch(7) | {"max_new_tokens": 12, "do_sample": False, "pad_token_id": 0}
    with caplog.at_level(logging.WARNING, "echodraft"):
        for _ in range(2):
            expected = model.generate(**(options | make()))
            found = model.generate(**(options | make()), custom_generate=loop)
            assert sequences_of(found).tolist() == sequences_of(expected).tolist()
            assert word in loop.plain
            assert set(found) == set(expected) if isinstance(found, dict) else True
    assert [word in record.getMessage() for record in caplog.records if record.name == "echodraft"] == [True]
    assert loop.stats.steps == 0
    model.generate(**options, custom_generate=loop)
    assert loop.plain is None


def test_a_rotation_that_changes_beyond_the_context_runs_plain_only_beyond_it() -> None:
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE | {"rope_parameters": rope, "max_position_embeddings": 32})).double().eval()
    both(model, batch(7), {"max_new_tokens": 25})
    loop = echodraft.custom_generate()
    out = model.generate(**batch(7), max_new_tokens=40, do_sample=False, custom_generate=loop)
    assert "rotation" in loop.plain
    assert torch.equal(out, model.generate(**batch(7), max_new_tokens=40, do_sample=False))


def test_a_recurrent_model_runs_plain() -> None:
    torch.manual_seed(0)
    config = hf.MambaConfig(vocab_size=97, hidden_size=16, num_hidden_layers=2, state_size=4, eos_token_id=None, pad_token_id=None)
    model, loop = hf.MambaForCausalLM(config).double().eval(), echodraft.custom_generate()
    out = model.generate(**batch(7), max_new_tokens=12, do_sample=False, custom_generate=loop)
    assert "recurrent" in loop.plain
    assert torch.equal(out, model.generate(**batch(7), max_new_tokens=12, do_sample=False))


def test_a_model_that_takes_chains_drafts_them_unless_its_cache_is_wanted() -> None:
    torch.manual_seed(0)
    config = hf.BloomConfig(vocab_size=97, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.3, eos_token_id=None, bos_token_id=None)
    model = hf.BloomForCausalLM(config).double().eval()
    both(model, batch(7), {"max_new_tokens": 16})
    loop = echodraft.custom_generate()
    options = {"max_new_tokens": 12, "do_sample": False, "return_dict_in_generate": True, "output_scores": True}
    found = model.generate(**batch(7), **options, custom_generate=loop)
    expected = model.generate(**batch(7), **options)
    assert "ALiBi" in loop.plain
    assert torch.equal(found.sequences, expected.sequences)
    assert same_rows(found.scores, expected.scores)
    assert cache_in(found).get_seq_length() == 18


# State


def snapshot(model: Any) -> Any:
    """All that a call might leave changed."""
    return (
        copy.deepcopy(model.config.to_dict()),
        copy.deepcopy(model.generation_config.to_dict()),
        model.config._attn_implementation,
        sorted(vars(model)),
        [(name, sorted(vars(module)), len(module._forward_hooks), module.training) for name, module in model.named_modules()],
        {name: weight.clone() for name, weight in model.state_dict().items()},
    )


@pytest.mark.parametrize("name", ["llama", "gemma3", "phi3"])
def test_a_call_changes_neither_the_model_nor_its_configs_nor_the_arguments(name: str) -> None:
    model, inputs = tiny(name), batch(9, 4)
    config = hf.GenerationConfig(max_new_tokens=12, do_sample=True, repetition_penalty=1.2, eos_token_id=5, pad_token_id=0)
    model.generate(**inputs, max_new_tokens=2)  # transformers sets a few things itself
    before, given, arguments = snapshot(model), config.to_dict(), {key: value.clone() for key, value in inputs.items()}
    echodraft.generate(model, **inputs, generation_config=config, drafter="prompt-lookup", budget=6)
    with pytest.raises(RuntimeError, match="no further"):
        echodraft.generate(model, **inputs, max_new_tokens=12, prefix_allowed_tokens_fn=fail)
    after = snapshot(model)
    assert after[:-1] == before[:-1]
    assert all(torch.equal(before[-1][key], after[-1][key]) for key in before[-1])
    assert config.to_dict() == given
    assert all(torch.equal(inputs[key], arguments[key]) for key in inputs)


def fail(row: int, ids: torch.Tensor) -> list[int]:
    raise RuntimeError("no further")


class Remembering(Drafter):
    """Drafts what any finished text said behind the same token; notes whose sessions it served."""

    name = "remembering"

    def __init__(self) -> None:
        self.texts: list[list[int]] = []
        self.tenants: list[str] = []
        self.open_now = 0

    def open(self, session: Any) -> None:
        self.open_now += 1
        self.tenants.append(session.tenant)

    def close(self, session: Any) -> None:
        self.open_now -= 1
        self.texts.append(list(session.tokens))

    def propose(self, sessions: Sequence[Any], budgets: Sequence[Any]) -> list[Draft]:
        return [self.guess(list(session.tokens)) for session in sessions]

    def guess(self, tokens: list[int]) -> Draft:
        known = next((text for text in self.texts if text[: len(tokens)] == tokens), tokens)
        return Draft.chain(known[len(tokens) : len(tokens) + 6])


def test_what_a_drafter_remembers_outlives_a_call_and_sessions_do_not() -> None:
    model, drafter = tiny("llama"), Remembering()
    loop = echodraft.custom_generate(drafter, budget=6, tenant="me")
    first = model.generate(**batch(7, 5), max_new_tokens=20, custom_generate=loop)
    assert loop.stats.accepted == 0
    again = echodraft.generate(model, **batch(7, 5), max_new_tokens=20, custom_generate=loop)
    assert torch.equal(first, again)
    assert longest_block(loop) == 6
    assert drafter.open_now == 0
    assert set(drafter.tenants) == {"me"}
    assert loop.stats.emitted == 80
    assert sum(row.stats.emitted for row in loop.results) == 40
    with pytest.raises(RuntimeError, match="no further"):
        model.generate(**batch(7, 5), max_new_tokens=20, prefix_allowed_tokens_fn=fail, custom_generate=loop)
    assert drafter.open_now == 0


def test_counts_can_be_added_to_those_of_the_caller() -> None:
    stats = Stats()
    for _ in range(2):
        echodraft.generate(tiny("llama"), **batch(7), max_new_tokens=9, drafter="none", stats=stats)
    assert (stats.emitted, stats.steps, stats.prefills) == (18, 16, 2)


def test_one_loop_serves_two_models() -> None:
    loop = echodraft.custom_generate(budget=6)
    for _ in range(2):
        for name in ("llama", "gpt2"):
            out = tiny(name).generate(**batch(7), max_new_tokens=16, do_sample=False, custom_generate=loop)
            assert torch.equal(out, tiny(name).generate(**batch(7), max_new_tokens=16, do_sample=False))
            assert loop.plain is None


def packable(seed: int = 0) -> Any:
    """A float32 GPT-2 is not packed (its layers are no `nn.Linear`) but its head is: large enough here."""
    torch.manual_seed(seed)
    return hf.GPT2LMHeadModel(hf.GPT2Config(**GPT2 | {"vocab_size": 97 * 40, "n_embd": 32, "tie_word_embeddings": False})).eval()


def test_weights_are_packed_once_a_model_and_again_when_they_have_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    packs: list[Any] = []
    pack = transformers_support.pack_linears

    def counted(model: Any) -> Any:
        packs.append(pack(model))
        return packs[-1]

    monkeypatch.setattr(transformers_support, "pack_linears", counted)
    model = packable()

    def check(n: int) -> None:
        for _ in range(2):
            out = echodraft.generate(model, **batch(7), max_new_tokens=16, do_sample=False, drafter="prompt-lookup", budget=4)
            assert torch.equal(out, model.generate(**batch(7), max_new_tokens=16, do_sample=False))
        assert len(packs) == n

    check(1)
    if packs[0] is None:
        pytest.skip("this PyTorch has no packed kernels")
    with torch.no_grad():
        model.lm_head.weight[1000:] += 0.5
    check(2)
    model.lm_head.weight.data += torch.randn_like(model.lm_head.weight)  # as merging an adapter does: no version tells of it
    check(3)
    model.bfloat16()
    check(4)
    out = echodraft.generate(model, **batch(7), max_new_tokens=16, do_sample=False, pack=False)
    assert out.shape == (1, 23)
    assert len(packs) == 4


def test_a_model_that_is_dropped_is_freed_although_its_loop_lives() -> None:
    loop, model = echodraft.custom_generate(budget=4), packable()
    model.generate(**batch(7), max_new_tokens=5, custom_generate=loop)
    gone = [weakref.ref(model), weakref.ref(model.lm_head.weight)]
    del model
    gc.collect()
    assert [ref() for ref in gone] == [None, None]


@pytest.mark.parametrize("shared", [True, False])
def test_threads_that_share_a_loop_or_a_model_wait_for_each_other(shared: bool) -> None:
    model, loops = tiny("llama"), [echodraft.custom_generate(budget=6) for _ in range(4)]
    expected = [model.generate(**batch(n), max_new_tokens=20, do_sample=False) for n in range(5, 9)]
    found: dict[int, torch.Tensor] = {}

    def run(i: int) -> None:
        for _ in range(3):
            found[i] = model.generate(**batch(5 + i), max_new_tokens=20, do_sample=False, custom_generate=loops[0 if shared else i])

    threads = [Thread(target=run, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(found[i], expected[i]) for i in range(4))


# PEFT


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_a_model_with_an_adapter_is_drafted_for_with_the_adapter() -> None:
    peft = pytest.importorskip("peft")
    base = copy.deepcopy(tiny("llama"))
    plain = base.generate(**batch(7), max_new_tokens=16, do_sample=False)
    torch.manual_seed(1)
    model = peft.get_peft_model(base, peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)).double().eval()
    expected, _, _ = both(model, batch(7), {"max_new_tokens": 16})
    assert not torch.equal(expected, plain)
    assert torch.equal(echodraft.generate(model, **batch(7), max_new_tokens=16, do_sample=False), expected)
    with model.disable_adapter():
        assert torch.equal(echodraft.generate(model, **batch(7), max_new_tokens=16, do_sample=False), plain)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::UserWarning")
def test_learned_prompts_run_plain() -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(1)
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    model = peft.get_peft_model(copy.deepcopy(tiny("llama")), config).double().eval()
    options = {"max_new_tokens": 12, "do_sample": False}
    loop = echodraft.custom_generate()
    expected = model.generate(**batch(7), **options)
    assert torch.equal(model.generate(**batch(7), **options, custom_generate=loop), expected)
    assert "PEFT" in loop.plain
