"""The arrays of a suffix trie and the operations on single nodes: lookup, order of siblings, places in the text. Compiled by Numba.

A node is an edge of the trie with its lower end: `length` tokens of text from position `REF` on. Its children are a linked list; those that
a draft could ask for come first, by count. A child with siblings is also found through an open-addressing table of node numbers, keyed by
parent and first token; keys are not stored, they are read from the node. The root's children are in the table only.

Text lies in chunks of `CHUNK` tokens that are linked both ways, so that sequences grow side by side and leave no holes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from echodraft.stores.compiled import compiler

ROOT = 0
COUNT, PARENT, REF, FIRST, NEXT, PREV = range(6)
"""Columns of `node`. Free nodes have count 0 and are linked by PARENT."""
CHUNK, SHIFT = 32, 5
AFTER, BEFORE, OWNER = range(3)
"""Columns of `chunk`. Free chunks are linked by AFTER."""
FREE_NODE, USED_NODES, LIVE_NODES, ENTRIES, FREE_CHUNK, USED_CHUNKS, LIVE_CHUNKS = range(7)
"""Places in `meta`."""
SHARE = 16
"""Children with at least 1/16 of their parent's count are sorted; a draft may ask for no less."""

Ints = NDArray[np.int32]
Bytes = NDArray[np.uint8]
Longs = NDArray[np.int64]


class Tree(NamedTuple):
    """All arrays of a trie. Without support for removal the last three but one are empty.

    node    int32 [nodes, 6]       count, parent, label's place in the text, first child, next and previous sibling
    length  uint8 [nodes]          tokens of the label
    table   int32 [slots]          node numbers
    tag     uint8 [slots]          0 = free, else some bits of the key's hash
    text    int32 [chunks x 32]    tokens
    chunk   int32 [chunks, 3]      next and previous chunk, sequence
    ends    int32 [nodes]          a suffix that ends at the node and grows no more, by the place of its first token; -1 = none
    after   int32 [chunks x 32]    the next such suffix at the same node
    before  int32 [chunks x 32]    the previous one, or -2 - node
    meta    int64 [7]              what is free and what is used
    """

    node: Ints
    length: Bytes
    table: Ints
    tag: Bytes
    text: Ints
    chunk: Ints
    ends: Ints
    after: Ints
    before: Ints
    meta: Longs


HERE = Path(__file__).parent
compiled = compiler("suffix", *(HERE / f"suffix_{part}.py" for part in ("nodes", "tree", "query")))


@compiled
def step(chunk: Ints, pos: int) -> int:
    """The place of the token behind `pos`."""
    pos += 1
    if pos & (CHUNK - 1) == 0:
        return int(chunk[(pos >> SHIFT) - 1, AFTER]) << SHIFT
    return pos


@compiled
def ahead(chunk: Ints, pos: int, tokens: int) -> int:
    """The place `tokens` behind `pos`, which must exist."""
    at, offset = pos >> SHIFT, (pos & (CHUNK - 1)) + tokens
    while offset >= CHUNK:
        at, offset = chunk[at, AFTER], offset - CHUNK
    return (at << SHIFT) + offset


@compiled
def back(chunk: Ints, pos: int, tokens: int) -> int:
    """The place `tokens` before `pos`, which must exist."""
    at, offset = pos >> SHIFT, (pos & (CHUNK - 1)) - tokens
    while offset < 0:
        at, offset = chunk[at, BEFORE], offset + CHUNK
    return (at << SHIFT) + offset


@compiled
def hashed(parent: int, token: int) -> Any:
    """64 bits of a key (the finaliser of SplitMix64)."""
    z = np.uint64(parent) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(token)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return z ^ (z >> np.uint64(31))


@compiled
def home(hash_: Any, slots: int) -> int:
    """Where a key of this hash belongs."""
    return int(np.int64(((hash_ & np.uint64(0xFFFFFFFF)) * np.uint64(slots)) >> np.uint64(32)))


@compiled
def mark(hash_: Any) -> Any:
    """The tag of a key of this hash."""
    return np.uint8((hash_ >> np.uint64(57)) | np.uint64(128))


@compiled
def child_of(node: Ints, text: Ints, table: Ints, tag: Bytes, parent: int, token: int) -> int:
    """The child whose label begins with `token`, or -1."""
    if parent != ROOT:
        first = node[parent, FIRST]
        if first < 0:
            return -1
        if text[node[first, REF]] == token:
            return int(first)
        if node[first, NEXT] < 0:
            return -1
    hash_ = hashed(parent, token)
    wanted, slot = mark(hash_), home(hash_, len(tag))
    while tag[slot] != 0:
        if tag[slot] == wanted:
            found = table[slot]
            if node[found, PARENT] == parent and text[node[found, REF]] == token:
                return int(found)
        slot += 1
        if slot == len(tag):
            slot = 0
    return -1


@compiled
def put(node: Ints, text: Ints, table: Ints, tag: Bytes, meta: Longs, n: int) -> None:
    """Enter node `n` into the table."""
    hash_ = hashed(node[n, PARENT], text[node[n, REF]])
    slot = home(hash_, len(tag))
    while tag[slot] != 0:
        slot += 1
        if slot == len(tag):
            slot = 0
    table[slot], tag[slot] = n, mark(hash_)
    meta[ENTRIES] += 1


