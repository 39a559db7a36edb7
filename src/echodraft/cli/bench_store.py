"""`echodraft bench-store`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from echodraft.cli import console

if TYPE_CHECKING:
    from echodraft.bench.store import Costs

KINDS = ("suffix", "phrases", "hidden")


def command(
    kind: Annotated[str, typer.Option("--kind", help="Which store: suffix, phrases or hidden.")] = "suffix",
    tokens: Annotated[
        str | None,
        typer.Option("--tokens", help="Sizes: tokens, phrases or keys. Default: 380000,1000000; 10000,100000 keys.", show_default=False),
    ] = None,
    depth: Annotated[str, typer.Option("--depth", help="Depths of its trie.")] = "24,64",
    suite: Annotated[
        list[Path] | None, typer.Option("--suite", help="JSON lines with prompt, messages or turns.", show_default=False)
    ] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Whose tokenizer reads the suites.", show_default=False)] = None,
    recording: Annotated[
        list[Path] | None, typer.Option("--recording", help="Whose hidden states are the keys; repeatable.", show_default=False)
    ] = None,
    distinct: Annotated[bool, typer.Option("--distinct", help="Of recorded states that are the same, keep one.")] = False,
    cost: Annotated[
        str | None, typer.Option("--cost", help="With hidden: a file of echodraft cost, to compare with a step.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Example: echodraft bench-store --suite api_bank.jsonl --suite gsm8k.jsonl -m path/to/model

    Measure the suffix store, which drafter suffix remembers texts in: microseconds a token and a draft, bytes a token. Or the phrase pool
    of drafter ouroboros (--kind phrases), or the store of hidden states of drafter oilbird (--kind hidden): what share of the 8 nearest
    keys a search finds, microseconds a search and a key, bytes a key.

    Without suites the text is made up: ids by Zipf's law, half of its passages repeated. Fewer tokens than --tokens are used again in
    another order. Hidden states are made up without --recording, and fewer than --tokens are mixed, two and two.
    """
    from dataclasses import asdict

    from echodraft.bench.store import measure, synthetic
    from echodraft.errors import UsageError, unknown_name

    usual = "10000,100000" if kind == "hidden" else "380000,1000000"
    sizes, depths = _numbers("--tokens", tokens or usual, 100, 100_000_000), _numbers("--depth", depth, 2, 255)
    if suite and model is None:
        raise UsageError("Suites are text. Name a model with --model, whose tokenizer reads them.")
    if kind not in KINDS:
        raise unknown_name("kind of store", kind, KINDS)
    if kind == "hidden":
        return _hidden(recording or [], sizes, distinct, cost, as_json)
    console.status("Reading the text…")
    texts = _read(suite, model or "") if suite else synthetic(sizes[-1] * (20 if kind == "phrases" else 1))
    if kind == "phrases":
        return _phrases(texts, sizes, ", ".join(path.name for path in suite) if suite else "synthetic", as_json)
    results = []
    for size in sizes:
        for deep in depths:

            def told(what: str, where: str = f"{size:,} tokens, depth {deep}") -> None:
                console.status(f"{where}: {what}…")

            results.append(measure(texts, size, deep, told))
    console.status("")
    source = ", ".join(path.name for path in suite) if suite else "synthetic"
    distinct = sum(map(len, texts))
    if as_json:
        console.json_object({"text": source, "distinct_tokens": distinct, "results": [asdict(costs) for costs in results]})
    else:
        _print(results)
        console.note("append, remove, bytes: a token; one: a token appended alone; draft: up to 64 nodes, median; kept: without removal.")
        console.note(f"Text: {source}, {distinct:,} tokens in {len(texts):,} texts.")


def _numbers(option: str, text: str, least: int, most: int) -> list[int]:
    """Numbers from "24,64", ascending. Raises `UsageError`."""
    from echodraft.errors import UsageError

    try:
        found = sorted({int(part) for part in text.split(",")})
    except ValueError:
        found = []
    if not found or found[0] < least or found[-1] > most:
        raise UsageError(f"{option} is a list of numbers from {least} to {most}, not '{text}'.")
    return found


