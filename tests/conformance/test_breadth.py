"""More architectures, each with the backend that `make_backend` chooses: trees where they are exact, chains or plain decoding elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import pytest
import torch
import transformers as hf

from conforming import DRAFTERS, NEW, RULES, assert_conforms, drafter, policy
from echodraft.backends.transformers_support import make_backend
from echodraft.core.accept import Stops
from echodraft.core.backend import Shape
from echodraft.core.budget import Fixed
from echodraft.core.engine import Engine
from echodraft.errors import Unsupported
from harness import drive
from models import LONGROPE, SIZE, SWITCH, VOCAB, WINDOW, generate, keyed, prompt
from oracle import Oracle

NO_IDS = {"eos_token_id": None, "bos_token_id": None, "pad_token_id": None}
WIDE = {"vocab_size": VOCAB, "initializer_range": 0.3}
SMALL = {**WIDE, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, **NO_IDS}
GPT = {**WIDE, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64, "eos_token_id": None, "bos_token_id": None}
MIXED = {"head_dim": 8, "sliding_window": WINDOW, "layer_types": ["sliding_attention", "full_attention"]}
LINEAR = {
    f"linear_{name}": 2 if name.startswith("num") else 8 for name in ("num_key_heads", "num_value_heads", "key_head_dim", "value_head_dim")
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 32}
LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_rope_head_dim": 4, "qk_nope_head_dim": 4, "v_head_dim": 6}
MAMBA = {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "tie_word_embeddings": False}
EXPERTS = {"num_local_experts": 4, "num_experts_per_tok": 2}

MODELS: dict[str, tuple[Shape, str, dict[str, Any]]] = {
    "opt": (Shape.TREE, "OPT", {**SMALL, "ffn_dim": 48, "word_embed_proj_dim": 32, "init_std": 0.3, "max_position_embeddings": 64}),
    "gptj": (Shape.TREE, "GPTJ", {**GPT, "rotary_dim": 4}),
    "codegen": (Shape.TREE, "CodeGen", {**GPT, "rotary_dim": 4}),
    "bigcode": (Shape.TREE, "GPTBigCode", GPT),
    "gemma2": (Shape.TREE, "Gemma2", {**SIZE, **MIXED, "tie_word_embeddings": False}),
    "cohere2": (Shape.TREE, "Cohere2", {**SIZE, **MIXED}),
    "gpt-oss": (Shape.TREE, "GptOss", {**SIZE, **MIXED, **EXPERTS, "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}}),
    "phi": (Shape.TREE, "Phi", {**SIZE, "tie_word_embeddings": False}),
    "stablelm": (Shape.TREE, "StableLm", SIZE),
    "llama-yarn": (Shape.TREE, "Llama", {**SIZE, "rope_parameters": YARN}),
    "llama-longrope": (Shape.TREE, "Llama", {**SIZE, "rope_parameters": LONGROPE}),
    "llama-1-kv-head": (Shape.TREE, "Llama", {**SIZE, "num_key_value_heads": 1}),
    "llama-4-kv-heads": (Shape.TREE, "Llama", {**SIZE, "num_key_value_heads": 4}),
    "deepseek3": (
        Shape.TREE,
        "DeepseekV3",
        {**SIZE, **LATENT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1}
        | {"moe_intermediate_size": 16, "first_k_dense_replace": 1},
    ),
    "bloom": (Shape.CHAIN, "Bloom", {**WIDE, **NO_IDS, "hidden_size": 32, "n_layer": 2, "n_head": 4, "tie_word_embeddings": False}),
    "mpt": (
        Shape.CHAIN,
        "Mpt",
        {**WIDE, "initializer_range": 1.0, "d_model": 32, "n_layers": 3, "n_heads": 4, "max_seq_len": 64},
    ),
    "falcon": (Shape.CHAIN, "Falcon", SMALL),
    "falcon-alibi": (Shape.CHAIN, "Falcon", {**SMALL, "alibi": True}),
    "llama4": (
        Shape.CHAIN,
        "Llama4",
        {**SIZE, "num_hidden_layers": 4, "head_dim": 8, "attention_chunk_size": 8, "num_local_experts": 2, "intermediate_size_mlp": 48},
    ),
    "mamba": (
        Shape.NONE,
        "Mamba",
        {**WIDE, **NO_IDS, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, "tie_word_embeddings": False},
    ),
    "qwen3-next": (
        Shape.NONE,
        "Qwen3Next",
        {**SIZE, **LINEAR, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"], "num_experts": 0},
    ),
    "lfm2": (Shape.NONE, "Lfm2", {**SIZE, "layer_types": ["conv", "full_attention"]}),
}
LENGTHS = (5, 17, 10)


@cache
def model(name: str) -> Any:
    _, family, arguments = MODELS[name]
    text = "TextConfig" if family == "Llama4" else "Config"
    torch.set_num_threads(1)
    torch.manual_seed(0)
    found = getattr(hf, f"{family}ForCausalLM")(getattr(hf, family + text)(**arguments)).double().eval()
    if family in ("GptOss", "DeepseekV3", "Llama4"):
        found.set_experts_implementation("eager")
    return found


@cache
def alone(name: str, mode: str) -> list[list[int]]:
    """What the model alone says behind each prompt."""
    if mode == "greedy":
        return [generate(model(name), prompt(n), NEW) for n in LENGTHS]
    return [keyed(model(name), prompt(n), NEW, RULES[mode]) for n in LENGTHS]


FEW = (("right-last", "greedy"), ("right", "keyed"), ("random", "greedy"))
CASES = [
    pytest.param(name, kind, mode, marks=[] if (kind, mode) in FEW else pytest.mark.full)
    for name in MODELS
    if name != "llama-longrope"  # a test of its own below: its keys depend on when they were computed
    for kind in DRAFTERS
    for mode in ("greedy", "keyed")
]


@pytest.mark.parametrize(("name", "kind", "mode"), CASES)
def test_output_is_what_the_model_alone_says(name: str, kind: str, mode: str) -> None:
    said, ids = alone(name, mode), [prompt(n) for n in LENGTHS]
    assert len({tuple(output) for output in said}) == len(said)
    backend, told = make_backend(model(name), pack=False, chunk=7)
    assert backend.shape == MODELS[name][0]
    assert (told is None) == (backend.shape == Shape.TREE)
    drafts = drafter(kind, [p + output for p, output in zip(ids, said, strict=True)])
    if isinstance(drafts, Oracle) and (backend.shape == Shape.NONE or (backend.shape == Shape.CHAIN and kind != "right")):
        drafts.kind = type(drafts.kind)(drafts.kind.draft, lambda _: None)  # what of it fits is not what the oracle says
    assert_conforms(Engine(backend, drafts, policy(kind)), mode, ids, said)


@pytest.mark.parametrize("name", ["bloom", "falcon", "mamba", "qwen3-next"])
def test_a_sequence_goes_back_and_on(name: str) -> None:
    said, ids = alone(name, "greedy")[1], prompt(LENGTHS[1])
    backend, _ = make_backend(model(name), pack=False, chunk=7)
    engine = Engine(backend, Oracle("wrong-middle", [ids + said]), Fixed(64))
    session = engine.open(ids, stops=Stops(max_new_tokens=NEW))
    drive(engine)
    for length in (len(ids) + 10, len(ids) - 3):
        engine.rewind(session, length)
        drive(engine)
        assert session.output == (said if length > len(ids) else generate(model(name), ids[:length], NEW))
    engine.extend(session, [1, 2, 3])
    before = list(session.tokens)
    drive(engine)
    assert session.output == generate(model(name), before, NEW)


@pytest.mark.parametrize("name", ["gemma2", "bloom", "mamba"])
@pytest.mark.parametrize("back", [0, 3])
def test_a_step_that_broke_off_leaves_no_trace(name: str, back: int) -> None:
    said, ids = alone(name, "greedy")[1], prompt(LENGTHS[1])
    backend, _ = make_backend(model(name), pack=False)
    fail: list[Exception] = []

    def check(tokens: Sequence[int], _: int) -> None:
        if fail:
            raise fail.pop()

    engine = Engine(backend, Oracle("wrong-middle", [ids + said]), Fixed(64))
    session = engine.open(ids, stops=Stops(max_new_tokens=NEW, checks=(check,)))
    for _ in range(5):
        engine.step()
    fail.append(InterruptedError("broken off"))
    with pytest.raises(InterruptedError):
        engine.step()
    engine.rewind(session, len(session.tokens) - back)
    drive(engine)
    assert session.tokens == ids + said


@pytest.mark.parametrize("kind", ["right-last", "random", "none"])
def test_keys_of_the_other_side_of_a_longrope_switch_are_kept_where_generate_keeps_them(kind: str) -> None:
    """Phi-3 computes its cache again at the switch, other models do not; a long prompt is on the long side from its first chunk on."""
    ids = [prompt(n) for n in (20, SWITCH + 5, SWITCH - 1, 10)]
    said = [generate(model("llama-longrope"), p, NEW) for p in ids]
    backend, _ = make_backend(model("llama-longrope"), pack=False, chunk=7)
    drafts = drafter(kind, [p + output for p, output in zip(ids, said, strict=True)])
    assert_conforms(Engine(backend, drafts, Fixed(64)), "greedy", ids, said, SWITCH)


def test_models_that_cannot_be_decoded_are_refused() -> None:
    with pytest.raises(Unsupported, match="eval"):
        make_backend(hf.LlamaForCausalLM(hf.LlamaConfig(**SIZE)))
    with pytest.raises(Unsupported, match="decoder-only"):
        make_backend(hf.LlamaModel(hf.LlamaConfig(**SIZE)).eval())
