"""The page of `echodraft inspect --html`: the output, and each step's tree at a click."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from echodraft.metrics.traced import Request, Traced, Tracing, shown
from echodraft.render.html import marks, render


def page(trace: Tracing, requests: Sequence[Request]) -> str:
    """A self-contained page of these requests."""
    header = trace.header
    hues = marks([source for step in request.steps for source in step.draft.source] for request in requests)
    drafter = header.get("drafter") or ""
    about = {
        "model": header.get("model"),
        "drafter": drafter if isinstance(drafter, str) else ", ".join(map(str, drafter)),
        "recorded": header.get("started"),
        **{f"{name} version": version for name, version in _mapping(header.get("versions")).items() if version},
        **_mapping(header.get("settings")),
    }
    earned = [token.source for request in requests for step in request.steps for token in step.tokens]
    return render(
        "trace.html",
        "trace.js",
        title=f"Trace of {header.get('model') or 'a model'}",
        about={str(key): _said(value) for key, value in about.items() if value not in (None, "", [], {})},
        hues={source: (hue, earned.count(source)) for source, hue in hues.items()},
        own=earned.count(None),
        requests=[_request(request, hues) for request in requests],
        data=[[_step(step, hues) for step in request.steps] for request in requests],
    )


def _request(request: Request, hues: dict[str, int]) -> dict[str, Any]:
    return {
        "name": request.name,
        "finish": request.finish,
        "prompt": request.head.prompt,
        "prompt_tokens": request.head.prompt_tokens,
        "emitted": request.emitted,
        "steps": len(request.decoded),
        "mean_accepted": request.mean_accepted,
        "tokens": [
            {"text": token.text, "id": token.id, "hue": hues.get(token.source or ""), "source": token.source or "the model", "step": index}
            for index, step in enumerate(request.steps)
            for token in step.tokens
        ],
    }


def _step(step: Traced, hues: dict[str, int]) -> dict[str, Any]:
    """What the script shows of a step."""
    draft, refused = step.draft, set(step.refused)
    names = [shown(text, token) for text, token in zip(draft.text, draft.token, strict=True)]
    facts = {
        "context": f"{step.context} tokens",
        "proposed": str(step.proposed),
        "scored": f"{len(draft.token)}" + (f" ({len(draft.probe)} probes)" if draft.probe else ""),
        "kept": str(len(step.path)),
        "allowed": "{} nodes, {} deep".format(*step.budget) if step.budget else "",
        "sharing the forward": str(step.batch) if step.batch > 1 else "",
        "time": ", ".join(f"{phase} {1000 * seconds:.1f} ms" for phase, seconds in step.seconds.items() if seconds),
    }
    return {
        "step": step.step,
        "ended": step.ended,
        "facts": [[name, value] for name, value in facts.items() if value],
        "anchor": shown(step.anchor[1], step.anchor[0]),
        "own": shown(step.own.text, step.own.id) if step.own else None,
        "end": step.path[-1] if step.path else -1,
        "nodes": [
            [
                parent,
                name,
                draft.prob[node],
                draft.source[node],
                hues[draft.source[node]],
                int(node in draft.probe),
                _fate(node, step, refused),
            ]
            for node, (parent, name) in enumerate(zip(draft.parent, names, strict=True))
        ],
    }


def _fate(node: int, step: Traced, refused: set[int]) -> str:
    return "kept" if node in step.path else "refused" if node in refused else "moot"


def _mapping(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _said(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
