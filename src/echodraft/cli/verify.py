"""`echodraft verify`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.inputs import DraftModel, DraftQuantize, read_budget
from echodraft.cli.progress import Bar

MODES = ("greedy", "sampled")

PARAGRAPH = (
    "The heron waits at the edge of the pond. It waits until the water is still, and then it waits a little longer. "
    "When a fish comes near, the heron strikes. When no fish comes near, the heron waits at the edge of the pond."
)
CODE = '''def area_of_square(side):
    """The area of a square."""
    return side * side


def area_of_rectangle(width, height):
    """The area of a rectangle."""
    return width * height


def area_of_circle(radius):
'''
BUILT_IN: dict[str, Any] = {
    "repeat": f"{PARAGRAPH}\n\n{PARAGRAPH}\n\nThe heron waits",
    "code": CODE,
    "chat": [{"role": "user", "content": f"Correct the spelling of this text, change nothing else:\n\n{PARAGRAPH}"}],
}
"""Prompts whose answers repeat something, so that there is something to draft."""
MORE = "Give prompts that repeat themselves, more tokens (-n) or drafts of a fixed size (--budget 16)."
FAULT = "That is a fault of the drafting, the backend or the model's code: please report it with the lines above."


def command(
    prompt: Annotated[list[str] | None, typer.Argument(help="What to answer. Default: three built-in prompts.", show_default=False)] = None,
    model: Annotated[str | None, typer.Option("--model", "-m", help="Folder, .gguf file or hub name.", show_default=False)] = None,
    drafters: Annotated[
        str, typer.Option("--drafters", help="Comma-separated; name:key=value sets a knob. Default: all.", show_default=False)
    ] = "",
    draft_model: DraftModel = None,
    draft_quantize: DraftQuantize = None,
    suite: Annotated[Path | None, typer.Option("--suite", help="JSON lines with prompt, messages or turns.", show_default=False)] = None,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests of the suite.", show_default=False)] = None,
    raw: Annotated[bool, typer.Option("--raw", help="Complete the prompts as they are, without the chat template.")] = False,
    modes: Annotated[str, typer.Option("--modes", help="greedy, sampled, or both.")] = "greedy,sampled",
    temperature: Annotated[float, typer.Option("--temperature", "-t", help="Of the sampled mode.")] = 0.8,
    top_k: Annotated[int, typer.Option("--top-k", help="Sample among the k best; 0 is off.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="Sample among the best with this much probability.")] = 1.0,
    min_p: Annotated[float, typer.Option("--min-p", help="Drop what is less likely than this share of the best.")] = 0.0,
    seed: Annotated[int, typer.Option("--seed", help="Of the sampling.")] = 0,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", "-n", min=1, help="Output tokens at most.")] = 64,
    budget: Annotated[str, typer.Option("--budget", metavar="auto|N", help="Draft where it pays, or N nodes each step.")] = "8",
    batch: Annotated[
        int, typer.Option("--batch", min=1, help="Prompts that drafters answer in one forward; plain decoding has each alone.")
    ] = 1,
    against: Annotated[
        str | None, typer.Option("--against", metavar="generate", help="Compare model.generate as well, greedily.", show_default=False)
    ] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="auto (the model's own), float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:0, …")] = "auto",
    backend: Annotated[str, typer.Option("--backend", help="transformers, or toy (no weights).")] = "transformers",
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Example: echodraft verify -m path/to/model --drafters prompt-lookup --dtype float32

    Are the tokens those of plain decoding? Where an answer leaves it, the first difference is explained: a numerical tie, or a fault.

    The tolerance is measured on the spot, without drafts: one-row forwards against others of the same prefix. A gap between the two tokens
    of up to twice the tolerance is a tie. Exit code 3 on a fault. Stop strings of a suite are not used.
    """
    from echodraft.bench.rounding import dtype_of
    from echodraft.bench.verify import Verification
    from echodraft.build import load
    from echodraft.errors import CheckFailed, UsageError
    from echodraft.options import Options

    wanted = [mode for mode in modes.split(",") if mode]
    if not wanted or not set(wanted) <= set(MODES):
        raise UsageError(f"--modes is greedy, sampled or both, not '{modes}'.")
    if against not in (None, "generate"):
        raise UsageError(f"--against compares with 'generate' only, not '{against}'.")
    if against and ("greedy" not in wanted or backend == "toy"):
        raise UsageError("--against generate compares greedy answers of a Hugging Face model. Use greedy --modes and no toy backend.")
    if "sampled" in wanted and temperature == 0.0:
        raise UsageError("The sampled mode needs a temperature above 0. Set -t, or --modes greedy.")
    options = Options(max_new_tokens=max_new_tokens, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p, seed=seed)
    rules = {mode: options.rule(seed, 0) if mode == "sampled" else Options().rule(0, 0) for mode in wanted}
    nodes = read_budget(budget)
    if suite is not None and prompt:
        raise UsageError("Prompts come from --suite or from the command line, not from both.")
    console.status("Loading the model…")
    try:
        plain = load(
            model,
            backend=backend,
            dtype=dtype,
            device=device,
            drafter="none",
            budget=0,
            draft_model=draft_model,
            draft_quantize=draft_quantize,
        )
    finally:
        console.status("")
    items = _items(plain, prompt or [], raw, suite, limit)
    engines = _engines(plain, drafters, nodes)
    found = Verification(plain, engines, rules, max_new_tokens, batch, _generate(plain, max_new_tokens) if against else None)
    interrupted = False
    try:
        with Bar(len(items) * found.rounds) as bar:
            found.run(items, bar.advance)
    except KeyboardInterrupt:
        interrupted = True
    settings = {"model": Path(plain.name).name, "dtype": dtype_of(plain.engine.backend), "budget": nodes, "batch": batch}
    _report({"settings": {**settings, "max_new_tokens": max_new_tokens, "seed": seed}, **found.as_dict()}, as_json)
    done = sum(tally.prompts for tally in found.tallies)
    if interrupted:
        console.note(f"Interrupted after {done} comparisons.")
        raise typer.Exit(console.INTERRUPTED)
    if found.faults:
        raise CheckFailed(f"{found.faults} of {done} answers differ from plain decoding by more than rounding explains. {FAULT}")


