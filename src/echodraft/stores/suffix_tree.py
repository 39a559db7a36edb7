"""A suffix trie that grows by tokens of many sequences and shrinks by whole sequences. Compiled by Numba; layout in `suffix_nodes`.

Every suffix of every sequence, cut to `depth` tokens, is a path from the root; a node counts the suffixes that pass through it or end at
its lower end. A node is there only where suffixes end or part, so there are at most two a token. Suffixes of a sequence that still grows
are in its window: `window[0, n]` is the node at which the suffix of length n ends, `window[1, n]` the place of its first token.
"""

from __future__ import annotations

import numpy as np

from echodraft.stores.suffix_nodes import (
    AFTER,
    BEFORE,
    CHUNK,
    COUNT,
    ENTRIES,
    FIRST,
    FREE_CHUNK,
    LIVE_CHUNKS,
    LIVE_NODES,
    NEXT,
    OWNER,
    PARENT,
    PREV,
    REF,
    ROOT,
    SHARE,
    SHIFT,
    USED_CHUNKS,
    USED_NODES,
    Bytes,
    Ints,
    Longs,
    Tree,
    ahead,
    attach,
    back,
    child_of,
    compiled,
    detach,
    free,
    heavy,
    insert,
    join,
    make,
    put,
    replace,
    step,
    unlink,
)

FIRST_CHUNK, LAST, TOKENS = range(3)
"""Places in a sequence's `run`: its first chunk, the place of its last token, how many it has."""


@compiled
def more(node: Ints, n: int) -> None:
    """One more suffix passes through `n`. Among equals the one that was raised last comes first."""
    node[n, COUNT] += 1
    parent, last = node[n, PARENT], node[n, PREV]
    if parent != ROOT and last >= 0 and node[last, COUNT] <= node[n, COUNT] and node[n, COUNT] >= heavy(node[parent, COUNT]):
        unlink(node, parent, n)
        insert(node, parent, n)


@compiled
def less(node: Ints, n: int) -> None:
    """One suffix less passes through `n` and through its parent."""
    parent, was = node[n, PARENT], node[n, COUNT]
    node[n, COUNT] = was - 1
    if parent != ROOT and was >= heavy(node[parent, COUNT]):
        last, at = n, node[n, NEXT]
        while at >= 0 and node[at, COUNT] >= was:
            last, at = at, node[at, NEXT]
        if last != n:
            unlink(node, parent, n)
            join(node, parent, last, n)
            join(node, parent, n, at)
    count = was - 1
    if count >= 2 * SHARE and count & (count - 1) == 0:
        # The bound of what must be sorted halves here: bring those children to the front that come under it.
        least, at = heavy(count), node[n, FIRST]
        while at >= 0:
            following, last = node[at, NEXT], node[at, PREV]
            if last >= 0 and node[at, COUNT] >= least and node[last, COUNT] < node[at, COUNT]:
                unlink(node, n, at)
                insert(node, n, at)
            at = following


@compiled
def advance(node: Ints, length: Bytes, table: Ints, tag: Bytes, text: Ints, chunk: Ints, ends: Ints, meta: Longs, at: int, pos: int) -> int:
    """Lengthen a suffix that ends at node `at` by the token at place `pos`; the node at which it ends then. `append` does the rest."""
    child = child_of(node, text, table, tag, at, text[pos])
    if child < 0:
        new = make(node, ends, meta, at, 1, pos)
        length[new] = 1
        attach(node, text, table, tag, meta, new)
        return new
    if at != ROOT and node[at, COUNT] == node[child, COUNT] + 1:
        # All others go on to the one child, and we with them: nothing is left to be told by this node.
        replace(node, text, table, tag, at, child)
        node[child, COUNT], node[child, REF] = node[at, COUNT], node[at, REF]
        length[child] = length[at] + 1
        free(node, meta, at)
        return child
    if length[child] > 1:
        new = make(node, ends, meta, at, node[child, COUNT], pos)
        length[new] = 1
        replace(node, text, table, tag, child, new)
        node[new, FIRST] = child
        node[child, PARENT], node[child, REF] = new, step(chunk, node[child, REF])
        node[child, NEXT] = node[child, PREV] = -1
        length[child] -= 1
        more(node, new)
        return new
    node[child, REF] = pos  # a label always lies in the text that passed last: eviction of the oldest then finds little to mend
    more(node, child)
    return child


