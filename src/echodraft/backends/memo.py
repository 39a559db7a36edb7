"""A model that remembers what it said, so that a search may ask it about the same texts again and again. NumPy only."""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any, ClassVar, NamedTuple, NoReturn

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from echodraft.backends.greedy import GreedyScores
from echodraft.core.backend import Backend, Need, Request
from echodraft.core.sampling import Rule
from echodraft.core.scores import Scores
from echodraft.errors import NAN, EchodraftError

TOP = 8
"""Best ids that are kept behind a text."""
MOST = 1 << 18
"""Texts, 104 bytes each."""
HEADER = "echodraft-memo"

log = logging.getLogger("echodraft")


class Saying(NamedTuple):
    """What is said behind a text: `ids` int32 [TOP], best first, -1 where there are fewer, all of them after NaN; `probs` float64 [TOP]."""

    ids: NDArray[np.int32]
    probs: NDArray[np.float64]


class Sayings:
    """What a model said behind texts, by the texts' hashes. Beyond `most` texts the oldest are forgotten."""

    def __init__(self, most: int = MOST) -> None:
        self.most, self.count = most, 0
        self._at: dict[int, int] = {}
        self._grow(0)

    def _grow(self, size: int) -> None:
        keys, ids, probs = np.zeros(size, np.uint64), np.full((size, TOP), -1, np.int32), np.zeros((size, TOP))
        if size:
            n = len(self.keys)
            keys[:n], ids[:n], probs[:n] = self.keys, self.ids, self.probs
        self.keys, self.ids, self.probs = keys, ids, probs

    def __len__(self) -> int:
        return len(self._at)

    def get(self, key: int) -> Saying | None:
        """What was said behind a text, if that is known."""
        at = self._at.get(key)
        return None if at is None else Saying(self.ids[at].copy(), self.probs[at].copy())

    def add(self, key: int, said: Saying) -> None:
        """Keep what was said behind a text. What is known already stays, so that a search sees one answer."""
        if key in self._at:
            return
        at = self.count % self.most
        if at == len(self.keys):
            self._grow(min(self.most, max(1024, 2 * at)))
        if self.count >= self.most:
            del self._at[int(self.keys[at])]
        self.keys[at], self.ids[at], self.probs[at] = key, said.ids, said.probs
        self._at[key] = at
        self.count += 1

    def load(self, path: Path, about: Mapping[str, Any]) -> None:
        """Add what a file holds if it is about the same model; a file that cannot be read is left out, with a warning."""
        if not path.exists():
            return
        try:
            with safe_open(path, framework="np") as held:
                if json.loads((held.metadata() or {})[HEADER]) != about:
                    return
                keys, ids, probs = (held.get_tensor(name) for name in ("keys", "ids", "probs"))
            for key, *said in zip(keys.tolist(), ids, probs, strict=True):
                self.add(key, Saying(*said))
        except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
            log.warning("The memo %s cannot be read (%s), so the draft model is asked again.", path, error)

    def save(self, path: Path, about: Mapping[str, Any]) -> None:
        """Write all, whole or not at all, with what another run wrote meanwhile."""
        self.load(path, about)
        order = sorted(self._at.values(), key=lambda at: (at - self.count) % self.most)  # the oldest first
        unfinished = path.with_suffix(".unfinished")
        arrays: dict[str, NDArray[Any]] = {"keys": self.keys[order], "ids": self.ids[order], "probs": self.probs[order]}
        try:
            save_file(arrays, unfinished, metadata={HEADER: json.dumps(about)})
            unfinished.replace(path)
        except (OSError, SafetensorError) as error:
            log.warning("The memo %s cannot be written (%s); the next run asks the draft model again.", path, error)


@dataclass(slots=True)
class Asked:
    """A request in work: the keys of its pending tokens and of its rows, what is known of the rows, and whether the model was asked."""

    request: Request
    pending: list[int]
    rows: list[int]
    said: list[Saying | None]
    asked: bool = False


@dataclass(slots=True)
class Slot:
    """One sequence: its tokens, the keys of its first 1, 2, … tokens, and how many of them the model itself has read."""

    tokens: list[int] = field(default_factory=list)
    keys: list[int] = field(default_factory=list)
    held: int = 0
    last: Asked | None = None


@dataclass(frozen=True, slots=True)
class MemoScores(GreedyScores):
    """What is remembered of one forward, greedy choices only. The model is asked when somebody looks at a row that is not known."""

    held: ClassVar[str] = "A memo holds a model's best ids, not its logits or hidden states."
    memo: MemoBackend
    slot: Slot
    work: Asked

    def _said(self, i: int) -> Saying:
        found = self.work.said[i]
        if found is None:
            self.memo.ask(self.slot, self.work)
            found = self.work.said[i]
            assert found is not None
        return found

    def argmax(self) -> Sequence[int]:
        best = [int(self._said(i).ids[0]) for i in range(len(self.work.rows))]
        if -1 in best:
            raise EchodraftError(NAN)
        return best

    def top_k(self, k: int) -> NDArray[np.int64]:
        """The best ids, -1 beyond those that are kept. Shape [n + 1, k], or as many as are kept."""
        return np.stack([self._said(i).ids[:k] for i in range(len(self.work.rows))]).astype(np.int64)

    def best(self, i: int, rule: Rule, position: int, k: int) -> tuple[list[int], list[float]]:
        if not rule.greedy:
            self.refuse()
        said = self._said(i)
        n = int((said.ids[:k] >= 0).sum())
        if not n:
            raise EchodraftError(NAN)
        return said.ids[:n].tolist(), said.probs[:n].tolist()

    def hidden(self) -> NoReturn:
        self.refuse()


