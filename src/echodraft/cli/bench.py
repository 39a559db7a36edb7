"""`echodraft bench`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.inputs import DraftModel, MemoryLimit, read_budget, read_limits
from echodraft.cli.progress import Bar

MEMORY = "Folder of what drafters remember from request to request. Default: in --out."


def command(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Folder, .gguf file or hub name.", show_default=False)] = None,
    suite: Annotated[Path | None, typer.Option("--suite", help="JSON lines with prompt, messages or turns.", show_default=False)] = None,
    drafters: Annotated[str, typer.Option("--drafters", help="Comma-separated; name:key=value sets a knob.")] = "prompt-lookup",
    peers: Annotated[str, typer.Option("--peers", help="Hugging Face's own: hf, hf-pld[:tokens=10:ngram=2], hf-assisted.")] = "",
    draft_model: DraftModel = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests.", show_default=False)] = None,
    category: Annotated[str | None, typer.Option("--category", help="Only requests of this category.", show_default=False)] = None,
    budget: Annotated[str, typer.Option("--budget", metavar="auto|N", help="Draft where it pays, or N nodes each step.")] = "auto",
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Output tokens at most.")] = 128,
    dtype: Annotated[str, typer.Option("--dtype", help="auto (the model's own), float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:0, …")] = "auto",
    backend: Annotated[str, typer.Option("--backend", help="transformers, or toy (no weights).")] = "transformers",
    out: Annotated[Path | None, typer.Option("--out", help="Folder that keeps every measurement.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run in --out.")] = False,
    memory: Annotated[Path | None, typer.Option("--memory", metavar="DIR", help=MEMORY, show_default=False)] = None,
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose memory.")] = "",
    no_memory: Annotated[bool, typer.Option("--no-memory", help="Every request starts with an empty memory.")] = False,
    memory_limit: MemoryLimit = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Example: echodraft bench -m path/to/model --suite humaneval.jsonl --limit 10 --peers hf,hf-pld

    Measure drafters against plain decoding of the same engine (drafter none, always included), greedily, interleaved prompt by prompt.

    What is done survives a kill: give --out, and --resume to go on.
    """
    from echodraft.bench.methods import Drafted, Method, Peer
    from echodraft.bench.result import BASELINE, Run, manifest, summarise
    from echodraft.bench.runner import run
    from echodraft.bench.suites import load_suite
    from echodraft.build import load
    from echodraft.errors import UsageError

    if suite is None:
        raise UsageError("There is nothing to measure on. Name a file with --suite.")
    names = list(dict.fromkeys([BASELINE, *filter(None, drafters.split(","))]))
    others = [name for name in peers.split(",") if name]
    console.status("Loading the model…")
    base = load(model, backend=backend, dtype=dtype, device=device, drafter="none", draft_model=draft_model)
    console.status("")
    items = load_suite(suite, base.text, limit, category)
    lasting = memory or (out / "memory" if out is not None else None)
    limits = read_limits(memory_limit or [])
    methods: dict[str, Method] = {
        name: Drafted(base, name, read_budget(budget), None if no_memory else lasting, not no_memory, limits, tenant) for name in names
    }
    methods |= {name: Peer(base, name) for name in others}
    settings = {
        "model": Path(base.name).name,
        "dtype": str(getattr(getattr(base.engine.backend, "model", None), "dtype", "float64")),
        "suite": suite.name,
        "category": category,
        "limit": limit,
        "max_new_tokens": max_new_tokens,
        "budget": budget,
        "memory": not no_memory,
        "drafters": names,
        "draft_model": draft_model and Path(draft_model).name,
        "peers": others,
    }
    record = Run(out, manifest(settings), resume)
    interrupted = False
    try:
        with Bar(len(items) * len(methods)) as bar:
            bar.advance(len(record.done), _ratios(record.done))
            run(items, methods, max_new_tokens, record, lambda _: bar.advance(1, _ratios(record.done)))
    except KeyboardInterrupt:
        interrupted = True
    summary = summarise(record.done)
    record.finish(summary)
    if as_json:
        console.json_object({"settings": settings, "results": summary})
    else:
        _print(summary)
    if interrupted:
        console.note(f"Interrupted after {len(record.done)} measurements." + (f" Go on with --resume --out {out}." if out else ""))
        raise typer.Exit(console.INTERRUPTED)


def _ratios(done: Any) -> str:
    """The speed-up so far, to be shown while the run goes on."""
    from echodraft.bench.result import summarise

    return "  ".join(f"{row['drafter']} {row['speedup']:.2f}×" for row in summarise(done) if row["speedup"] and row["drafter"] != "none")


def _print(summary: list[dict[str, Any]]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("method", overflow="fold")
    for head in ("tokens\na step", "decode\ntokens/s", "×", "all\ntokens/s", "×", "same"):
        table.add_column(head, justify="right", no_wrap=True)
    for row in summary:
        table.add_row(
            row["drafter"],
            f"{row['mean_accepted']:.2f}" if row["mean_accepted"] else "",
            f"{row['decode_tokens_per_second']:.2f}",
            f"{row['speedup']:.2f}" if row["speedup"] else "",
            f"{row['tokens_per_second']:.2f}",
            f"{row['speedup_end_to_end']:.2f}" if row["speedup_end_to_end"] else "",
            f"{row['identical']}/{row['items']}",
        )
    Console().print(table)
    console.note("× is against plain decoding (none); all counts prefill; same: outputs with exactly the tokens of none.")
