"""Tools that a prompt describes, how calls of them are written there, and how a call that was begun may go on. Text only.

Nothing here is tuned to one model: names and parameters are read from the descriptions, the syntax of a call from calls and examples.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

MOST_TOOLS, MOST_PARAMETERS, LONGEST, EFFORT = 64, 32, 20_000, 1_000_000
NAME = r"[A-Za-z_][\w.\-/]{0,127}"
# A string that does not close goes on to the end: else every quote in it would be tried again.
SIGN = re.compile(r'"(?:[^"\\]++|\\.?)*+(?:"|\Z)|\'(?:[^\'\\]++|\\.?)*+(?:\'|\Z)|[{}\[\]:,]', re.S)
LABEL = re.compile(r"^[ \t]*(?:[-*][ \t]*)?(?:parameters|arguments|args|inputs?)[ \t]*:[ \t]*(?=\{)", re.I | re.M)
NAMED = re.compile(rf"^[ \t]*(?:\d+[.)][ \t]*|[-*#]+[ \t]*)?name[ \t]*:[ \t]*[`\"']?({NAME})", re.I | re.M)
TITLED = re.compile(rf"^[ \t]*(?:\d+[.)][ \t]*|[-*#]+[ \t]*)?[`*]*({NAME})[`*]*[ \t]*:", re.M)
EXAMPLE = re.compile(r"(?P<head>\{\s*[\"']\w+[\"']\s*:\s*)[\"']?[^\"'\n,{}]{1,60}[\"']?(?P<open>\s*,\s*[\"']\w+[\"']\s*:\s*)[{<]")
GIVEN = re.compile(r"[\"'`]?\s*[:=]\s*[\"'`]?")
AFTER = re.compile(r"[\"'`]?\s*,\s*[\"'`]?$")


class Tool(NamedTuple):
    """A tool and where its description stands in the text."""

    name: str
    parameters: tuple[str, ...]
    begin: int = 0
    end: int = 0


class Syntax(NamedTuple):
    """A call, in its pieces: head NAME open PARAMETER given … after PARAMETER given …"""

    head: str
    open: str
    given: str
    after: str


def find_tools(text: str) -> list[Tool]:
    """The tools that `text` describes: JSON schemas with a name and parameters, or parameters as an object behind a label and a name."""
    found: dict[str, Tool] = {}
    last = at = read = 0
    while (at := text.find("{", at)) != -1 and len(found) < MOST_TOOLS and read < EFFORT:
        end, value = _object(text, at)
        read += max(100, end - at if value else LONGEST)
        tools = list(_schemas(value, at, end))
        label = text.rfind("\n", max(0, at - 100), at) + 1
        if not tools and (m := LABEL.match(text, label)) and m.end() == at:
            begin = max(last, label - 2000)
            name = _name(text[begin:label])
            if name is not None:
                keys = value.get("properties", value)
                parameters = tuple(keys)[:MOST_PARAMETERS] if isinstance(keys, dict) else ()
                tools = [Tool(name[0], parameters, begin + name[1], end)]
        found |= {tool.name: tool for tool in tools}
        # A brace that opens no description may have swallowed one.
        at = end if tools else at + 1
        last = end if tools else last
    return list(found.values())[:MOST_TOOLS]


def _name(block: str) -> tuple[str, int] | None:
    """The name that a block of lines gives to what follows it, and where."""
    found = list(NAMED.finditer(block)) or list(TITLED.finditer(block))
    return (found[-1][1], found[-1].start(1)) if found else None


def _schemas(value: Any, begin: int, end: int) -> list[Tool]:
    """The tools in a parsed object, at any depth."""
    tools, todo = [], [value]
    while todo:
        held = todo.pop()
        if isinstance(held, list):
            todo += reversed(held)
        elif isinstance(held, dict):
            name = held.get("name")
            given = next((held[key] for key in ("parameters", "input_schema", "inputSchema") if isinstance(held.get(key), dict)), None)
            keys = None if given is None else given.get("properties", given)
            # A call has plain values, a schema describes them.
            described = isinstance(keys, dict) and all(isinstance(about, dict) for about in keys.values())
            if isinstance(name, str) and re.fullmatch(NAME, name) and described and isinstance(keys, dict):
                tools.append(Tool(name, tuple(keys)[:MOST_PARAMETERS], begin, end))
            else:
                todo += reversed(list(held.values()))
    return tools


def _object(text: str, begin: int) -> tuple[int, dict[str, Any]]:
    """The object that begins at text[begin] == "{", in JSON or Python: (its end, its values).

    Objects are dicts, lists are lists, strings are without quotes, other values are missing. What does not close within `LONGEST` is
    empty and ends behind its brace.
    """
    root: dict[str, Any] = {}
    stack: list[Any] = []
    key: str | None = None
    word: str | None = None
    for sign in SIGN.finditer(text, begin, begin + LONGEST):
        mark = sign[0]
        if mark in "{[":
            new: Any = {} if mark == "{" else []
            if not stack:
                new = root
            elif isinstance(stack[-1], dict):
                if key is not None:
                    stack[-1][key] = new
            else:
                stack[-1].append(new)
            stack.append(new)
            key = word = None
        elif mark in "}]":
            stack.pop()
            if not stack:
                return sign.end(), root
            key = word = None
        elif mark == ":":
            key, word = word, None
        elif mark == ",":
            key = word = None
        else:
            word = mark[1:-1]
            if key is not None and isinstance(stack[-1], dict):
                stack[-1][key] = word
    return begin + 1, {}


def find_syntax(texts: Sequence[str], tools: Sequence[Tool], described: int = -1) -> Syntax | None:
    """How a call is written, by the latest call of one of the `tools` in the first of `texts` that has one, else by an example.

    `described` is the index of the text that describes the tools; what it says there is no call.
    """
    if not tools:
        return None
    names = re.compile("|".join(rf"(?<![\w.])(?:{re.escape(tool.name)})(?!\w)" for tool in tools))
    parameters = {tool.name: tool.parameters for tool in tools}
    spans = [(tool.begin, tool.end) for tool in tools]
    for i, text in enumerate(texts):
        for m in reversed(list(names.finditer(text))):
            if i == described and any(begin <= m.start() < end for begin, end in spans):
                continue
            syntax = _call(text, m.start(), m.end(), parameters[m[0]])
            if syntax is not None:
                return syntax
    for text in texts:
        for m in EXAMPLE.finditer(text):
            return Syntax(m["head"] + '"', '"' + m["open"] + '{"', '": "', '", "')
    return None


def _call(text: str, begin: int, end: int, parameters: Sequence[str]) -> Syntax | None:
    """The syntax of the call whose tool's name is text[begin:end], if there is one with a parameter."""
    near = text[end : end + 80]
    first = min(((at, p) for p in parameters if (at := _word(near, p)) >= 0), default=None)
    if first is None or not re.search(r"[({]", near[: first[0]]):
        return None
    at = end + first[0] + len(first[1])
    given = GIVEN.match(text, at)
    if given is None:
        return None
    rest = text[given.end() : given.end() + 200]
    second = min((place for p in parameters if p != first[1] and (place := _word(rest, p)) > 0), default=0)
    between = AFTER.search(rest[:second])
    quote = given[0][0] if given[0][0] in "\"'`" else ""
    head = text[max(text.rfind("\n", 0, begin) + 1, begin - 40) : begin]
    if head.strip() and not re.match(r"[\[{(<`]", head.lstrip()):
        head = ""  # the call stands within a sentence
    return Syntax(head, near[: first[0]], given[0], between[0] if between else f"{quote}, {quote}")


