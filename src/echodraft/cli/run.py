"""`echodraft run`."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.inputs import DraftModel, DraftQuantize, MemoryLimit, Tuned, knobs, open_memory, read_budget, read_prompt
from echodraft.drafters import DEFAULTS, chosen

Flag: Any = typer.Option
DEFAULT_MODEL = "the embedded SmolLM2-135M-Instruct"
TRACED = ("options", "budget", "max_new_tokens", "temperature", "top_k", "top_p", "min_p", "samples", "stop", "system")
"""Settings in the header of a trace."""


class Color(StrEnum):
    auto = "auto"
    always = "always"
    never = "never"


def command(
    prompt: Annotated[str | None, typer.Argument(help='What to answer; "-" or nothing reads a pipe.', show_default=False)] = None,
    model: Annotated[str | None, Flag("--model", "-m", help=f"Folder, .gguf file or hub name. Default: {DEFAULT_MODEL}.")] = None,
    drafter: Annotated[str | None, Flag("--drafter", "-d", help=f"See: echodraft ls drafters. Default: {DEFAULTS}.")] = None,
    draft_model: DraftModel = None,
    draft_quantize: DraftQuantize = None,
    profile: Tuned = None,
    option: Annotated[list[str] | None, Flag("--option", "-o", metavar="KEY=VALUE", help="A knob of the drafter; repeatable.")] = None,
    max_new_tokens: Annotated[int, Flag("--max-new-tokens", "-n", help="Output tokens at most.")] = 256,
    temperature: Annotated[float, Flag("--temperature", "-t", help="0 is greedy.")] = 0.0,
    top_k: Annotated[int, Flag("--top-k", help="Sample among the k best; 0 is off.")] = 0,
    top_p: Annotated[float, Flag("--top-p", help="Sample among the best with this much probability.")] = 1.0,
    min_p: Annotated[float, Flag("--min-p", help="Drop what is less likely than this share of the best.")] = 0.0,
    seed: Annotated[int | None, Flag("--seed", help="Of the sampling. Default: drawn, and reported.")] = None,
    samples: Annotated[int, Flag("--samples", help="Independent answers.")] = 1,
    system: Annotated[str | None, Flag("--system", "-s", metavar="TEXT", help="System message.")] = None,
    stop: Annotated[list[str] | None, Flag("--stop", metavar="TEXT", help="A string that ends the answer; repeatable.")] = None,
    raw: Annotated[bool, Flag("--raw", help="Complete the text as it is, without the chat template.")] = False,
    backend: Annotated[str, Flag("--backend", help="transformers, or toy (no weights).")] = "transformers",
    tokenizer: Annotated[str | None, Flag("--tokenizer", help="Folder or hub name. Default: the model's own.")] = None,
    dtype: Annotated[str, Flag("--dtype", help="auto (the model's own), float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, Flag("--device", help="auto, cpu, cuda, cuda:0, …")] = "auto",
    attn: Annotated[str, Flag("--attn", help="sdpa or eager.")] = "sdpa",
    budget: Annotated[str, Flag("--budget", metavar="auto|N", help="Draft where it pays, or N nodes each step.")] = "auto",
    pack: Annotated[bool, Flag("--pack/--no-pack", help="Prepack weights of CPU models: faster for more memory.")] = True,
    memory: Annotated[Path | None, Flag("--memory", metavar="DIR", help="Folder of what drafters remember between runs.")] = None,
    no_memory: Annotated[bool, Flag("--no-memory", help="Remember nothing, whatever the settings say.")] = False,
    memory_limit: MemoryLimit = None,
    tenant: Annotated[str, Flag("--tenant", metavar="NAME", help="Whose memory: nothing crosses from one name to another.")] = "",
    trust_remote_code: Annotated[bool, Flag("--trust-remote-code", help="Run Python code that comes with the model.")] = False,
    stats: Annotated[bool, Flag("--stats/--no-stats", help="Counts and times on stderr.")] = False,
    compare: Annotated[bool, Flag("--compare", help="Decode plainly as well: how much faster, and the same tokens?")] = False,
    trace: Annotated[Path | None, Flag("--trace", metavar="FILE", help="Write every step to FILE, for echodraft inspect.")] = None,
    color: Annotated[Color, Flag("--color", help="Mark drafted tokens by their drafter.")] = Color.auto,
    json: Annotated[bool, Flag("--json", help="One JSON object instead of the answer.")] = False,
) -> None:
    """Example: echodraft run "Write a haiku about rain" -m path/to/model --stats

    Answer a prompt, streamed. The answer goes to stdout, everything else to stderr.

    More: cat code.py | echodraft run --raw -n 64 --compare
    """
    from echodraft.cli.answers import Asked, answer
    from echodraft.options import Options, read_options

    drafter = chosen(drafter, draft_model)
    text = read_prompt(prompt, raw)
    # Checked before a model is loaded for nothing.
    options = Options(
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        samples=samples,
        stop=stop or [],
        system=system,
        tenant=tenant,
    )
    asked = Asked(text, raw, options, stats, compare, color.value, json)
    sink: Any = nullcontext()
    if trace is not None:
        from echodraft.metrics.trace import Trace

        sink = Trace(trace)
    how: dict[str, Any] = {
        "drafter": drafter,
        "drafter_options": read_options(knobs(profile, drafter, option or [])),
        "backend": backend,
        "tokenizer": tokenizer,
        "dtype": dtype,
        "device": device,
        "attn": attn,
        "budget": read_budget(budget),
        "pack": pack,
        "draft_model": draft_model,
        "draft_quantize": draft_quantize,
        "trust_remote_code": trust_remote_code,
    }
    from echodraft.build import load

    with open_memory(memory, no_memory, memory_limit or []) as held, sink:
        console.status("Loading the model…")
        try:
            decoder = load(model, memory=held, **how)
        finally:
            console.status("")
        if trace is not None:
            given = {"options": how["drafter_options"], "budget": how["budget"], **options.keywords()}
            sink.begin(decoder.name, drafter, {key: value for key, value in given.items() if key in TRACED})
            decoder.watchers.append(sink.watch(decoder.text, drafter))
        whole = answer(decoder, asked, sys.stdout.isatty())
    if not whole:
        raise typer.Exit(console.INTERRUPTED)
