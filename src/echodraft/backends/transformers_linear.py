"""Linear layers of a CPU model through oneDNN with prepacked weights.

PyTorch multiplies a bfloat16 matrix by few rows at a cost that grows with every row where the processor has no bfloat16 instructions
(AVX2), and repacks a float32 matrix at each call. oneDNN's packed kernels, which TorchInductor uses, cost little more for eight rows than
for one. The values are the same up to the order of summation: bfloat16 weights widened to float32 are exact, sums are float32 either way.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

PACK_ROWS = 8  # the row count for which oneDNN chooses the layout; measured good from 2 to 256


def available() -> bool:
    """Whether this PyTorch has the packed kernels."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


class PackedLinears:
    """Packed copies of a model's linear weights, used only inside `active()`: elsewhere the model is as it was.

    Costs the size of the linear weights once more, twice for bfloat16 on a processor without bfloat16 instructions.
    """

    def __init__(self, model: nn.Module) -> None:
        self._on = False
        self._native = bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
        self._layers: list[tuple[nn.Linear, Any]] = []
        with torch.inference_mode():
            for module in model.modules():
                if type(module) is nn.Linear and module.weight.device.type == "cpu" and self._suits(module.weight):
                    self._layers.append((module, self._forward(module)))

    def _suits(self, weight: Tensor) -> bool:
        return weight.dtype in (torch.bfloat16, torch.float32) and weight.numel() >= 1 << 16

    def _forward(self, module: nn.Linear) -> Any:
        weight, bias, narrow = module.weight, module.bias, module.weight.dtype
        wide = narrow == torch.bfloat16 and not self._native
        packed = torch.ops.mkldnn._reorder_linear_weight((weight.float() if wide else weight).detach(), PACK_ROWS)
        add = None if bias is None else (bias.float() if wide else bias).detach()
        linear, plain = torch.ops.mkldnn._linear_pointwise, nn.functional.linear

        def forward(x: Tensor) -> Tensor:
            if wide:
                # One row is bound by memory: the narrow weights are read faster.
                if x.numel() == x.shape[-1]:
                    return plain(x, weight, bias)
                out: Tensor = linear(x.float(), packed, add, "none", [], "").to(narrow)
                return out
            out = linear(x, packed, add, "none", [], "")
            return out

        return forward

    @contextmanager
    def active(self) -> Iterator[None]:
        """Inside the block the model's linear layers use the packed weights."""
        if self._on:
            yield
            return
        self._on = True
        for module, forward in self._layers:
            module.forward = forward  # type: ignore[method-assign]
        try:
            yield
        finally:
            self._on = False
            for module, _ in self._layers:
                del module.forward  # type: ignore[method-assign]
