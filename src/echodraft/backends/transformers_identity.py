"""Which model and tokenizer a memory belongs to."""

from __future__ import annotations

from hashlib import sha256
from typing import Any

import torch

from echodraft.stores.folder import Identity, vocabulary

SAMPLE = 64
"""Values taken of every weight."""


def identify(model: Any, tokenizer: Any, name: str) -> Identity:
    """Fingerprints of a loaded model and its tokenizer.

    The model's is of its shape and of a few values of every weight, so a fine-tuned copy is another model; its dtype and device are left
    out, since the texts are the same. The tokenizer's is of its vocabulary.
    """
    digest = sha256()
    with torch.inference_mode():
        for key, value in sorted(model.state_dict().items()):
            flat = value.detach().flatten()
            step = max(1, flat.numel() // SAMPLE)
            # bfloat16 is the coarsest of the dtypes that a model is loaded in: all agree once rounded to it.
            sample = flat[::step].to("cpu", torch.bfloat16).float().numpy()
            digest.update(f"{key} {tuple(value.shape)} ".encode() + sample.tobytes())
    return Identity(digest.hexdigest()[:32], vocabulary(tokenizer), name)
