"""What a budget policy has learned, as plain JSON: a benchmark that is resumed must count what an uninterrupted one counts."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any

PLAIN = (bool, int, float, str)


def state(policy: Any) -> dict[str, Any]:
    """The numbers, and the tables of numbers, that a dataclass and the dataclasses in it change while they run."""
    out: dict[str, Any] = {}
    for field in fields(policy):
        value = getattr(policy, field.name)
        if isinstance(value, PLAIN):
            out[field.name] = value
        elif isinstance(value, dict):
            out[field.name] = [[list(key) if isinstance(key, tuple) else key, entry] for key, entry in value.items()]
        elif _changes(value):
            out[field.name] = state(value)
    return out


def restore(policy: Any, saved: dict[str, Any]) -> None:
    """Put back what `state` told; unknown names are left alone."""
    for field in fields(policy):
        if field.name not in saved:
            continue
        value, told = getattr(policy, field.name), saved[field.name]
        if isinstance(value, dict):
            value.clear()
            value.update((tuple(key) if isinstance(key, list) else key, entry) for key, entry in told)
        elif _changes(value):
            restore(value, told)
        else:
            setattr(policy, field.name, told)


def _changes(value: Any) -> bool:
    return is_dataclass(value) and not isinstance(value, type) and not type(value).__dataclass_params__.frozen  # type: ignore[attr-defined]
