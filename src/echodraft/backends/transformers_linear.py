"""Linear layers of a CPU model through the kernels for prepacked weights that PyTorch ships.

PyTorch multiplies a bfloat16 matrix by few rows at a cost that grows with every row where the processor has no bfloat16 instructions
(AVX2), and repacks a float32 matrix at each call. Two libraries in it do better. FBGEMM keeps weights in float16 and multiplies in float32:
half the bytes of float32, and four rows cost what one costs. oneDNN's packed kernels, which TorchInductor uses, take what is float32 or
native; where bfloat16 is native, FBGEMM is still quicker for a few rows. The values are the same up to the order of summation: every weight
is exact in the packed form (bfloat16 times a power of two that brings the layer into the range of float16, which is checked; else widened
to float32), and sums are float32 either way.
"""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger("echodraft")

SHARE = 0.7  # of the free memory that packed weights may take
SMALL = 1 << 21  # weights of a layer whose single rows cost more in operators than in reading
PART = 1 << 18  # weights that are looked at in one go
FEW = 4  # rows for which FBGEMM is quicker than oneDNN in native bfloat16
PACK_ROWS = 8  # the row count for which oneDNN chooses the layout; measured good from 2 to 256


def pack(model: nn.Module) -> PackedLinears | None:
    """Packed weights for a CPU model; None where PyTorch has no such kernels, nothing suits, or memory would get short."""
    if not available():
        return None
    layers, free = suitable(model), SHARE * free_memory()
    twice = sum(_bytes(layer.weight, True) for layer in layers) <= free
    need = sum(_bytes(layer.weight, twice) for layer in layers)
    if need > free:
        log.warning("Weights are not prepacked: that takes %.1f GB more memory than is free. Drafts will cost more.", need / 1e9)
        return None
    return PackedLinears(layers, twice) if layers else None


def _bytes(weight: Tensor, twice: bool) -> int:
    """What the copies of a weight take; `twice` where it may have one for few rows and one for many."""
    halves = 2 * _halves(weight, twice)
    rest = 2 if _native(weight) else 0 if halves else 4
    return weight.numel() * (halves + rest)


def available() -> bool:
    """Whether this PyTorch has the packed kernels."""
    return torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")


def native_bfloat16() -> bool:
    """Whether oneDNN multiplies bfloat16 matrices on this processor."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def half_available() -> bool:
    """Whether this PyTorch multiplies float32 rows by float16 weights through FBGEMM on this processor."""
    return torch.backends.quantized.engine in ("fbgemm", "x86") and hasattr(torch.ops.quantized, "linear_prepack_fp16")


def _native(weight: Tensor) -> bool:
    return weight.dtype == torch.bfloat16 and native_bfloat16()


def _narrow(weight: Tensor) -> bool:
    return weight.dtype in (torch.bfloat16, torch.float16)


def _halves(weight: Tensor, twice: bool) -> bool:
    """Whether a weight is for FBGEMM, if float16 holds it exactly: beside a native copy only where there is room and it pays."""
    return _narrow(weight) and half_available() and (not _native(weight) or (twice and weight.numel() >= SMALL))


def suitable(model: nn.Module) -> list[nn.Linear]:
    """The linear layers worth packing: plain ones, on the CPU, in float32, bfloat16 or float16, not tiny."""
    # A forward of its own on the instance (accelerate places weights by such hooks) stays.
    return [m for m in model.modules() if type(m) is nn.Linear and "forward" not in vars(m) and _suits(m.weight)]


def _suits(weight: Tensor) -> bool:
    return weight.device.type == "cpu" and (_narrow(weight) or weight.dtype == torch.float32) and weight.numel() >= 1 << 16


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


def _scaled(weight: Tensor) -> tuple[Tensor, float] | None:
    """A narrow weight in float32 times a power of two, which float16 holds exactly, and that power; None where it does not."""
    # Part by part, so that what is computed on the way stays in the processor's cache.
    rows = max(1, PART // weight.shape[1])
    largest = max(float(part.abs().max()) for part in weight.split(rows))
    if not 0.0 < largest < math.inf:
        return None
    # The largest weight becomes 2^14 to 2^15: what is then below the range of float16 was smaller by a factor of 2^38.
    scale = 2.0 ** (15 - math.frexp(largest)[1])
    wide = weight.float().mul_(scale)
    exact = all(torch.equal(part.half().float(), part) for part in wide.split(rows))
    return (wide, scale) if exact else None


class PackedLinears:
    """Packed copies of linear weights, used only inside `active()`: elsewhere the model is as it was.

    Costs the size of the weights once more; twice for bfloat16 with both FBGEMM and native bfloat16 (if `twice`), or neither.
    """

    kind = ""
    """What the weights became, where they are no longer what they were."""
    dtype: torch.dtype | None = None
    """Of what lies between the layers, where it is not the model's own."""

    def __init__(self, found: list[nn.Linear], twice: bool = True) -> None:
        self._on = False
        self._layers: list[tuple[nn.Module, Callable[[Tensor], Tensor]]] = []
        workers = torch.get_num_threads()
        with torch.inference_mode(), ThreadPoolExecutor(workers) as pool:
            for i in range(0, len(found), workers):  # FBGEMM packs in one thread: as many layers at a time as there are threads
                group = found[i : i + workers]
                self._layers += zip(group, pool.map(_forward, group, [_prepared(module.weight, twice) for module in group]), strict=True)
        self._marks = [_mark(module.weight) for module in found]

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
            vars(module)["forward"] = forward  # as `module.forward = …` does, which takes ten times as long
        try:
            yield
        finally:
            self._on = False
            for module, _ in self._layers:
                del vars(module)["forward"]