def _read(suites: Sequence[Path], model: str) -> list[Any]:
    """The ids of every request of the suites."""
    import numpy as np

    from echodraft.backends.transformers_load import load_tokenizer
    from echodraft.bench.suites import load_suite
    from echodraft.text.tokenizer import Text

    text = Text(load_tokenizer(model, False))
    return [np.asarray(item.ids, np.int32) for path in suites for item in load_suite(path, text)]


def _told(where: str) -> Callable[[str], None]:
    """Says what is being measured where."""
    return lambda what: console.status(f"{where}: {what}…")


def _show(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A table of numbers."""
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for head in heads:
        table.add_column(head, justify="right", no_wrap=True)
    for row in rows:
        table.add_row(*row)
    Console().print(table)


def _print(results: Sequence[Costs]) -> None:
    heads = ("tokens", "depth", "build\ns", "append\nµs", "one\nµs", "draft\nµs", "p99\nµs", "remove\nµs", "bytes", "bytes\nkept")
    rows = []
    for costs in results:
        cells = (costs.append, costs.append_one, costs.draft, costs.draft_p99, costs.remove, costs.bytes, costs.bytes_kept)
        rows.append((f"{costs.tokens:,}", str(costs.depth), f"{costs.build_seconds:.2f}", *(f"{cell:.1f}" for cell in cells)))
    _show(heads, rows)


def _phrases(texts: Sequence[Any], sizes: Sequence[int], source: str, as_json: bool) -> None:
    from dataclasses import asdict

    from echodraft.bench.phrases import measure_phrases

    results = [measure_phrases(texts, size, _told(f"{size:,} phrases")) for size in sizes]
    console.status("")
    if as_json:
        console.json_object({"text": source, "results": [asdict(costs) for costs in results]})
        return
    heads = ("phrases", "add\nµs", "best\nµs", "p99\nµs", "credit\nµs", "bytes", "later\nadd µs", "later\nbest µs", "later\nbytes")
    rows = []
    for c in results:
        cells = (c.add, c.best, c.best_p99, c.credit, c.bytes, c.later_add, c.later_best, c.later_bytes)
        rows.append((f"{c.phrases:,}", *(f"{cell:.1f}" for cell in cells)))
    _show(heads, rows)
    console.note("best: the three best phrases of a token, median; later: after 10,000 more requests. Text: " + source + ".")


def _hidden(recordings: Sequence[Path], sizes: Sequence[int], distinct: bool, cost: str | None, as_json: bool) -> None:
    from dataclasses import asdict

    from echodraft.bench.hidden import measure_hidden, states_of

    step = _seconds_of_a_step(cost) if cost is not None else None
    console.status("Reading the states…")
    states, source = states_of(recordings, sizes[-1], distinct)
    results = [measure_hidden(states, size, _told(f"{size:,} keys")) for size in sizes]
    console.status("")
    shares = [None if step is None else c.query / 1e6 / step for c in results]
    if as_json:
        told = [{**asdict(costs), "share_of_step": share} for costs, share in zip(results, shares, strict=True)]
        console.json_object({"states": source, "step_seconds": step, "results": told})
        return
    heads = ("keys", "real", "distinct", "recall\n@8", "query\nµs", "p99\nµs", "of a\nstep", "append\nµs", "remove\nµs", "bytes")
    rows = []
    for c, share in zip(results, shares, strict=True):
        part = "" if share is None else f"{share:.1%}"
        times = (f"{c.query:.0f}", f"{c.query_p99:.0f}", part, f"{c.append:.1f}", f"{c.remove:.1f}")
        rows.append((f"{c.keys:,}", f"{c.real:,}", f"{c.distinct:,}", f"{c.recall:.3f}", *times, f"{c.bytes:.0f}"))
    _show(heads, rows)
    console.note("query: the 8 nearest to one state, median; append, remove, bytes: a key. Keys that are not real are mixtures of two.")
    console.note(f"States: {source}, width {states.shape[1]}." + ("" if step is None else f" A step of one row: {1000 * step:.0f} ms."))


def _seconds_of_a_step(cost: str) -> float:
    """What a forward of one row takes. Raises `UsageError` where the curve does not say."""
    from echodraft.curves import find_curve
    from echodraft.errors import UsageError

    curve = find_curve(cost)
    if not curve.seconds:
        raise UsageError(f"The curve {cost} says nothing of seconds. Name a file that echodraft cost wrote.")
    return curve.seconds[0]
