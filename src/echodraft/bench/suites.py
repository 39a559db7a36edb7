"""Prompts to measure on: one JSON object a line, each with `prompt` (raw text), `messages` (a chat) or `turns` (user turns).

Beside them a line may have `id`, `category`, `stop` (strings) and `max_new_tokens`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from echodraft.bench.public import PUBLIC, public_rows
from echodraft.errors import UsageError
from echodraft.text.tokenizer import Text


@dataclass(frozen=True, slots=True)
class Item:
    """One request.

    ids      of the prompt; empty for a later turn, whose prompt holds answers to earlier ones: see `after`
    stop     strings that end the output
    most     output tokens that its line asks for, None = it does not say
    suite    name of the suite
    turns    what the user says up to and including a later turn
    earlier  ids of the items whose answers come between
    """

    id: str
    category: str
    ids: list[int]
    stop: tuple[str, ...]
    most: int | None = None
    suite: str = ""
    turns: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()

    def after(self, answers: Sequence[str], text: Text) -> Item:
        """A later turn with its prompt, given the texts of the `earlier` answers."""
        messages: list[dict[str, str]] = []
        for said, answer in zip(self.turns, answers, strict=False):
            messages += [{"role": "user", "content": said}, {"role": "assistant", "content": answer}]
        return replace(self, ids=text.encode_chat([*messages, {"role": "user", "content": self.turns[-1]}]))


def find_suite(name: str, data: Path | None = None) -> Path | None:
    """The file that `name` means: a path, or a name of a file in the folder `data` ("tau-bench" is tau_bench.jsonl too).

    None for the name of a public data set of which there is no file. Raises `UsageError` for anything else.
    """
    if data is not None and not data.is_dir():
        raise UsageError(f"There is no folder of suites '{data}'. Name one with --data or ECHODRAFT_DATA.")
    files = [Path(name)]
    if data is not None:
        files += [data / f"{spelled}.jsonl" for spelled in (name, name.replace("-", "_"), name.replace("_", "-"))]
    found = next((file for file in files if file.is_file()), None)
    if found is None and name.replace("_", "-") not in PUBLIC:
        raise UsageError(
            f"There is no suite '{name}'. Give a file of JSON lines with prompt, messages or turns, the name of a file in --data, "
            f"or one of {', '.join(PUBLIC)}."
        )
    return found


def load_suites(names: str, text: Text, data: Path | None = None, limit: int | None = None, category: str | None = None) -> list[Item]:
    """The first `limit` requests of each of the suites (comma-separated), later turns included. No two have the same id."""
    items: list[Item] = []
    for name in filter(None, (part.strip() for part in names.split(","))):
        file = find_suite(name, data)
        if file is not None:
            items += load_suite(file, text, limit, category, later_turns=True)
        else:
            name = name.replace("_", "-")
            items += _load(enumerate(public_rows(name), 1), name, f"The data set {name}", text, limit, category, later_turns=True)
    return unique(items)


def load_suite(path: Path, text: Text, limit: int | None = None, category: str | None = None, *, later_turns: bool = False) -> list[Item]:
    """The first `limit` requests of a file, of one category if named.

    `turns`: the first turn, and with `later_turns` each turn. `messages` that hold answers are a recorded conversation: each assistant
    message is a request with the messages before it.

    Raises `UsageError` for a file that is not there, a line that is no request, or nothing left.
    """
    if not path.is_file():
        raise UsageError(f"There is no suite '{path}'. Give a file of JSON lines with prompt, messages or turns.")
    lines = enumerate(path.read_text(encoding="utf-8").split("\n"), 1)  # splitlines would also cut at characters inside a string
    return _load(((n, line) for n, line in lines if line.strip()), path.stem, str(path), text, limit, category, later_turns)


def _load(
    lines: Iterable[tuple[int, str | Mapping[str, Any]]],
    suite: str,
    source: str,
    text: Text,
    limit: int | None,
    category: str | None,
    later_turns: bool,
) -> list[Item]:
    items: list[Item] = []
    for number, line in lines:
        if limit is not None and len(items) >= limit:
            break
        try:
            row = json.loads(line) if isinstance(line, str) else line
            if category is None or row.get("category") == category:
                items += _items(row, text, suite, f"{suite}/{number}", later_turns)
        except (ValueError, AttributeError, TypeError) as error:
            raise UsageError(f"Line {number} of {source} is no request: {error}") from error
    if not items:
        of = f" of category '{category}'" if category else ""
        raise UsageError(f"The suite {source} holds no requests{of}.")
    return items[:limit]


def _items(row: Mapping[str, Any], text: Text, suite: str, name: str, later_turns: bool) -> list[Item]:
    """The requests of one line."""
    most = row.get("max_new_tokens")
    if most is not None and (not isinstance(most, int) or most < 1):
        raise ValueError(f"max_new_tokens is {most}, not a number from 1 on")
    stop = row.get("stop") or ()
    first = Item(
        str(row.get("id") or name), str(row.get("category") or ""), [], (stop,) if isinstance(stop, str) else tuple(stop), most, suite
    )
    if "prompt" in row:
        return [replace(first, ids=text.encode(row["prompt"]))]
    if "messages" in row:
        return [replace(first, id=id_, ids=text.encode_chat(messages)) for id_, messages in _requests(first.id, row["messages"])]
    if row.get("turns"):
        turns = tuple(row["turns"])
        items = [replace(first, ids=text.encode_chat([{"role": "user", "content": turns[0]}]))]
        for n in range(2, len(turns) + 1 if later_turns else 2):
            earlier = tuple(item.id for item in items)
            items.append(replace(first, id=f"{first.id}/turn-{n}", turns=turns[:n], earlier=earlier))
        return items
    raise ValueError("it has none of prompt, messages, turns")


def _requests(name: str, messages: Sequence[Mapping[str, Any]]) -> list[tuple[str, Sequence[Mapping[str, Any]]]]:
    """A chat that waits for its answer, or every place of a recorded one where the assistant spoke."""
    spoken = [i for i, message in enumerate(messages) if message.get("role") == "assistant" and i > 0]
    if not spoken:
        return [(name, messages)]
    return [(f"{name}/turn-{n}", messages[:i]) for n, i in enumerate(spoken, 1)]


def unique(items: Sequence[Item]) -> list[Item]:
    """The items; one whose id is taken gets a number behind it, and later turns follow it."""
    taken: set[str] = set()
    out: list[Item] = []
    renamed: dict[str, str] = {}  # of the latest row
    for item in items:
        name, n = item.id, 2
        while name in taken:
            name, n = f"{item.id}#{n}", n + 1
        taken.add(name)
        renamed[item.id] = name
        out.append(replace(item, id=name, earlier=tuple(renamed[id_] for id_ in item.earlier)))
    return out
