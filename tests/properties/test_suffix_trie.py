"""The suffix store against a search through all texts that it holds, whatever was appended, finished, removed and evicted before."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from echodraft.stores import suffix_nodes as layout
from echodraft.stores.suffix import Expected, SuffixStore

WIDE = 70_000  # added tokens have ids that need more than 16 bits


class Texts:
    """What the store must know, as plain lists; `clock[seq][i]` is when token i came."""

    def __init__(self) -> None:
        self.growing: dict[int, list[int]] = {}
        self.finished: dict[int, list[int]] = {}
        self.clock: dict[int, list[int]] = {}
        self.now = 0

    @property
    def all(self) -> dict[int, list[int]]:
        return self.growing | self.finished

    @property
    def tokens(self) -> int:
        return sum(map(len, self.all.values()))

    def count(self, phrase: Sequence[int]) -> int:
        n = len(phrase)
        return sum(text[i : i + n] == list(phrase) for text in self.all.values() for i in range(len(text) - n + 1))

    def followers(self, phrase: Sequence[int]) -> list[tuple[int, int, int]]:
        """(count, latest time, token) of what follows the phrase, the best first: more often, then later."""
        n, found = len(phrase), {}
        for seq, text in self.all.items():
            for i in range(len(text) - n):
                if text[i : i + n] == list(phrase):
                    count, latest = found.get(text[i + n], (0, -1))
                    found[text[i + n]] = (count + 1, max(latest, self.clock[seq][i + n]))
        return sorted(((count, latest, token) for token, (count, latest) in found.items()), reverse=True)


def assert_sound(store: SuffixStore, texts: Texts) -> None:
    """Every array is what the texts say: counts, labels, lists, tables, ends, free lists."""
    tree, depth = store._tree, store.depth
    node, meta = tree.node.tolist(), tree.meta.tolist()
    used = range(1, meta[layout.USED_NODES])
    live = [n for n in used if node[n][layout.COUNT] > 0]
    assert len(live) + 1 == meta[layout.LIVE_NODES] <= 2 * texts.tokens + 1
    free, n = set(), meta[layout.FREE_NODE]
    while n >= 0:
        assert n not in free
        free.add(n)
        n = node[n][layout.PARENT]
    assert free == set(used) - set(live)
    chunks, c = set(), meta[layout.FREE_CHUNK]
    while c >= 0:
        assert c not in chunks
        chunks.add(c)
        c = int(tree.chunk[c, layout.AFTER])
    assert len(chunks) + meta[layout.LIVE_CHUNKS] == meta[layout.USED_CHUNKS]
    assert meta[layout.LIVE_CHUNKS] == sum(-(-len(text) // layout.CHUNK) for text in texts.all.values())
    assert node[layout.ROOT][layout.COUNT] == texts.tokens

    phrase = {layout.ROOT: []}
    children: dict[int, list[int]] = {}
    for n in live:
        children.setdefault(node[n][layout.PARENT], []).append(n)
    stack = list(children.get(layout.ROOT, []))
    while stack:
        n = stack.pop()
        pos, label = node[n][layout.REF], []
        for i in range(int(tree.length[n])):
            owner = int(tree.chunk[pos >> layout.SHIFT, layout.OWNER])
            assert owner in texts.all, "a label lies in text that is gone"
            label.append(int(tree.text[pos]))
            if i + 1 < tree.length[n]:
                pos = layout.step(tree.chunk, pos)
        phrase[n] = phrase[node[n][layout.PARENT]] + label
        assert len(phrase[n]) <= depth
        assert texts.count(phrase[n]) == node[n][layout.COUNT]
        assert texts.count(phrase[n][: -len(label) + 1 or None]) == node[n][layout.COUNT]
        below = children.get(n, [])
        stack += below
        # The list: all children, those that a draft may ask for first and by count.
        listed, last, at = [], -1, node[n][layout.FIRST]
        while at >= 0:
            assert node[at][layout.PREV] == last
            listed.append(at)
            last, at = at, node[at][layout.NEXT]
        assert sorted(listed) == sorted(below)
        counts = [node[child][layout.COUNT] for child in listed]
        wanted = [count for count in counts if count * layout.SHARE >= node[n][layout.COUNT]]
        assert counts[: len(wanted)] == sorted(wanted, reverse=True)
        assert not below or sum(counts) < node[n][layout.COUNT] or len(below) > 1, "a node where nothing ends or parts"
    assert len(phrase) == len(live) + 1

    entries = sorted(tree.table[tree.tag != 0].tolist())
    assert len(entries) == meta[layout.ENTRIES]
    assert entries == sorted(n for p, below in children.items() for n in below if p == layout.ROOT or len(below) > 1)
    for p, below in children.items():
        for n in below:
            first = tree.text[node[n][layout.REF]]
            assert layout.child_of(tree.node, tree.text, tree.table, tree.tag, p, first) == n
        assert layout.child_of(tree.node, tree.text, tree.table, tree.tag, p, WIDE - 1) == -1

    if store.removable:
        ends = {n: [] for n in live}
        for n in live:
            last, p = -2 - n, int(tree.ends[n])
            while p >= 0:
                assert tree.before[p] == last
                ends[n].append(p)
                last, p = p, int(tree.after[p])
        hanging = sum(map(len, ends.values()))
        assert hanging == sum(map(len, texts.finished.values())) + sum(max(0, len(t) - depth + 1) for t in texts.growing.values())
        for n, places in ends.items():
            for p in places:
                found = [int(tree.text[p])]
                while len(found) < len(phrase[n]):
                    p = layout.step(tree.chunk, p)
                    found.append(int(tree.text[p]))
                assert found == phrase[n]


def expected(texts: Texts, context: Sequence[int], nodes: int, factor: float, offset: float, least: float, tree: bool, depth: int) -> float:
    """The score of the best draft, by the published loop over all lengths of match."""
    best = 0.0
    for match in range(1, min(len(context), depth - 1) + 1):
        end = list(context[len(context) - match :])
        if not texts.count(end):
            break
        most = max(0, min(nodes, int(match * factor + offset + 1e-6)))
        whole = texts.count(end)
        queue, score, n = [(1.0, end)], 0.0, 0
        while queue and n < most + 1:
            queue.sort(key=lambda item: -item[0])
            prob, path = queue.pop(0)
            if len(path) > len(end):
                if n == most:
                    break
                score, n = score + prob, n + 1
            if len(path) < depth:
                followers = texts.followers(path)[: None if tree else 1]
                queue += [(count / whole, [*path, token]) for count, _, token in followers if count / whole >= least - 1e-12]
        best = max(best, score)
    return best


def assert_expected(found: Expected, texts: Texts, context: Sequence[int], latest: bool, **how: float) -> None:
    """The score is the best one, and the draft is one that has it."""
    assert np.isclose(found.score, expected(texts, context, **how))
    end = list(context[len(context) - found.match :])
    paths, whole = {-1: end}, texts.count(end)
    for i, (token, parent, prob) in enumerate(zip(found.tokens.tolist(), found.parents.tolist(), found.probs.tolist(), strict=True)):
        assert parent < i
        paths[i] = [*paths[parent], token]
        assert np.isclose(prob, texts.count(paths[i]) / whole)
        assert prob >= how["least"] - 1e-12
    assert len({tuple(path) for path in paths.values()}) == len(paths)
    assert np.isclose(found.score, found.probs.sum())
    assert len(found.tokens) <= max(0, min(how["nodes"], int(found.match * how["factor"] + how["offset"] + 1e-6)))
    if not how["tree"]:
        assert found.parents.tolist() == list(range(-1, len(found.parents) - 1))
        for i, token in enumerate(found.tokens.tolist()):
            followers = texts.followers(paths[i - 1])
            assert token == followers[0][2] if latest else token in {t for n, _, t in followers if n == followers[0][0]}
    elif latest and len(found.tokens):
        # The likeliest path comes first, and among equals the one that was seen last.
        assert found.tokens[0] == texts.followers(end)[0][2]


class Pair:
    """A store and the plain lists beside it."""

    def __init__(self, depth: int, removable: bool = True) -> None:
        self.store, self.texts, self.removed = SuffixStore(depth, removable), Texts(), False

    def begin(self) -> None:
        seq = self.store.begin()
        self.texts.growing[seq], self.texts.clock[seq] = [], []

    def append(self, seq: int, tokens: list[int]) -> None:
        self.store.append(seq, tokens)
        for token in tokens:
            self.texts.now += 1
            self.texts.growing[seq].append(token)
            self.texts.clock[seq].append(self.texts.now)

    def end(self, seq: int, when: float) -> None:
        self.store.end(seq, when)
        self.texts.finished[seq] = self.texts.growing.pop(seq)

    def remove(self, seq: int) -> None:
        assert self.store.remove(seq)
        assert not self.store.remove(seq)
        (self.texts.growing if seq in self.texts.growing else self.texts.finished).pop(seq)
        self.removed = True

    def prune(self, tokens: int) -> None:
        self.store.prune(tokens)
        while self.texts.tokens > tokens and self.texts.finished:
            self.texts.finished.pop(next(iter(self.texts.finished)))
            self.removed = True

    def ask(self, context: list[int], seq: int | None, tree: bool, nodes: int, factor: float, offset: float, least: float) -> None:
        found = self.store.speculate(context, nodes, seq=seq, factor=factor, offset=offset, min_prob=least, tree=tree)
        how = {"nodes": nodes, "factor": factor, "offset": offset, "least": least, "tree": tree, "depth": self.store.depth}
        assert_expected(found, self.texts, context, not self.removed, **how)


tokens = st.sampled_from([0, 1, 2, WIDE])
factors = st.sampled_from([0.5, 1.0, 4.0])
offsets = st.sampled_from([-1.0, 0.0, 2.0])


@settings(max_examples=150)
@given(st.data(), st.sampled_from([1, 2, 3, 5, 8, 64]), st.booleans())
def test_the_store_holds_what_a_search_through_its_texts_finds(data: st.DataObject, depth: int, two_letters: bool) -> None:
    pair = Pair(depth)
    letters = st.integers(0, 1) if two_letters else tokens
    for _ in range(data.draw(st.integers(3, 14))):
        growing, all_ = list(pair.texts.growing), list(pair.texts.all)
        act = data.draw(st.sampled_from(["begin", "append", "append", "append", "end", "remove", "prune", "ask"]))
        if act == "begin" or not growing:
            pair.begin()
        elif act == "append":
            pair.append(data.draw(st.sampled_from(growing)), data.draw(st.lists(letters, max_size=12)))
        elif act == "end":
            pair.end(data.draw(st.sampled_from(growing)), 1.0)
        elif act == "remove":
            pair.remove(data.draw(st.sampled_from(all_)))
        elif act == "prune":
            pair.prune(data.draw(st.integers(0, 40)))
        if act in ("remove", "prune", "end"):
            assert_sound(pair.store, pair.texts)
    assert_sound(pair.store, pair.texts)
    assert pair.store.tokens == pair.texts.tokens
    for seq, text in pair.texts.all.items():
        assert pair.store.text(seq).tolist() == text
    seq = data.draw(st.sampled_from([None, *pair.texts.growing]))
    before = data.draw(st.lists(letters, max_size=6))
    context = before if seq is None else before + pair.texts.growing[seq]
    pair.ask(
        context,
        seq,
        tree=data.draw(st.booleans()),
        nodes=data.draw(st.integers(0, 12)),
        factor=data.draw(factors),
        offset=data.draw(offsets),
        least=data.draw(st.sampled_from([0.0625, 0.1, 0.3, 1.0])),
    )
    for seq in list(pair.texts.all):
        pair.remove(seq)
        assert_sound(pair.store, pair.texts)


@settings(max_examples=60)
@given(st.lists(tokens, max_size=40), st.sampled_from([1, 2, 4, 64]), st.booleans(), st.booleans())
def test_one_text_token_by_token_answers_with_its_own_past(text: list[int], depth: int, removable: bool, tree: bool) -> None:
    pair = Pair(depth, removable)
    pair.begin()
    for i, token in enumerate(text):
        pair.append(0, [token])
        if i % 5 == 0 or i == len(text) - 1:
            assert_sound(pair.store, pair.texts)
            pair.ask(text[: i + 1], 0, tree, 8, 1.0, 0.0, 0.1)
            found, searched = pair.store.speculate(seq=0, tree=tree), pair.store.speculate(text[: i + 1], tree=tree)
            assert all(np.array_equal(a, b) for a, b in zip(found, searched, strict=True))


@settings(max_examples=100)
@given(st.data(), st.lists(tokens, min_size=1, max_size=20), st.sampled_from([2, 4, 64]))
def test_copies_of_a_text_can_go_in_any_order_while_others_grow(data: st.DataObject, text: list[int], depth: int) -> None:
    """Labels lie in the copy that passed last; the copies before it, which still grow, must hold them when it goes."""
    pair, copies = Pair(depth), data.draw(st.integers(2, 4))
    for seq in range(copies):
        pair.begin()
        pair.append(seq, text[: data.draw(st.integers(0, len(text)))])
        if data.draw(st.booleans()):
            pair.end(seq, 1.0)
    for seq in data.draw(st.permutations(range(copies))):
        if pair.texts.growing:
            pair.append(data.draw(st.sampled_from(list(pair.texts.growing))), data.draw(st.lists(tokens, max_size=2)))
        pair.remove(seq)
        assert_sound(pair.store, pair.texts)


@settings(max_examples=10)
@given(st.integers(0, 1 << 30), st.integers(2, 6))
def test_nodes_with_hundreds_of_children_keep_the_likely_ones_first(seed: int, texts: int) -> None:
    """Big counts: what must be sorted is a moving bound there, down to which removal halves it."""
    random = np.random.default_rng(seed)
    pair = Pair(3)
    for _ in range(texts):
        pair.begin()
        seq = pair.store._next - 1
        for follower in random.zipf(1.3, 150) % 60 + 1:
            pair.append(seq, [0, int(follower)])
        pair.end(seq, 1.0)
    for seq in random.permutation(texts).tolist():
        assert_sound(pair.store, pair.texts)
        for tree in (True, False):
            pair.ask([0], None, tree, 16, 16.0, 0.0, 0.0625)
        pair.remove(seq)
    assert_sound(pair.store, pair.texts)