class MemoBackend:
    """Answers from what `model` said before; asks it where that is not known, and then it first reads what it has missed.

    In low precision a row depends a little on how many rows are computed together, so an answer that is remembered from another draft may
    differ from what the model would have said in this one.

    sayings   what is remembered
    forwards  rows and context length of every forward that would have been made without a memo; the caller empties it
    """

    offers = frozenset({Need.TOP_K})

    def __init__(self, model: Backend, sayings: Sayings) -> None:
        self.model, self.sayings = model, sayings
        self.shape, self.vocab_size, self.context = model.shape, model.vocab_size, model.context
        self.chunk = 1 << 30
        self.forwards: list[tuple[int, int]] = []
        self._slots: dict[int, Slot] = {}

    def open(self) -> int:
        slot = self.model.open()
        self._slots[slot] = Slot()
        return slot

    def room(self, slot: int, length: int) -> int:
        return self.model.room(slot, length)

    def score(self, requests: Sequence[Request], want: frozenset[Need]) -> Sequence[MemoScores]:
        return [self._score(request, Need.TOP_K in want) for request in requests]

    def _score(self, request: Request, every: bool) -> MemoScores:
        slot = self._slots[request.slot]
        pending, key = [], slot.keys[-1] if slot.keys else 0
        for token in request.pending:
            key = _behind(key, token)
            pending.append(key)
        rows = [key]
        for token, parent in zip(request.draft.token.tolist(), request.draft.parent.tolist(), strict=True):
            rows.append(_behind(rows[parent + 1], token))
        self.forwards.append((len(request.pending) + len(request.draft), len(slot.tokens) + len(request.pending)))
        slot.last = Asked(request, pending, rows, [self.sayings.get(key) for key in rows])
        if every and None in slot.last.said:
            self.ask(slot, slot.last)  # best ids of all rows are read behind the commit, when it is too late to ask
        return MemoScores(self, slot, slot.last)

    def ask(self, slot: Slot, work: Asked) -> None:
        """Let the model itself say all of a request that is in work."""
        number, pending, work.asked = work.request.slot, work.request.pending, True
        self._read(slot, number, slot.tokens[slot.held :], 0)
        more = max(0, len(pending) - self.model.chunk)
        self._read(slot, number, pending[:more], len(pending) - more)
        (scores,) = self.model.score([Request(number, pending[more:], work.request.draft)], frozenset())
        for i, key in enumerate(work.rows):
            said = work.said[i] or _said(scores, i)
            work.said[i] = said
            self.sayings.add(key, said)

    def _read(self, slot: Slot, number: int, tokens: Sequence[int], ahead: int) -> None:
        for i in range(0, len(tokens), self.model.chunk):
            part = tokens[i : i + self.model.chunk]
            self.model.score([Request(number, part, logits=False, ahead=len(tokens) - i - len(part) + ahead)], frozenset())
            self.model.commit(number, [])
            slot.held += len(part)

    def commit(self, slot: int, path: Sequence[int]) -> None:
        held = self._slots[slot]
        assert held.last is not None
        work, held.last = held.last, None
        held.tokens += [*work.request.pending, *(int(work.request.draft.token[i]) for i in path)]
        held.keys += [*work.pending, *(work.rows[i + 1] for i in path)]
        if work.asked:
            self.model.commit(slot, path)
            held.held = len(held.tokens)

    def rewind(self, slot: int, length: int) -> int:
        held = self._slots[slot]
        del held.tokens[length:], held.keys[length:]
        if held.held > len(held.tokens):
            held.held = self.model.rewind(slot, len(held.tokens))
        return len(held.tokens)

    def close(self, slot: int) -> None:
        del self._slots[slot]
        self.model.close(slot)


def _behind(key: int, token: int) -> int:
    """The key of a text with one more token."""
    return int.from_bytes(blake2b(key.to_bytes(8, "little") + token.to_bytes(8, "little"), digest_size=8).digest(), "little")


def _said(scores: Scores, i: int) -> Saying:
    """What a row of a forward says."""
    held = Saying(np.full(TOP, -1, np.int32), np.zeros(TOP))
    try:
        ids, probs = scores.best(i, Rule(), 0, TOP)
    except EchodraftError:
        return held
    if probs and probs[0] == probs[0]:
        held.ids[: len(ids)], held.probs[: len(ids)] = ids, probs
    return held
