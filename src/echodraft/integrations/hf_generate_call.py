"""What `generate` hands to a decoding loop, and what it does not."""

from __future__ import annotations

import inspect
import sys
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers import GenerationMixin, LogitsProcessorList, StoppingCriteriaList

CACHES = ("cache", "past_key_values")
"""What the cache is called: since transformers 5.24, and before."""


@dataclass(slots=True)
class Call:
    """What `generate` prepared: ids [rows, columns] with their padding, and the model's other inputs by name."""

    input_ids: Tensor
    processors: LogitsProcessorList
    criteria: StoppingCriteriaList
    config: Any
    inputs: dict[str, Any]

    @property
    def returns(self) -> bool:
        return bool(self.config.return_dict_in_generate)

    @property
    def cache(self) -> Any:
        """The cache among the model's inputs, or None."""
        return next((self.inputs[name] for name in CACHES if self.inputs.get(name) is not None), None)

    @property
    def past(self) -> int:
        """Columns that the cache holds already."""
        return 0 if self.cache is None else int(self.cache.get_seq_length())

    @property
    def mask(self) -> Tensor | None:
        """The attention mask [rows, columns]; None where nothing is padded."""
        return self.inputs.get("attention_mask")

    @property
    def wants_cache(self) -> bool:
        """Whether anyone will look at the cache afterwards: it is returned, or it is the user's own."""
        return self.returns or bool(getattr(self.cache, "_is_user_defined", False))

    @property
    def pad(self) -> int:
        """What a finished row goes on with."""
        token = self.config._pad_token_tensor
        return 0 if token is None else int(token)

    def paddings(self) -> list[int]:
        """Columns of padding in front of each row."""
        return [0] * len(self.input_ids) if self.mask is None else (self.mask != 0).int().argmax(dim=1).tolist()


def unseen() -> dict[str, Any]:
    """What `generate` was given and does not hand to a custom loop, read from its frame; empty where something else called the loop.

    Only for a loop that `generate` calls directly: the frame is that of our caller's caller.
    """
    frame = sys._getframe(2)
    if frame.f_code is not inspect.unwrap(GenerationMixin.generate).__code__:
        return {}
    return {name: frame.f_locals.get(name) for name in ("streamer", "assistant_model", "synced_gpus")}
