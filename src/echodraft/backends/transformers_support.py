"""Which backend a model gets: trees where that is exact, else chains, else one token at a time; each says why, once."""

from __future__ import annotations

import inspect
from typing import Any

from echodraft.backends.transformers import TransformersBackend, layer_types
from echodraft.backends.transformers_linear import pack as pack_linears
from echodraft.backends.transformers_rounded import quantize as rounded
from echodraft.backends.transformers_sequential import SequentialBackend
from echodraft.core.backend import Backend, Shape
from echodraft.errors import Unsupported

TREE_LAYERS = {"full_attention", "sliding_attention"}


def make_backend(model: Any, pack: bool = True, chunk: int | None = None, quantize: str | None = None) -> tuple[Backend, str | None]:
    """A backend for a loaded causal language model, and what its user should be told, if anything.

    pack      prepack the linear weights of CPU models where memory allows (`PackedLinears`)
    chunk     context tokens a forward at most
    quantize  "int8" or "int4": round the linear weights, of a draft model only
    Raises `Unsupported` for models that cannot be decoded here at all.
    """
    model = unwrap(model)
    shape, why = support(model)
    if model.training:
        raise Unsupported("The model is in training mode, so dropout would change its answers. Call model.eval() first.")
    name = type(model).__name__
    options = {} if chunk is None else {"chunk": chunk}
    if quantize and shape != Shape.TREE:
        raise Unsupported(f"{name} {why}: it is not quantised. Leave out --draft-quantize (draft_quantize= in Python).")
    if quantize:
        return TransformersBackend(model, rounded(model, quantize), **options), None
    if shape == Shape.TREE:
        return TransformersBackend(model, pack_linears(model) if pack else None, **options), None
    told = "drafts are chains, without branches" if shape == Shape.CHAIN else "decoding is plain, without drafts"
    return SequentialBackend(model, shape, **options), f"{name} {why}: {told}."


def unwrap(model: Any) -> Any:
    """The model inside a PEFT wrapper whose adapters sit in the layers. Raises `Unsupported` for the other kinds of adapter."""
    if not hasattr(model, "peft_config"):
        return model
    if any(getattr(config, "is_prompt_learning", False) for config in model.peft_config.values()):
        raise Unsupported("A PEFT model with learned prompts adds positions of its own. Merge it or use an adapter of another kind.")
    return model.get_base_model() if hasattr(model, "get_base_model") else model


def support(model: Any) -> tuple[Shape, str]:
    """The largest draft that `model` can score exactly, and the reason where it is not a tree."""
    config = model.config.get_text_config(decoder=True)
    name = type(model).__name__
    if getattr(model.config, "is_encoder_decoder", False) or model.get_output_embeddings() is None:
        raise Unsupported(f"{name} is not a decoder-only causal language model. Use one that AutoModelForCausalLM loads.")
    parameters = inspect.signature(model.forward).parameters
    if not {"cache", "past_key_values", "cache_params"} & set(parameters):
        raise Unsupported(f"{name} keeps its state outside a cache that can be handed over. Use model.generate for it.")
    kinds = set(layer_types(config))
    if getattr(model, "_is_stateful", False) or any("linear" in kind or "conv" in kind or "mamba" in kind for kind in kinds):
        return Shape.NONE, "keeps a recurrent state that cannot be rolled back"
    if "position_ids" not in parameters or getattr(config, "alibi", False):
        return Shape.CHAIN, "takes positions from slots (ALiBi), where siblings of a tree would get wrong distances"
    if kinds - TREE_LAYERS:
        return Shape.CHAIN, f"has layers of type {', '.join(sorted(kinds - TREE_LAYERS))}"
    if config._attn_implementation not in ("sdpa", "eager"):
        return Shape.CHAIN, f"attends by {config._attn_implementation}, which takes no tree mask (sdpa and eager do)"
    if not model._can_set_attn_implementation():
        return Shape.CHAIN, "has an attention of its own, which may not take a tree mask"
    return Shape.TREE, ""
