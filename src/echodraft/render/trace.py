"""A trace for a terminal and for machines."""

from __future__ import annotations

from typing import Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from echodraft.decoder import Piece
from echodraft.metrics.traced import Request, Traced, Tracing, shown
from echodraft.render.terminal import Painter


def overview(trace: Tracing) -> Table:
    """The requests of a trace, a line each."""
    from rich import box

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("request", justify="right")
    table.add_column("item", overflow="fold")
    table.add_column("drafter", overflow="fold")
    for head in ("tokens", "steps", "tokens\na step"):
        table.add_column(head, justify="right", no_wrap=True)
    table.add_column("ended by")
    for one in trace.requests.values():
        counts = (str(one.emitted), str(len(one.decoded)), f"{one.mean_accepted:.2f}")
        names = (harmless(text or "") for text in (one.head.item, one.head.drafter))
        table.add_row(str(one.number), *map(Text, names), *counts, Text(harmless(one.finish or "interrupt")))
    return table


def output(request: Request, painter: Painter | None) -> str:
    """The answer, its tokens marked by who guessed them. Control characters are shown as escapes: a trace is not trusted."""
    tokens = [token for step in request.steps for token in step.tokens]
    pieces = (Piece(harmless(token.text), token.id, token.source) for token in tokens)
    return "".join(painter.paint(piece) if painter else piece.text for piece in pieces)


def line(step: Traced, whole: int) -> str:
    """One step in one line; `whole` is the number of steps, for the width."""
    digits = len(str(whole))
    kept, scored = len(step.path), len(step.draft.token)
    said = shown("".join(step.pieces), step.emitted[-1])
    return f"{step.step:>{digits}}  kept {kept:>2} of {scored:>2}  {said}: {step.ended}"


def tree(step: Traced) -> RenderableType:
    """A step's draft as a tree: kept nodes bold with a tick, refused ones with a cross, those behind them dim."""
    root = Tree(Text.assemble("anchor ", shown(*reversed(step.anchor)), (f"  (token {step.context - 1})", "dim")))
    hang(root, step, -1)
    ms = ", ".join(f"{phase} {1000 * seconds:.1f}" for phase, seconds in step.seconds.items())
    about = f"proposed {step.proposed}, scored {len(step.draft.token)}, batch {step.batch}; ms: {ms}"
    return Group(Text(f"step {step.step}: {step.ended}"), Text(about, style="dim"), root)


def hang(branch: Tree, step: Traced, node: int) -> None:
    """Hang the children of `node`; chains go down without recursion, so that a long one is no deep call."""
    stack = [(branch, node)]
    while stack:
        above, at = stack.pop()
        for child in step.draft.children(at):
            stack.append((above.add(_label(step, child), guide_style="dim"), child))


def _label(step: Traced, node: int) -> Text:
    draft = step.draft
    probe = ", probe" if node in draft.probe else ""
    about = (f"  {harmless(draft.source[node])} {draft.prob[node]:.2f}{probe}", "dim")
    name = shown(draft.text[node], draft.token[node])
    if node in step.path:
        return Text.assemble(("✓ ", "bold"), (name, "bold underline"), about)
    if node in step.refused:
        return Text.assemble("✗ ", (name, "strike"), about)
    return Text.assemble("· ", (name, "dim"), about)


def as_dict(trace: Tracing, requests: list[Request]) -> dict[str, Any]:
    """The trace as plain values, with what follows from it: counts, refused nodes, why each step ended."""
    return {"header": dict(trace.header), "requests": [_request(one) for one in requests]}


def _request(one: Request) -> dict[str, Any]:
    return {
        "request": one.number,
        "item": one.head.item,
        "drafter": one.head.drafter,
        "prompt_tokens": one.head.prompt_tokens,
        "seed": one.head.seed,
        "tokens": one.emitted,
        "steps_decoded": len(one.decoded),
        "mean_accepted": one.mean_accepted,
        "finish": one.finish,
        "steps": [
            step.model_dump(exclude={"drafter", "item", "seed", "prompt_tokens", "prompt"}) | {"refused": step.refused, "ended": step.ended}
            for step in one.steps
        ],
    }


def harmless(text: str) -> str:
    """Text that cannot steer a terminal: control characters but newline and tab as escapes."""
    return "".join(c if c in "\n\t" or c.isprintable() else c.encode("unicode_escape").decode() for c in text)
