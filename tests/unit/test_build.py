"""From names and options to a decoder."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

import tinychat
from echodraft.build import curve_for, load, make_drafter, redraft
from echodraft.core.budget import CPU_CURVE, Adaptive, CostCurve, Fixed
from echodraft.core.drafter import Drafter
from echodraft.curves import cost_file, save_curve
from echodraft.drafters.prompt_lookup import PromptLookup
from echodraft.errors import EchodraftError, Unsupported, UsageError


@pytest.fixture(autouse=True)
def apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ECHODRAFT_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tinychat.save_model(tmp_path_factory.mktemp("model"))


class Own(Drafter):
    """A drafter of somebody's own."""

    name = "own"


def test_a_drafter_comes_by_name_path_class_or_as_it_is() -> None:
    made = PromptLookup(longest=3)
    assert make_drafter("prompt-lookup", {"longest": 3}).longest == 3  # type: ignore[attr-defined]
    assert isinstance(make_drafter("echodraft.drafters.prompt_lookup:PromptLookup", {}), PromptLookup)
    assert isinstance(make_drafter(Own, {}), Own)
    assert make_drafter(made, {}) is made


@pytest.mark.parametrize(("given", "name"), [({}, "oilbird"), ({"draft_model": "toy"}, "ouroboros"), ({"drafter": "none"}, "none")])
def test_a_draft_model_that_is_named_drafts(given: dict[str, Any], name: str) -> None:
    assert load(backend="toy", **given).engine.drafter.name == name


