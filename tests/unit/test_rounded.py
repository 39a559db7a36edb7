"""A rounded draft model: float32 between its layers where the model allows it, layers that read one tensor as one, and nothing outside."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from echodraft.backends.transformers import TransformersBackend
from echodraft.backends.transformers_rounded import quantize
from echodraft.core.backend import Request
from echodraft.core.draft import Draft
from models import prompt, tiny

pytestmark = pytest.mark.skipif(torch.backends.quantized.engine not in ("fbgemm", "x86"), reason="no int8 kernels here")


def wide(architecture: str, dtype: torch.dtype = torch.bfloat16) -> Any:
    """A tiny model whose layers are large enough to be served."""
    small = tiny(architecture)
    torch.manual_seed(0)
    sizes = {"hidden_size": 256, "intermediate_size": 512, "head_dim": 64, "num_attention_heads": 4, "num_key_value_heads": 4}
    return type(small)(type(small.config)(**(small.config.to_dict() | sizes | {"vocab_size": 300}))).to(dtype).eval()


def logits(backend: TransformersBackend, ids: Sequence[int], draft: Draft) -> torch.Tensor:
    slot = backend.open()
    (scores,) = backend.score([Request(slot, list(ids), draft)], frozenset())
    backend.commit(slot, [])
    backend.close(slot)
    return scores.logits.float()


def near(one: torch.Tensor, other: torch.Tensor, within: float = 0.05) -> bool:
    return bool((one - other).norm() < within * other.norm())


def test_between_the_layers_it_is_float32_and_what_it_says_is_nearly_what_the_model_says() -> None:
    model = wide("llama")
    plain, served = TransformersBackend(model), TransformersBackend(model, quantize(model))
    draft = Draft.chain(prompt(5, seed=3))
    before = logits(plain, prompt(9), draft)
    rounded = served.score([Request(served.open(), prompt(9), draft)], frozenset())[0]
    assert rounded.logits.dtype == served.dtype == torch.float32
    assert near(rounded.logits, before, 0.25)  # random layers blow up what is rounded
    assert not torch.equal(rounded.logits, before)
    assert torch.equal(logits(plain, prompt(9), draft), before)
    assert all(p.dtype == torch.bfloat16 for p in model.parameters())


@pytest.mark.parametrize("kind", ["int8", "int4"])
@pytest.mark.parametrize("parent", ["self_attn", "mlp"])
def test_layers_that_are_multiplied_as_one_give_what_each_gives_alone(parent: str, kind: str) -> None:
    module = getattr(wide("llama").model.layers[0], parent)
    within = {"int8": 0.05, "int4": 0.12}[kind]
    layers = [layer for name, layer in module.named_children() if name in ("q_proj", "k_proj", "v_proj", "gate_proj", "up_proj")]
    x, y = torch.randn(3, 256), torch.randn(2, 256)
    for order in (layers, layers[::-1]):
        with torch.inference_mode(), quantize(module, kind).active():
            found = [[layer(each).float() for layer in order] for each in (x, y, x)]
        for each, outs in zip((x, y, x), found, strict=True):
            with torch.inference_mode():
                assert all(near(out, layer.float()(each), within) for out, layer in zip(outs, order, strict=True))
        for layer in order:
            layer.to(torch.bfloat16)
    if parent == "mlp":  # each also behind a tensor that the other one did not read
        with torch.inference_mode(), quantize(module, kind).active():
            outs = [layers[0](x).float(), layers[1](y).float()]
            assert near(outs[0], layers[0](x).float(), within)
            assert outs[1].shape == (2, 512)
            assert near(outs[1], layers[1](y).float(), within)


def test_a_model_with_other_parts_keeps_its_own_dtype() -> None:
    model = wide("llama")
    model.model.norm = torch.nn.LayerNorm(256, dtype=torch.bfloat16)  # which takes no float32 beside bfloat16 weights
    served = TransformersBackend(model, quantize(model))
    assert served.dtype == torch.bfloat16
    assert logits(served, prompt(9), Draft.chain(prompt(2))).isfinite().all()


def test_int4_is_for_one_or_two_rows_and_leaves_more_to_int8() -> None:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(512, 256, dtype=torch.bfloat16))
    one, more = torch.randn(1, 512, dtype=torch.bfloat16), torch.randn(3, 512, dtype=torch.bfloat16)

    def said(x: torch.Tensor, kind: str) -> torch.Tensor:
        with torch.inference_mode(), quantize(model, kind).active():
            out: torch.Tensor = model(x)
        return out

    with torch.inference_mode():
        plain = model(one)
    assert said(one, "int4").dtype == plain.dtype
    assert near(said(one, "int4"), plain, 0.12)
    assert not near(said(one, "int4"), plain, 0.02)
    assert near(said(one, "int8"), plain, 0.02)
    assert torch.equal(said(more, "int4"), said(more, "int8"))
    assert not torch.equal(said(more[:2], "int4"), said(more[:2], "int8"))


def test_rows_that_do_not_lie_side_by_side_are_served() -> None:
    model = torch.nn.Sequential(torch.nn.Linear(512, 256, dtype=torch.bfloat16))
    x = torch.randn(2, 3, 512, dtype=torch.bfloat16)
    for kind in ("int8", "int4"):
        with torch.inference_mode(), quantize(model, kind).active():
            assert near(model(x[:, -1:]), model(x[:, -1:].contiguous()), 0.02)


@pytest.mark.parametrize(("inputs", "outputs"), [(512, 200), (400, 256)])
def test_a_layer_of_a_shape_that_int4_does_not_take_is_in_int8(inputs: int, outputs: int) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(inputs, outputs))
    x = torch.randn(1, inputs)
    with torch.inference_mode(), quantize(model, "int4").active():
        rounded = model(x)
    with torch.inference_mode():
        assert near(rounded, model(x), 0.02)
