"""Which calls of `generate` are not ours: refused in words, or left to Hugging Face's own loop with the reason said."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import transformers as hf
from transformers import GenerationMixin
from transformers.generation import GenerationMode

from echodraft.backends.transformers_support import support
from echodraft.core.backend import Shape
from echodraft.errors import Unsupported
from echodraft.integrations.hf_generate_cache import copies
from echodraft.integrations.hf_generate_call import CACHES, Call

OURS = {*CACHES, "attention_mask", "position_ids", "logits_to_keep", "use_cache", "output_attentions", "output_hidden_states"}
"""Model inputs that the engine replaces by its own, or that are asked about by name."""

BY_ROW = {
    hf.SequenceBiasLogitsProcessor,
    hf.RepetitionPenaltyLogitsProcessor,
    hf.NoRepeatNGramLogitsProcessor,
    hf.NoBadWordsLogitsProcessor,
    hf.MinLengthLogitsProcessor,
    hf.MinNewTokensLengthLogitsProcessor,
    hf.PrefixConstrainedLogitsProcessor,
    hf.ForcedBOSTokenLogitsProcessor,
    hf.ForcedEOSTokenLogitsProcessor,
    hf.SuppressTokensLogitsProcessor,
    hf.SuppressTokensAtBeginLogitsProcessor,
    hf.ExponentialDecayLengthPenalty,
    hf.TemperatureLogitsWarper,
    hf.TopHLogitsWarper,
    hf.TopKLogitsWarper,
    hf.TopPLogitsWarper,
    hf.MinPLogitsWarper,
    hf.TypicalLogitsWarper,
    hf.EpsilonLogitsWarper,
    hf.EtaLogitsWarper,
    hf.WatermarkLogitsProcessor,
    hf.SynthIDTextWatermarkLogitsProcessor,
    hf.LogitNormalization,
    hf.MaxLengthCriteria,
    hf.MaxTimeCriteria,
    hf.StopStringCriteria,
    hf.EosTokenCriteria,
}
"""Processors and criteria that treat every row of a batch by itself, so that rows may advance at different speeds."""


def refuse(config: Any, hidden: Mapping[str, Any]) -> None:
    """Raises `Unsupported` for what no loop of one token after another can do, and for a second drafter beside ours."""
    mode = config.get_generation_mode(hidden.get("assistant_model"))
    if mode == GenerationMode.ASSISTED_GENERATION:
        raise Unsupported("The call asks for assisted generation, but echodraft drafts here. Drop one: its argument or custom_generate.")
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        name = mode.value.replace("_", " ")
        raise Unsupported(f"echodraft decodes greedily or by sampling; the call asks for {name}. Call generate without custom_generate.")
    if hidden.get("synced_gpus"):
        raise Unsupported("synced_gpus does not reach a custom loop. Call generate without custom_generate.")


def why_plain(model: Any, call: Call) -> str | None:
    """Why Hugging Face's own loop must run this call, or None. Raises `Unsupported` for models that are no decoders."""
    of_model = _foreign(model) or _shape(model, call) or _rotation(model, call)
    return of_model or _asked(call) or _padding(call) or _cache(call) or _together(call)


def _foreign(model: Any) -> str | None:
    if type(model)._sample is not GenerationMixin._sample:
        return f"{type(model).__name__} has a decoding loop of its own"
    if getattr(model.prepare_inputs_for_generation, "__self__", model) is not model:
        return "something else prepares the model's inputs, such as learned prompts of PEFT"
    if any(getattr(adapter, "alora_invocation_tokens", None) for adapter in getattr(model, "peft_config", {}).values()):
        return "an activated LoRA adapter counts positions from the end of its input"
    return None


def _shape(model: Any, call: Call) -> str | None:
    shape, why = support(model)
    if shape == Shape.NONE:
        return f"{type(model).__name__} {why}"
    if shape == Shape.CHAIN and (call.wants_cache or call.past):
        return f"{type(model).__name__} {why}, so its cache is not kept in rows that could be handed over"
    return None


def _asked(call: Call) -> str | None:
    if not call.inputs.get("use_cache", True):
        return "use_cache is False"
    for name in ("output_attentions", "output_hidden_states"):
        if call.inputs.get(name) or getattr(call.config, name):
            return f"{name} is asked for"
    others = sorted(name for name, value in call.inputs.items() if name not in OURS and value is not None)
    return f"the model is given {', '.join(others)}" if others else None


def _padding(call: Call) -> str | None:
    mask, where = call.mask, call.inputs.get("position_ids")
    if call.input_ids.ndim != 2 or not call.input_ids.shape[1]:
        return "there are no input ids"
    if mask is not None and not (mask[:, -1:].all() and (mask.bool().diff(dim=1).sum(dim=1) <= 1).all()):
        return "the attention mask hides more than padding on the left"
    if where is not None:
        seen = mask.bool() if mask is not None else where.new_ones(1, where.shape[-1]).bool()
        usual = seen.long().cumsum(dim=1) - 1
        if where.ndim != 2 or where.shape[1] != usual.shape[1] or not ((where == usual) | ~seen).all():
            return "the position ids are not the usual ones"
    return None


def _cache(call: Call) -> str | None:
    if call.config.cache_implementation not in (None, "dynamic"):
        return f"a cache of kind {call.config.cache_implementation} is asked for"
    if call.cache is None:
        return "there is no cache to return" if call.wants_cache else None
    rows, columns = call.input_ids.shape
    if (call.wants_cache or call.past) and not copies(call.cache, rows):
        return f"this {type(call.cache).__name__} is of a kind that is not copied"
    covered = call.mask.shape[1] if call.mask is not None else getattr(call.config, "_mask_length", columns)
    if call.past and (covered != columns or call.past >= columns):
        return "the tokens in the cache are not given"
    return None


def _together(call: Call) -> str | None:
    if any(isinstance(processor, hf.InfNanRemoveLogitsProcessor) for processor in call.processors):
        return "remove_invalid_values is set"  # the engine refuses a model that returns NaN
    if len(call.input_ids) == 1:
        return None
    for part in (*call.processors, *call.criteria):
        if type(part) not in BY_ROW:
            return f"{type(part).__name__} may look at the whole batch, whose rows advance at different speeds"
    others = [criterion for criterion in call.criteria if not isinstance(criterion, hf.MaxLengthCriteria)]
    if others and not any(isinstance(criterion, hf.EosTokenCriteria) for criterion in others):
        return "without an eos token, rows that are stopped go on until all are"
    return None


def _rotation(model: Any, call: Call) -> str | None:
    config = model.config.get_text_config(decoder=True)
    rope, context = getattr(config, "rope_parameters", None) or {}, getattr(config, "max_position_embeddings", None)
    if rope.get("rope_type") == "dynamic" and context is not None and (call.criteria.max_length or context + 1) > context:
        return "the text may outgrow the context, where dynamic rotation changes with every token"
    return None
