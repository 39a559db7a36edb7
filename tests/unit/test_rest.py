"""REST: the order of the corpus, what is found in it, the tree, and the file."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from echodraft.core.accept import Stops
from echodraft.core.budget import Budget
from echodraft.core.draft import ANCHOR, Draft
from echodraft.core.sampling import Sampler
from echodraft.core.session import Session
from echodraft.drafters.rest import Rest
from echodraft.errors import EchodraftError, Unsupported, UsageError
from echodraft.stores.corpus import DEPTH, FILE, About, Corpus, load_corpus, suffixes

TEXTS = st.lists(st.lists(st.integers(0, 3) | st.sampled_from([65_535, 65_536, 151_000]), max_size=25), min_size=1, max_size=5)


@given(TEXTS)
def test_suffixes_are_in_order_as_far_as_they_are_compared(texts: list[list[int]]) -> None:
    text = Corpus.build(texts).text
    order = suffixes(text).tolist()
    assert sorted(order) == list(range(len(text)))
    ahead = [text[at : at + DEPTH].tolist() for at in order]
    assert ahead == sorted(ahead)


def test_a_text_of_one_token_over_and_over_is_ordered_too() -> None:
    text = np.full(3000, 7, np.int32)
    ahead = [len(text[at : at + DEPTH]) for at in suffixes(text)]
    assert ahead == sorted(ahead)


@given(TEXTS, st.lists(st.integers(0, 3), max_size=9), st.integers(1, 3), st.integers(0, 4))
def test_the_longest_end_is_found_with_all_its_places(texts: list[list[int]], context: list[int], shortest: int, more: int) -> None:
    corpus, longest = Corpus.build(texts), shortest + more
    match, first, last = found = corpus.find(context, longest, shortest)
    held = corpus.text.tolist()
    expected = (0, [])
    for n in range(shortest, min(longest, len(context)) + 1):
        places = [at for at in range(len(held)) if held[at : at + n] == context[-n:]]
        expected = (n, places) if places else expected
    assert (match, sorted(corpus.order[first:last].tolist())) == expected
    if match:
        rows = corpus.behind(found, 3, 100).tolist()
        assert rows == sorted(rows)
        for row, at in zip(rows, corpus.order[first:last].tolist(), strict=True):
            assert row[0] == held[at + match]


def test_of_many_places_those_evenly_apart_are_read() -> None:
    corpus = Corpus.build([[1, 2, token] for token in range(3, 103)])
    assert corpus.behind(corpus.find([1, 2], 4, 2), 1, 10)[:, 0].tolist() == list(range(3, 103, 10))


def drafted(folder: Path, texts: list[list[int]], context: list[int], budget: Budget, **knobs: object) -> Draft:
    Corpus.build(texts).save(folder)
    session = Session(0, "", context, len(context), Sampler(), Stops(), 0)
    (draft,) = Rest(corpus=str(folder), **knobs).propose([session], [budget])  # type: ignore[arg-type]
    return draft


def paths(draft: Draft) -> dict[tuple[int, ...], float]:
    out: list[tuple[int, ...]] = []
    for token, parent in zip(draft.token.tolist(), draft.parent.tolist(), strict=True):
        out.append((*(() if parent == ANCHOR else out[parent]), token))
    return dict(zip(out, draft.prob.tolist(), strict=True))


@given(st.lists(st.lists(st.integers(0, 3), max_size=12), min_size=1, max_size=5), st.integers(1, 12))
def test_as_published_the_tree_is_the_commonest_beginnings(
    tmp_path_factory: pytest.TempPathFactory, texts: list[list[int]], nodes: int
) -> None:
    context, length = [9, 1, 2], 4
    found = paths(
        drafted(
            tmp_path_factory.mktemp("corpus"),
            [[*text, 1, 2, *text] for text in texts],
            context,
            Budget(nodes, 9, 99),
            length=length,
            counts=True,
        )
    )
    held = [[*text, 1, 2, *text] for text in texts]
    behind = [text[at + 2 : at + 2 + length] for text in held for at in range(len(text) - 1) if text[at : at + 2] == [1, 2]]
    counts = Counter(tuple(tokens[:n]) for tokens in behind for n in range(1, len(tokens) + 1))
    assert len(found) == min(nodes, len(counts))
    assert sorted(found.values(), reverse=True) == pytest.approx([n / len(behind) for _, n in counts.most_common(nodes)])
    assert all(prob == pytest.approx(counts[path] / len(behind)) for path, prob in found.items())


def test_a_long_match_is_claimed_with_more_than_a_short_one(tmp_path: Path) -> None:
    text = [1, 2, 3, 4, 5, 6, 7, 8]
    long, short = (drafted(tmp_path, [text], context, Budget(4, 4)).prob[0] for context in (text[:6], text[4:6]))
    assert short == pytest.approx(2 / 3)
    assert long == pytest.approx(6 / 7)


def test_nothing_is_drafted_across_the_end_of_a_text_or_without_a_match(tmp_path: Path) -> None:
    assert drafted(tmp_path, [[1, 2, 3], [4, 5]], [1, 2], Budget(9, 9)).token.tolist() == [3]
    assert len(drafted(tmp_path, [[1, 2]], [1, 2], Budget(9, 9))) == 0
    assert len(drafted(tmp_path, [[1, 2, 3]], [3, 2], Budget(9, 9))) == 0


def test_without_a_corpus_it_says_how_to_get_one(tmp_path: Path) -> None:
    with pytest.raises(Unsupported, match="echodraft store build"):
        Rest()
    with pytest.raises(UsageError, match=r"no corpus in .*echodraft store build"):
        Rest(corpus=str(tmp_path))


@pytest.mark.parametrize("knobs", [{"shortest": 0}, {"longest": 1}, {"hits": 0}, {"length": 0}, {"length": DEPTH - 15}])
def test_sizes_that_cannot_be_are_refused(knobs: dict[str, int]) -> None:
    with pytest.raises(UsageError, match="rest: 1 <= shortest"):
        Rest(corpus="x", **knobs)  # type: ignore[arg-type]


class Named:
    eos: frozenset[int] = frozenset()

    def __init__(self, fingerprint: str) -> None:
        self.fingerprint = fingerprint


def test_a_corpus_of_another_tokenizer_is_refused(tmp_path: Path) -> None:
    Corpus.build([[1, 2]], About("ours", "model")).save(tmp_path)
    for fingerprint in ("ours", ""):
        Rest(corpus=str(tmp_path), text=Named(fingerprint))  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=r"another tokenizer \(model\)"):
        Rest(corpus=str(tmp_path), text=Named("theirs"))  # type: ignore[arg-type]


def test_a_saved_corpus_is_the_same_and_is_read_once(tmp_path: Path) -> None:
    made = Corpus.build([[1, 70_000], [], [3]], About("t", "m"))
    made.save(tmp_path)
    read = load_corpus(tmp_path)
    assert (read.text.tolist(), read.order.tolist(), read.about) == (made.text.tolist(), made.order.tolist(), About("t", "m", 3))
    assert load_corpus(tmp_path) is read
    assert [path.name for path in tmp_path.iterdir()] == [FILE]


@pytest.mark.parametrize(
    "damage",
    [
        {"text": np.asarray([1, 2], np.int32)},
        {"text": np.asarray([1, -5, -1], np.int32)},
        {"text": np.asarray([1, 2, -1], np.int64)},
        {"order": np.asarray([0, 1, 3], np.int32)},
        {"order": np.asarray([0, -1, 2], np.int32)},
        {"order": np.asarray([[0, 1, 2]], np.int32)},
        {"text": np.empty(0, np.int32), "order": np.empty(0, np.int32)},
    ],
)
def test_a_damaged_corpus_is_told_as_such(tmp_path: Path, damage: dict[str, np.ndarray]) -> None:
    arrays = {"text": np.asarray([1, 2, -1], np.int32), "order": np.asarray([2, 0, 1], np.int32)} | damage
    Corpus(arrays["text"], arrays["order"]).save(tmp_path)
    with pytest.raises(EchodraftError, match="cannot be read"):
        load_corpus(tmp_path)
    (tmp_path / FILE).write_bytes(b"rubbish")
    with pytest.raises(EchodraftError, match="cannot be read"):
        load_corpus(tmp_path)