@compiled
def slot_of(node: Ints, text: Ints, table: Ints, tag: Bytes, n: int) -> int:
    """Where node `n`, which is in the table, lies."""
    slot = home(hashed(node[n, PARENT], text[node[n, REF]]), len(tag))
    while tag[slot] == 0 or table[slot] != n:
        slot += 1
        if slot == len(tag):
            slot = 0
    return slot


@compiled
def take(node: Ints, text: Ints, table: Ints, tag: Bytes, meta: Longs, n: int) -> None:
    """Take node `n` out of the table and close the gap, so that the table does not age."""
    slots = len(tag)
    hole = slot = slot_of(node, text, table, tag, n)
    while True:
        slot += 1
        if slot == slots:
            slot = 0
        if tag[slot] == 0:
            break
        other = table[slot]
        way = slot - home(hashed(node[other, PARENT], text[node[other, REF]]), slots)
        gap = slot - hole
        if way < 0:
            way += slots
        if gap < 0:
            gap += slots
        if way >= gap:
            table[hole], tag[hole] = other, tag[slot]
            hole = slot
    tag[hole] = 0
    meta[ENTRIES] -= 1


@compiled
def heavy(count: int) -> int:
    """From which count on the children of a node of this count are sorted: a power of two, between 1/32 and 1/16 of it."""
    least = 1
    while 2 * SHARE * least < count:
        least *= 2
    return least


@compiled
def join(node: Ints, parent: int, last: int, at: int) -> None:
    """Let `at` follow `last` among the parent's children; -1 stands for the beginning or the end of the list."""
    if at >= 0:
        node[at, PREV] = last
    if last >= 0:
        node[last, NEXT] = at
    else:
        node[parent, FIRST] = at


@compiled
def insert(node: Ints, parent: int, n: int) -> None:
    """Put `n` into its parent's list: before those of the same count, behind those that must be sorted and have more."""
    count, least = node[n, COUNT], heavy(node[parent, COUNT])
    last, at = -1, node[parent, FIRST]
    while at >= 0 and node[at, COUNT] > count and node[at, COUNT] >= least:
        last, at = at, node[at, NEXT]
    join(node, parent, last, n)
    join(node, parent, n, at)


@compiled
def unlink(node: Ints, parent: int, n: int) -> None:
    """Take `n` out of its parent's list."""
    join(node, parent, node[n, PREV], node[n, NEXT])


@compiled
def make(node: Ints, ends: Ints, meta: Longs, parent: int, count: int, ref: int) -> int:
    """A new node that is linked nowhere."""
    n = int(meta[FREE_NODE])
    if n >= 0:
        meta[FREE_NODE] = node[n, PARENT]
    else:
        n = int(meta[USED_NODES])
        meta[USED_NODES] += 1
    meta[LIVE_NODES] += 1
    node[n, COUNT], node[n, PARENT], node[n, REF] = count, parent, ref
    node[n, FIRST] = node[n, NEXT] = node[n, PREV] = -1
    if len(ends):
        ends[n] = -1
    return n


@compiled
def free(node: Ints, meta: Longs, n: int) -> None:
    """Give a node back that is linked nowhere."""
    node[n, COUNT] = 0
    node[n, PARENT] = meta[FREE_NODE]
    meta[FREE_NODE] = n
    meta[LIVE_NODES] -= 1


@compiled
def attach(node: Ints, text: Ints, table: Ints, tag: Bytes, meta: Longs, n: int) -> None:
    """Make `n` a child of its parent."""
    parent = node[n, PARENT]
    if parent == ROOT:
        put(node, text, table, tag, meta, n)
        return
    first = node[parent, FIRST]
    if first >= 0:
        if node[first, NEXT] < 0:
            put(node, text, table, tag, meta, first)
        put(node, text, table, tag, meta, n)
    insert(node, parent, n)


@compiled
def detach(node: Ints, text: Ints, table: Ints, tag: Bytes, meta: Longs, n: int) -> None:
    """Undo `attach`."""
    parent = node[n, PARENT]
    if parent == ROOT:
        take(node, text, table, tag, meta, n)
        return
    if node[n, PREV] >= 0 or node[n, NEXT] >= 0:
        take(node, text, table, tag, meta, n)
    unlink(node, parent, n)
    first = node[parent, FIRST]
    if first >= 0 and node[first, NEXT] < 0:
        take(node, text, table, tag, meta, first)


@compiled
def replace(node: Ints, text: Ints, table: Ints, tag: Bytes, old: int, new: int) -> None:
    """Let `new` take the place of `old`, which has the same count and the same first token."""
    parent, last, at = node[old, PARENT], node[old, PREV], node[old, NEXT]
    if parent == ROOT or last >= 0 or at >= 0:
        table[slot_of(node, text, table, tag, old)] = new
    node[new, PARENT], node[new, PREV], node[new, NEXT] = parent, last, at
    if parent != ROOT:
        join(node, parent, last, new)
        join(node, parent, new, at)
