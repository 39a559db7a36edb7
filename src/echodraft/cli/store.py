"""`echodraft store`."""

from __future__ import annotations

import json as json_module
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer

from echodraft.cli import console
from echodraft.cli.inputs import MemoryLimit, read_limits
from echodraft.errors import EchodraftError, UsageError

app = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False, no_args_is_help=True)

Memory = Annotated[Path | None, typer.Option("--memory", metavar="DIR", help="The memory folder.", show_default=False)]
Tenant = Annotated[
    str | None, typer.Option("--tenant", metavar="NAME", help='Only this tenant; "" is the default one.', show_default=False)
]
Wait = Annotated[float, typer.Option("--wait", min=0.0, help="Seconds to wait for a process that writes there.")]
AsJson = Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")]


@app.callback()
def root() -> None:
    """Example: echodraft store info --memory ~/echodraft-memory

    What drafters remember between runs: look at it, shorten it, forget it, take it out.
    """


@app.command(short_help="What a memory folder holds.")
def info(memory: Memory = None, tenant: Tenant = None, json: AsJson = False) -> None:
    """Example: echodraft store info --memory ~/echodraft-memory

    What a memory folder holds: a line for each tenant and kind of store. Reads only.
    """
    headers = [header for header in _there(memory).headers() if tenant in (None, header.tenant)]
    rows = [
        {
            "tenant": header.tenant,
            "kind": header.kind,
            "tokens": header.tokens,
            "bytes": header.bytes,
            "saved": _when(header.saved),
            "model": header.identity.name,
            "model_fingerprint": header.identity.model,
            "tokenizer_fingerprint": header.identity.tokenizer,
        }
        for header in headers
    ]
    if json:
        console.json_object({"memory": str(memory), "stores": rows})
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Memory in {memory}")
    for head in ("tenant", "kind", "tokens", "bytes", "saved", "model"):
        table.add_column(head, justify="right" if head in ("tokens", "bytes") else "left", overflow="fold")
    for row in rows:
        table.add_row(row["tenant"] or "(default)", row["kind"], f"{row['tokens']:,}", f"{row['bytes']:,}", row["saved"], row["model"])
    Console().print(table)


@app.command(short_help="Hold it to limits now.")
def prune(memory: Memory = None, memory_limit: MemoryLimit = None, wait: Wait = 0.0, json: AsJson = False) -> None:
    """Example: echodraft store prune --memory ~/echodraft-memory --memory-limit tokens=200000 --memory-limit days=30

    Forget the oldest texts of every tenant beyond the limits, then whole tenants, longest unused first, beyond the bytes.
    """
    limits = read_limits(memory_limit or [])
    folder = _there(memory, wait, write=True)
    headers = list(folder.headers())
    for header in headers:
        store = folder.load(header.tenant, header.kind)
        if store is not None:
            store.prune(limits.tokens, limits.before)
            folder.save(header.tenant, store, header.identity, header.saved)
    gone = folder.shrink(limits.bytes)
    before, after = (sum(header.tokens for header in found) for found in (headers, folder.headers()))
    told = {"tokens_before": before, "tokens_after": after, "tenants_forgotten": gone}
    if json:
        console.json_object(told)
    else:
        console.answer(f"{before:,} tokens before, {after:,} now; {len(gone)} tenants forgotten.\n")


@app.command(short_help="Delete a tenant's memory, or all.")
def forget(
    memory: Memory = None,
    tenant: Tenant = None,
    everything: Annotated[bool, typer.Option("--all", help="Every tenant, damaged files too.")] = False,
    wait: Wait = 0.0,
) -> None:
    """Example: echodraft store forget --memory ~/echodraft-memory --tenant alice

    Delete all that is remembered of a tenant, or of everybody.
    """
    if everything == (tenant is not None):
        raise UsageError("Say whose memory: --tenant NAME, or --all.")
    folder = _there(memory, wait, write=True)
    if everything:
        console.answer(f"{folder.clear()} files deleted.\n")
    elif tenant is None or not folder.forget(tenant):
        raise UsageError(f"Nothing is remembered of tenant '{tenant}'. See: echodraft store info.")
    else:
        console.answer(f"Tenant '{tenant}' is forgotten.\n")


