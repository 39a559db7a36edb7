"""What two texts have in common."""

from __future__ import annotations

from collections.abc import Sequence


def common(one: Sequence[int], other: Sequence[int]) -> int:
    """How many tokens both begin with."""
    most = min(len(one), len(other))
    return next((i for i in range(most) if one[i] != other[i]), most)
