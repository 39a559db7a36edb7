"""The simplest store there can be: finished texts, oldest first."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray


class Texts:
    kind: ClassVar[str] = "texts"

    def __init__(self) -> None:
        self.held: list[tuple[float, list[int]]] = []

    def add(self, ids: list[int], when: float) -> None:
        self.held.append((when, ids))

    @property
    def tokens(self) -> int:
        return sum(len(ids) for _, ids in self.held)

    @property
    def nbytes(self) -> int:
        return 8 * self.tokens

    def prune(self, tokens: int, before: float = 0.0) -> None:
        self.held = [(when, ids) for when, ids in self.held if when >= before]
        while self.tokens > tokens:
            self.held.pop(0)

    def entries(self) -> Iterator[dict[str, Any]]:
        for when, ids in self.held:
            yield {"ids": ids, "finished": when}

    def arrays(self) -> dict[str, NDArray[Any]]:
        return {
            "ids": np.asarray([token for _, ids in self.held for token in ids], dtype=np.int64),
            "lengths": np.asarray([len(ids) for _, ids in self.held], dtype=np.int64),
            "times": np.asarray([when for when, _ in self.held], dtype=np.float64),
        }

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        store, ids = cls(), arrays["ids"].tolist()
        if sum(arrays["lengths"].tolist()) != len(ids):
            raise ValueError("lengths and ids differ")
        for when, length in zip(arrays["times"].tolist(), arrays["lengths"].tolist(), strict=True):
            store.add(ids[:length], when)
            ids = ids[length:]
        return store
