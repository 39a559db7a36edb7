"""What every memory structure that outlives a request has in common."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Protocol, Self

from numpy.typing import NDArray


class Store(Protocol):
    """One tenant's memory of one kind. Bounded from outside by `prune`; saved and made again as plain arrays.

    Nothing in it refers to another tenant, so dropping the object forgets the tenant.
    """

    kind: ClassVar[str]
    """Its name, in files too."""

    @property
    def tokens(self) -> int:
        """Tokens of text that it holds; 0 for a store of fixed size."""
        ...

    @property
    def nbytes(self) -> int:
        """Bytes that its arrays occupy."""
        ...

    def prune(self, tokens: int, before: float = 0.0) -> None:
        """Forget the oldest finished sequences until at most `tokens` remain, and all that were finished before the time `before`.

        Seconds since the epoch. A store of fixed size empties itself where it was last written before `before`.
        """
        ...

    def entries(self) -> Iterator[dict[str, Any]]:
        """What it holds, for people: plain values, one dict a finished sequence (`ids`, `finished`) or entry."""
        ...

    def arrays(self) -> dict[str, NDArray[Any]]:
        """All that is needed to make it again."""
        ...

    @classmethod
    def restore(cls, arrays: Mapping[str, NDArray[Any]]) -> Self:
        """The store that gave these arrays. Raises `ValueError` where they cannot be right: files come from outside."""
        ...
