"""Prompts to measure on: one JSON object a line, each with `prompt` (raw text), `messages` (a chat) or `turns` (user turns)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from echodraft.errors import UsageError
from echodraft.text.tokenizer import Text


@dataclass(frozen=True, slots=True)
class Item:
    """One request: prompt `ids`, and the `stop` strings of its suite."""

    id: str
    category: str
    ids: list[int]
    stop: tuple[str, ...]


def load_suite(path: Path, text: Text, limit: int | None = None, category: str | None = None) -> list[Item]:
    """The first `limit` requests of a file, of one category if named. Of a conversation given as `turns`, the first turn.

    Raises `UsageError` for a file that is not there, a line that is no request, or nothing left.
    """
    if not path.is_file():
        raise UsageError(f"There is no suite '{path}'. Give a file of JSON lines with prompt, messages or turns.")
    items: list[Item] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
        if limit is not None and len(items) == limit:
            break
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if category is None or row.get("category") == category:
                items.append(_item(row, text, f"{path.stem}/{number}"))
        except (ValueError, AttributeError, TypeError) as error:
            raise UsageError(f"Line {number} of {path} is no request: {error}") from error
    if not items:
        of = f" of category '{category}'" if category else ""
        raise UsageError(f"The suite {path} holds no requests{of}.")
    return items


def _item(row: Mapping[str, Any], text: Text, name: str) -> Item:
    if "prompt" in row:
        ids = text.encode(row["prompt"])
    elif "messages" in row:
        ids = text.encode_chat(row["messages"])
    elif row.get("turns"):
        ids = text.encode_chat([{"role": "user", "content": row["turns"][0]}])
    else:
        raise ValueError("it has none of prompt, messages, turns")
    return Item(str(row.get("id", name)), str(row.get("category", "")), ids, tuple(row.get("stop") or ()))
