"""Pages: one file each, nothing fetched, works offline. Every text is escaped, and scripts run only by their hash."""

from __future__ import annotations

import base64
import hashlib
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from echodraft.errors import UsageError

TEMPLATES = Path(__file__).parent / "templates"
HUES = 6
"""Colours of base.html, safe for the colour-blind (Okabe and Ito); a border style each, since not everyone sees hues."""


def render(template: str, script: str = "", **values: Any) -> str:
    """The page of `template`, with the script of that file name. Only that script may run: whatever a text smuggles in does nothing."""
    code = (TEMPLATES / script).read_text(encoding="utf-8") if script else ""
    digest = base64.b64encode(hashlib.sha256(code.encode()).digest()).decode()
    allowed = f"'sha256-{digest}'" if script else "'none'"
    return _environment().get_template(template).render(script=Markup(code), allowed=allowed, **values)


def write(path: Path, page: str) -> None:
    """Write a page. Raises `UsageError` where that cannot be done."""
    try:
        path.write_text(page, encoding="utf-8", errors="replace")
    except OSError as error:
        raise UsageError(f"The page cannot be written to '{path}': {error.strerror}. Name another file.") from error


def marks(groups: Iterable[Iterable[str]]) -> dict[str, int]:
    """A colour number for each name, one for all groups; names that stand in one group differ as far as the colours go."""
    out: dict[str, int] = {}
    for group in groups:
        names = list(dict.fromkeys(group))
        for name in names:
            if name not in out:
                near = Counter(out[other] for other in names if other in out)
                out[name] = min(range(HUES), key=lambda hue: near[hue])
    return out


def _environment() -> Environment:
    made = Environment(
        loader=PackageLoader("echodraft.render"), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters |= {"figure": figure, "percent": percent, "breakable": breakable}
    return made


def breakable(name: str) -> Markup:
    """The name of a method, which may be broken between its knobs."""
    return Markup(":<wbr>").join(name.split(":"))


def figure(value: float | None, digits: int = 2) -> str:
    """A number, or a dash where there is none."""
    return "–" if value is None else f"{value:,.{digits}f}"


def percent(value: float | None, digits: int = 0) -> str:
    """A share as a percentage, or a dash where there is none."""
    return "–" if value is None else f"{100 * value:.{digits}f}%"
