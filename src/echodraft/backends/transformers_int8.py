"""Linear layers of a draft model in 8 bits. Rounds what it computes: for drafts only, which the target checks.

PyTorch's dynamic quantisation: weights in int8 with a scale for each output, rows of activations in uint8 with one scale for the whole
tensor. A row's result so depends on its neighbours, which the target's must not.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from echodraft.backends.transformers_linear import PackedLinears, _mark, suitable
from echodraft.errors import Unsupported


def quantize(model: nn.Module) -> PackedLinears:
    """The linear layers of a CPU model in int8. Raises `Unsupported` where PyTorch has no such kernels or no layer suits them."""
    found = suitable(model)
    if not found or torch.backends.quantized.engine not in ("fbgemm", "x86"):
        raise Unsupported("int8 needs a model with linear layers on an x86 CPU. Leave out --draft-quantize (draft_quantize= in Python).")
    return Int8Linears(found)


class Int8Linears(PackedLinears):
    """Linear layers in int8, used only inside `active()`. Costs a byte a weight beside the model's own."""

    kind = "int8"

    def __init__(self, found: list[nn.Linear]) -> None:
        self._on = False
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensors of quantised dtypes are to go; the kernels have no other entrance yet
            self._layers = [(module, _forward(module)) for module in found]
        self._marks = [_mark(module.weight) for module in found]


def _forward(module: nn.Linear) -> Callable[[Tensor], Tensor]:
    weight, dtype = module.weight.detach().float(), module.weight.dtype
    scale = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127.0
    zero = torch.zeros(len(scale), dtype=torch.long)
    held = torch.quantize_per_channel(weight, scale, zero, 0, torch.qint8)
    packed: Any = torch.ops.quantized.linear_prepack(held, None if module.bias is None else module.bias.detach().float())
    # Without VNNI instructions sums of 8-bit products overflow 16 bits; 7-bit activations do not.
    narrow = not torch.cpu._is_vnni_supported()
    linear = torch.ops.quantized.linear_dynamic
    return lambda x: linear(x.float().contiguous(), packed, narrow).to(dtype)
