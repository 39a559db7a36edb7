"""Hugging Face's own decoding, timed: what a benchmark sets beside ours."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from time import perf_counter
from typing import Any

import torch
from transformers import GenerationConfig, StoppingCriteriaList, StopStringCriteria

from echodraft.backends.transformers_load import quiet
from echodraft.errors import UsageError


class FirstToken:
    """A streamer that only notes when the first token came."""

    def __init__(self) -> None:
        self.puts = 0
        self.first = 0.0

    def put(self, _: torch.Tensor) -> None:
        self.puts += 1
        if self.puts == 2:  # the first put is the prompt
            self.first = perf_counter()

    def end(self) -> None:
        pass


class HuggingFace:
    """`model.generate` as its users call it: plain, with prompt lookup, or assisted by a draft model.

    packed  our packed linear kernels to lend it, the model's and the assistant's
    knobs   hf-pld: tokens (10), ngram (2)
    """

    def __init__(self, model: Any, tokenizer: Any, packed: Sequence[Any], name: str, knobs: dict[str, Any], assistant: Any) -> None:
        self.model, self.tokenizer, self.packed = model, tokenizer, packed
        self.options: dict[str, Any] = {}
        if name == "hf-pld":
            self.options = {
                "prompt_lookup_num_tokens": int(knobs.pop("tokens", 10)),
                "max_matching_ngram_size": int(knobs.pop("ngram", 2)),
            }
        elif name == "hf-assisted":
            self.options = {"assistant_model": assistant}
        if knobs:
            raise UsageError(f"Peer '{name}' has no knob '{next(iter(knobs))}'. hf-pld has tokens and ngram; all have packed.")

    def generate(self, ids: Sequence[int], most: int, stop: Sequence[str], eos: Sequence[int]) -> tuple[list[int], float, float]:
        """Greedy output ids, seconds to the first token, seconds after it."""
        prompt = torch.tensor([list(ids)], device=self.model.device)
        # As a criterion: `stop_strings=` would also reach the assistant's own `generate`, which has no tokenizer.
        stops = {"stopping_criteria": StoppingCriteriaList([StopStringCriteria(self.tokenizer, list(stop))])} if stop else {}
        clock = FirstToken()
        with quiet(), ExitStack() as stack:
            for kernels in self.packed:
                stack.enter_context(kernels.active())
            # Penalties and the like that come with a hub model are not ours either.
            own, self.model.generation_config = self.model.generation_config, GenerationConfig()
            stack.callback(setattr, self.model, "generation_config", own)
            start = perf_counter()
            out = self.model.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                do_sample=False,
                max_new_tokens=most,
                eos_token_id=list(eos) or None,
                pad_token_id=eos[0] if eos else None,
                streamer=clock,
                **stops,
                **self.options,
            )
            end = perf_counter()
        return out[0, len(ids) :].tolist(), clock.first - start, end - clock.first
