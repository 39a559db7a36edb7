"""The built-in suites as public data sets: where each lies and how its rows become requests. Fetched by the library `datasets`."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from echodraft.errors import UsageError

Row = Mapping[str, Any]


class Source(NamedTuple):
    """A data set: the arguments of `datasets.load_dataset`, and the requests that one of its rows makes."""

    path: str
    requests: Callable[[Row], Sequence[Row]]
    split: str = "train"
    name: str | None = None
    data_files: str | None = None


def _chat(row: str, category: str, text: str, most: int, system: str = "") -> Row:
    messages = [{"role": "system", "content": system}] if system else []
    return {"id": row, "category": category, "messages": [*messages, {"role": "user", "content": text}], "max_new_tokens": most}


MT_BENCH = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
CODE_STOPS = ("\nclass", "\ndef", "\n#", "\nif", "\nprint")
COMPLETE = "Complete this Python function. Answer with the whole function in one code block and nothing else.\n\n```python\n{}```"
STEP_BY_STEP = '{}\nReason step by step and end with the line "#### <answer>".'
CALLS = 'You can call these tools.\n\n{}\n\nAnswer only with JSON objects, one a line: {{"Action": "<tool name>", "Action_Input": {{...}}}}'


def _spec_bench(row: Row) -> list[Row]:
    category = "mt_bench" if row["category"] in MT_BENCH else row["category"]
    return [{"id": f"spec_bench/{row['question_id']}", "category": category, "turns": row["turns"], "max_new_tokens": 256}]


def _humaneval(row: Row) -> list[Row]:
    return [{"id": row["task_id"], "category": "code", "prompt": row["prompt"], "stop": CODE_STOPS, "max_new_tokens": 512}]


def _humaneval_chat(row: Row) -> list[Row]:
    return [_chat(f"humaneval_chat/{row['task_id'].rpartition('/')[2]}", "code", COMPLETE.format(row["prompt"]), 512)]


def _mbpp(row: Row) -> list[Row]:
    tests = "\n".join(row["test_list"])
    return [_chat(f"mbpp/{row['task_id']}", "code", f"{row['text']}\nYour code should pass these tests:\n\n{tests}", 512)]


def _gsm8k(row: Row) -> list[Row]:
    return [_chat("", "math", STEP_BY_STEP.format(row["question"]), 256)]


def _cnn_dm(row: Row) -> list[Row]:
    return [_chat(f"cnn_dm/{row['id']}", "summarization", f"Summarize: {row['article']}", 128)]


def _wmt16(row: Row) -> list[Row]:
    return [_chat("", "translation", f"Translate German to English: {row['translation']['de']}", 256)]


def _api_bank(row: Row) -> list[Row]:
    return [_chat("", "level-1", row["input"], 128, system=row["instruction"])]


def _tool_alpaca(row: Row) -> list[Row]:
    system = CALLS.format(row["NLDocumentation"])
    return [_chat(f"tool_alpaca/{row['Name']}/{i}", row["Category"], said, 128, system) for i, said in enumerate(row["Instructions"])]


def _tau_bench(row: Row) -> list[Row]:
    return [
        {
            "id": f"tau_bench/airline/{row['task_id']}",
            "category": "airline",
            "messages": [*map(_spoken, row["traj"])],
            "max_new_tokens": 256,
        }
    ]


def _spoken(message: Row) -> Row:
    """A message of a recorded conversation with its calls of tools, and what they returned, as text."""
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{message['content']}\n</tool_response>"}
    calls = [call["function"] for call in message.get("tool_calls") or ()]
    said = [message.get("content") or ""] if message.get("content") or not calls else []
    for call in calls:
        value = {"name": call["name"], "arguments": json.loads(call["arguments"])}
        said.append(f"<tool_call>\n{json.dumps(value)}\n</tool_call>")
    return {"role": message["role"], "content": "\n".join(said)}


GITHUB = "https://raw.githubusercontent.com"
PUBLIC = {
    "spec-bench": Source("json", _spec_bench, data_files=f"{GITHUB}/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"),
    "humaneval": Source("openai/openai_humaneval", _humaneval, "test"),
    "humaneval-chat": Source("openai/openai_humaneval", _humaneval_chat, "test"),
    "mbpp": Source("google-research-datasets/mbpp", _mbpp, "test", "full"),
    "gsm8k": Source("openai/gsm8k", _gsm8k, "test", "main"),
    "cnn-dm": Source("abisee/cnn_dailymail", _cnn_dm, "test", "3.0.0"),
    "wmt16": Source("wmt/wmt16", _wmt16, "test", "de-en"),
    "api-bank": Source("liminghao1630/API-Bank", _api_bank, data_files="test-data/level-1-api.json"),
    "tool-alpaca": Source("json", _tool_alpaca, data_files=f"{GITHUB}/tangqiaoyu/ToolAlpaca/main/data/eval_simulated.json"),
    "tau-bench": Source(
        "json", _tau_bench, data_files=f"{GITHUB}/sierra-research/tau-bench/main/historical_trajectories/gpt-4o-airline.json"
    ),
}
"""Suites by name, in the order of help."""


def public_rows(suite: str) -> Iterator[Row]:
    """The requests of a public data set as lines of a suite. Raises `UsageError` where it cannot be fetched."""
    own = f"Or name a folder that holds {suite}.jsonl with --data or ECHODRAFT_DATA."
    try:
        from datasets import load_dataset  # type: ignore[import-not-found, unused-ignore]
    except ImportError as error:
        raise UsageError(f"The public data set {suite} is read by the library datasets: pip install datasets. {own}") from error
    source = PUBLIC[suite]
    given = {"name": source.name, "data_files": source.data_files}
    try:
        rows = load_dataset(source.path, split=source.split, **{key: value for key, value in given.items() if value is not None})
    except Exception as error:  # the hub is reached through several libraries, each with errors of its own
        raise UsageError(f"The public data set {suite} ({source.path}) cannot be fetched: {error}. {own}") from error
    for number, row in enumerate(rows):
        for request in source.requests(row):
            # Where rows have no names, their number is one.
            yield {**request, "id": request["id"] or f"{suite.replace('-', '_')}/{number}"}