def _word(text: str, word: str) -> int:
    """Where `word` stands in `text` as a whole word, or -1."""
    m = re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text)
    return m.start() if m else -1


def go_on(said: str, tools: Sequence[Tool], syntax: Syntax) -> list[str]:
    """How `said`, the output so far, may go on: a tool's name up to its first parameter, or a further parameter.

    ToolSpec's machine: init, first parameter, remaining ones. A beginning that was said already is left out.
    """
    ways = [syntax.head + tool.name + syntax.open + (tool.parameters[0] + syntax.given if tool.parameters else "") for tool in tools]
    least = [min(2, len(syntax.head.rstrip())) or 3] * len(ways)
    at, tool = max((said.rfind(tool.name + syntax.open), tool) for tool in tools)
    inside = said[at + len(tool.name + syntax.open) :]
    if at >= 0 and not said.endswith(syntax.given):
        ways += [syntax.after + p + syntax.given for p in tool.parameters if p + syntax.given[:2] not in inside]
        least += [1] * (len(ways) - len(least))
    # A quote may end a name or a value: what is longest in progress is meant.
    begun = [_begun(said, way, n) for way, n in zip(ways, least, strict=True)]
    return [way[n:] for way, n in zip(ways, begun, strict=True) if n and n == max(begun)]


def _begun(said: str, way: str, least: int) -> int:
    """How many characters of `way`, at least so many and not all, `said` ends with; 0 if fewer."""
    return next((n for n in range(min(len(said), len(way) - 1), least - 1, -1) if said.endswith(way[:n])), 0)
