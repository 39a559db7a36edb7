"""Packed linear layers: the same values up to rounding, in place only during a forward of ours."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from echodraft.backends import transformers_linear
from echodraft.backends.transformers_linear import (
    FEW,
    SHARE,
    PackedLinears,
    _scaled,
    available,
    half_available,
    native_bfloat16,
    pack,
    suitable,
)

pytestmark = pytest.mark.skipif(not available(), reason="this PyTorch has no packed kernels")


def net(dtype: torch.dtype, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512, bias=bias), nn.Linear(512, 256, bias=bias), nn.Linear(256, 8)).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 256), (1, 1, 256), (7, 256), (2, 3, 256), (300, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("halves", [True, False])
def test_packed_values_are_as_near_to_the_exact_ones_as_the_layers_own(
    dtype: torch.dtype, shape: tuple[int, ...], bias: bool, halves: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not halves:
        monkeypatch.setattr(transformers_linear, "half_available", lambda: False)
    model = net(dtype, bias)
    layer, x = model[0], torch.randn(shape).to(dtype)
    exact = nn.functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    packed = pack(model)
    assert packed is not None
    with torch.inference_mode():
        own = (layer(x).double() - exact).abs().max()
        with packed.active():
            found = layer(x)
    assert found.dtype == dtype
    assert found.shape == (*shape[:-1], 512)
    assert (found.double() - exact).abs().max() <= max(2 * own, 8 * torch.finfo(dtype).eps * exact.abs().max())


@pytest.mark.skipif(not (available() and native_bfloat16() and half_available()), reason="needs bfloat16 instructions and FBGEMM")
def test_few_rows_and_many_rows_go_through_different_copies_of_a_large_native_layer(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_linear, "SMALL", 0)
    model = net(torch.bfloat16)
    layer, used = model[0], []

    def told(name: str, forward: Any, x: torch.Tensor) -> Any:
        used.append((name, len(x)))
        return forward(x)

    for name in ("_fbgemm", "_onednn"):
        made = getattr(transformers_linear, name)
        monkeypatch.setattr(transformers_linear, name, lambda *given, made=made, name=name: partial(told, name, made(*given)))
    packed = pack(model)
    assert packed is not None
    x = torch.randn(FEW + 1, 256).bfloat16()
    with torch.inference_mode(), packed.active():
        found = [layer(x[:FEW]), layer(x)]
    assert used == [("_fbgemm", FEW), ("_onednn", FEW + 1)]
    torch.testing.assert_close(found[0], found[1][:FEW], rtol=0.02, atol=0.02)


def test_where_memory_is_short_a_native_layer_has_one_copy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transformers_linear, "SMALL", 0)
    monkeypatch.setattr(transformers_linear, "native_bfloat16", lambda: True)
    model, given = net(torch.bfloat16), []
    monkeypatch.setattr(transformers_linear, "PackedLinears", lambda _, twice: given.append(twice))
    need = 2 * sum(layer.weight.numel() for layer in suitable(model))
    for free, twice in ((1e12, True), (1.5 * need, False)):
        monkeypatch.setattr(transformers_linear, "free_memory", lambda free=free: free / SHARE)
        pack(model)
        assert given.pop() is (twice and transformers_linear.half_available()) or not half_available()


@pytest.mark.parametrize("magnitude", [1e-30, 1e-6, 1.0, 1e5, 1e30])
def test_weights_of_any_magnitude_are_exact_in_float16_times_a_power_of_two(magnitude: float) -> None:
    torch.manual_seed(0)
    weight = (torch.randn(64, 32) * magnitude).bfloat16()
    found = _scaled(weight)
    assert found is not None
    wide, scale = found
    held, _ = torch.ops.quantized.linear_unpack_fp16(torch.ops.quantized.linear_prepack_fp16(wide, None))
    assert torch.equal(held.double() / scale, weight.double())


@pytest.mark.parametrize("odd", [2.0**-44, float("inf"), float("nan")])
def test_a_layer_that_float16_cannot_hold_exactly_is_packed_another_way(odd: float) -> None:
    model = net(torch.bfloat16)
    with torch.no_grad():
        model[0].weight[3, 5] = odd
    weight = model[0].weight.detach()
    assert _scaled(weight) is None
    packed, x = pack(model), torch.randn(7, 256).bfloat16()
    assert packed is not None
    with torch.inference_mode(), packed.active():
        found = model[0](x)
    others = torch.arange(512) != 3
    torch.testing.assert_close(
        found[:, others].float(), nn.functional.linear(x.float(), weight.float(), model[0].bias.float())[:, others], rtol=0.02, atol=0.02
    )


def test_outside_of_a_forward_the_model_is_as_it_was() -> None:
    model = net(torch.float32)
    packed = pack(model)
    assert packed is not None
    with packed.active(), packed.active():
        assert all("forward" in vars(layer) for layer in suitable_before(model))
    assert all("forward" not in vars(layer) for layer in model)
    with pytest.raises(ZeroDivisionError), packed.active():
        raise ZeroDivisionError
    assert all("forward" not in vars(layer) for layer in model)


def suitable_before(model: nn.Sequential) -> list[nn.Module]:
    return [model[0], model[1]]


def test_only_plain_layers_of_some_size_are_packed() -> None:
    class Own(nn.Linear):
        pass

    hooked = nn.Linear(256, 512)
    hooked.forward = hooked.forward  # type: ignore[method-assign]
    model = nn.Sequential(Own(256, 512), hooked, nn.Linear(8, 8), nn.Linear(256, 512).double(), nn.Linear(256, 512))
    assert suitable(model) == [model[4]]


def test_where_memory_would_get_short_nothing_is_packed_and_the_user_is_told(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(transformers_linear, "free_memory", lambda: 1e6)
    with caplog.at_level("WARNING", logger="echodraft"):
        assert pack(net(torch.float32)) is None
    assert "not prepacked" in caplog.text


def test_free_memory_is_a_plausible_number() -> None:
    assert 1e6 < transformers_linear.free_memory() < 1e15


def test_gradients_and_packed_weights_do_not_meet() -> None:
    model = net(torch.float32)
    assert isinstance(pack(model), PackedLinears)
    model(torch.randn(2, 256)).sum().backward()
    assert model[0].weight.grad is not None