@app.command(short_help="The remembered texts as JSON lines.")
def export(
    memory: Memory = None,
    tenant: Tenant = None,
    tokenizer: Annotated[str | None, typer.Option("--tokenizer", help="Folder or hub name: adds the text.", show_default=False)] = None,
    out: Annotated[Path | None, typer.Option("--out", help="A file instead of stdout.", show_default=False)] = None,
) -> None:
    """Example: echodraft store export --memory ~/echodraft-memory --tenant alice --tokenizer path/to/model > alice.jsonl

    What is remembered, one JSON object a line: tenant, kind and what that kind of store holds.
    """
    folder = _there(memory)
    decode = _decoder(tokenizer)
    lines = []
    for header in folder.headers():
        if tenant in (None, header.tenant):
            store = folder.load(header.tenant, header.kind)
            for entry in store.entries() if store is not None else ():
                lines.append(
                    json_module.dumps({"tenant": header.tenant, "kind": header.kind, **entry, **decode(entry)}, ensure_ascii=False)
                )
    text = "".join(line + "\n" for line in lines)
    if out is None:
        console.answer(text)
    else:
        out.write_text(text, encoding="utf-8")
        console.note(f"{len(lines)} lines in {out}.")


@app.command(short_help="Make a corpus for the drafter 'rest'.")
def build(
    corpus: Annotated[
        list[Path] | None,
        typer.Option("--corpus", metavar="FILE|DIR", help="A text file, .jsonl, or a folder of them; repeatable.", show_default=False),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Whose tokenizer: folder, .gguf file or hub name.", show_default=False)
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", metavar="DIR", help="Where the corpus goes.", show_default=False)] = None,
    field: Annotated[str, typer.Option("--field", help="Of a .jsonl row: its text.")] = "text",
    tokens: Annotated[int, typer.Option("--tokens", min=1, help="Tokens at most: 8 bytes each on disk, 60 in memory now.")] = 20_000_000,
    json: AsJson = False,
) -> None:
    """Example: echodraft store build --corpus docs/ --corpus answers.jsonl -m path/to/model --out my-corpus

    Make a corpus for: -d rest -o corpus=my-corpus. It is your file: all tenants are drafted from it, so put nothing private into it.
    """
    from echodraft.bench.corpus import build_corpus
    from echodraft.cli.progress import Bar
    from echodraft.stores.corpus import FILE
    from echodraft.text.documents import files

    if not corpus or out is None:
        raise UsageError("A corpus is made of files and goes to a folder. Name both: --corpus FILE --out DIR.")
    if (out / FILE).exists():
        raise UsageError(f"There is a corpus in {out} already. Name another folder, or delete {out / FILE}.")
    found = files(corpus)
    with Bar(sum(path.stat().st_size for path in found)) as bar:
        made = build_corpus(found, model, field, tokens, bar.advance)
    bytes_ = made.save(out).stat().st_size
    told = {"corpus": str(out), "texts": made.about.texts, "tokens": len(made.text) - made.about.texts, "bytes": bytes_}
    if told["tokens"] == tokens:
        console.note(f"Stopped at {tokens:,} tokens; --tokens takes more.")
    if json:
        console.json_object(told)
    else:
        console.answer(f"{told['texts']:,} texts of {told['tokens']:,} tokens in {out}. Use it: -d rest -o corpus={out}\n")


def _there(memory: Path | None, wait: float = 0.0, write: bool = False) -> Any:
    """The folder, which must exist; with `write`, this process is the only one that writes it."""
    from echodraft.stores.folder import Folder

    if memory is None:
        raise UsageError("Which memory? Name its folder with --memory.")
    if not memory.expanduser().is_dir():
        raise UsageError(f"There is no memory folder {memory}.")
    folder = Folder(memory, wait, write)
    if write:
        folder.must_write()
    return folder


def _decoder(tokenizer: str | None) -> Any:
    if tokenizer is None:
        return lambda _: {}
    from echodraft.backends.transformers_load import load_tokenizer

    held = load_tokenizer(tokenizer, False)

    def decode(entry: dict[str, Any]) -> dict[str, str]:
        ids: Sequence[int] = entry.get("ids", ())
        try:
            return {"text": held.decode(ids)}
        except (OverflowError, ValueError) as error:
            raise EchodraftError(f"This tokenizer does not know the ids ({error}). Name the model's own.") from error

    return decode


def _when(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="seconds")
