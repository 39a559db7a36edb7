"""From a folder, a GGUF file or a hub name to a model and its tokenizer; whatever goes wrong is said in words."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from huggingface_hub.utils import enable_progress_bars
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging

from echodraft import hub
from echodraft.backends.transformers_linear import available
from echodraft.backends.transformers_sampling import TorchSampler
from echodraft.core.sampling import Processor, Rule
from echodraft.errors import EchodraftError, Unsupported, UsageError

hf_logging: Any = logging  # its functions have no types
DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
    "fp32": torch.float32,
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
}
ENDS = ("<|im_end|>", "<|endoftext|>", "<|eot_id|>", "<|end_of_text|>", "<|end|>", "<end_of_turn>", "<|eom_id|>", "</s>")
"""A GGUF file names one end token; chat models have more, known by these names."""


def load_model(source: str | Path, dtype: str, device: str, attn: str, trust_remote_code: bool = False) -> Any:
    """The causal language model in `source` (folder, .gguf file or hub name), in eval mode on its device.

    Raises `UsageError` (not there), `Unsupported` (not a causal language model, not this device) or `EchodraftError` (unreadable).
    """
    where, options = locate(source)
    place = torch_device(device)
    if attn in ("sdpa", "eager"):
        options["attn_implementation"] = attn
    else:
        raise Unsupported(f"Attention '{attn}' takes no token trees. Use sdpa or eager.")
    wanted: Any = "auto" if dtype == "auto" else torch_dtype(dtype)
    if dtype == "auto" and "gguf_file" in options:
        wanted = torch.bfloat16  # packed weights have no dtype of their own once unpacked
    if place.type != "cpu":
        options["device_map"] = {"": place}
    with quiet(), readable(source):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            where, dtype=wanted, trust_remote_code=trust_remote_code, output_loading_info=True, **options
        )
    model, info = loaded
    missing = sorted(info.get("missing_keys") or ())
    if missing:
        # transformers fills such weights with random numbers and goes on.
        raise EchodraftError(f"Model '{source}' lacks {len(missing)} of its weights, such as {missing[0]}. Download it again.")
    return model.eval()


def load_tokenizer(source: str | Path, trust_remote_code: bool = False) -> Any:
    """The tokenizer in `source`. Raises `UsageError` where there is none."""
    where, options = locate(source)
    try:
        with quiet(), readable(source):
            return AutoTokenizer.from_pretrained(where, trust_remote_code=trust_remote_code, **options)
    except Unsupported:
        raise
    except EchodraftError as error:
        raise UsageError(f"'{source}' has no tokenizer that can be read. Name one with --tokenizer (tokenizer= in Python).") from error


def eos_ids(model: Any, tokenizer: Any, gguf: bool) -> set[int]:
    """All ids that end an output: of the generation config or else the config, and by name where the file came without one."""
    config = getattr(model, "generation_config", None)
    found = getattr(config, "eos_token_id", None)
    if found is None:
        found = getattr(model.config.get_text_config(decoder=True), "eos_token_id", None)
    ids = set() if found is None else set(found) if isinstance(found, list | tuple) else {int(found)}
    if gguf and tokenizer is not None:
        vocabulary = tokenizer.get_vocab()
        ids |= {vocabulary[name] for name in ENDS if name in vocabulary}
    return ids


def locate(source: str | Path) -> tuple[str, dict[str, Any]]:
    """What `from_pretrained` takes for `source`: (folder or hub name, options). Raises `UsageError` for a path that leads nowhere."""
    text = os.path.expanduser(str(source))
    path = Path(text)
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            raise UsageError(f"There is no file '{source}'. Give the path of a .gguf file.")
        with path.open("rb") as file:
            if file.read(4) != b"GGUF":
                raise EchodraftError(f"'{source}' is not a GGUF file: it begins otherwise. Download it again.")
        return str(path.parent), {"gguf_file": path.name}
    if path.is_file():
        raise UsageError(f"'{source}' is a file. A model is a folder, a .gguf file or a name on the Hugging Face hub.")
    if path.is_dir():
        if not (path / "config.json").is_file() and not (path / "adapter_config.json").is_file():
            raise UsageError(f"'{source}' is not a model folder: it has no config.json. Give the folder that holds one.")
        return text, {}
    if isinstance(source, Path) or text.startswith((os.sep, ".")) or text.count("/") > 1 or "\\" in text or not text:
        raise UsageError(f"There is no model folder '{source}'. Give a folder, a .gguf file or a name on the Hugging Face hub.")
    if hub.answers(text):
        return text, {}
    if hub.cached(text):
        return text, {"local_files_only": True}
    why = "the Hugging Face hub has no such model for you" if hub.answers(text) is False else "the Hugging Face hub does not answer"
    if hub.offline():
        why = "HF_HUB_OFFLINE keeps from asking the Hugging Face hub"
    raise UsageError(f"There is no folder '{source}' here, and {why}. Give a model folder, a .gguf file or a name on the hub.")


@contextmanager
def readable(source: str | Path) -> Iterator[None]:
    """Whatever transformers raises while it reads `source`, in one sentence."""
    try:
        yield
    except EchodraftError:
        raise
    except Exception as error:  # a broken folder can raise anything
        reason = " ".join(str(error).split()) or type(error).__name__
        short = reason if len(reason) < 300 else reason[:300] + "…"
        if "Unrecognized configuration class" in reason:
            kind = type(_config_of(source)).__name__.removesuffix("Config") or "This model"
            raise Unsupported(f"'{source}' is no causal language model ({kind}). Use one that AutoModelForCausalLM loads.") from error
        if "trust_remote_code" in reason:
            raise Unsupported(f"'{source}' brings its own Python code. If you trust it, add --trust-remote-code.") from error
        if isinstance(error, ImportError):
            raise Unsupported(f"'{source}' needs a package that is not installed: {short}") from error
        if not Path(source).expanduser().exists():
            raise UsageError(f"There is no folder '{source}' here, and the Hugging Face hub did not give it: {short}") from error
        raise EchodraftError(
            f"Model '{source}' cannot be read; it may be damaged, so download it again. {type(error).__name__}: {short}"
        ) from error


def _config_of(source: str | Path) -> Any:
    try:
        return AutoConfig.from_pretrained(locate(source)[0])
    except Exception:
        return None


@contextmanager
def quiet() -> Iterator[None]:
    """No bar for weights that lie here already; downloads show theirs, and transformers its advice, only where someone watches."""
    watched = sys.stderr.isatty()
    level, bars = hf_logging.get_verbosity(), hf_logging.is_progress_bar_enabled()
    hf_logging.disable_progress_bar()  # the hub's bars as well
    if watched and bars:
        enable_progress_bars()
    if not watched:
        hf_logging.set_verbosity_error()
    try:
        yield
    finally:
        hf_logging.set_verbosity(level)
        if bars:
            hf_logging.enable_progress_bar()


def torch_dtype(name: str) -> torch.dtype:
    """A floating dtype by name. Raises `UsageError`."""
    found = DTYPES.get(name.removeprefix("torch."))
    if found is None:
        raise UsageError(f"Unknown dtype '{name}'. Known: auto, {', '.join(list(DTYPES)[:3])}.")
    return found


def torch_device(name: str) -> torch.device:
    """A device by name; "auto" is a CUDA device where there is one. Raises `UsageError` or `Unsupported`."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise UsageError(f"Unknown device '{name}'. Known: auto, cpu, cuda, cuda:0, …") from error
    if device.type == "cuda" and not (torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()):
        raise Unsupported(f"There is no device '{name}': this PyTorch sees {torch.cuda.device_count()} CUDA devices. Use --device cpu.")
    return device


