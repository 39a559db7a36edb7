"""Linear layers of a draft model in 8 or 4 bits. Rounds what it computes: for drafts only, which the target checks.

int8: PyTorch's dynamic quantisation: weights with a scale for each output, rows of activations in uint8 with one scale for the whole
tensor. A row's result so depends on its neighbours, which the target's must not. The kernels take and give float32. A small model spends
as much on converting to bfloat16 and back as on a layer, so what lies between the layers is float32 too, where the model allows it.

int4: PyTorch's kernel for weights in groups of `GROUP`, each with a scale and a middle, for one or two rows, which cost what is read of the
weights. It computes each row anew, so more rows are left to int8, and so are layers whose shape it does not take.

Layers that read the same tensor are multiplied as one.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from echodraft.backends.transformers_linear import PackedLinears, _mark, by_rows, suitable
from echodraft.errors import Unsupported

TOGETHER = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Layers of one module that read the same tensor."""
GROUP, TILE = 32, 16
"""Inputs that share a scale in int4, and outputs that its kernel computes at once."""
FEW = 2
"""Rows for which int4 is quicker."""


def quantize(model: nn.Module, kind: str = "int8") -> PackedLinears:
    """The linear layers of a CPU model in int8 or int4. Raises `Unsupported` where PyTorch has no such kernels or no layer suits them."""
    found = suitable(model)
    if not found or torch.backends.quantized.engine not in ("fbgemm", "x86"):
        raise Unsupported(f"{kind} needs a model with linear layers on an x86 CPU. Leave out --draft-quantize (draft_quantize= in Python).")
    return RoundedLinears(model, found, kind)


class RoundedLinears(PackedLinears):
    """Linear layers in int8 or int4, used only inside `active()`. Costs a byte a weight beside the model's own; int4 half a byte more."""

    def __init__(self, model: nn.Module, found: list[nn.Linear], kind: str) -> None:
        self._on, self.kind = False, kind
        embeddings = [module for module in model.modules() if isinstance(module, nn.Embedding) and "forward" not in vars(module)]
        if embeddings and widens(model, [*found, *embeddings]):
            self.dtype = torch.float32
        layers: dict[nn.Module, Callable[[Tensor], Tensor]] = {}
        with torch.inference_mode(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # tensors of quantised dtypes are to go; the kernels have no other entrance yet
            for group in _groups(model, found):
                layers |= zip(group, _forwards(group, self.dtype or group[0].weight.dtype, kind), strict=True)
        if self.dtype is not None:
            layers |= {module: _wide(module) for module in embeddings}
        self._layers = list(layers.items())
        self._marks = [_mark(module.weight) for module in layers]  # type: ignore[arg-type]


def widens(model: nn.Module, served: Sequence[nn.Module]) -> bool:
    """Whether all between the layers that are `served` may be float32: there is nothing else but norms that multiply in any dtype."""
    kept = set(served)
    return all(
        module in kept or type(module).__name__.endswith("RMSNorm") or next(module.parameters(recurse=False), None) is None
        for module in model.modules()
    )


def _groups(model: nn.Module, found: list[nn.Linear]) -> list[list[nn.Linear]]:
    """The layers, those `TOGETHER` side by side."""
    left = dict.fromkeys(found)
    groups: list[list[nn.Linear]] = []
    for parent in model.modules():
        for names in TOGETHER:
            group = [child for name in names if isinstance(child := getattr(parent, name, None), nn.Linear) and child in left]
            alike = {(layer.in_features, layer.weight.dtype, layer.bias is None) for layer in group}
            if len(group) == len(names) and len(alike) == 1:
                groups.append(group)
                left = {layer: None for layer in left if layer not in group}
    return [*groups, *([layer] for layer in left)]


def _int4(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """x [..., inputs] times a weight [outputs, inputs] in 4 bits."""
    groups = weight.view(len(weight), -1, GROUP)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    scale = ((high - low) / 15.0).clamp(min=1e-12)
    middle = low + 8.0 * scale
    codes = ((groups - low[..., None]) / scale[..., None]).round_().clamp_(0, 15).to(torch.int32)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(codes.view(weight.shape), 1)
    scales = torch.stack([scale, middle], dim=-1).transpose(0, 1).to(torch.bfloat16).contiguous()
    linear, half = torch.ops.aten._weight_int4pack_mm_for_cpu, torch.bfloat16  # quick in this dtype only

    def whole(x: Tensor) -> Tensor:
        out: Tensor = linear(x.reshape(-1, x.shape[-1]).to(half).contiguous(), packed, GROUP, scales).to(dtype)
        return (out if bias is None else out.add_(bias)).view(*x.shape[:-1], -1)

    return whole


def _int8(weight: Tensor, bias: Tensor | None, dtype: torch.dtype) -> Callable[[Tensor], Tensor]:
    """x [..., inputs] times a weight [outputs, inputs] in 8 bits."""
    scale = weight.abs().amax(dim=1).clamp(min=1e-12).double() / 127.0
    held = torch.quantize_per_channel(weight, scale, torch.zeros(len(scale), dtype=torch.long), 0, torch.qint8)
    packed: Any = torch.ops.quantized.linear_prepack(held, bias)
    # Without VNNI instructions sums of 8-bit products overflow 16 bits; 7-bit activations do not.
    narrow = not torch.cpu._is_vnni_supported()
    linear = torch.ops.quantized.linear_dynamic

    def whole(x: Tensor) -> Tensor:
        out: Tensor = linear(x.float().contiguous(), packed, narrow).to(dtype)
        return out

    return whole


def _forwards(group: Sequence[nn.Linear], dtype: torch.dtype, kind: str) -> list[Callable[[Tensor], Tensor]]:
    """A forward for each layer, all of them by one product."""
    weight = torch.cat([layer.weight.detach().float() for layer in group])
    bias = None if group[0].bias is None else torch.cat([layer.bias.detach().float() for layer in group])
    fits = len(weight) % TILE == 0 and weight.shape[1] % GROUP == 0
    whole = _int8(weight, bias, dtype)
    if kind == "int4" and fits:
        whole = by_rows(FEW, _int4(weight, bias, dtype), whole)
    if len(group) == 1:
        return [whole]
    sizes = [layer.out_features for layer in group]
    read: list[Tensor] = []  # the tensor that was multiplied last
    parts: list[Tensor] = []

    def part(i: int) -> Callable[[Tensor], Tensor]:
        def forward(x: Tensor) -> Tensor:
            if i == 0 or not read or read[0] is not x:
                read[:], parts[:] = [x], torch.split(whole(x), sizes, dim=-1)
            out = parts[i]
            if i == len(sizes) - 1:
                read.clear()
                parts.clear()
            return out

        return forward

    return [part(i) for i in range(len(sizes))]


def _wide(module: nn.Module) -> Callable[[Tensor], Tensor]:
    plain = module.forward
    return lambda ids: plain(ids).float()