@compiled
def hang(ends: Ints, after: Ints, before: Ints, start: int, n: int) -> None:
    """The suffix from place `start` ends at node `n` for good."""
    head = ends[n]
    after[start], before[start] = head, -2 - n
    if head >= 0:
        before[head] = start
    ends[n] = start


@compiled
def append(tree: Tree, run: Longs, window: Ints, owner: int, tokens: Ints, begin: int) -> int:
    """Append tokens[begin:] to a sequence. Returns how far it came: it stops where arrays could become too small."""
    node, length, table, tag, text, chunk, ends, after, before, meta = tree
    depth = window.shape[1] - 1
    for i in range(begin, len(tokens)):
        if meta[LIVE_NODES] + depth > len(length) or meta[ENTRIES] + 2 * depth > len(tag) - len(tag) // 5:
            return i
        total = run[TOKENS]
        if total & (CHUNK - 1) == 0:
            if meta[LIVE_CHUNKS] == len(chunk):
                return i
            new = meta[FREE_CHUNK]
            if new >= 0:
                meta[FREE_CHUNK] = chunk[new, AFTER]
            else:
                new = meta[USED_CHUNKS]
                meta[USED_CHUNKS] += 1
            meta[LIVE_CHUNKS] += 1
            chunk[new, AFTER], chunk[new, BEFORE], chunk[new, OWNER] = -1, -1, owner
            if total == 0:
                run[FIRST_CHUNK] = new
            else:
                chunk[new, BEFORE] = run[LAST] >> SHIFT
                chunk[run[LAST] >> SHIFT, AFTER] = new
            pos = new << SHIFT
        else:
            pos = run[LAST] + 1
        text[pos] = tokens[i]
        run[LAST], run[TOKENS] = pos, total + 1
        node[ROOT, COUNT] += 1
        for tail in range(min(total, depth - 1), 0, -1):
            # The two usual cases are here and not in `advance`, because a call costs more than they do.
            at = window[0, tail]
            child = node[at, FIRST]
            if node[at, COUNT] == 1:  # no other suffix is here: the leaf grows
                length[at] += 1
            elif child >= 0 and node[at, COUNT] == node[child, COUNT] + 1 and length[child] > 1 and text[node[child, REF]] == tokens[i]:
                # All others go on to the one child: the boundary is ours and moves along.
                length[at] += 1
                length[child] -= 1
                node[child, REF] = step(chunk, node[child, REF])
            else:
                at = advance(node, length, table, tag, text, chunk, ends, meta, at, pos)
            window[0, tail + 1] = at
            window[1, tail + 1] = window[1, tail]
        window[0, 1] = advance(node, length, table, tag, text, chunk, ends, meta, ROOT, pos)
        window[1, 1] = pos
        if total + 1 >= depth and len(ends):
            hang(ends, after, before, window[1, depth], window[0, depth])
    return len(tokens)


@compiled
def finish(tree: Tree, run: Longs, window: Ints) -> None:
    """The sequence grows no more."""
    for tail in range(1, min(run[TOKENS], window.shape[1] - 2) + 1):
        hang(tree.ends, tree.after, tree.before, window[1, tail], window[0, tail])


@compiled
def yield_labels(tree: Tree, run: Longs, window: Ints, owner: int) -> None:
    """Point the labels under this growing sequence's suffixes into its own text where they lie in the text of `owner`."""
    node, length, chunk = tree.node, tree.length, tree.chunk
    for tail in range(1, min(run[TOKENS], window.shape[1] - 2) + 1):
        at, below = window[0, tail], 0
        while at != ROOT:
            below += length[at]
            if chunk[node[at, REF] >> SHIFT, OWNER] == owner:
                node[at, REF] = window[1, below]
            at = node[at, PARENT]


