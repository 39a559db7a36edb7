"""What a backend returns for one session: the scores of the anchor and of every node, wherever they live."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from echodraft.core.sampling import Rule


class Scores(Protocol):
    """A view of one forward for one session. Row 0 belongs to the anchor, row i + 1 to node i of the draft.

    The values stay where the backend computed them: `argmax` brings one integer a row to the host, `row` one row.
    """

    def argmax(self) -> Sequence[int]:
        """The best token of every row (lowest id on a tie). Length n + 1. Raises `EchodraftError` on NaN."""
        ...

    def top_k(self, k: int) -> NDArray[np.int64]:
        """The k best tokens of every row, best first. Shape [n + 1, k], or the vocabulary where that is smaller."""
        ...

    def row(self, i: int) -> Any:
        """Logits of row i as float32, a copy that processors may change. Shape [vocab]; the backend's own array type."""
        ...

    def pick(self, values: Any, rule: Rule, position: int) -> int:
        """The token that `rule` chooses from the processed `values` [vocab] at an absolute `position`."""
        ...

    def draw(self, i: int, rule: Rule, position: int) -> int:
        """`pick` of row i unprocessed; a backend may compute all rows at once."""
        ...

    def best(self, i: int, rule: Rule, position: int, k: int) -> tuple[list[int], list[float]]:
        """The token that `rule` chooses from row i, the next best k - 1 behind it, and how sure the row is of each.

        Sureness is the softmax of what the rule compares: logits, with temperature times the noise where it samples. Tokens that the rule
        excludes are not among them.
        """
        ...

    def hidden(self) -> NDArray[np.float16]:
        """Final-norm hidden states of the fed context, anchor included, then of every node. Shape [fed + n, width]."""
        ...
