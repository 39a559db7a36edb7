"""Tools in prompts of many kinds, the syntax of their calls, and how a call goes on."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.drafters.schemas import MOST_TOOLS, Syntax, Tool, find_syntax, find_tools, go_on

PROPERTIES = {"city": {"type": "string", "enum": ["a {", "it's"]}, "unit": {"type": "string", "items": [{"type": "x"}]}}
WEATHER = {"name": "get_weather", "description": "d", "parameters": {"type": "object", "properties": PROPERTIES, "required": ["city"]}}
EXPECTED = [("get_weather", ("city", "unit"))]
JSON_CALL = Syntax('{"name": "', '", "parameters": {"', '": "', '", "')


def names(text: str) -> list[tuple[str, tuple[str, ...]]]:
    return [(tool.name, tool.parameters) for tool in find_tools(text)]


@pytest.mark.parametrize(
    "text",
    [
        f"Tools: {json.dumps([{'type': 'function', 'function': WEATHER}])} Use them.",
        f"<tools>\n{json.dumps(WEATHER)}\n</tools>",
        f"# Tools\n{json.dumps(WEATHER, indent=2)}",
        json.dumps({"tools": [{"name": "get_weather", "input_schema": WEATHER["parameters"]}]}),
        f"1. Name: get_weather\nDescription: It says: rain.\nParameters: {PROPERTIES}\nMore.",
        f"get_weather: It says rain.\nParameters: {json.dumps(dict.fromkeys(PROPERTIES, 'Required. string.'))}\nOutput: Ok.\n - Format: x",
        f"- **get_weather**: rain\n  Arguments: {json.dumps(PROPERTIES)}",
    ],
)
def test_tools_are_found_however_they_are_described(text: str) -> None:
    assert names(f'A {{ brace, {{"a": 1}} and it\'s text.\n{text}') == EXPECTED


def test_several_tools_keep_their_order_and_their_own_parameters() -> None:
    text = 'one: First.\nParameters: {}\nOutput: Ok.\n - Format: json\ntwo: Second.\nParameters: {"a": "x", "b": "y"}\nOutput: Ok.\n'
    assert names(text) == [("one", ()), ("two", ("a", "b"))]


def test_a_call_is_no_tool() -> None:
    assert names('<tool_call>\n{"name": "get_weather", "parameters": {"city": "Oslo"}}\n</tool_call>') == []


@given(st.text(alphabet="{}[]\"':,\\ \nnameprtsx", max_size=300))
def test_no_text_is_too_odd(text: str) -> None:
    tools = find_tools(text)
    syntax = find_syntax([text], tools, 0)
    if syntax is not None:
        go_on(text, tools, syntax)


def test_no_prompt_makes_more_tools_than_are_kept() -> None:
    text = "\n".join(json.dumps({"name": f"tool_{i}", "parameters": {"properties": {"a": {}}}}) for i in range(3 * MOST_TOOLS))
    assert len(find_tools(text)) == MOST_TOOLS


DESCRIBED = f"Name: get_weather\nDescription: d\nParameters: {PROPERTIES}\n"


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        ('{"name": "get_weather", "parameters": {"city": "Oslo", "unit": "C"}}', JSON_CALL),
        ('{"name":"get_weather","arguments":{"unit":"C"}}', Syntax('{"name":"', '","arguments":{"', '":"', '", "')),
        ("[get_weather(city='Oslo', unit='C')]", Syntax("[", "(", "='", "', ")),
        ("get_weather(city=3, unit=4)", Syntax("", "(", "=", ", ")),
        ("Now I call get_weather(city=3)", Syntax("", "(", "=", ", ")),
    ],
)
@pytest.mark.parametrize("where", ["prompt", "answer"])
def test_the_syntax_of_a_call_is_learned_from_calls(call: str, expected: Syntax, where: str) -> None:
    texts = [DESCRIBED + call] if where == "prompt" else [call, DESCRIBED]
    assert find_syntax(texts, find_tools(DESCRIBED), len(texts) - 1) == expected


@pytest.mark.parametrize(
    "example",
    [
        '{"name": "Tool name", "parameters": {"Parameter name": "Parameter content"}}',
        '{"name": "<tool name>", "parameters": {...}}',
        '{"name": <function-name>, "parameters": <args-json-object>}',
    ],
)
def test_without_a_call_an_example_tells_the_syntax(example: str) -> None:
    assert find_syntax([DESCRIBED + example], find_tools(DESCRIBED), 0) == JSON_CALL


def test_a_description_is_neither_a_call_nor_an_example() -> None:
    assert find_syntax([DESCRIBED], find_tools(DESCRIBED), 0) is None
    assert find_syntax(['{"name": "get_weather", "parameters": {"city": "Oslo"}}'], []) is None


TOOLS = [Tool("get_weather", ("city", "unit")), Tool("get_time", ("zone",)), Tool("stop", ())]


@pytest.mark.parametrize("syntax", [JSON_CALL, Syntax("[", "(", "='", "', "), Syntax("", "(", "=", ", ")])
@pytest.mark.parametrize("tool", TOOLS)
@pytest.mark.parametrize("before", ["", "Sure.\n", "get_time was called. "])
def test_from_every_place_of_a_call_the_way_to_its_first_parameter_is_known(syntax: Syntax, tool: Tool, before: str) -> None:
    way = syntax.head + tool.name + syntax.open + (tool.parameters[0] + syntax.given if tool.parameters else "")
    for n in range(len(syntax.head) + 3, len(way)):
        assert way[n:] in go_on(before + way[:n], TOOLS, syntax), n


@pytest.mark.parametrize("syntax", [JSON_CALL, Syntax("[", "(", "='", "', ")])
def test_behind_a_value_come_the_parameters_that_are_not_used(syntax: Syntax) -> None:
    tools = [Tool("f", ("a", "b", "c"))]
    said = syntax.head + "f" + syntax.open + "b" + syntax.given + "value of a" + syntax.after
    assert go_on(said, tools, syntax) == ["a" + syntax.given, "c" + syntax.given]
    assert go_on(said + "c" + syntax.given + "x" + syntax.after, tools, syntax) == ["a" + syntax.given]


def test_in_the_middle_of_a_value_nothing_is_guessed() -> None:
    assert go_on('{"name": "get_weather", "parameters": {"city": "Os', TOOLS, JSON_CALL) == []
    assert go_on('{"name": "get_weather", "parameters": {"city": "', TOOLS, JSON_CALL) == []
    assert go_on("Hello, how", TOOLS, JSON_CALL) == []
    assert go_on("", TOOLS, JSON_CALL) == []


def test_a_second_call_may_be_of_any_tool() -> None:
    said = '{"name": "get_time", "parameters": {"zone": "UTC"}}\n{"name": "get_'
    assert go_on(said, TOOLS, JSON_CALL) == ['weather", "parameters": {"city": "', 'time", "parameters": {"zone": "']
