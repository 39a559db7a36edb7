"""Texts of an operator as a suffix array: the datastore of REST (arXiv 2311.08252)."""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from echodraft.errors import EchodraftError, UsageError

FORMAT, HEADER, FILE = 1, "echodraft-corpus", "corpus.safetensors"
BREAK = -1
"""Stands behind every text."""
DEPTH = 32
"""Tokens by which suffixes are ordered: the longest match and what is read behind it, together."""
Ints = NDArray[np.int32]


@dataclass(frozen=True, slots=True)
class About:
    """Of what a corpus is made. `tokenizer` is the fingerprint of its vocabulary ("" = not known), `name` what it was loaded from."""

    tokenizer: str = ""
    name: str = ""
    texts: int = 0


@dataclass(frozen=True, slots=True)
class Corpus:
    """Token ids of many texts and all their suffixes in order. It never changes; 8 bytes a token.

    text   int32 [n]  the texts, each with a break behind it
    order  int32 [n]  places of `text`, ascending by the `DEPTH` tokens from there on
    """

    text: Ints
    order: Ints
    about: About = About()

    @staticmethod
    def build(texts: Iterable[Sequence[int] | Ints], about: About = About()) -> Corpus:
        """The corpus of these texts. Takes about 60 bytes a token while it sorts."""
        parts = [np.append(np.asarray(ids, np.int32), np.int32(BREAK)) for ids in texts]
        text = np.concatenate([np.empty(0, np.int32), *parts])
        return Corpus(text, suffixes(text), About(about.tokenizer, about.name, len(parts)))

    def find(self, context: Sequence[int], longest: int, shortest: int) -> tuple[int, int, int]:
        """The longest end of `context` that occurs, as (its length, first and last + 1 of its places in `order`); (0, 0, 0) if none does.

        Where an end occurs all shorter ones do, so the length is found by bisection too.
        """
        found = (0, 0, 0)
        least, most = shortest, min(longest, len(context))
        while least <= most:
            n = (least + most + 1) // 2
            wanted = list(context[-n:])

            def tokens(at: int, n: int = n) -> list[int]:
                there: list[int] = self.text[at : at + n].tolist()
                return there

            first = bisect_left(self.order, wanted, key=tokens)
            last = bisect_right(self.order, wanted, lo=first, key=tokens)
            if first < last:
                found, least = (n, first, last), n + 1
            else:
                most = n - 1
        return found

    def behind(self, found: tuple[int, int, int], length: int, hits: int) -> Ints:
        """What follows the places that were `found`: int32 [places, length], ordered. Of more than `hits` places, so many evenly apart."""
        match, first, last = found
        n = min(hits, last - first)
        places = self.order[first + np.arange(n) * (last - first) // n]
        rows: Ints = self.text[np.minimum(places[:, None] + match + np.arange(length), len(self.text) - 1)]
        return rows

    def save(self, folder: Path) -> Path:
        """Write it into a folder: beside its place first, then in one move. Returns the file."""
        folder.mkdir(parents=True, exist_ok=True)
        path, unfinished = folder / FILE, folder / (FILE + ".unfinished")
        save_file(
            {"text": self.text, "order": self.order}, unfinished, metadata={HEADER: json.dumps({"format": FORMAT, **asdict(self.about)})}
        )
        unfinished.replace(path)
        return path


def load_corpus(folder: Path | str) -> Corpus:
    """The corpus in a folder; read once for all drafters. Raises `UsageError` where there is none, `EchodraftError` where it is damaged."""
    path = Path(folder).expanduser() / FILE
    if not path.is_file():
        raise UsageError(f"There is no corpus in {folder}. Build one: echodraft store build --corpus FILES -m MODEL --out {folder}")
    return _load(path, path.stat().st_mtime_ns)


@lru_cache(maxsize=1)
def _load(path: Path, _: int) -> Corpus:
    try:
        with safe_open(path, framework="numpy") as held:
            about: dict[str, Any] = json.loads((held.metadata() or {})[HEADER])
            if about["format"] != FORMAT:
                raise ValueError(f"format {about['format']}; this version reads format {FORMAT}")
            text, order = held.get_tensor("text"), held.get_tensor("order")
        n = len(text)
        if [(a.dtype.str[1:], a.shape) for a in (text, order)] != [("i4", (n,))] * 2 or not n:
            raise ValueError("it holds no text and order of int32 of one length")
        if text.min() < BREAK or text[-1] != BREAK or order.min() < 0 or order.max() >= n:
            raise ValueError("it holds ids or places that are none")
        return Corpus(text, order, About(str(about["tokenizer"]), str(about["name"]), int(about["texts"])))
    except (OSError, ValueError, KeyError, TypeError, SafetensorError) as error:
        raise EchodraftError(f"The corpus {path} cannot be read ({' '.join(str(error).split())}). Build it again.") from error


def suffixes(text: Ints) -> Ints:
    """Places of `text`, ascending by the `DEPTH` tokens from there on; int32 [n].

    Prefix doubling (Manber and Myers 1993), by NumPy's radix sort of 16-bit numbers: no more is ordered than is ever compared, in linear
    time and with no compiler.
    """
    n, step = len(text), 1
    order = _sorted(text.astype(np.int64) - BREAK, np.arange(n, dtype=np.int32))
    rank = _ranks(order, text, text)
    while step < DEPTH and n > step:
        # By what is `step` ahead they are ordered already; those with nothing there come first.
        order = np.concatenate([np.arange(n - step, n, dtype=np.int32), order[order >= step] - np.int32(step)])
        ahead = np.zeros(n, np.int32)
        ahead[: n - step] = rank[step:] + 1
        order = _sorted(rank, order)
        rank = _ranks(order, rank, ahead)
        step *= 2
    return order


def _sorted(values: NDArray[Any], order: Ints) -> Ints:
    """`order` by `values`, which are not negative; equal ones stay as they are."""
    for shift in (0, 16):
        half = ((values >> shift) & 0xFFFF).astype(np.uint16)
        if half.any():
            order = order[np.argsort(half[order], kind="stable")]
    return order


def _ranks(order: Ints, first: Ints, second: Ints) -> Ints:
    """The rank of every place, the same where both values are."""
    differ = np.zeros(len(order), np.bool_)
    for values in (first, second):
        held = values[order]
        differ[1:] |= held[1:] != held[:-1]
    rank = np.empty(len(order), np.int32)
    rank[order] = np.cumsum(differ, dtype=np.int32)
    return rank