def torch_sampler(rule: Rule, processors: tuple[Processor, ...], device: Any) -> TorchSampler:
    """A sampler that draws as `model.generate` does after `torch.manual_seed(rule.seed)`."""
    return TorchSampler(rule, processors, torch.Generator(device).manual_seed(rule.seed))


def hardware() -> dict[str, Any]:
    """Devices, threads, kernels, as plain values for `echodraft doctor`."""
    packed = available()
    return {
        "threads": torch.get_num_threads(),
        "devices": ["cpu", *(f"cuda:{i} ({torch.cuda.get_device_name(i)})" for i in range(torch.cuda.device_count()))],
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "bfloat16_instructions": bool(packed and torch.ops.mkldnn._is_mkldnn_bf16_supported()),
        "packed_kernels": packed,
        "attention": ["sdpa", "eager"],
    }


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Unpack a GGUF file and save model and tokenizer under `folder` in bfloat16, as an ordinary model folder."""
    options = {"gguf_file": gguf.name}
    with quiet():
        model: Any = AutoModelForCausalLM.from_pretrained(str(gguf.parent), dtype=torch.float32, **options)
        tokenizer: Any = AutoTokenizer.from_pretrained(str(gguf.parent), **options)
        # The weights are plain tensors now; say so, or they cannot be saved.
        model.hf_quantizer, model.is_quantized = None, False
        if hasattr(model.config, "quantization_config"):
            del model.config.quantization_config
        model.config.dtype = torch.bfloat16
        model.to(torch.bfloat16).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
