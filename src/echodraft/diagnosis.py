"""What is installed here and what works: the content of `echodraft doctor`."""

from __future__ import annotations

import os
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from echodraft import hugepages
from echodraft.drafters import DRAFTERS
from echodraft.models import TITLE, find
from echodraft.paths import user_cache

PACKAGES = ("echodraft", "torch", "transformers", "numpy", "safetensors", "accelerate", "gguf", "typer", "peft")


def diagnosis() -> dict[str, Any]:
    """Plain values, ready for JSON. Imports torch."""
    embedded = find()
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "packages": {name: _version(name) for name in PACKAGES},
        **_torch(),
        "drafters": sorted(DRAFTERS),
        "embedded_model": {"title": TITLE, "path": None if embedded is None else str(embedded)},
        "cache": str(user_cache()),
    }


def lines(found: dict[str, Any], indent: str = "") -> str:
    """`diagnosis` for a reader."""
    out = []
    width = max(len(name) for name in found) + 2
    for name, value in found.items():
        title = name.replace("_", " ")
        if isinstance(value, dict):
            out += [f"{indent}{title}", lines(value, indent + "  ")]
        else:
            shown = ", ".join(map(str, value)) or "none" if isinstance(value, list) else _shown(value)
            out.append(f"{indent}{title:<{width}}{shown}")
    return "\n".join(out)


def _shown(value: Any) -> str:
    return {None: "-", True: "yes", False: "no"}.get(value, str(value)) if isinstance(value, bool | None) else str(value)


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _torch() -> dict[str, Any]:
    try:
        from echodraft.backends.transformers_load import hardware
    except Exception as error:  # whatever keeps torch from loading is the diagnosis
        return {"torch_error": f"{type(error).__name__}: {error}"}
    return {
        "cpu_cores": os.cpu_count(),
        "huge_pages": hugepages.state(),
        "omp_num_threads": os.environ.get("OMP_NUM_THREADS"),
        **hardware(),
    }
