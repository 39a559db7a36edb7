"""What `echodraft run` does with a loaded model: stream, compare, report."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from echodraft.build import redraft
from echodraft.cli import console
from echodraft.decoder import Decoder, Prompt, Result
from echodraft.errors import UsageError
from echodraft.metrics.stats import Stats
from echodraft.options import Options
from echodraft.render.terminal import Painter, agreement, compare_table, report_table, speedup, stats_table, wants_color

WARM_UP = 16
"""Tokens of the prompt that the warm-up of a comparison reads."""


@dataclass(frozen=True, slots=True)
class Asked:
    """What the user wants to see."""

    text: str
    raw: bool
    options: Options
    stats: bool
    compare: bool
    color: str
    as_json: bool

    @property
    def prompt(self) -> Prompt:
        return self.text if self.raw else [{"role": "user", "content": self.text}]


def answer(decoder: Decoder, asked: Asked, terminal: bool) -> bool:
    """Answer, print, report. False if the user interrupted."""
    if asked.options.samples > 1:
        return _several(decoder, asked)
    plain = redraft(decoder, "none") if asked.compare else None
    if plain is not None:
        _warm_up(plain, asked.text)
    painter = Painter() if not asked.as_json and wants_color(asked.color, terminal) else None
    result, whole = _stream(decoder, asked, painter)
    other = None
    if plain is not None and whole:
        other = _plainly(plain, asked, result.seed)
        whole = other is not None
    if asked.as_json:
        console.json_object(as_json(decoder, result, other))
    _report(decoder, result, other, asked, painter)
    return whole


def _stream(decoder: Decoder, asked: Asked, painter: Painter | None) -> tuple[Result, bool]:
    """The answer, printed as it comes; what there is of it if the user interrupts."""
    whole, begun = True, False
    with decoder.stream(asked.prompt, **asked.options.keywords()) as stream:
        try:
            for piece in stream:
                if piece.text and not asked.as_json:
                    begun = True
                    console.answer(painter.paint(piece) if painter else piece.text)
        except KeyboardInterrupt:
            whole = False
        finally:
            if begun or (not whole and not asked.as_json):
                console.answer("\n")
        return stream.result, whole


def _plainly(plain: Decoder, asked: Asked, seed: int | None) -> Result | None:
    """The same answer by plain decoding; None if the user interrupts."""
    console.status("Decoding plainly, to compare…")
    try:
        found: Result = plain.generate(asked.prompt, **replace(asked.options, seed=seed).keywords())
    except KeyboardInterrupt:
        return None
    finally:
        console.status("")
    return found


def _warm_up(plain: Decoder, text: str) -> None:
    """What only the first forward of a process pays should be on neither side of a comparison."""
    plain.generate(plain.text.encode(text)[-WARM_UP:], max_new_tokens=2, eos=())


def _several(decoder: Decoder, asked: Asked) -> bool:
    if asked.compare:
        raise UsageError("--compare takes one sample. Leave out --samples.")
    try:
        results = decoder.generate(asked.prompt, **asked.options.keywords())
    except KeyboardInterrupt:
        return False
    if asked.as_json:
        console.json_object({"results": [as_json(decoder, result) for result in results]})
    else:
        for i, result in enumerate(results):
            console.answer(f"--- sample {i + 1} of {len(results)} ---\n{result.text}\n")
    total = replace(results[0], stats=Stats.total(result.stats for result in results))
    _report(decoder, total, None, asked, None)
    return True


def as_json(decoder: Decoder, result: Result, plain: Result | None = None) -> dict[str, Any]:
    """The answer as plain values."""
    out: dict[str, Any] = {
        "text": result.text,
        "ids": result.ids,
        "finish_reason": result.finish_reason,
        "prompt_tokens": result.prompt_tokens,
        "seed": result.seed,
        "model": decoder.name,
        "drafter": decoder.engine.drafter.name,
        "stats": result.stats.as_dict(),
    }
    if told := decoder.engine.drafter.report():
        out["drafter_report"] = told
    if plain is not None:
        parted = agreement(result.ids, plain.ids)
        out["compare"] = {
            "speedup": speedup(result.stats, plain.stats),
            "tokens_agree": parted is None,
            "first_difference": parted,
            "plain": plain.stats.as_dict(),
        }
    return out


def _report(decoder: Decoder, result: Result, plain: Result | None, asked: Asked, painter: Painter | None) -> None:
    drafter = decoder.engine.drafter.name
    if painter is not None and painter.legend():
        console.table(painter.legend())
    if asked.options.seed is None and result.seed is not None and not asked.as_json:
        console.note(f"drawn seed: {result.seed}")
    if asked.stats:
        console.table(stats_table(result.stats, drafter))
        if told := decoder.engine.drafter.report():
            console.table(report_table(told))
    if plain is not None:
        console.table(compare_table(result, plain, drafter))
