"""A tiny chat model as a Hugging Face folder, with tokenizers of both families built on the spot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

TEMPLATE = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}\n{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
SAMPLE = "the cat sat on the mat, and the dog sat on the cat. Grüße aus 北京 und 東京! 🤦🏽‍♂️ 🙂"
CONTEXT = 256


def byte_level(template: str | None = TEMPLATE) -> Any:
    """Byte pairs over bytes, as GPT-2 and Qwen have: characters are split over tokens. 300 ids, the last one ends a text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core.train_from_iterator([SAMPLE], trainers.BpeTrainer(vocab_size=299, initial_alphabet=alphabet, show_progress=False))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=core, eos_token="<|end|>", chat_template=template)
    assert len(tokenizer) <= 300
    return tokenizer


def sentencepiece() -> Any:
    """Pieces with leading spaces and a fallback to bytes, as Llama 2 has."""
    from tokenizers import Tokenizer, decoders, models, normalizers
    from transformers import PreTrainedTokenizerFast

    words = ["▁the", "▁cat", "▁sat", "▁on", "▁", *"abcdefghijklmnopqrstuvwxyz.,!"]
    vocab = {"<unk>": 0, "<s>": 1, "</s>": 2}
    for piece in [f"<0x{byte:02X}>" for byte in range(256)] + words:
        vocab[piece] = len(vocab)
    merges = []
    for word in words[:4]:
        made = word[0]
        for letter in word[1:]:
            if made + letter not in vocab:
                vocab[made + letter] = len(vocab)
            merges.append((made, letter))
            made += letter
    core = Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)])
    return PreTrainedTokenizerFast(tokenizer_object=core, unk_token="<unk>", bos_token="<s>", eos_token="</s>")


def save_model(folder: Path, template: str | None = TEMPLATE, spread: float = 0.3) -> Path:
    """A random Llama with the byte-level tokenizer, saved under `folder`. A small `spread` of its weights makes it repeat itself."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    torch.set_num_threads(1)
    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=CONTEXT,
        initializer_range=spread,
        eos_token_id=299,
        bos_token_id=None,
        pad_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    byte_level(template).save_pretrained(folder)
    return folder
