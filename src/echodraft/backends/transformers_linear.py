"""Linear layers of a CPU model through oneDNN with prepacked weights.

PyTorch multiplies a bfloat16 matrix by few rows at a cost that grows with every row where the processor has no bfloat16 instructions
(AVX2), and repacks a float32 matrix at each call. oneDNN's packed kernels, which TorchInductor uses, cost little more for eight rows than
for one. The values are the same up to the order of summation: bfloat16 weights widened to float32 are exact, sums are float32 either way.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger("echodraft")

SHARE = 0.7  # of the free memory that packed weights may take
PACK_ROWS = 8  # the row count for which oneDNN chooses the layout; measured good from 2 to 256


def pack(model: nn.Module) -> PackedLinears | None:
    """Packed weights for a CPU model; None where PyTorch has no such kernels, nothing suits, or memory would get short."""
    if not available():
        return None
    layers = suitable(model)
    need = sum(layer.weight.numel() for layer in layers) * (2 if native_bfloat16() else 4)
    if need > SHARE * free_memory():
        log.warning("Weights are not prepacked: that takes %.1f GB more memory than is free. Drafts will cost more.", need / 1e9)
        return None
    return PackedLinears(layers) if layers else None


def available() -> bool:
    """Whether this PyTorch has the packed kernels."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def native_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 matrices on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def suitable(model: nn.Module) -> list[nn.Linear]:
    """The linear layers worth packing: plain ones, on the CPU, in float32 or bfloat16, not tiny."""
    # A forward of its own on the instance (accelerate places weights by such hooks) stays.
    return [m for m in model.modules() if type(m) is nn.Linear and "forward" not in vars(m) and _suits(m.weight)]


def _suits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and weight.dtype in (torch.bfloat16, torch.float32) and weight.numel() >= 1 << 16


def free_memory() -> float:
    """Bytes that can be taken without swapping."""
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return 1024.0 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return 0.5 * os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if hasattr(os, "sysconf") else float("inf")


def _mark(weight: Tensor) -> tuple[int, int, list[float]]:
    """What changes with a weight: its place, its version, a few of its values (a change through `.data` leaves the version as it is)."""
    few = weight.detach().flatten()[:: max(1, weight.numel() // 16)]
    return weight.data_ptr(), 0 if weight.is_inference() else weight._version, few.tolist()


class PackedLinears:
    """Packed copies of linear weights, used only inside `active()`: elsewhere the model is as it was.

    Costs the size of the weights once more, twice for bfloat16 on a processor without bfloat16 instructions.
    """

    def __init__(self, found: list[nn.Linear]) -> None:
        self._on = False
        self._native = native_bfloat16()
        with torch.inference_mode():
            # One scratch for all: fresh pages cost more than the conversion.
            scratch = torch.empty(max((m.weight.numel() for m in found), default=0))
            self._layers = [(module, self._forward(module, scratch)) for module in found]
        self._marks = [_mark(module.weight) for module in found]

    def _forward(self, module: nn.Linear, scratch: Tensor) -> Any:
        weight, bias, narrow = module.weight, module.bias, module.weight.dtype
        wide = narrow == torch.bfloat16 and not self._native
        source = scratch[: weight.numel()].view(weight.shape).copy_(weight) if wide else weight.detach()
        packed = torch.ops.mkldnn._reorder_linear_weight(source, PACK_ROWS)
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

    def current(self) -> bool:
        """Whether the model's weights are still those that were packed; False after training, merging an adapter, casting or moving."""
        return all(_mark(module.weight) == mark for (module, _), mark in zip(self._layers, self._marks, strict=True))

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
