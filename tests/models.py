"""Tiny random models in float64, built from configs: nothing is downloaded, and equality means equality.

Every architecture holds something that breaks a careless cache, mask or position: grouped heads, sliding windows, mixed layers,
learned positions, a rotation that changes with length, experts.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np
import torch
import transformers as hf

from echodraft.core.sampling import Rule, pick

DEVICE = os.environ.get("ECHODRAFT_TEST_DEVICE", "cpu")  # scripts/cuda-smoke sets it
VOCAB = 97
WINDOW = 8
SWITCH = 32  # where Phi-3 takes its long factor
CONTEXT = 128

# A wide initialisation spreads the logits: a model of the usual 0.02 repeats one token, and nothing could go wrong.
SIZE = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": CONTEXT,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
    "pad_token_id": None,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0, 1.1, 1.3, 1.6],
    "long_factor": [1.0, 1.7, 2.9, 4.4],
    "original_max_position_embeddings": SWITCH,
    "factor": CONTEXT / SWITCH,
}
NEOX = {name: value for name, value in SIZE.items() if name != "num_key_value_heads"}
GPT2 = {
    "vocab_size": VOCAB,
    "n_embd": 32,
    "n_layer": 2,
    "n_head": 4,
    "n_positions": 64,
    "initializer_range": 0.3,
    "eos_token_id": None,
    "bos_token_id": None,
}

CONFIGS: dict[str, tuple[type, type, dict[str, Any]]] = {
    "llama": (hf.LlamaForCausalLM, hf.LlamaConfig, SIZE),
    "qwen2": (hf.Qwen2ForCausalLM, hf.Qwen2Config, SIZE),
    "qwen3": (hf.Qwen3ForCausalLM, hf.Qwen3Config, SIZE | {"head_dim": 8}),
    "mistral": (hf.MistralForCausalLM, hf.MistralConfig, SIZE | {"sliding_window": WINDOW}),
    "gemma3": (
        hf.Gemma3ForCausalLM,
        hf.Gemma3TextConfig,
        SIZE
        | {"num_hidden_layers": 3, "head_dim": 8, "sliding_window": WINDOW, "tie_word_embeddings": False}
        | {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"]},
    ),
    "phi3": (hf.Phi3ForCausalLM, hf.Phi3Config, SIZE | {"rope_parameters": LONGROPE, "original_max_position_embeddings": SWITCH}),
    "gpt2": (hf.GPT2LMHeadModel, hf.GPT2Config, GPT2),
    "neox": (hf.GPTNeoXForCausalLM, hf.GPTNeoXConfig, NEOX),
    "mixtral": (hf.MixtralForCausalLM, hf.MixtralConfig, SIZE | {"num_local_experts": 4, "num_experts_per_tok": 2}),
}


@cache
def tiny(name: str, attention: str = "sdpa") -> Any:
    """The model of this name, the same weights for every attention."""
    model_class, config_class, arguments = CONFIGS[name]
    torch.set_num_threads(1)  # more would only wait for each other on matrices this small
    torch.manual_seed(0)
    model = model_class(config_class(**arguments, attn_implementation=attention)).double().eval().to(DEVICE)
    if name == "mixtral":
        model.set_experts_implementation("eager")  # the grouped kernels have no float64
    return model


def prompt(length: int, seed: int = 0, vocab: int = VOCAB) -> list[int]:
    """A random prompt, the same for the same arguments."""
    return np.random.default_rng([seed, length]).integers(0, vocab, length).tolist()


def generate(model: Any, ids: Sequence[int], n: int, seed: int | None = None, **arguments: Any) -> list[int]:
    """What transformers itself puts behind `ids`: greedy, or sampled under `seed`."""
    if seed is not None:
        torch.manual_seed(seed)
    given = torch.tensor([list(ids)], device=model.device)
    out = model.generate(given, attention_mask=torch.ones_like(given), max_new_tokens=n, do_sample=seed is not None, **arguments)
    return out[0, len(ids) :].tolist()


@torch.inference_mode()
def logits_behind(model: Any, ids: Sequence[int]) -> torch.Tensor:
    """Logits [vocab] behind `ids` by a plain forward without a cache."""
    return model(torch.tensor([list(ids)], device=model.device), use_cache=False).logits[0, -1].cpu()


def keyed(model: Any, ids: Sequence[int], n: int, rule: Rule) -> list[int]:
    """What the keyed sampler must yield, by plain forwards without a cache and the NumPy rule."""
    tokens = list(ids)
    for _ in range(n):
        tokens.append(pick(logits_behind(model, tokens).float().numpy(), rule, len(tokens)))
    return tokens[len(ids) :]
