"""`echodraft tune`."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.bench import DATA, LENGTH, SUITE, lengths
from echodraft.cli.inputs import DraftCost, DraftModel, DraftQuantize
from echodraft.cli.progress import Bar
from echodraft.cli.record import begin, fill
from echodraft.cli.replay import COST

RECORDING = "Search on this recording; made from --suite where it is not there. Default: a temporary one."
LIVE = "Search by decoding instead: gamma, then W, beta and K, each up and down while it gets faster (the paper's Algorithm 1)."
SHOWN = 8


def command(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Folder, .gguf file or hub name.", show_default=False)] = None,
    draft_model: DraftModel = None,
    draft_quantize: DraftQuantize = None,
    drafter: Annotated[str, typer.Option("--drafter", "-d", help="ouroboros, speculative, cascade; others: their budget.")] = "ouroboros",
    suite: Annotated[str | None, typer.Option("--suite", help=SUITE, show_default=False)] = None,
    data: Annotated[Path | None, typer.Option("--data", metavar="DIR", help=DATA, show_default=False)] = None,
    recording: Annotated[Path | None, typer.Option("--recording", metavar="DIR", help=RECORDING, show_default=False)] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The first N requests.")] = 10,
    check: Annotated[int, typer.Option("--check", min=1, help="Prompts of the live check, and of every live trial.")] = 4,
    no_check: Annotated[bool, typer.Option("--no-check", help="Believe the estimate.")] = False,
    live: Annotated[bool, typer.Option("--live", help=LIVE)] = False,
    cost: Annotated[
        str | None, typer.Option("--cost", metavar="FILE|NAME", help=COST + " Default: as measured.", show_default=False)
    ] = None,
    draft_cost: DraftCost = None,
    max_new_tokens: Annotated[int | None, typer.Option("--max-new-tokens", "-n", min=1, help=LENGTH, show_default=False)] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="auto (the model's own), float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:0, …")] = "auto",
    save: Annotated[Path | None, typer.Option("--save", metavar="FILE", help="Write the profile.", show_default=False)] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the unfinished search for --save.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Example: echodraft tune -m path/to/large --draft-model path/to/small --suite humaneval.jsonl --save code.json

    Find the fastest settings of a drafter for a model, a draft model and a kind of prompt: by replay of recorded outputs and measured cost
    curves, then a short live check of the best two. Measure the curves first: echodraft cost.

    Use what was found: echodraft run --profile code.json (bench and replay take it, too).
    """
    from echodraft.bench.draft import priced, remembering
    from echodraft.bench.recording import Recording
    from echodraft.bench.replay import Corpus, replay, speedup
    from echodraft.bench.tune import Setting, Trials, items_of, ladders_of, race, search
    from echodraft.bench.tune import live as by_decoding
    from echodraft.build import curve_for, load
    from echodraft.core.backend import Need
    from echodraft.curves import find_curve
    from echodraft.drafters import drafter_class
    from echodraft.errors import UsageError

    have = recording is not None and (recording / "manifest.json").exists()
    if suite is None and not have:
        raise UsageError("There is nothing to tune on. Name a suite such as humaneval with --suite, or a recording with --recording.")
    if resume and save is None:
        raise UsageError("--resume goes on with the search for a profile. Name it with --save.")
    console.status("Loading the model…")
    how: dict[str, Any] = {"dtype": dtype, "device": device, "draft_model": draft_model, "draft_quantize": draft_quantize}
    base = load(model, drafter="none", **how)
    console.status("")
    settings = {"model": base.name, "drafter": drafter, "draft_model": draft_model, "draft_quantize": draft_quantize}
    settings |= {"cost": cost, "draft_cost": draft_cost, "max_new_tokens": max_new_tokens, "dtype": dtype, "device": device}
    settings |= {
        "data": data and str(data),
        "suite": suite,
        "recording": recording and str(recording),
        "limit": limit,
        "live": live,
        "check": check if live else 0,
    }
    # What is known to fail is said before anything is recorded.
    start = Setting(drafter, tuple(_start(drafter).items()))
    if Need.MODEL in drafter_class(drafter).needs and base.draft is None:
        raise UsageError(f"Drafter '{drafter}' needs a draft model. Name one with --draft-model.")
    curve = find_curve(cost) if cost is not None else curve_for(base.name, base.engine.backend)
    price = None
    if base.draft is not None and not live:
        price = priced(draft_cost, curve_for(base.draft.name, base.draft.engine.backend), curve)
    trials = Trials(save and save.with_name(f"{save.name}.trials.jsonl"), settings, resume)
    ladders = ladders_of(drafter, budgets=not live)
    most = lengths(max_new_tokens)
    checked: dict[Setting, float] = {}
    drafting = None
    interrupted = False
    with ExitStack() as stack:
        try:
            folder = recording or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="echodraft-")))
            if suite is not None:
                _record(base, folder, suite, data, limit, max_new_tokens)
            held = Recording(folder)
            if held.vocab_size != base.engine.backend.vocab_size:
                raise UsageError(f"{folder} was recorded with another model, {held.manifest.get('model')}. Record with this one.")
            if held.manifest.get("model") != base.name:
                console.note(f"The recording is of {held.manifest.get('model')}, which is taken to be the same model.")
            items = items_of(held, check)
            measure: Callable[[Setting, float], float]
            if live:
                measure = by_decoding(base, items, most)
            else:
                corpus, words = Corpus(held, limit), base.text
                if price is not None:
                    drafting = remembering(held, base.text, base.draft, draft_quantize, *price)
                beside = drafting and drafting.model

                def measure(setting: Setting, best: float) -> float:
                    found = replay(corpus, setting.profile.method, setting.budget, curve=curve, words=words, draft=beside)
                    return speedup(found, curve, beside) or 0.0

            with Bar(sum(map(len, ladders.values()))) as bar:

                def tried(setting: Setting, best: float) -> float:
                    found = measure(setting, best)
                    bar.advance(1, f"{setting.method} {found:.2f}×")
                    return found

                search(start, ladders, tried, trials, patience=1 if live else 3, rounds=1 if live else 2)
            if not live and not no_check:
                with Bar(3 * len(items)) as bar:
                    checked = race(base, items, most, trials.best()[:2], told=lambda _: bar.advance(1, "live check"))
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if drafting is not None:
                drafting.save()
    best = max(checked, key=checked.__getitem__) if checked and not interrupted else next(iter(trials.best()), None)
    if best is None:
        raise typer.Exit(console.INTERRUPTED)
    found = {**settings, "speedup": trials.speed[best], "checked": checked.get(best), "trials": len(trials.speed)}
    profile = best.profile.model_copy(
        update={"model": base.name, "draft_model": draft_model, "draft_quantize": draft_quantize, "found": found}
    )
    if save is not None and not interrupted:
        profile.save(save)
        if trials.path is not None:
            trials.path.unlink()
    if as_json:
        rows = [{"method": each.method, "speedup": trials.speed[each], "checked": checked.get(each)} for each in trials.best()]
        console.json_object({"profile": profile.model_dump(), "trials": rows, "saved": None if interrupted else save and str(save)})
    else:
        from rich.console import Console

        from echodraft.render.replay import trials as table

        Console().print(table([(each.method, trials.speed[each], checked.get(each)) for each in trials.best()[:SHOWN]], live))
        if save is not None and not interrupted:
            console.note(f"Kept in {save}. Use it: echodraft run --profile {save}")
    if interrupted:
        console.note("Interrupted." + (f" What was tried is kept; go on with --resume --save {save}." if save else ""))
        raise typer.Exit(console.INTERRUPTED)


def _start(drafter: str) -> dict[str, Any]:
    """The default of every knob that is searched. Raises `UsageError` for a drafter that there is not."""
    from echodraft.bench.tune import LADDERS
    from echodraft.build import knobs_of
    from echodraft.drafters import drafter_class

    known = knobs_of(drafter_class(drafter))
    return {name: known[name].default for name in LADDERS.get(drafter, {}) if name in known}


def _record(base: Any, folder: Path, suite: str, data: Path | None, limit: int, length: int | None) -> None:
    """What the model says to the first requests of a suite."""
    from echodraft.bench.suites import load_suites
    from echodraft.build import redraft

    items = load_suites(suite, base.text, data, limit)
    writer = begin(base, items, folder, ("norm",), True, length, {"category": None, "limit": limit, "drafter": "suffix"})
    fill(redraft(base, "suffix"), items, writer, length, "recording ")
