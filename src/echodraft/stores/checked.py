"""Arrays that come from a file, and are looked at before they are believed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray


def checked(arrays: Mapping[str, NDArray[Any]], what: str, name: str, dtype: Any, *shape: int) -> NDArray[Any]:
    """The array `name` of a store (`what`, as in "A suffix store"), of finite numbers. No shape: of one dimension, of any length.

    Raises `ValueError` where it is missing or another.
    """
    array = arrays.get(name)
    if not isinstance(array, np.ndarray) or array.dtype != dtype or (array.shape != shape if shape else array.ndim != 1):
        raise ValueError(f"{what} needs an array '{name}' of {np.dtype(dtype)}{list(shape) or ''}.")
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise ValueError(f"The array '{name}' holds what is no number: {what[0].lower()}{what[1:]} cannot be made of it.")
    return array


def check_text(what: str, tokens: NDArray[Any], lengths: NDArray[Any], times: NDArray[Any]) -> None:
    """`tokens` are the ids of sequences of `lengths`, finished at `times`. Raises `ValueError` where they do not fit together."""
    if len(lengths) != len(times) or tokens.min(initial=0) < 0:
        raise ValueError(f"{what} holds ids that are none, or has not one time a sequence.")
    if lengths.min(initial=0) < 0 or lengths.max(initial=0) > len(tokens) or lengths.sum() != len(tokens):
        raise ValueError(f"{what} has sequences that are not as long as its text.")