@compiled
def remove(tree: Tree, run: Longs, depth: int, owner: int) -> None:
    """Take a finished sequence out. Growing sequences must have yielded its labels before.

    A label in its text is moved to that of another suffix which passes there. While only suffixes of this sequence are found to do so, it
    stays: they are still to come, and the last of them finds another one or the node gone.
    """
    node, length, table, tag, text, chunk, ends, after, before, meta = tree
    path = np.empty(depth, np.int64)
    start = run[FIRST_CHUNK] << SHIFT
    for i in range(run[TOKENS]):
        node[ROOT, COUNT] -= 1
        at, pos, done, nodes, whole = ROOT, start, 0, 0, min(depth, run[TOKENS] - i)
        while True:
            at = child_of(node, text, table, tag, at, text[pos])
            less(node, at)
            path[nodes] = at
            nodes += 1
            done += length[at]
            if done == whole:
                break
            pos = ahead(chunk, pos, length[at])
        last, following = before[start], after[start]
        if last <= -2:
            ends[-2 - last] = following
        else:
            after[last] = following
        if following >= 0:
            before[following] = last
        if node[at, COUNT] == 0:
            nodes -= 1
            detach(node, text, table, tag, meta, at)
            free(node, meta, at)
            at = path[nodes - 1] if nodes else ROOT
        if at != ROOT:
            child = node[at, FIRST]
            if child >= 0 and node[child, COUNT] == node[at, COUNT]:  # nothing ends or parts here any more
                replace(node, text, table, tag, at, child)
                node[child, REF] = back(chunk, node[child, REF], length[at])
                length[child] += length[at]
                free(node, meta, at)
                path[nodes - 1] = at = child
        mend(tree, path[:nodes], owner)
        if i + 1 < run[TOKENS]:
            start = step(chunk, start)
    at = run[FIRST_CHUNK] if run[TOKENS] else -1
    while at >= 0:
        following = chunk[at, AFTER]
        chunk[at, AFTER], chunk[at, OWNER] = meta[FREE_CHUNK], -1
        meta[FREE_CHUNK] = at
        meta[LIVE_CHUNKS] -= 1
        at = following


@compiled
def mend(tree: Tree, path: Longs, owner: int) -> None:
    """Point the labels along `path` that lie in the text of `owner` elsewhere, if a leaf below tells where."""
    node, length, chunk = tree.node, tree.length, tree.chunk
    needed = False
    for at in path:
        needed = needed or chunk[node[at, REF] >> SHIFT, OWNER] == owner
    if not needed:
        return
    leaf = path[-1]
    while node[leaf, FIRST] >= 0:
        leaf = node[leaf, FIRST]
    pos = int(tree.ends[leaf])
    if chunk[pos >> SHIFT, OWNER] == owner:
        return
    for i in range(len(path)):
        at = path[i]
        if chunk[node[at, REF] >> SHIFT, OWNER] == owner:
            node[at, REF] = pos
        if i + 1 < len(path):
            pos = ahead(chunk, pos, length[at])


@compiled
def refill(tree: Tree) -> None:
    """Fill an empty table."""
    node, meta = tree.node, tree.meta
    for n in range(1, meta[USED_NODES]):
        if node[n, COUNT] > 0 and (node[n, PARENT] == ROOT or node[n, PREV] >= 0 or node[n, NEXT] >= 0):
            put(node, tree.text, tree.table, tree.tag, meta, n)


@compiled
def read(tree: Tree, run: Longs) -> Ints:
    """The tokens of a sequence."""
    out = np.empty(run[TOKENS], np.int32)
    pos = run[FIRST_CHUNK] << SHIFT
    for i in range(len(out)):
        out[i] = tree.text[pos]
        if i + 1 < len(out):
            pos = step(tree.chunk, pos)
    return out
