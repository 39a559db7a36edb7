"""Texts from files and folders, for a corpus."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path

from echodraft.errors import UsageError

PIECE = 100_000
"""Characters that are made ids at once."""


def files(paths: Sequence[Path]) -> list[Path]:
    """The files that are named and those in the folders that are, hidden ones left out. Raises `UsageError` where there are none."""
    found: list[Path] = []
    for path in paths:
        if path.is_dir():
            inside = sorted(file for file in path.rglob("*") if file.is_file())
            found += [file for file in inside if not any(part.startswith(".") for part in file.relative_to(path).parts)]
        elif path.is_file():
            found.append(path)
        else:
            raise UsageError(f"There is no file or folder {path}.")
    if not found:
        raise UsageError(f"There are no files in {', '.join(map(str, paths))}.")
    return found


def documents(path: Path, field: str) -> Iterator[str]:
    """The texts of a file: the `field` of each line of a .jsonl file, the whole of any other. Raises `UsageError` for what is no text."""
    try:
        with path.open(encoding="utf-8") as lines:
            if path.suffix != ".jsonl":
                yield lines.read()
                return
            for number, line in enumerate(lines, 1):
                if line.strip():
                    row = json.loads(line)
                    text = row.get(field) if isinstance(row, dict) else None
                    if not isinstance(text, str):
                        keys = f" It has: {', '.join(row)}. Name one with --field." if isinstance(row, dict) else ""
                        raise UsageError(f"{path} line {number} has no text '{field}'.{keys}")
                    yield text
    except ValueError as error:
        raise UsageError(f"{path} is not {'JSON lines' if path.suffix == '.jsonl' else 'UTF-8 text'}: {error}") from error
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}).") from error


def pieces(text: str) -> Iterator[str]:
    """A long text in parts of about `PIECE` characters that end with a line, where lines are not longer."""
    at = 0
    while at < len(text):
        end = text.rfind("\n", at, at + PIECE) + 1 if len(text) - at > PIECE else len(text)
        yield text[at : (end := end or at + PIECE)]
        at = end
