"""Vectors in fewer bytes: stochastic rounding to int8, and the largest numbers alone.

Both work along the last axis: a vector is [n, P], one row per client.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from fedveca.algorithms.contract import Named

INT8_BLOCK = 256  # numbers that share a scale
INT8_MOST = 127
SCALE, INDEX = "/scale", "/index"  # behind a vector's name: what travels with it
_SHORT = 2**16  # vectors up to this length have indices of two bytes

DrawUniform = Callable[[int], Tensor]  # count -> [n, count] float32 in [0, 1)


class ArrayForm(NamedTuple):
    """One of the arrays as which a vector travels."""

    dtype: np.dtype[np.generic]
    length: int


class Encoding(Protocol):
    """A way to send vectors in fewer bytes than float32 takes."""

    remembers: ClassVar[bool]  # whether a client adds to its next vector what it could not send of this one

    def find_forms(self, size: int) -> dict[str, ArrayForm]:
        """The arrays as which a vector of `size` numbers travels, by what their names end with."""
        ...

    def encode(self, v: Tensor, draw: DrawUniform) -> Named:
        """[n, ...] each, by what their names end with; where v [n, P] is not finite, anything of the same shape."""
        ...

    def decode(self, arrays: Named, size: int) -> Tensor:
        """[n, size] as the server takes it."""
        ...


@dataclass(frozen=True)
class Int8Encoding:
    """Each block of numbers is divided by its scale, so that the largest is 127, and rounded up or down at random.

    The number x between two whole ones becomes the upper one with probability x - floor(x), so its mean is x.
    """

    remembers: ClassVar[bool] = False

    def find_forms(self, size: int) -> dict[str, ArrayForm]:
        blocks = -(-size // INT8_BLOCK)
        return {"": ArrayForm(np.dtype("i1"), size), SCALE: ArrayForm(np.dtype("<f4"), blocks)}

    def encode(self, v: Tensor, draw: DrawUniform) -> Named:
        n, size = v.shape
        blocks = torch.nn.functional.pad(v, (0, -size % INT8_BLOCK)).view(n, -1, INT8_BLOCK)
        scale = blocks.abs().amax(-1) / v.new_full((), INT8_MOST)  # [n, blocks]; CUDA divides by numbers inexactly
        x = torch.where(scale[..., None] > 0, blocks / scale[..., None], 0.0).view(n, -1)[:, :size]
        low = x.floor()
        q = low + (draw(size) < x - low)
        return {"": q.clamp(-INT8_MOST, INT8_MOST).nan_to_num(0.0).to(torch.int8), SCALE: scale}

    def decode(self, arrays: Named, size: int) -> Tensor:
        scale = arrays[SCALE].repeat_interleave(INT8_BLOCK, -1)[:, :size]
        return arrays[""].to(scale.dtype) * scale


@dataclass(frozen=True)
class TopKEncoding:
    """The `share` of a vector's numbers that are largest in size, and where they stand; of equal ones, the first."""

    share: float
    remembers: ClassVar[bool] = True

    def count(self, size: int) -> int:
        """How many of `size` numbers are sent: at least one."""
        return min(size, max(1, math.floor(self.share * size + 0.5)))

    def find_forms(self, size: int) -> dict[str, ArrayForm]:
        k = self.count(size)
        return {"": ArrayForm(np.dtype("<f4"), k), INDEX: ArrayForm(np.dtype("<u2" if size <= _SHORT else "<u4"), k)}

    def encode(self, v: Tensor, draw: DrawUniform) -> Named:
        k = self.count(v.shape[-1])
        sizes = torch.where(torch.isfinite(v), v.abs(), 0.0)
        least = sizes.topk(k, dim=-1, sorted=False).values.amin(-1, keepdim=True)
        above, level = sizes > least, sizes == least
        chosen = above | (level & (level.cumsum(-1) <= k - above.sum(-1, keepdim=True)))
        index = chosen.nonzero()[:, 1].view(-1, k)  # rising
        return {"": v.gather(-1, index), INDEX: index}

    def decode(self, arrays: Named, size: int) -> Tensor:
        values, index = arrays[""], arrays[INDEX].long()
        return values.new_zeros(len(values), size).scatter_(-1, index, values)
