"""The embedded default model."""

from __future__ import annotations

from pathlib import Path

from echodraft.errors import UsageError
from echodraft.paths import user_cache

NAME = "smollm2-135m-instruct"


def embedded() -> Path:
    folder = user_cache() / "models" / NAME
    if (folder / "model.safetensors").is_file():
        return folder
    raise UsageError("The embedded model is not there yet.")
