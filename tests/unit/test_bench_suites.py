"""Where suites come from and how their lines become requests."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from echodraft.backends.toy import ToyTokenizer
from echodraft.bench.public import PUBLIC
from echodraft.bench.suites import find_suite, load_suite, load_suites
from echodraft.errors import UsageError
from echodraft.text.tokenizer import Text

TEXT = Text(ToyTokenizer())
Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def call(name: str, *rows: dict[str, Any]) -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return call


def test_every_answer_of_a_recorded_conversation_is_a_request_with_what_came_before(write: Write) -> None:
    said = [{"role": role, "content": f"{role} {i}"} for i, role in enumerate(["system", "user", "assistant", "user", "assistant", "user"])]
    path = write("tau.jsonl", {"id": "c", "category": "air", "messages": said, "max_new_tokens": 9})
    items = load_suite(path, TEXT)
    assert [(item.id, item.most, item.category) for item in items] == [("c/turn-1", 9, "air"), ("c/turn-2", 9, "air")]
    assert [item.ids for item in items] == [TEXT.encode_chat(said[:2]), TEXT.encode_chat(said[:4])]
    assert len(load_suite(path, TEXT, limit=1)) == 1


def test_later_turns_come_only_where_they_are_asked_for_and_hold_the_answers_between(write: Write) -> None:
    path = write("turns.jsonl", {"id": "t", "turns": ["one", "two", "three"], "stop": "x"})
    assert [item.id for item in load_suite(path, TEXT)] == ["t"]
    items = load_suite(path, TEXT, later_turns=True)
    assert [(item.id, item.earlier, item.stop) for item in items] == [
        ("t", (), ("x",)),
        ("t/turn-2", ("t",), ("x",)),
        ("t/turn-3", ("t", "t/turn-2"), ("x",)),
    ]
    chat = [("user", "one"), ("assistant", "A"), ("user", "two"), ("assistant", "B"), ("user", "three")]
    assert items[2].after(["A", "B"], TEXT).ids == TEXT.encode_chat([{"role": role, "content": text} for role, text in chat])


def test_requests_without_an_id_or_with_one_that_is_taken_get_their_own(write: Write) -> None:
    one = write("one.jsonl", {"prompt": "a"}, {"id": "same", "turns": ["b", "c"]})
    two = write("two.jsonl", {"prompt": "a"}, {"id": "same", "turns": ["b", "c"]})
    items = load_suites(f"{one},{two}", TEXT)
    assert [item.id for item in items] == [
        *("one/1", "same", "same/turn-2"),
        *("two/1", "same#2", "same/turn-2#2"),
    ]
    assert items[-1].earlier == ("same#2",)
    assert {item.suite for item in items} == {"one", "two"}


@pytest.mark.parametrize("most", [0, -1, "many", 1.5])
def test_a_line_that_asks_for_no_sensible_length_is_refused(most: Any, write: Write) -> None:
    with pytest.raises(UsageError, match=r"Line 1 .* max_new_tokens"):
        load_suite(write("bad.jsonl", {"prompt": "a", "max_new_tokens": most}), TEXT)


@pytest.mark.parametrize("name", ["tau-bench", "tau_bench", "my-own", "my_own"])
def test_a_name_finds_its_file_in_the_folder_however_it_is_spelled(name: str, write: Write, tmp_path: Path) -> None:
    for file in ("tau_bench.jsonl", "my-own.jsonl"):
        write(file, {"prompt": "a"})
    found = find_suite(name, tmp_path)
    assert found is not None
    assert found.stem.replace("_", "-") == name.replace("_", "-")


def test_a_name_without_a_file_is_a_public_data_set_or_an_error_that_lists_them(tmp_path: Path) -> None:
    assert find_suite("gsm8k", tmp_path) is None
    assert find_suite("spec_bench") is None
    with pytest.raises(UsageError, match=r"no suite 'gsm9k'.*spec-bench"):
        find_suite("gsm9k", tmp_path)
    with pytest.raises(UsageError, match="no folder"):
        find_suite("gsm8k", tmp_path / "nowhere")


ROWS: dict[str, dict[str, Any]] = {
    "spec-bench": {"question_id": 81, "category": "writing", "turns": ["a", "b"]},
    "humaneval": {"task_id": "HumanEval/3", "prompt": "def f():\n"},
    "humaneval-chat": {"task_id": "HumanEval/3", "prompt": "def f():\n"},
    "mbpp": {"task_id": 11, "text": "Write f.", "test_list": ["assert f() == 1"]},
    "gsm8k": {"question": "1 + 1?", "answer": "#### 2"},
    "cnn-dm": {"id": "x", "article": "News.", "highlights": "N."},
    "wmt16": {"translation": {"de": "Guten Tag", "en": "Good day"}},
    "api-bank": {"instruction": "Use tools.", "input": "User: hi", "output": "API-Request: []"},
    "tool-alpaca": {"Name": "Axolotl", "Category": "Animals", "NLDocumentation": "get: gets {x}", "Instructions": ["show", "tell"]},
    "tau-bench": {
        "task_id": 4,
        "traj": [
            {"role": "system", "content": "Policy", "tool_calls": None},
            {"role": "user", "content": "hi", "tool_calls": None},
            {"role": "assistant", "content": None, "tool_calls": [{"function": {"name": "look", "arguments": '{"id": 1}'}}]},
            {"role": "tool", "content": "found", "tool_calls": None},
            {"role": "assistant", "content": "There it is.", "tool_calls": None},
        ],
    },
}
"""One row of each public data set, with the fields that it has there."""


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, ...]]:
    """A library `datasets` of our own; what it is asked for."""
    asked: list[tuple[Any, ...]] = []
    module = ModuleType("datasets")

    def load_dataset(path: str, *, split: str, **options: Any) -> list[dict[str, Any]]:
        asked.append((path, split, options))
        name = next(name for name, source in PUBLIC.items() if (source.path, source.data_files) == (path, options.get("data_files")))
        return [ROWS[name]]

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    return asked


def test_every_built_in_suite_has_a_row_here() -> None:
    assert list(ROWS) == list(PUBLIC)


@pytest.mark.parametrize("name", list(ROWS))
def test_public_rows_become_requests(name: str, hub: list[Any]) -> None:
    items = load_suites(name, TEXT)
    assert items
    assert len({item.id for item in items}) == len(items)
    assert all(item.suite == name and item.category and item.most and (item.ids or item.turns) for item in items)
    assert hub == [(PUBLIC[name].path, PUBLIC[name].split, hub[0][2])]


def test_calls_and_results_of_tools_are_text_of_a_recorded_conversation(hub: list[Any]) -> None:
    last = load_suites("tau-bench", TEXT)[-1]
    asked = TEXT.decode(last.ids)
    assert '<tool_call>\n{"name": "look", "arguments": {"id": 1}}\n</tool_call>' in asked
    assert "<tool_response>\nfound\n</tool_response>" in asked
    assert "There it is" not in asked
    assert [item.id for item in load_suites("tool-alpaca", TEXT)] == ["tool_alpaca/Axolotl/0", "tool_alpaca/Axolotl/1"]


def test_a_missing_library_and_a_hub_out_of_reach_are_told_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(UsageError, match=r"pip install datasets.*--data"):
        load_suites("gsm8k", TEXT)
    module = ModuleType("datasets")

    def load_dataset(*_: Any, **__: Any) -> None:
        raise ConnectionError("no route")

    module.load_dataset = load_dataset  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "datasets", module)
    with pytest.raises(UsageError, match=r"openai/gsm8k.*no route.*--data"):
        load_suites("gsm8k", TEXT)
