"""What a suffix trie expects behind a context: SuffixDecoding's speculation (arXiv 2411.04975, section 3). Compiled by Numba."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from echodraft.stores.suffix_nodes import COUNT, FIRST, NEXT, REF, ROOT, SHARE, Ints, Longs, Tree, child_of, compiled, step

Floats = NDArray[np.float64]


@compiled
def match(tree: Tree, context: Ints, place: Longs, within: Longs, tail: int) -> bool:
    """Find the last `tail` tokens of `context`: they end at node place[tail], behind within[tail] tokens of its label. False if absent."""
    node, length, text, chunk = tree.node, tree.length, tree.text, tree.chunk
    at, used, pos = ROOT, 0, 0
    for i in range(len(context) - tail, len(context)):
        if at == ROOT or used == length[at]:
            at = child_of(node, text, tree.table, tree.tag, at, context[i])
            if at < 0:
                return False
            used, pos = 1, node[at, REF]
            continue
        pos = step(chunk, pos)
        if text[pos] != context[i]:
            return False
        used += 1
    place[tail], within[tail] = at, used
    return True


@compiled
def grow(
    tree: Tree, at: int, used: int, most: int, deepest: int, width: int, least: float, tokens: Longs, parents: Longs, probs: Floats
) -> tuple[int, float]:
    """The `most` likeliest nodes behind `used` tokens of the label of `at`, likeliest first: (how many, sum of their probabilities).

    Of equal ones, the one that was in the queue first. A place on the frontier is a path of tokens; no two of them exclude a third, so
    that their probabilities sum to at most 1 and at most 1 / least of them are in the queue.
    """
    node, length, text, chunk = tree.node, tree.length, tree.text, tree.chunk
    room = SHARE + 2
    prob, entry, above, depth = np.empty(room), np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    taken, pos, turn = np.empty(room, np.int64), np.empty(room, np.int64), np.empty(room, np.int64)
    prob[0], entry[0], above[0], depth[0], taken[0], turn[0] = 1.0, at, -1, 0, used, 0
    pos[0] = node[at, REF]
    for _ in range(used if used < length[at] else 0):
        pos[0] = step(chunk, pos[0])
    n, size, turns, score = 0, 1, 1, 0.0
    while n < most and size > 0:
        best = 0
        for j in range(1, size):
            if prob[j] > prob[best] or (prob[j] == prob[best] and turn[j] < turn[best]):
                best = j
        at = entry[best]
        if depth[best] < deepest and taken[best] < length[at]:
            tokens[n], parents[n], probs[n] = text[pos[best]], above[best], prob[best]
            score += prob[best]
            above[best], depth[best], turn[best] = n, depth[best] + 1, turns
            taken[best] += 1
            if taken[best] < length[at]:
                pos[best] = step(chunk, pos[best])
            n, turns = n + 1, turns + 1
            continue
        whole, last, down = prob[best], above[best], depth[best]
        size -= 1
        prob[best], entry[best], above[best], depth[best] = prob[size], entry[size], above[size], depth[size]
        taken[best], pos[best], turn[best] = taken[size], pos[size], turn[size]
        child = node[at, FIRST] if down < deepest else -1
        for _ in range(width):
            if child < 0 or size == room:
                break
            share = whole * node[child, COUNT] / node[at, COUNT]
            if share < least:
                break
            prob[size], entry[size], above[size], depth[size] = share, child, last, down
            taken[size], pos[size], turn[size] = 0, node[child, REF], turns
            size, turns = size + 1, turns + 1
            child = node[child, NEXT]
    return n, score


@compiled
def speculate(
    tree: Tree,
    window: Ints,
    known: int,
    context: Ints,
    most: int,
    deepest: int,
    width: int,
    factor: float,
    offset: float,
    least: float,
    tokens: Longs,
    parents: Longs,
    probs: Floats,
) -> tuple[int, float, int]:
    """The best draft over all lengths of match, its likeliest path first: (nodes, score, length of the match).

    Suffixes up to `known` tokens are where `window` says. The published loop goes from short to long and keeps the longer of equals; this
    one goes from long to short, keeps the first of equals, and so may end where no shorter match can be better.
    """
    node, length = tree.node, tree.length
    depth = window.shape[1] - 1
    longest = max(known, min(len(context), depth - 1))
    place, within = np.empty(depth + 1, np.int64), np.empty(depth + 1, np.int64)
    for tail in range(1, known + 1):
        place[tail], within[tail] = window[0, tail], length[window[0, tail]]
    if known > 0 and node[place[known], COUNT] == 1:
        longest = known  # nothing else ends so, and before its own first token there is nothing
    for tail in range(known + 1, longest + 1):
        if not match(tree, context, place, within, tail):
            longest = tail - 1
            break
    trial, above, chance = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    kept, kept_above, kept_chance = np.empty(most, np.int64), np.empty(most, np.int64), np.empty(most)
    best, score, matched = 0, 0.0, 0
    for tail in range(longest, 0, -1):
        limit = min(most, int(tail * factor + offset + 1e-6))
        if limit <= score:
            break  # a node adds 1 at most
        same = tail < longest and node[place[tail], COUNT] == node[place[tail + 1], COUNT]
        if same and tail + 1 + limit <= depth:
            continue  # the same places in the text, and a longer match may draft more of them
        n, total = grow(tree, place[tail], within[tail], limit, deepest, width, least, trial, above, chance)
        if total > score:
            best, score, matched = n, total, tail
            trial, kept = kept, trial
            above, kept_above = kept_above, above
            chance, kept_chance = kept_chance, chance
    # Depth first; siblings lie in the order of their probability already.
    first, following, stack, new = np.full(best, -1), np.full(best, -1), np.empty(best + 1, np.int64), np.empty(best, np.int64)
    top, n = 0, 0
    for i in range(best - 1, -1, -1):
        p = kept_above[i]
        if p >= 0:
            following[i], first[p] = first[p], i
    for i in range(best - 1, -1, -1):
        if kept_above[i] < 0:
            stack[top] = i
            top += 1
    while top > 0:
        top -= 1
        i = stack[top]
        while i >= 0:
            tokens[n], probs[n] = kept[i], kept_chance[i]
            parents[n] = new[kept_above[i]] if kept_above[i] >= 0 else -1
            new[i] = n
            n += 1
            if following[i] >= 0:
                stack[top] = following[i]
                top += 1
            i = first[i]
    return best, score, matched
