"""`echodraft cost`."""

from __future__ import annotations

from typing import Annotated

import typer

from echodraft.cli import console


def command(
    model: Annotated[str | None, typer.Option("--model", "-m", help="Folder, .gguf file or hub name.", show_default=False)] = None,
    dtype: Annotated[str, typer.Option("--dtype", help="auto (the model's own), float32, bfloat16, float16.")] = "auto",
    device: Annotated[str, typer.Option("--device", help="auto, cpu, cuda, cuda:0, …")] = "auto",
    quantize: Annotated[
        str | None, typer.Option("--quantize", metavar="int8|int4", help="As --draft-quantize makes a draft model.", show_default=False)
    ] = None,
    contexts: Annotated[str, typer.Option("--contexts", help="Context lengths to measure at.")] = "200,2000",
    repeats: Annotated[int, typer.Option("--repeats", min=1, help="Rounds; the median counts.")] = 5,
    listing: Annotated[bool, typer.Option("--list", help="Measure nothing; list the curves that come with echodraft.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON object instead of a table.")] = False,
) -> None:
    """Example: echodraft cost -m path/to/model

    Measure what a forward of 1…64 tokens costs here, print it and keep it: later runs of this model plan their drafts with it.

    Measure a draft model too, as it will be used: what its drafts cost is weighed against what they bring.
    """
    from echodraft.bench.cost import measure
    from echodraft.build import curve_file, plain
    from echodraft.curves import save_curve, shipped_curves
    from echodraft.errors import UsageError

    if listing:
        shipped = shipped_curves()
        lines = [f"{name:<14}{held['name']}\n    {held['about']}\n" for name, held in shipped.items()]
        return console.json_object(shipped) if as_json else console.answer("".join(lines))
    try:
        lengths = sorted({int(part) for part in contexts.split(",")})
    except ValueError as error:
        raise UsageError(f"--contexts is a list of numbers such as 200,2000, not '{contexts}'.") from error
    console.status("Loading the model…")
    decoder = plain(model, dtype, device, quantize)
    backend = decoder.engine.backend
    limit = (backend.context or 1 << 30) - 64
    if not lengths or lengths[0] < 1 or lengths[-1] > limit:
        raise UsageError(f"--contexts must lie between 1 and {limit}, the model's context less 64.")
    curve, seconds = measure(
        backend, lengths, f"measured: {decoder.name}", repeats, lambda done, total: console.status(f"Measuring… {done}/{total}")
    )
    console.status("")
    path = curve_file(decoder.name, backend)
    save_curve(curve, path)
    if as_json:
        console.json_object(
            {"rows": curve.rows, "contexts": curve.contexts, "seconds": seconds, "cost": curve.cost, "read": curve.read, "file": str(path)}
        )
        return
    from rich.console import Console
    from rich.table import Table

    table = Table(title=f"Cost of a forward, {decoder.name}")
    table.add_column("tokens", justify="right")
    for length in lengths:
        table.add_column(f"ms at {length}", justify="right")
        table.add_column("× one token", justify="right")
    for i, rows in enumerate(curve.rows):
        cells = [f"{value:.{digits}f}" for t, c in zip(seconds, curve.cost, strict=True) for value, digits in ((1e3 * t[i], 1), (c[i], 2))]
        table.add_row(str(rows), *cells)
    Console().print(table)
    for length, cost in zip(lengths, curve.read, strict=True):
        console.note(f"Reading a prompt of {length} tokens costs as much as {cost:.1f} forwards of one token.")
    console.note(f"Kept in {path}.")