def _prepared(weight: Tensor, twice: bool) -> tuple[Tensor, float] | None:
    """What FBGEMM packs of a weight; None where another kernel is to serve it."""
    return _scaled(weight.detach()) if _halves(weight, twice) else None


def _forward(module: nn.Linear, prepared: tuple[Tensor, float] | None) -> Callable[[Tensor], Tensor]:
    """The layer with packed weights."""
    with torch.inference_mode():  # which is a matter of the thread
        weight, bias = module.weight.detach(), None if module.bias is None else module.bias.detach()
        if prepared is not None:
            wide, scale = prepared
            many = _fbgemm(torch.ops.quantized.linear_prepack_fp16(wide, None), scale, bias, weight.dtype)
            if _native(weight):
                return by_rows(FEW, many, _onednn(weight, bias))
            # One operator instead of four.
            return _single_rows_plain(module, many) if weight.numel() < SMALL else many
        if _narrow(weight) and not _native(weight):
            wide_many, dtype = _onednn(weight.float(), None if bias is None else bias.float()), weight.dtype
            # One row is bound by memory: the weights as they are, are read faster than in float32.
            return _single_rows_plain(module, lambda x: wide_many(x.float()).to(dtype))
        return _onednn(weight, bias)


def _single_rows_plain(module: nn.Linear, many: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    plain = nn.functional.linear
    return lambda x: plain(x, module.weight, module.bias) if x.numel() == x.shape[-1] else many(x)


def by_rows(rows: int, few: Callable[[Tensor], Tensor], many: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
    """`few` for up to so many rows, `many` for more."""
    return lambda x: few(x) if x.numel() <= rows * x.shape[-1] else many(x)


def _onednn(weight: Tensor, bias: Tensor | None) -> Callable[[Tensor], Tensor]:
    packed, linear = torch.ops.mkldnn._reorder_linear_weight(weight, PACK_ROWS), torch.ops.mkldnn._linear_pointwise
    return lambda x: linear(x, packed, bias, "none", [], "")


def _fbgemm(packed: Any, scale: float, bias: Tensor | None, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    linear, add = torch.ops.quantized.linear_dynamic_fp16, None if bias is None else bias.float()

    def forward(x: Tensor) -> Tensor:
        out: Tensor = linear(x.float().contiguous(), packed).mul_(1.0 / scale)
        return (out if add is None else out.add_(add)).to(dtype)

    return forward
