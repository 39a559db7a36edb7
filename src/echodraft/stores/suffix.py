"""The memory of SuffixDecoding: all suffixes of many texts with their counts, texts removable one by one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from echodraft.stores import suffix_tree as trie
from echodraft.stores.checked import check_text, checked
from echodraft.stores.compiled import once
from echodraft.stores.suffix_nodes import (
    CHUNK,
    ENTRIES,
    FREE_CHUNK,
    FREE_NODE,
    LIVE_CHUNKS,
    LIVE_NODES,
    SHARE,
    USED_NODES,
    Ints,
    Longs,
    Tree,
)
from echodraft.stores.suffix_query import speculate

MOST_DEPTH = 255
NOTHING: Ints = np.empty(0, np.int32)


class Expected(NamedTuple):
    """A token tree, the likeliest path first. Shapes [n].

    tokens   int64
    parents  int64    -1 = behind the context
    probs    float64  share of the occurrences of the context that go on like this
    score    their sum: the number of tokens that come true, if the future is like the past
    match    how many tokens of the context were matched
    """

    tokens: Longs
    parents: Longs
    probs: NDArray[np.float64]
    score: float
    match: int


@dataclass(slots=True)
class Text:
    """One sequence. `run` and `window` as `suffix_tree` has them; finished ones share an empty window."""

    run: Longs
    window: Ints
    when: float = 0.0


class SuffixStore:
    """A suffix trie of bounded depth over many sequences of token ids; several may grow at once, and see each other's tokens at once.

    Source: SuffixDecoding (arXiv 2411.04975); layout and differences in docs/adr/0007-suffix-store.md.

    depth      of the trie, 1 to 255: longest match and draft together
    removable  whether sequences can be removed; without it the store is smaller
    """

    kind: ClassVar[str] = "suffix"

    def __init__(self, depth: int = 64, removable: bool = True) -> None:
        if not 1 <= depth <= MOST_DEPTH:
            raise ValueError(f"The depth of a suffix store lies between 1 and {MOST_DEPTH}, not {depth}.")
        self.depth, self.removable = depth, removable
        self.tokens = 0
        self._texts: dict[int, Text] = {}
        self._finished: dict[int, Text] = {}  # the oldest first
        self._next = 0
        self._tree = _empty(removable, depth)
        self._tokens, self._parents, self._probs = np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0)
        self._no_window: Ints = np.empty((2, depth + 1), np.int32)

    @property
    def nbytes(self) -> int:
        return sum(array.nbytes for array in self._tree) + sum(text.window.nbytes for text in self._texts.values())

    def begin(self) -> int:
        """A new growing sequence; its id."""
        seq = self._next
        self._next += 1
        self._texts[seq] = Text(np.zeros(3, np.int64), np.empty((2, self.depth + 1), np.int32))
        return seq

    def append(self, seq: int, tokens: Sequence[int] | NDArray[Any]) -> None:
        """Lengthen a growing sequence. Raises `ValueError` for ids that are negative or beyond int32, `KeyError` for any other sequence."""
        text = self._texts[seq]
        new = np.asarray(tokens, np.int32)
        if len(new) == 0:
            return
        if new.min() < 0:
            raise ValueError("A token id is negative.")
        done = trie.append(self._tree, text.run, text.window, seq, new, 0)
        while done < len(new):
            self._grow(len(new) - done)
            done = trie.append(self._tree, text.run, text.window, seq, new, done)
        self.tokens += len(new)

    def end(self, seq: int, when: float) -> None:
        """A growing sequence is finished, at a time in seconds since the epoch: from now on it can be forgotten."""
        text = self._texts.pop(seq)
        if self.removable:
            trie.finish(self._tree, text.run, text.window)
        text.window, text.when = self._no_window, when
        self._finished[seq] = text

    def remove(self, seq: int) -> bool:
        """Forget a sequence, growing or finished. False if it is not there."""
        if not self.removable:
            raise ValueError("This suffix store was made without support for removal.")
        if seq in self._texts:
            self.end(seq, 0.0)
        text = self._finished.pop(seq, None)
        if text is None:
            return False
        for other in self._texts.values():
            trie.yield_labels(self._tree, other.run, other.window, seq)
        trie.remove(self._tree, text.run, self.depth, seq)
        self.tokens -= int(text.run[trie.TOKENS])
        return True

    def prune(self, tokens: int, before: float = 0.0) -> None:
        old = [seq for seq, text in self._finished.items() if text.when < before] if before > 0.0 else []
        for seq in old:
            self.remove(seq)
        while self.tokens > tokens and self._finished:
            self.remove(next(iter(self._finished)))

    def text(self, seq: int) -> Ints:
        """The tokens of a sequence."""
        return trie.read(self._tree, (self._texts.get(seq) or self._finished[seq]).run)

    def speculate(
        self,
        context: Sequence[int] | NDArray[Any] = NOTHING,
        nodes: int = 64,
        *,
        seq: int | None = None,
        factor: float = 1.0,
        offset: float = 0.0,
        min_prob: float = 0.1,
        tree: bool = True,
        depth: int = MOST_DEPTH,
        branching: int = SHARE,
    ) -> Expected:
        """What is expected behind `context`.

        seq        a growing sequence with which the context ends: nothing that it knows is searched again
        nodes      at most so many, and at most match x factor + offset
        min_prob   of a node, 1/16 at least
        tree       the likeliest nodes; otherwise the path that follows the likeliest token
        depth      of the tree, at most
        branching  children of a node, at most

        Raises `ValueError` for numbers that cannot be right.
        """
        if not 1 / SHARE <= min_prob <= 1.0 or not 0.0 <= factor < float("inf") or not abs(offset) < float("inf"):
            raise ValueError(f"min_prob lies in [1/{SHARE}, 1], factor and offset are finite, factor is not negative.")
        text = None if seq is None else self._texts[seq]
        known = 0 if text is None else min(int(text.run[trie.TOKENS]), self.depth - 1)
        if len(self._tokens) < nodes:
            self._tokens, self._parents, self._probs = np.empty(nodes, np.int64), np.empty(nodes, np.int64), np.empty(nodes)
        n, score, match = speculate(
            self._tree,
            self._no_window if text is None else text.window,
            known,
            np.asarray(context, np.int32),
            max(nodes, 0),
            depth,
            branching if tree else 1,
            float(factor),
            float(offset),
            float(min_prob),
            self._tokens,
            self._parents,
            self._probs,
        )
        return Expected(self._tokens[:n].copy(), self._parents[:n].copy(), self._probs[:n].copy(), score, match)

    def entries(self) -> Iterator[dict[str, Any]]:
        for text in self._finished.values():
            yield {"ids": trie.read(self._tree, text.run).tolist(), "finished": text.when}

    def arrays(self) -> dict[str, NDArray[Any]]:
        """The finished sequences, the oldest first: `tokens` int32, `lengths` int64, `times` float64, and the `depth` int64 [1]."""
        texts = list(self._finished.values())
        parts = [trie.read(self._tree, text.run) for text in texts]
        return {
            "tokens": np.concatenate([NOTHING, *parts]),
            "lengths": np.asarray([len(part) for part in parts], np.int64),
            "times": np.asarray([text.when for text in texts], np.float64),
            "depth": np.asarray([self.depth], np.int64),
        }

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        what = "A suffix store"
        tokens, lengths, times = (
            checked(arrays, what, *each) for each in (("tokens", np.int32), ("lengths", np.int64), ("times", np.float64))
        )
        check_text(what, tokens, lengths, times)
        depth = checked(arrays, what, "depth", np.int64, 1)
        store = cls(int(depth[0]))
        at = 0
        for length, when in zip(lengths.tolist(), times.tolist(), strict=True):
            seq = store.begin()
            store.append(seq, tokens[at : at + length])
            store.end(seq, when)
            at += length
        return store

    def _grow(self, tokens: int) -> None:
        """Make room where there is little, for a step to begin with; by a quarter, since what is unused counts as well."""
        tree = self._tree
        nodes, chunks, slots = len(tree.length), len(tree.chunk), len(tree.tag)
        if tree.meta[LIVE_NODES] + self.depth > nodes:
            new = nodes + max(nodes // 4, self.depth, min(tokens, 1 << 16))
            tree = tree._replace(node=_longer(tree.node, new), length=_longer(tree.length, new), ends=_longer(tree.ends, new))
        if tree.meta[LIVE_CHUNKS] == chunks:
            new = chunks + max(chunks // 8, 4)
            places = {name: _longer(getattr(tree, name), new * CHUNK) for name in ("text", "after", "before")}
            tree = tree._replace(chunk=_longer(tree.chunk, new), **places)
        if tree.meta[ENTRIES] + 2 * self.depth > slots - slots // 5:
            new = slots + max(slots // 4, 3 * self.depth, min(tokens, 1 << 16))
            tree = tree._replace(table=np.empty(new, np.int32), tag=np.zeros(new, np.uint8))
            tree.meta[ENTRIES] = 0
            trie.refill(tree)
        self._tree = tree


def _empty(removable: bool, depth: int) -> Tree:
    nodes, chunks, slots = 2 * depth + 2, 2, 4 * depth
    places = chunks * CHUNK if removable else 0
    tree = Tree(
        node=np.zeros((nodes, 6), np.int32),
        length=np.zeros(nodes, np.uint8),
        table=np.empty(slots, np.int32),
        tag=np.zeros(slots, np.uint8),
        text=np.zeros(chunks * CHUNK, np.int32),
        chunk=np.full((chunks, 3), -1, np.int32),
        ends=np.full(nodes if removable else 0, -1, np.int32),
        after=np.empty(places, np.int32),
        before=np.empty(places, np.int32),
        meta=np.zeros(7, np.int64),
    )
    tree.node[0, 1:] = -1
    tree.meta[[FREE_NODE, FREE_CHUNK]] = -1
    tree.meta[[USED_NODES, LIVE_NODES]] = 1
    return tree


def _longer(array: NDArray[Any], length: int) -> NDArray[Any]:
    """A longer copy; an array that is not used stays so."""
    if len(array) == 0:
        return array
    out = np.zeros((length, *array.shape[1:]), array.dtype)
    out[: len(array)] = array
    return out


@once
def warm() -> None:
    """Bring in the compiled code, so that no request waits for it."""
    for removable in (True, False):
        store = SuffixStore(2, removable)
        seq = store.begin()
        store.append(seq, list(range(40)))
        store.speculate([1], seq=seq)
        store.end(seq, 0.0)
        store.text(seq)
        if removable:
            store.begin()
            store.remove(seq)
