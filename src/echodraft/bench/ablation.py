"""Ablations: named settings in tables, as papers have them, tried by replay. All settings are in this file."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from echodraft.bench.replay import Corpus, drafting_cost, price, replay, summarise, worth
from echodraft.core.budget import CPU_CURVE, CostCurve
from echodraft.core.draft import Draft
from echodraft.core.draft_model import DraftModel
from echodraft.core.drafter import Words
from echodraft.core.step import Step
from echodraft.errors import UsageError
from echodraft.memory import Memory

Held = Literal["carried", "request", "cold", "other", "none"]
"""What is remembered when a request begins: what earlier requests of the recording left; nothing, by the method's own switch (its request
alone) or since it was taken away; what another recording and earlier requests left; none: the method has no memory."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One row: what it shows, the drafter with its knobs, and what it remembers."""

    label: str
    method: str
    held: Held = "carried"


def sweep(knob: str, values: Sequence[int], method: str, held: Held = "carried") -> tuple[Setting, ...]:
    return tuple(Setting(f"{knob} = {value}", f"{method}:{knob}={value}", held) for value in values)


TREE = "tree"
"""The table that counts rows of one setting in three ways."""

HOSTS = ("suffix", "prompt-lookup", "toolspec", "recycling", "goose", "suffix+toolspec")
"""Of oilbird. Its other tables have suffix alone, of which a replay is exact."""

TABLES: dict[str, dict[str, tuple[Setting, ...]]] = {
    "ouroboros": {
        # Table 4: the mechanisms one after another.
        "mechanisms": (
            Setting("speculative decoding", "speculative:gamma=12:top_k=1", "none"),
            Setting(
                "+ 1 phrases draft for the draft model",
                "ouroboros:k=0:verify=false:history=false:texts=false:host=:recycle=false:top_k=1",
                "request",
            ),
            Setting(
                "+ 2 phrases lengthen the draft", "ouroboros:verify=false:history=false:texts=false:host=:recycle=false:top_k=1", "request"
            ),
            Setting("+ 3 phrases from verification", "ouroboros:history=false:texts=false:host=:recycle=false:top_k=1", "request"),
            Setting("+ 4 phrases from history", "ouroboros:texts=false:host=:recycle=false:top_k=1"),
            Setting("+ siblings", "ouroboros:texts=false:host=:recycle=false"),
            Setting("+ texts", "ouroboros:host=:recycle=false"),
            Setting("+ what the draft model said before", "ouroboros:host="),
            Setting("+ hidden states", "ouroboros"),
        ),
        # Each switch alone.
        "switches": (
            Setting("all on", "ouroboros"),
            Setting("without 1", "ouroboros:phrases=false"),
            Setting("without 2", "ouroboros:k=0"),
            Setting("without 3", "ouroboros:verify=false"),
            Setting("without 4", "ouroboros:history=false", "request"),
            Setting("phrases behind the draft only", "ouroboros:branch=false"),
            Setting("output makes no phrases", "ouroboros:output=false"),
            Setting("no texts", "ouroboros:texts=false:host="),
            Setting("texts alone", "ouroboros:host="),
            Setting("nothing of what the draft model said before", "ouroboros:recycle=false"),
            Setting("no draft model", "ouroboros:draft=false"),
            Setting("a window of 8 columns", "ouroboros:window=8"),
            Setting(
                "window and rows as published",
                "ouroboros:window=20:rows=239:branch=false:output=false:texts=false:host=:recycle=false:top_k=1",
            ),
        ),
        # Figure 6, without history, as there.
        "k": sweep("k", range(8), "ouroboros:branch=false:history=false:texts=false:host=:recycle=false:top_k=1", "request"),
        # Table 17: what is remembered comes from nowhere, from another task first, from this one.
        "locality": (
            Setting("no pool between requests", "ouroboros:history=false", "request"),
            Setting("another task's pool, then its own", "ouroboros", "other"),
            Setting("its own pool", "ouroboros"),
        ),
        TREE: (Setting("", "ouroboros:branch=false"),),
        "gamma": sweep("gamma", (2, 4, 6, 8, 10, 12, 16, 20), "ouroboros"),
        "window": sweep("window", (0, 5, 10, 15, 20), "ouroboros"),
        "beta": sweep("beta", range(3, 10), "ouroboros"),
    },
    "oilbird": {
        "choices": (
            Setting("suffix", "suffix"),
            Setting("all on", "oilbird:host=suffix"),
            Setting("without hidden states", "oilbird:host=suffix:semantic=false"),
            Setting("either copies or host", "oilbird:host=suffix:fusion=false"),
            Setting("depth by similarity alone", "oilbird:host=suffix:depth_map=fixed"),
            Setting("cosines of states as they are", "oilbird:host=suffix:centred=false"),
            Setting("keys of prompts, too", "oilbird:host=suffix:keys=all"),
            Setting("nothing between requests", "oilbird:host=suffix", "cold"),
        ),
        "k": sweep("k", (1, 2, 4, 8, 16), "oilbird:host=suffix"),
        "depth": sweep("depth", (4, 8, 16, 32), "oilbird:host=suffix"),
        "hosts": tuple(Setting(host, f"oilbird:host={host}") for host in HOSTS),
    },
}


