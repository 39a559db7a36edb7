"""What `echodraft ls` knows of drafters: their names, needs and docstrings."""

from __future__ import annotations

import inspect
from typing import Any

from echodraft.build import knobs_of, takes
from echodraft.drafters import DEFAULT, DRAFTERS, drafter_class


def known_drafters() -> list[dict[str, Any]]:
    """Every drafter as plain values: name, needs, options with their defaults, about."""
    out = []
    for name in DRAFTERS:
        kind = drafter_class(name)
        out.append(
            {
                "name": name,
                "default": name == DEFAULT,
                "needs": sorted(need.value for need in kind.needs),
                "options": {p.name: _plain(p.default) for p in knobs_of(kind).values()},
                "remembers": takes(kind, "memory"),
                "about": (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " "),
            }
        )
    return out


def drafters_table(found: list[dict[str, Any]]) -> str:
    """`known_drafters` as lines."""
    lines = []
    for drafter in found:
        lines.append(drafter["name"] + (" (default)" if drafter["default"] else ""))
        lines.append(f"    {drafter['about']}")
        lines.append(f"    needs    {', '.join(drafter['needs']) or 'tokens only'}")
        if drafter["remembers"]:
            lines.append("    remembers from one request to the next, by tenant (--memory)")
        lines.append(f"    options  {', '.join(f'{key}={value}' for key, value in drafter['options'].items()) or 'none'}")
    return "\n".join(lines)


def _plain(value: Any) -> Any:
    if value is inspect.Parameter.empty:
        return None
    return value if isinstance(value, bool | int | float | str | None) else str(value)
