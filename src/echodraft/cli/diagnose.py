"""`echodraft diagnose`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from echodraft.cli import console
from echodraft.cli.progress import Bar

if TYPE_CHECKING:
    from echodraft.bench.recording import Recording


def command(
    recording: Annotated[Path, typer.Argument(metavar="RECORDING", help="Folder made by echodraft record, with hidden states.")],
    k: Annotated[int, typer.Option("--k", min=1, max=64, help="First tokens of each side: children, and nearest states.")] = 8,
    limit: Annotated[int | None, typer.Option("--limit", min=1, help="The first N requests.", show_default=False)] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a page with single cases.", show_default=False)] = None,
    cases: Annotated[int, typer.Option("--cases", min=0, help="Cases on the page.")] = 200,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", help="For the page. Default: the recorded model's.", show_default=False)
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Example: echodraft diagnose recordings/api_bank --html gaps.html

    Where is what comes next in what was said before, but out of reach for a lexical drafter (suffix)? And how much of that do the
    nearest hidden states hold? All outputs of the recording in order, memory carried.
    """
    from rich.console import Console

    from echodraft.bench.diagnose import diagnose
    from echodraft.bench.recording import Recording
    from echodraft.render.diagnosis import MEANINGS, cliff, page, table
    from echodraft.render.html import write

    held = Recording(recording)
    text = _text(held, tokenizer) if html is not None else None  # what is wrong with it is told before the work
    with Bar(len(held.entries[:limit])) as bar:
        found = diagnose(held, k, limit, cases, lambda: bar.advance(1))
    rows, lengths = found.table(), found.cliff()
    if as_json:
        console.json_object({"recording": str(recording), "k": k, "spans": rows, "match_around_gaps": lengths})
    else:
        Console().print(table(rows))
        console.note("; ".join(f"{name}: {meaning}" for name, meaning in MEANINGS) + ".")
        console.note(f"Median match around a gap (m = 4), by position: {cliff(lengths)}.")
    if html is not None and text is not None:
        write(html, page(f"Diagnosis of {held.manifest.get('suite', recording.name)}", rows, lengths, found.cases, text))
        console.note(f"{len(found.cases)} cases: {html}")
    if found.interrupted:
        console.note("Interrupted: this is what was finished.")
        raise typer.Exit(console.INTERRUPTED)


def _text(held: Recording, tokenizer: str | None) -> Callable[[Sequence[int]], str]:
    """From ids to text, by the recorded model's tokenizer if it is here; otherwise the ids."""
    where = tokenizer or str(held.manifest.get("model", ""))
    if tokenizer is None and not Path(where).expanduser().exists():
        return lambda ids: " ".join(map(str, ids))
    from echodraft.backends.transformers_load import load_tokenizer

    decode = load_tokenizer(where).decode
    return lambda ids: str(decode(list(ids)))
