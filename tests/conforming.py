"""What conformance means: a session says what the model alone says, whatever is drafted, in as few steps as the drafts earn."""

from __future__ import annotations

import atexit
from collections.abc import Sequence
from copy import copy
from functools import cache
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from typing import Any

import torch

from echodraft.backends.toy import ToyBackend
from echodraft.backends.transformers_sampling import TorchSampler
from echodraft.build import make_drafter
from echodraft.core.accept import Stops
from echodraft.core.budget import GPU_CURVE, MOST_NODES, Fixed
from echodraft.core.draft_model import DraftModel
from echodraft.core.engine import Engine
from echodraft.core.sampling import Rule, Sampler
from echodraft.drafters import DRAFTERS as REGISTERED
from echodraft.stores.corpus import Corpus
from harness import decoded, drive, longest
from models import DEVICE
from oracle import KINDS, Oracle

NEW, K, SEED = 24, 4, 11
WARP: dict[str, Any] = {"temperature": 0.9, "top_k": 30, "top_p": 0.95, "min_p": 0.01}
RULES = {"greedy": Rule(), "keyed": Rule(**WARP, seed=SEED), "torch": Rule(**WARP)}
DRAFTERS = (*REGISTERED, *KINDS)


def sampler(mode: str) -> Sampler:
    if mode == "torch":
        return TorchSampler(RULES[mode], generator=torch.Generator(DEVICE).manual_seed(SEED))
    return Sampler(RULES[mode])


def drafter(name: str, sequences: list[list[int]]) -> Any:
    """An oracle that knows the `sequences`, or a registered drafter, which knows nothing yet."""
    return (
        Oracle(name, sequences, K)
        if name in KINDS
        else make_drafter(name, knobs(name, sequences), {"draft_model": draft_model(ToyBackend())})
    )


def knobs(name: str, sequences: Sequence[Sequence[int]]) -> dict[str, Any]:
    """What a registered drafter cannot do without: `rest` a corpus, here of the `sequences`."""
    return {"corpus": corpus(tuple(map(tuple, sequences)))} if name == "rest" else {}


@cache
def corpus(texts: tuple[tuple[int, ...], ...]) -> str:
    folder = Path(mkdtemp(prefix="echodraft-corpus-"))
    atexit.register(rmtree, folder, ignore_errors=True)
    Corpus.build(texts).save(folder)
    return str(folder)


def draft_model(backend: Any, **how: Any) -> DraftModel:
    """A draft model as `build` makes it. Its rows are cheap, so that it drafts branches as well."""
    return DraftModel(backend, lambda name: make_drafter(name, {}), lambda _: Fixed(4), **({"curve": GPU_CURVE} | how))


def twin(backend: Any) -> Any:
    """The same toy with slots of its own."""
    found = copy(backend)
    found._slots, found._last, found.requests = {}, {}, []
    return found


def policy(name: str) -> Fixed:
    """An oracle drafts hundreds of nodes; a drafter as many as it ever gets."""
    return Fixed(512 if name in KINDS else MOST_NODES)


def steps_needed(length: int, n: int, right: int, switch: int | None) -> int:
    """Steps for `n` tokens behind `length`, if `right` tokens of every draft are right: ceil(n / (right + 1)) where no draft is cut short.

    None reaches beyond a longrope `switch` from this side of it.
    """
    steps = 0
    while n > 0:
        block = min(right, n - 1, switch - length if switch is not None and length <= switch else n)
        steps, n, length = steps + 1, n - block - 1, length + block + 1
    return steps


def assert_conforms(engine: Engine, mode: str, ids: list[list[int]], expected: list[list[int]], switch: int | None = None) -> None:
    """All sessions together yield what each one yields alone, and what the oracle gets right is accepted in full."""
    sessions = [engine.open(p, sampler(mode), Stops(max_new_tokens=NEW)) for p in ids]
    steps = drive(engine)
    assert [session.output for session in sessions] == expected
    assert {session.finish for session in sessions} == {"length"}
    right = engine.drafter.right if isinstance(engine.drafter, Oracle) else None
    for session in sessions:
        blocks = decoded(steps[session.id])
        if right is not None:
            assert len(blocks) == steps_needed(session.prompt_length + 1, NEW - 1, right, switch)
            if right >= 3:
                assert longest(blocks) >= 3
