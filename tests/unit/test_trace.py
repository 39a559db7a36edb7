"""A trace holds what the steps were, is readable wherever it was cut off, and trusts no text."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import echodraft
from echodraft.core.budget import Budget
from echodraft.core.draft import DraftBuilder
from echodraft.core.engine import Engine
from echodraft.core.step import Step
from echodraft.decoder import Decoder
from echodraft.errors import UsageError
from echodraft.metrics.trace import Trace
from echodraft.metrics.traced import Request, Traced, Tracing, read
from echodraft.render.html_trace import page
from echodraft.render.trace import as_dict, harmless, line, output, overview, tree

PROMPT = "one two three one two three one two three one two"
HOSTILE = "</script><script>alert(1)</script><img src=x onerror=alert(1)>\"'{{ 7*7 }}\x1b[31m\u2028[bold]"


def traced(path: Path, drafter: str = "prompt-lookup", budget: int | str = 6) -> tuple[Decoder, Trace]:
    """A decoder on the toy model whose steps go to `path`."""
    decoder = echodraft.load(drafter=drafter, backend="toy", budget=budget)
    trace = Trace(path)
    trace.begin("toy", drafter, {"budget": budget})
    decoder.watchers.append(trace.watch(decoder.text, drafter))
    return decoder, trace


def repeating(tmp_path: Path, drafter: str = "prompt-lookup", n: int = 400) -> tuple[Any, Tracing]:
    """An answer that is long enough to repeat itself, and its trace."""
    decoder, trace = traced(tmp_path / "a.trace", drafter)
    result = decoder.generate(PROMPT, max_new_tokens=n)
    trace.close()
    return result, read(tmp_path / "a.trace")


@pytest.mark.parametrize("drafter", ["none", "prompt-lookup", "suffix", "recycling"])
def test_a_trace_tells_the_output_its_text_and_the_counts_of_the_statistics(tmp_path: Path, drafter: str) -> None:
    result, trace = repeating(tmp_path, drafter)
    (request,) = trace.requests.values()
    tokens = [token for step in request.steps for token in step.tokens]
    assert [token.id for token in tokens] == result.ids
    assert "".join(token.text for token in tokens) == result.text
    assert len(request.decoded) == result.stats.steps
    assert request.mean_accepted == result.stats.mean_accepted
    assert sum(step.proposed for step in request.steps) == result.stats.drafted
    assert sum(len(step.draft.token) for step in request.steps) == result.stats.verified + result.stats.probes
    assert sum(token.source is not None for token in tokens) == result.stats.accepted
    assert (result.stats.accepted > 0) == (drafter != "none")
    assert (request.finish, request.head.prompt, request.head.prompt_tokens) == ("length", PROMPT, len(PROMPT))
    assert [step.context for step in request.steps] == [
        len(PROMPT) + sum(len(step.emitted) for step in request.steps[:i]) for i in range(len(request.steps))
    ]


def test_the_anchor_is_the_token_before_the_step(tmp_path: Path) -> None:
    _, trace = repeating(tmp_path)
    steps = trace.requests[0].steps
    assert steps[0].anchor[1] == PROMPT[-1]
    assert [step.anchor[0] for step in steps[1:]] == [step.emitted[-1] for step in steps[:-1]]


def test_answers_of_a_batch_and_of_a_sampled_run_are_requests_of_their_own(tmp_path: Path) -> None:
    decoder, trace = traced(tmp_path / "b.trace")
    results = [*decoder.generate([PROMPT, "xyzzy"], max_new_tokens=30)]
    results += decoder.generate(PROMPT, max_new_tokens=20, samples=2, temperature=1.0, seed=5)
    trace.close()
    requests = read(tmp_path / "b.trace").requests
    assert sorted(requests) == [0, 1, 2, 3]
    told = [[token for step in requests[i].steps for token in step.emitted] for i in range(4)]
    assert told == [result.ids for result in results]
    assert [requests[i].head.seed for i in range(4)] == [None, None, 5, 5]


def test_a_continued_session_is_a_new_request(tmp_path: Path) -> None:
    decoder, trace = traced(tmp_path / "c.trace")
    engine: Engine = decoder.engine
    watch = decoder.watchers[0]
    from echodraft.core.accept import Stops

    session = engine.open(decoder.text.encode("hello"), stops=Stops(max_new_tokens=4))
    for more in ([], decoder.text.encode("and then")):
        if more:
            engine.extend(session, more, Stops(max_new_tokens=3))
        while session.finish is None:
            for step in engine.step([session]):
                watch(step)
    trace.close()
    requests = read(tmp_path / "c.trace").requests
    assert [request.emitted for request in requests.values()] == [4, 3]
    assert requests[1].head.prompt.endswith("and then")


def test_wherever_a_trace_is_cut_off_its_whole_lines_are_read(tmp_path: Path) -> None:
    _, whole = repeating(tmp_path, n=60)
    path = tmp_path / "a.trace"
    data = path.read_bytes()
    header = data.index(b"\n") + 1
    for cut in range(header, len(data), 97):
        path.write_bytes(data[:cut])
        steps = [step for request in read(path).requests.values() for step in request.steps]
        assert steps == whole.requests[0].steps[: len(steps)]
        assert len(steps) == data[header : cut + 1].count(b"\n")


def test_every_step_is_on_disk_when_it_is_told(tmp_path: Path) -> None:
    decoder, trace = traced(tmp_path / "d.trace")
    seen = []
    decoder.watchers.append(lambda step: seen.append(read(tmp_path / "d.trace").requests[0].steps[-1].emitted == [*step.verdict.tokens]))
    decoder.generate(PROMPT, max_new_tokens=12)
    trace.close()
    assert seen
    assert all(seen)


def test_only_a_trace_is_written_over(tmp_path: Path) -> None:
    repeating(tmp_path, n=30)
    Trace(tmp_path / "a.trace")
    assert read(tmp_path / "a.trace").requests, "nothing is lost before the next run begins"
    repeating(tmp_path, n=10)
    assert read(tmp_path / "a.trace").requests[0].emitted == 10
    other = tmp_path / "prompt.txt"
    other.write_text("do not lose me")
    for wrong in (other, tmp_path, tmp_path / "nowhere" / "a.trace"):
        with pytest.raises(UsageError):
            Trace(wrong)
    assert other.read_text() == "do not lose me"


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda rows: [b"hello\n"], "no JSON"),
        (lambda rows: [b'{"a": 1}\n'], "no trace"),
        (lambda rows: [rows[0].replace(b'"echodraft_trace":1', b'"echodraft_trace":99'), *rows[1:]], "version 99"),
        (lambda rows: [rows[0], b"{broken\n", *rows[1:]], "Line 2"),
        (lambda rows: [rows[0], b"{}\n"], "Line 2"),
        (lambda rows: [rows[0], edited(rows[1], path=[3])], "accepted path"),
        (lambda rows: [rows[0], edited(rows[1], pieces=[])], "do not fit"),
        (
            lambda rows: [rows[0], edited(rows[1], draft={"token": [1], "text": ["a"], "parent": [0], "prob": [1], "source": [""]})],
            "parent",
        ),
        (lambda rows: [rows[0], edited(rows[1], draft={"token": [1]})], "differ in length"),
    ],
)
def test_a_file_that_is_no_trace_is_refused_with_the_line(tmp_path: Path, change: Callable[[list[bytes]], list[bytes]], said: str) -> None:
    repeating(tmp_path, n=10)
    path = tmp_path / "a.trace"
    path.write_bytes(b"".join(change(path.read_bytes().splitlines(keepends=True))))
    with pytest.raises(UsageError, match=said):
        read(path)


def edited(row: bytes, **values: Any) -> bytes:
    return json.dumps(json.loads(row) | values).encode() + b"\n"


def step(**values: Any) -> Traced:
    """A step with the draft  a → b, a → c, d  (nodes 0, 1, 2, 3)."""
    draft = {
        "token": [1, 2, 3, 4],
        "text": ["a", "b", "c", "d"],
        "parent": [-1, 0, 0, -1],
        "prob": [0.9, 0.5, 0.3, 0.1],
        "source": ["s", "s", "t", "t"],
        "probe": [3],
    }
    given = {"request": 0, "step": 3, "context": 9, "anchor": (0, "x"), "proposed": 4, "budget": (8, 8), "draft": draft}
    return Traced.model_validate(given | {"path": [], "emitted": [9], "pieces": ["z"]} | values)


@pytest.mark.parametrize(
    ("values", "refused", "said"),
    [
        ({}, [0, 3], "the target said 'z' where the draft had 'a', 'd'"),
        ({"path": [0], "emitted": [1, 9], "pieces": ["a", "z"]}, [1, 2], "the target said 'z' where the draft had 'b', 'c'"),
        (
            {"path": [0, 2], "emitted": [1, 3, 9], "pieces": ["a", "c", "z"]},
            [],
            "accepted to the end of a branch (2), and the bonus token 'z'",
        ),
        ({"path": [0], "emitted": [1], "pieces": ["a"], "finish": "eos"}, [], "the output ended: the end token"),
        ({"path": [0], "emitted": [1, 9], "pieces": ["a", ""]}, [1, 2], "the target said #9 where the draft had 'b', 'c'"),
        ({"draft": {}, "proposed": 7}, [], "no draft: the budget left none of 7 proposed"),
        ({"draft": {}, "proposed": 0}, [], "no draft: the drafter proposed nothing"),
        ({"draft": {}, "proposed": 0, "budget": (0, 0)}, [], "no draft: the drafter was not asked"),
        ({"draft": {}, "proposed": 0, "budget": (8, 0)}, [], "no draft: there was room for one more token only"),
        ({"draft": {}, "proposed": 0, "budget": None, "prefill": True}, [], "the prompt was read"),
        ({"finish": "stop"}, [0, 3], "the output ended: a stop string"),
    ],
)
def test_a_step_says_what_was_refused_and_why_it_ended(values: dict[str, Any], refused: list[int], said: str) -> None:
    found = step(**values)
    assert (found.refused, found.ended) == (refused, said)


def test_the_budget_of_every_decoding_step_is_told(tmp_path: Path) -> None:
    _, trace = repeating(tmp_path)
    prefill, *steps = trace.requests[0].steps
    assert prefill.budget is None
    assert {one.budget[0] for one in steps if one.budget} == {6}
    assert all(len(one.draft.token) <= 6 for one in steps)
    assert steps[-1].budget is not None


def test_a_tree_shows_every_node_once_under_its_parent(tmp_path: Path) -> None:
    screen = Console(file=io.StringIO(), width=100)
    screen.print(tree(step(path=[0], emitted=[1, 9], pieces=["a", "z"])))
    rows = screen.file.getvalue().splitlines()  # type: ignore[attr-defined]
    at = {name: next(i for i, row in enumerate(rows) if f"{name}'" in row and i > 1) for name in "abcd"}
    depth = {name: rows[i].index(f"'{name}'") for name, i in at.items()}
    assert at["a"] < at["b"] < at["c"] < at["d"]
    assert depth["b"] == depth["c"] > depth["a"] == depth["d"]
    assert "✓ 'a'" in rows[at["a"]]
    assert "✗ 'b'" in rows[at["b"]]
    assert "· 'd'" in rows[at["d"]]
    assert "probe" in rows[at["d"]]


def test_a_long_chain_is_shown_without_recursion() -> None:
    n = 3000
    chain = {"token": [1] * n, "text": ["a"] * n, "parent": [*range(-1, n - 1)], "prob": [0.5] * n, "source": ["s"] * n}
    found = step(draft=chain)
    assert page(Tracing({}, {}), [Request(found, [found])]).count('"moot"]') == n - 1
    tree(found)


class Tags(HTMLParser):
    """What a browser would make of a page: its tags with their attributes, and the text in each kind."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.held: dict[str, list[str]] = {}

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.held.setdefault(self.tags[-1][0] if self.tags else "", []).append(data)