@pytest.mark.parametrize(
    ("drafter", "options", "words"),
    [
        ("prompt-lokup", {}, "Did you mean 'prompt-lookup'"),
        ("prompt-lookup", {"longst": 3}, "Did you mean 'longest'"),
        ("prompt-lookup", {"longest": "many"}, "of type int"),
        ("prompt-lookup", {"longest": True}, "of type int"),
        ("prompt-lookup", {"latest": 1}, "of type bool"),
        ("none", {"longest": 3}, "has no options"),
        ("nowhere:Thing", {}, "cannot be loaded"),
        ("json:JSONDecoder", {}, "is not a drafter"),
        (PromptLookup(), {"longest": 3}, "takes no options"),
    ],
)
def test_a_wrong_drafter_or_knob_is_refused_in_words(drafter: Any, options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        make_drafter(drafter, options)


@pytest.mark.parametrize("budget", ["much", -1, True])
def test_a_wrong_budget_is_refused(budget: Any) -> None:
    with pytest.raises(UsageError, match="budget"):
        load(backend="toy", budget=budget)


def test_a_budget_of_zero_drafts_nothing_and_a_number_is_fixed() -> None:
    assert load(backend="toy", budget=0).generate("abc abc abc", max_new_tokens=10).stats.drafted == 0
    assert load(backend="toy", budget=5).engine.policy == Fixed(5)
    assert isinstance(load(backend="toy").engine.policy, Adaptive)


def test_an_unknown_backend_names_the_nearest() -> None:
    with pytest.raises(UsageError, match="Did you mean 'transformers'"):
        load(backend="transformer")


def test_the_toy_backend_says_that_it_loads_no_model(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, "echodraft"):
        load("some/model", backend="toy")
    assert "'some/model' is not loaded" in caplog.text


def test_a_folder_a_loaded_model_and_another_drafter_answer_alike(folder: Path) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    decoder = load(folder)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    expected = decoder.generate("the cat sat on the cat", max_new_tokens=20)
    given = load(model, tokenizer=AutoTokenizer.from_pretrained(folder))
    assert given.generate("the cat sat on the cat", max_new_tokens=20).ids == expected.ids
    assert load(model, tokenizer=folder).generate("the cat", max_new_tokens=3).text
    plain = redraft(decoder, "none")
    assert plain.engine.backend is decoder.engine.backend
    assert plain.generate("the cat sat on the cat", max_new_tokens=20).ids == expected.ids
    assert decoder.text.eos == {299}
    assert expected.text in decoder.text.decode(expected.ids)


def test_a_loaded_model_is_taken_as_it_is(folder: Path) -> None:
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    with pytest.raises(UsageError, match="as it is"):
        load(model, dtype="bfloat16")
    with pytest.raises(UsageError, match="no tokenizer"):
        load(model).generate("the cat")
    with pytest.raises(Unsupported, match="training"):
        load(model.train())


def test_the_dtype_is_the_models_own_or_the_one_asked_for(folder: Path) -> None:
    import torch

    assert load(folder).engine.backend.model.dtype == torch.float32  # type: ignore[attr-defined]
    assert load(folder, dtype="bfloat16").engine.backend.model.dtype == torch.bfloat16  # type: ignore[attr-defined]


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")  # peft asks transformers by an old name
def test_adapters_in_the_layers_work_and_learned_prompts_are_refused(folder: Path) -> None:
    import torch
    from peft import LoraConfig, PromptTuningConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    def base() -> Any:
        return AutoModelForCausalLM.from_pretrained(folder).eval()

    torch.manual_seed(1)
    tuned = get_peft_model(base(), LoraConfig(task_type="CAUSAL_LM", target_modules=["q_proj", "v_proj"], init_lora_weights=False)).eval()
    ids = list(range(10, 20))
    expected = tuned.generate(input_ids=torch.tensor([ids]), attention_mask=torch.ones(1, 10), max_new_tokens=12, do_sample=False)
    found = load(tuned, tokenizer=folder).generate(ids, max_new_tokens=12).ids
    assert found == expected[0, 10:].tolist()
    assert found != load(base(), tokenizer=folder).generate(ids, max_new_tokens=12).ids
    with pytest.raises(Unsupported, match="learned prompts"):
        load(get_peft_model(base(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)).eval(), tokenizer=folder)


def test_a_measured_cost_curve_is_used_and_a_broken_one_is_not(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    decoder = load(folder)
    assert curve_for(decoder.name, decoder.engine.backend) == CPU_CURVE
    path = cost_file(folder, "float32", "cpu")
    save_curve(CostCurve((1, 2), ((1.0, 9.0),), name="measured"), path)
    assert curve_for(decoder.name, decoder.engine.backend).name == "measured"
    path.write_text("{")
    with caplog.at_level(logging.WARNING, "echodraft"):
        assert curve_for(decoder.name, decoder.engine.backend) == CPU_CURVE
    assert "echodraft cost" in caplog.text


def spoiled(folder: Path, target: Path, change: str) -> Path:
    """A copy of the model with something wrong."""
    import shutil

    from safetensors.torch import load_file, save_file

    shutil.copytree(folder, target)
    weights = target / "model.safetensors"
    if change == "no config":
        (target / "config.json").unlink()
    elif change == "config":
        (target / "config.json").write_text("{")
    elif change == "no weights":
        weights.unlink()
    elif change == "cut weights":
        weights.write_bytes(weights.read_bytes()[:2000])
    elif change == "a weight less":
        held = load_file(weights)
        del held["model.layers.1.mlp.up_proj.weight"]
        save_file(held, weights, {"format": "pt"})
    elif change == "encoder":
        (target / "config.json").write_text('{"model_type": "t5"}')
    elif change == "no tokenizer":
        (target / "tokenizer.json").unlink()
        (target / "tokenizer_config.json").unlink()
    return target


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        ("no config", UsageError, "no config.json"),
        ("config", EchodraftError, "damaged"),
        ("no weights", EchodraftError, "damaged"),
        ("cut weights", EchodraftError, "damaged"),
        ("a weight less", EchodraftError, r"lacks 1 of its weights, such as model.layers.1.mlp.up_proj"),
        ("encoder", Unsupported, "no causal language model"),
        ("no tokenizer", UsageError, "no tokenizer"),
    ],
)
def test_a_model_folder_that_is_broken_is_an_error_in_words(
    folder: Path, tmp_path: Path, change: str, kind: type[EchodraftError], words: str
) -> None:
    with pytest.raises(kind, match=words) as caught:
        load(spoiled(folder, tmp_path / "spoiled", change))
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("arguments", "kind", "words"),
    [
        ({"model": "./nowhere"}, UsageError, "no model folder"),
        ({"model": Path("nowhere")}, UsageError, "no model folder"),
        ({"model": "nobody/nothing"}, UsageError, "HF_HUB_OFFLINE"),
        ({"model": "nowhere.gguf"}, UsageError, "no file"),
        ({"model": __file__}, UsageError, "is a file"),
        ({"dtype": "int4"}, UsageError, "Unknown dtype"),
        ({"device": "gpu"}, UsageError, "Unknown device"),
        ({"device": "cuda:77"}, Unsupported, "no device"),
        ({"attn": "flash_attention_2"}, Unsupported, "sdpa or eager"),
        ({"tokenizer": "./nowhere"}, UsageError, "no model folder"),
    ],
)
def test_what_cannot_be_loaded_is_an_error_in_words(folder: Path, arguments: dict[str, Any], kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        load(**{"model": folder, **arguments})


def test_a_file_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_bytes(b"nothing")
    with pytest.raises(EchodraftError, match="not a GGUF"):
        load(tmp_path / "x.gguf")


def test_a_memory_folder_serves_every_dtype_of_a_model_and_no_other_model(folder: Path, tmp_path: Path) -> None:
    steps, ids = [], []
    for dtype in ("float32", "bfloat16", "float32"):
        decoder = load(folder, drafter="suffix", memory=tmp_path / "memory", dtype=dtype, budget=8)
        result = decoder.generate([1, 2, 3], max_new_tokens=24, eos=(), tenant="alice")
        assert decoder.memory is not None
        decoder.memory.close()
        steps.append(result.stats.steps)
        ids.append(result.ids)
    assert ids[2] == ids[0]
    assert steps[2] < steps[0]
    with pytest.raises(UsageError, match="belongs to another model"):
        load(tinychat.save_model(tmp_path / "other", spread=0.02), drafter="suffix", memory=tmp_path / "memory")