def _items(plain: Any, prompts: list[str], raw: bool, suite: Path | None, limit: int | None) -> list[Any]:
    """The requests, without stop strings: those only cut, and hide what comes behind."""
    from dataclasses import replace

    from echodraft.bench.suites import Item, load_suite

    if suite is not None:
        return [replace(item, stop=()) for item in load_suite(suite, plain.text, limit)]
    asked: dict[str, Any] = {str(i): text if raw else [{"role": "user", "content": text}] for i, text in enumerate(prompts, 1)}
    text = plain.text
    return [
        Item(name, "", text.encode(what) if isinstance(what, str) else text.encode_chat(what), ())
        for name, what in (asked or BUILT_IN).items()
    ]


def _engines(plain: Any, drafters: str, nodes: str | int) -> dict[str, Any]:
    """The named drafters over the same model; without names, all that the backend can serve."""
    from echodraft.bench.methods import parse
    from echodraft.build import redraft
    from echodraft.drafters import DRAFTERS
    from echodraft.errors import Unsupported

    names = [name for name in drafters.split(",") if name]
    engines = {}
    for text in names or [name for name in DRAFTERS if name != "none"]:
        name, knobs = parse(text)
        own = knobs.pop("budget", nodes)
        try:
            engines[text] = redraft(plain, name, knobs, own).engine
        except Unsupported as error:
            if names:
                raise
            console.note(str(error))
    return engines


def _generate(plain: Any, most: int) -> Any:
    from echodraft.bench.methods import Peer

    peer = Peer(plain, "hf")
    return lambda item: peer.answer(item, most).ids


def _report(found: dict[str, Any], as_json: bool) -> None:
    from rich.console import Console

    from echodraft.render.verify import explained, table, tolerance

    if as_json:
        console.json_object(found)
    else:
        Console().print(table(found["results"]))
        for difference in found["differences"]:
            console.answer(explained(difference) + "\n")
        if found["prefixes"]:
            console.note(tolerance(found))
    idle = [f"{row['drafter']} ({row['mode']})" for row in found["results"] if row["accepted"] == 0 and row["drafter"] != "none"]
    if idle:
        console.note(f"Nothing verified for {', '.join(idle)}: no draft was accepted. {MORE}")