def hostile() -> Tracing:
    """A trace in which every text wants to run."""
    draft = {"token": [1, 2], "text": [HOSTILE, HOSTILE], "parent": [-1, -1], "prob": [0.5, 0.4], "source": [HOSTILE, "s"]}
    found = step(
        anchor=(0, HOSTILE), drafter=HOSTILE, item=HOSTILE, prompt=HOSTILE, draft=draft, path=[0], emitted=[1, 9], pieces=[HOSTILE] * 2
    )
    header = {"model": HOSTILE, "drafter": [HOSTILE], "settings": {HOSTILE: HOSTILE}, "started": HOSTILE, "versions": {HOSTILE: HOSTILE}}
    return Tracing(header, {0: Request(found, [found])})


def test_a_page_runs_no_text_and_fetches_nothing() -> None:
    trace = hostile()
    made = page(trace, list(trace.requests.values()))
    found = Tags()
    found.feed(made)
    kinds = [tag for tag, _ in found.tags]
    assert "img" not in kinds
    assert [values.get("type") for tag, values in found.tags if tag == "script"] == ["application/json", None]
    assert not [key for _, values in found.tags for key in values if key.startswith("on") or key in ("src", "href")]
    assert "49" not in "".join(found.held["title"])
    policy = next(values["content"] for _, values in found.tags if values.get("http-equiv"))
    assert policy is not None
    assert "default-src 'none'" in policy
    assert "script-src 'sha256-" in policy
    (data,) = [json.loads(text) for text in found.held["script"] if text.startswith("[[")]
    assert data[0][0]["nodes"][0][3] == HOSTILE


