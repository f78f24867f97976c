"""Vectors as they travel. NumPy only: processes that must start fast import this file."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

DTYPES: dict[str, np.dtype[np.generic]] = {
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype("<u2"),
}
ROUNDING = {
    "float32": 2**-24,
    "float16": 2**-11,
    "bfloat16": 2**-9,
}  # the most that a number changes on its way, relatively


def narrow(v: NDArray[np.generic], wire: str) -> NDArray[np.generic]:
    """A float32 vector as it travels; bfloat16, which NumPy does not know, as the upper half of its bits."""
    if wire != "bfloat16":
        return v.astype(DTYPES[wire])
    bits = np.ascontiguousarray(v, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(DTYPES[wire])  # to nearest, ties to even


def widen(v: NDArray[np.generic], wire: str) -> NDArray[np.generic]:
    """A vector that travelled, as float32 again."""
    if wire != "bfloat16":
        return v.astype(np.float32)
    return (v.astype(np.uint32) << 16).view(np.float32)
