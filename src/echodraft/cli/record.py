"""`echodraft record`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.bench import DATA, LENGTH, MOST, SUITE, lengths
from echodraft.cli.progress import Bar

LAYERS = "Hidden states to keep: norm (the final norm, always), and numbers of decoder layers."


def command(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Folder, .gguf file or hub name.", show_default=False)] = None,
    suite: Annotated[str | None, typer.Option("--suite", help=SUITE, show_default=False)] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help=DATA, show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Folder of the recording.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests.", show_default=False)] = None,
    category: Annotated[str | None, typer.Option("--category", help="Only requests of this category.", show_default=False)] = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", "-n", min=1, help=LENGTH, show_default=False)] = None,
    drafter: Annotated[str, typer.Option("--drafter", "-d", help="Makes it faster; the output is the same with any.")] = "suffix",
    layers: Annotated[str, typer.Option("--layers", metavar="norm[,N…]", help=LAYERS)] = "norm",
    no_hidden: Annotated[bool, typer.Option("--no-hidden", help="Keep no hidden states: a hundredth of the size.")] = False,
    dtype: Annotated[str, typer.Option("--dtype", help="auto (the model's own), float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:0, …")] = "auto",
    backend: Annotated[str, typer.Option("--backend", help="transformers, or toy (no weights).")] = "transformers",
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the recording in --out.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a line.")] = False,
) -> None:
    """Example: echodraft record -m path/to/model --suite humaneval.jsonl --limit 20 --out recordings/humaneval

    Write down what a model says to the prompts of a suite, greedily, and what it computes on the way: best ids, hidden states.

    echodraft replay then tries drafters on it in seconds, without the model. What is done survives a kill: go on with --resume.
    """
    from echodraft.bench.methods import parse
    from echodraft.bench.record import read_layers
    from echodraft.bench.suites import load_suites
    from echodraft.build import load
    from echodraft.errors import UsageError

    if suite is None:
        raise UsageError("There is nothing to record. Name a file, or a suite such as humaneval, with --suite.")
    if out is None:
        raise UsageError("Where is the recording to be kept? Name a folder with --out.")
    kept = read_layers("" if no_hidden else layers)
    name, knobs = parse(drafter)
    console.status("Loading the model…")
    try:
        decoder = load(model, backend=backend, dtype=dtype, device=device, drafter=name, drafter_options=knobs)
    finally:
        console.status("")
    items = load_suites(suite, decoder.text, data, limit, category)
    writer = begin(decoder, items, out, kept, resume, max_new_tokens, {"category": category, "limit": limit, "drafter": drafter})
    interrupted, too_long = False, []
    try:
        too_long = fill(decoder, items, writer, max_new_tokens)
    except KeyboardInterrupt:
        interrupted = True
    if too_long:
        console.note(f"Left out, since the prompt fills the model's context: {', '.join(too_long[:5])}{' …' * (len(too_long) > 5)}")
    tokens, size = sum(entry.output_tokens for entry in writer.entries), sum(file.stat().st_size for file in out.iterdir())
    if as_json:
        told = {"out": str(out), "requests": len(writer.entries), "of": len(items), "output_tokens": tokens, "bytes": size}
        console.json_object(told)
    else:
        console.answer(f"{len(writer.entries)} requests, {tokens:,} output tokens, {size / 1e6:.1f} MB in {out}\n")
    if interrupted:
        console.note(f"Interrupted. What is finished is kept; go on with --resume --out {out}.")
        raise typer.Exit(console.INTERRUPTED)


def begin(decoder: Any, items: Any, folder: Path, layers: Any, resume: bool, length: int | None, settings: dict[str, Any]) -> Any:
    """A recording of a suite's `items` in a folder, new or to be gone on with: its `Writer`."""
    from echodraft.bench.record import describe
    from echodraft.bench.recording import Writer
    from echodraft.bench.result import manifest

    settings |= {"max_new_tokens": length or MOST, "capped_by_suite": length is None}
    about = describe(decoder, ",".join(dict.fromkeys(item.suite for item in items)), layers)
    return Writer(folder, {**manifest(settings), **about}, resume)


def fill(decoder: Any, items: Any, writer: Any, length: int | None, doing: str = "") -> list[str]:
    """What the model says to the items that the recording lacks, with a bar; ids of those that were too long."""
    from echodraft.bench.record import record

    with Bar(len(items)) as bar:
        bar.advance(sum(writer.find(item.id) is not None for item in items))
        return record(items, decoder, writer, lengths(length), lambda entry: bar.advance(1, f"{doing}{entry.id}"))
