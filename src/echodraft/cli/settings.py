"""Settings from a file: flag > environment > file > default.

echodraft.toml in the working directory, or the file that ECHODRAFT_CONFIG names. Keys are the long flags; at the top they hold for every
command that has the flag, in a table for that command alone:

    model = "path/to/model"

    [run]
    max-new-tokens = 64
    option = ["longest=4"]
"""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from echodraft.cli.table import command
from echodraft.errors import UsageError, unknown_name

FILE = "echodraft.toml"
VARIABLE = "ECHODRAFT_CONFIG"


def config_file() -> Path | None:
    """The settings file in force, or None. Raises `UsageError` where ECHODRAFT_CONFIG names none."""
    named = os.environ.get(VARIABLE)
    path = Path(named).expanduser() if named else Path(FILE)
    if path.is_file():
        return path
    if named:
        raise UsageError(f"{VARIABLE} names '{named}', and there is no such file. Correct it or unset it.")
    return None


def default_map(commands: Sequence[str]) -> dict[str, Any]:
    """The file's values by command and parameter. Raises `UsageError` for a file that is no TOML and for keys that mean nothing."""
    path = config_file()
    if path is None:
        return {}
    try:
        held = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} is not valid TOML: {error}") from error
    flags = {name: _flags(command(name)) for name in commands}
    tables = {key: value for key, value in held.items() if isinstance(value, Mapping)}
    shared = {_key(key): value for key, value in held.items() if key not in tables}
    known = {key for own in flags.values() for key in own}
    for key in shared:
        if key not in known:
            raise unknown_name(f"setting in {path}", key, {*known, *flags})
    out: dict[str, Any] = {}
    for name, table in tables.items():
        if name not in flags:
            raise unknown_name(f"table in {path}", name, flags)
        for key in table:
            if _key(key) not in flags[name]:
                raise unknown_name(f"setting in [{name}] of {path}", key, flags[name])
    for name, own in flags.items():
        values = {key: value for key, value in shared.items() if key in own}
        values |= {_key(key): value for key, value in tables.get(name, {}).items()}
        out[name] = _spread(command(name), {own[key]: _text(value) for key, value in values.items()})
    return out


def origin(error: Any) -> str:
    """Where the value came from that the command line refuses, unless it was typed."""
    context, parameter = getattr(error, "ctx", None), getattr(error, "param", None)
    if context is None or parameter is None:
        return ""
    source = getattr(context.get_parameter_source(parameter.name), "name", "")
    if source == "ENVIRONMENT":
        return f" (from {context.auto_envvar_prefix}_{parameter.name.upper()})"
    return f" (from {config_file()})" if source == "DEFAULT_MAP" else ""


def _key(name: str) -> str:
    return name.replace("_", "-")


def _flags(found: Any) -> dict[str, str]:
    """Long flags of a command and of those under it, without dashes, with their parameter names."""
    own = {flag[2:]: p.name for p in found.params for flag in p.opts if flag.startswith("--") and flag != "--help"}
    for child in getattr(found, "commands", {}).values():
        own |= _flags(child)
    return own


def _text(value: Any) -> Any:
    """As it would be typed: values are checked where flags are."""
    if isinstance(value, list):
        return [_text(part) for part in value]
    return value if isinstance(value, bool) else str(value)


def _spread(found: Any, values: dict[str, Any]) -> dict[str, Any]:
    children = getattr(found, "commands", {})
    return {**values, **{name: _spread(child, values) for name, child in children.items()}}