def test_a_terminal_gets_no_control_characters_of_a_trace() -> None:
    trace = hostile()
    (request,) = trace.requests.values()
    screen = Console(file=io.StringIO(), width=500, no_color=True)
    screen.print(tree(request.steps[0]))
    screen.print(overview(trace))
    shown = screen.file.getvalue()  # type: ignore[attr-defined]
    shown += output(request, None) + line(request.steps[0], 1) + harmless(request.name)
    assert "\x1b" not in shown
    assert shown.count("[bold]") == shown.count("</script><script>") > 0, "names are no markup of the terminal either"
    assert harmless("a\tb\nü→") == "a\tb\nü→"


def test_values_for_machines_are_plain_and_say_what_follows(tmp_path: Path) -> None:
    result, trace = repeating(tmp_path)
    found = json.loads(json.dumps(as_dict(trace, list(trace.requests.values()))))
    (request,) = found["requests"]
    assert request["tokens"] == len(result.ids)
    assert sum(len(one["path"]) for one in request["steps"]) == result.stats.accepted
    assert all(one["ended"] for one in request["steps"])


def test_half_a_character_is_written_and_read(tmp_path: Path) -> None:
    class Odd:
        def token(self, token: int) -> str:
            return "\ud800"

        def decode(self, ids: Sequence[int]) -> str:
            return "\ud800"

        def transcript(self, stops: Sequence[str] = (), context: Sequence[int] = ()) -> Any:
            return decoder.text.transcript(stops, context)

    decoder = echodraft.load(backend="toy")
    trace = Trace(tmp_path / "odd.trace")
    trace.begin("toy", "none", {})
    decoder.watchers.append(trace.watch(Odd(), "none"))
    decoder.generate("abc", max_new_tokens=3)
    trace.close()
    assert read(tmp_path / "odd.trace").requests[0].head.prompt == "\ud800"


def test_probes_and_estimates_are_kept_by_node(tmp_path: Path) -> None:
    seen: list[Step] = []
    decoder = echodraft.load(backend="toy")
    decoder.watchers.append(seen.append)
    decoder.generate("abc", max_new_tokens=2)
    builder = DraftBuilder()
    a = builder.add(-1, 5, 0.123456, "s")
    builder.add(a, 6, 0.1, "s", probe=True)
    builder.add(-1, 7, 0.05, "t")
    trace = Trace(tmp_path / "p.trace")
    trace.begin("toy", "none", {})
    trace.watch(decoder.text, "none")(replace(seen[-1], draft=builder.build(), proposed=9, budget=Budget(4, 2)))
    trace.close()
    draft = read(tmp_path / "p.trace").requests[0].steps[0].draft
    assert (draft.prob, draft.probe, draft.parent, draft.source) == ([0.1235, 0.1, 0.05], [1], [-1, 0, -1], ["s", "s", "t"])
    assert np.asarray(draft.token).tolist() == [5, 6, 7]