def settings_of(method: str, table: str) -> tuple[Setting, ...]:
    """The settings of a table. Raises `UsageError` for names that are none."""
    if method not in TABLES:
        raise UsageError(f"There are ablations of {' and '.join(TABLES)}, not of '{method}'.")
    if table not in TABLES[method]:
        raise UsageError(f"Tables of {method} are {', '.join(TABLES[method])}; there is no '{table}'.")
    return TABLES[method][table]


@dataclass(slots=True)
class Shapes:
    """Trees as they were scored, and as they would be without branches: the depth of every leaf, and the context, step by step."""

    trees: list[tuple[int, int]] = field(default_factory=list)
    chains: list[tuple[list[int], int]] = field(default_factory=list)

    def hear(self, step: Step) -> None:
        if not step.prefill:
            context = len(step.session.tokens) - len(step.verdict.tokens)
            self.trees.append((1 + len(step.draft), context))
            self.chains.append((leaves(step.draft), context))

    def ways(self) -> Iterator[tuple[str, list[tuple[int, int]]]]:
        """The same drafts verified in three ways: rows and context of every forward."""
        yield "one tree, shared beginnings merged", self.trees
        yield "one forward, every branch from the anchor on", [(1 + sum(depths), context) for depths, context in self.chains]
        yield "one forward a branch", [(1 + depth, context) for depths, context in self.chains for depth in depths or [0]]


def leaves(draft: Draft) -> list[int]:
    """Depths of the nodes without children."""
    inner = set(draft.parent.tolist())
    return [depth for node, depth in enumerate(draft.depth.tolist()) if node not in inner]


def require(
    corpus: Corpus, settings: Sequence[Setting], words: Words | None = None, draft: DraftModel | None = None, other: Corpus | None = None
) -> None:
    """Raises `UsageError` for settings that cannot be replayed, or remember a recording where there is no `other`."""
    if other is None and any(setting.held == "other" for setting in settings):
        raise UsageError("The table locality also tries a pool that another task has filled. Name its recording with --other.")
    for setting in settings:
        worth(corpus, setting.method, words, draft)


def ablate(
    corpus: Corpus,
    settings: Sequence[Setting],
    budget: str | int,
    cost: CostCurve | None = None,
    words: Words | None = None,
    draft: DraftModel | None = None,
    other: Corpus | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """Every setting: "setting", "drafter", "held", "replay", "report", and the counts of "all" requests.

    other  a recording of another task of the same model, for settings that remember one

    Raises `UsageError`, before anything is replayed, as `require` does.
    """
    require(corpus, settings, words, draft, other)
    curve = CPU_CURVE if cost is None else cost
    for setting in settings:
        memory = Memory()
        if setting.held == "other" and other is not None:
            replay(other, setting.method, budget, curve=curve, words=words, draft=draft, memory=memory)
        found = replay(
            corpus,
            setting.method,
            budget,
            curve=curve,
            carry=setting.held != "cold",
            words=words,
            draft=draft,
            memory=memory,
            told=lambda _, label=setting.label: told(label),  # type: ignore[misc]
        )
        yield {
            "setting": setting.label,
            "drafter": setting.method,
            "held": setting.held,
            "replay": worth(corpus, setting.method, words, draft),
            "report": found[-1].report,
            "all": summarise(found, cost, draft),
        }


def verify_trees(
    corpus: Corpus,
    setting: Setting,
    budget: str | int,
    cost: CostCurve | None = None,
    words: Words | None = None,
    draft: DraftModel | None = None,
    told: Callable[[str], None] = lambda _: None,
) -> Iterator[dict[str, Any]]:
    """The drafts of one setting verified as trees and without: "way", "forwards", "rows" and "speedup". The output is the same."""
    shapes, curve = Shapes(), CPU_CURVE if cost is None else cost
    found = replay(
        corpus, setting.method, budget, curve=curve, words=words, draft=draft, told=lambda _: told(setting.method), watch=shapes.hear
    )
    tokens = sum(record.stats.emitted - record.stats.prefill_emitted for record in found)
    for way, forwards in shapes.ways():
        spent = price(forwards, curve) + drafting_cost(found, draft)
        rows = sum(rows for rows, _ in forwards)
        yield {"way": way, "drafter": setting.method, "forwards": len(forwards), "rows": rows, "speedup": tokens / spent if cost else None}
