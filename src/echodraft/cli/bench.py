"""`echodraft bench`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.inputs import DraftModel, DraftQuantize, MemoryLimit, Tuned, read_budget, read_limits
from echodraft.cli.progress import Bar
from echodraft.drafters import DEFAULTS, chosen

MOST = 128
TRACE = "Write every step of our drafters to FILE, for echodraft inspect."
SUITE = "File of JSON lines with prompt, messages or turns, or a name: humaneval, spec-bench, … Comma-separated."
DATA = "Folder of suites that are meant by name; without it, public data sets."
LENGTH = f"Output tokens at most. Default: {MOST}, or what a line of the suite asks for if that is less; -n overrides both."
MEMORY = "carry: from request to request. cold: every request starts empty. DIR: carry, beginning with a copy of this folder."


def lengths(given: int | None) -> Callable[[Any], int]:
    """How many tokens an item's output may have, where -n says `given`."""
    return lambda item: given or min(MOST, item.most or MOST)


def command(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Folder, .gguf file or hub name.", show_default=False)] = None,
    suite: Annotated[str | None, typer.Option("--suite", help=SUITE, show_default=False)] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help=DATA, show_default=False)] = None,
    drafters: Annotated[
        str | None, typer.Option("--drafters", help=f"Comma-separated, knobs as name:key=value. Default: {DEFAULTS}.", show_default=False)
    ] = None,
    profile: Tuned = None,
    peers: Annotated[str, typer.Option("--peers", help="Hugging Face's own: hf, hf-pld[:tokens=10:ngram=2], hf-assisted.")] = "",
    draft_model: DraftModel = None,
    draft_quantize: DraftQuantize = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests of each suite.", show_default=False)] = None,
    category: Annotated[str | None, typer.Option("--category", help="Only requests of this category.", show_default=False)] = None,
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds over the suite; times are medians.")] = 1,
    budget: Annotated[str, typer.Option("--budget", metavar="auto|N", help="Draft where it pays, or N nodes each step.")] = "auto",
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", "-n", min=1, help=LENGTH, show_default=False)] = None,
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="0 is greedy.")] = 0.0,
    top_p: Annotated[float, typer.Option("--top-p", help="Sample among the best with this much probability.")] = 1.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the sampling.")] = 0,
    dtype: Annotated[str, typer.Option("--dtype", help="auto (the model's own), float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:0, …")] = "auto",
    backend: Annotated[str, typer.Option("--backend", help="transformers, or toy (no weights).")] = "transformers",
    out: Annotated[Path | None, typer.Option("--out", help="Folder that keeps every measurement.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished run in --out.")] = False,
    memory: Annotated[str, typer.Option("--memory", metavar="carry|cold|DIR", help=MEMORY)] = "carry",
    tenant: Annotated[str, typer.Option("--tenant", metavar="NAME", help="Whose memory.")] = "",
    memory_limit: MemoryLimit = None,
    trace: Annotated[Path | None, typer.Option("--trace", metavar="FILE", help=TRACE, show_default=False)] = None,
    by: Annotated[str | None, typer.Option("--by", metavar="category", help="A second table, by category.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object with everything instead of tables.")] = False,
) -> None:
    """Example: echodraft bench -m path/to/model --suite humaneval.jsonl --limit 10 --peers hf,hf-pld

    Measure drafters against plain decoding of the same engine (drafter none, always included), interleaved prompt by prompt. Greedily, or
    with -t by noise of the seed and the position, so that drafts change no token there either.

    What is done survives a kill: give --out, and --resume to go on. A finished folder is never changed. Compare two: echodraft compare.
    """
    from echodraft.bench.methods import Drafted, Method, Peer, Remembering
    from echodraft.bench.result import BASELINE, Run, manifest
    from echodraft.bench.runner import prompt_of, run
    from echodraft.bench.suites import load_suites
    from echodraft.bench.summary import find_differences, speedups, summarise
    from echodraft.build import load
    from echodraft.errors import UsageError
    from echodraft.metrics.trace import Trace

    if suite is None:
        raise UsageError("There is nothing to measure on. Name a file, or a suite such as humaneval, with --suite.")
    if by not in (None, "category"):
        raise UsageError(f"--by is 'category' or left out, not '{by}'.")
    names = list(dict.fromkeys([BASELINE, *_names(chosen(drafters, draft_model))]))
    others = _names(peers)
    sampling: dict[str, Any] = {}
    if temperature:
        sampling = {"temperature": temperature, "top_p": top_p, "seed": seed}
        if others:
            raise UsageError("Peers draw with noise of their own, so their answers cannot be compared. Leave out --peers or --temperature.")
    start = None if memory in ("carry", "cold") else Path(memory)
    if start is not None and not start.is_dir():
        raise UsageError(f"--memory is carry, cold or a folder, and there is no folder '{memory}'.")
    limits = read_limits(memory_limit or [])
    if resume and trace is not None and trace.is_file():
        raise UsageError(f"'{trace}' holds the steps of what is done, and would be written over. Name another file with --trace.")
    sink = Trace(trace) if trace is not None else None
    console.status("Loading the model…")
    try:
        base = load(
            model, backend=backend, dtype=dtype, device=device, drafter="none", draft_model=draft_model, draft_quantize=draft_quantize
        )
    finally:
        console.status("")
    items = load_suites(suite, base.text, data, limit, category)
    settings = {
        "model": Path(base.name).name,
        "dtype": str(getattr(getattr(base.engine.backend, "model", None), "dtype", "float64")),
        "suite": ",".join(dict.fromkeys(item.suite for item in items)),
        "category": category,
        "limit": limit,
        "repeats": repeats,
        "max_new_tokens": max_new_tokens or MOST,
        "capped_by_suite": max_new_tokens is None,
        "budget": budget,
        "memory": memory if start is None else "start",
        "tenant": tenant,
        "memory_limit": sorted(memory_limit or []),
        "drafters": names,
        "peers": others,
        "draft_model": draft_model and Path(draft_model).name,
        "draft_quantize": draft_quantize,
        "decoding": sampling or "greedy",
    }
    remembering = Remembering(memory != "cold", start, out / "memory" if out is not None else None, limits, tenant)
    methods: dict[str, Method] = {name: Drafted(base, name, read_budget(budget), remembering, sink, sampling) for name in names}
    methods |= {name: Peer(base, name) for name in others}
    record = Run(out, manifest(settings), resume)
    if sink is not None:
        sink.begin(base.name, names, settings)

    def told() -> str:
        return "  ".join(f"{name} {ratio:.2f}×" for name, ratio in speedups(record.done).items())

    interrupted, too_long = False, []
    try:
        with Bar(len(items) * len(methods) * repeats) as bar:
            bar.advance(len(record.done), told())
            too_long = run(items, methods, base, lengths(max_new_tokens), record, repeats, lambda _: bar.advance(1, told()))
    except KeyboardInterrupt:
        interrupted = True
    finally:
        for method in methods.values():
            method.close()
        if sink is not None:
            sink.close()
    # Who interrupts does not want to wait for more forwards; where noise decides, too, logits tell nothing.
    prompts = {} if interrupted or sampling else {item.id: prompt_of(item, base, record) for item in items}
    summary = summarise(record.done, find_differences(base, record.done, prompts))
    record.finish(summary, complete=not interrupted)
    if too_long:
        why = "the prompt is empty, fills the model's context or follows one that was left out"
        console.note(f"Left out, since {why}: {', '.join(too_long[:5])}{' …' * (len(too_long) > 5)}")
    if as_json:
        console.json_object({"settings": settings, "manifest": record.manifest, "left_out": too_long, "results": summary})
    else:
        from rich.console import Console

        from echodraft.render.bench import growth, notes, reports, table

        screen = Console() if Console().is_terminal else Console(width=100)
        screen.print(table(summary))
        if by:
            screen.print(table(summary, by_category=True))
        for extra in (reports(summary), growth(summary) if memory != "cold" else None):
            if extra is not None:
                screen.print(extra)
        for line in notes(summary, settings):
            console.note(line)
    if interrupted:
        console.note(f"Interrupted after {len(record.done)} measurements." + (f" Go on with --resume --out {out}." if out else ""))
        raise typer.Exit(console.INTERRUPTED)


def _names(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]
