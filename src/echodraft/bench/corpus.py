"""From text files to a corpus."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from echodraft.backends.transformers_load import load_tokenizer
from echodraft.errors import UsageError
from echodraft.models import embedded
from echodraft.stores.corpus import About, Corpus
from echodraft.stores.folder import vocabulary
from echodraft.text.documents import documents, pieces


def build_corpus(
    paths: Sequence[Path], model: str | None, field: str, most: int, advance: Callable[[int, str], None] = lambda _, __: None
) -> Corpus:
    """The corpus of the texts in `paths`, by the tokenizer of `model` (None = the embedded model), cut at `most` tokens.

    `advance` hears of bytes read and of what is done now. Raises `UsageError` for files that are no text and where there is no text at all.
    """
    source = embedded() if model is None else model
    tokenizer = load_tokenizer(source)
    left = most

    def texts() -> Iterator[NDArray[np.int32]]:
        nonlocal left
        for path in paths:
            done = 0
            for text in documents(path, field):
                held = [np.empty(0, np.int32)]
                for piece in pieces(text):
                    if not left:
                        break
                    ids = tokenizer.encode(piece, add_special_tokens=False, verbose=False)[:left]
                    held.append(np.asarray(ids, np.int32))
                    left -= len(ids)
                    read = len(piece.encode())
                    done += read
                    advance(read, path.name)
                if sum(map(len, held)):
                    yield np.concatenate(held)
                if not left:
                    return
            advance(path.stat().st_size - done, path.name)

    held = list(texts())
    if not held:
        raise UsageError(f"There is no text in {', '.join(map(str, paths))}.")
    advance(0, "sorting")
    return Corpus.build(held, About(vocabulary(tokenizer), str(source)))
