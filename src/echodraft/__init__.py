"""echodraft: any Hugging Face causal language model generates several times faster, with the same output and no training.

import echodraft

decoder = echodraft.load("path/or/name")
print(decoder.generate("def fibonacci(n):", max_new_tokens=64).text)
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["Decoder", "Drafter", "EchodraftError", "Memory", "Result", "custom_generate", "generate", "load"]

if TYPE_CHECKING:
    from echodraft.build import load
    from echodraft.core.drafter import Drafter
    from echodraft.decoder import Decoder, Result
    from echodraft.errors import EchodraftError
    from echodraft.integrations.hf_generate import custom_generate, generate
    from echodraft.memory import Memory

_HOME = {
    "Decoder": "echodraft.decoder",
    "Drafter": "echodraft.core.drafter",
    "EchodraftError": "echodraft.errors",
    "Memory": "echodraft.memory",
    "Result": "echodraft.decoder",
    "custom_generate": "echodraft.integrations.hf_generate",
    "generate": "echodraft.integrations.hf_generate",
    "load": "echodraft.build",
}


def __getattr__(name: str) -> Any:
    """Public names load on first use, so that `import echodraft` brings no torch."""
    if name in _HOME:
        from importlib import import_module

        return getattr(import_module(_HOME[name]), name)
    raise AttributeError(f"module 'echodraft' has no attribute '{name}'")
