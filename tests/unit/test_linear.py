"""Packed linear layers: the same values up to rounding, in place only during a forward of ours."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from echodraft.backends import transformers_linear
from echodraft.backends.transformers_linear import PackedLinears, available, pack, suitable

pytestmark = pytest.mark.skipif(not available(), reason="this PyTorch has no packed kernels")


def net(dtype: torch.dtype, bias: bool = True) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(256, 512, bias=bias), nn.Linear(512, 256, bias=bias), nn.Linear(256, 8)).to(dtype)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(1, 256), (1, 1, 256), (7, 256), (2, 3, 256), (300, 256)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_packed_values_are_as_near_to_the_exact_ones_as_the_layers_own(dtype: torch.dtype, shape: tuple[int, ...], bias: bool) -> None:
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
