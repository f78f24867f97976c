"""relu(maxpool(x) + bias) in one pass forward and one back, for CUDA: most of the paper's CNN is moving memory.

PyTorch takes five kernels and an int64 index for the same numbers; this one remembers a byte.
"""

from __future__ import annotations

from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

BLOCK = 1024
_NONE = 4  # no gradient: the ReLU is off


@triton.jit
def _forward(x, bias, y, which, n, H, W, C: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)  # of y, channels last
    inside = at < n
    c = at % C
    col = (at // C) % (W // 2)
    row = at // (C * (W // 2))  # counts through the images: H is even
    corner = (row * 2 * W + col * 2) * C + c
    most = tl.load(x + corner, mask=inside)
    first = tl.zeros_like(at)
    for j in tl.static_range(1, 4):
        value = tl.load(x + corner + (j // 2) * W * C + (j % 2) * C, mask=inside)
        above = (value > most) | (value != value)
        most = tl.where(above, value, most)
        first = tl.where(above, j, first)
    most = most + tl.load(bias + c, mask=inside)
    tl.store(y + at, tl.where(most < 0, 0.0, most), mask=inside)
    tl.store(which + at, tl.where(most > 0, first, 4).to(tl.uint8), mask=inside)


@triton.jit
def _backward(g, which, dx, n, H, W, C: tl.constexpr, SIZE: tl.constexpr):
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < n
    c = at % C
    col = (at // C) % (W // 2)
    row = at // (C * (W // 2))
    corner = (row * 2 * W + col * 2) * C + c
    value = tl.load(g + at, mask=inside)
    first = tl.load(which + at, mask=inside)
    for j in tl.static_range(4):
        tl.store(dx + corner + (j // 2) * W * C + (j % 2) * C, tl.where(first == j, value, 0.0), mask=inside)


class Pool(torch.autograd.Function):
    """x [B, C, H, W] channels last with H and W even, bias [C] -> [B, C, H/2, W/2] channels last."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, bias: Tensor) -> Tensor:
        B, C, H, W = x.shape
        y = torch.empty((B, C, H // 2, W // 2), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
        which = torch.empty_like(y, dtype=torch.uint8)
        x = x.contiguous(memory_format=torch.channels_last)
        grid = (triton.cdiv(y.numel(), BLOCK),)
        _forward[grid](x, bias, y, which, y.numel(), H, W, C, BLOCK)
        ctx.save_for_backward(which)
        ctx.shape = x.shape
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor, Tensor]:
        (which,) = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        _, C, H, W = ctx.shape
        dx = torch.empty(ctx.shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
        _backward[(triton.cdiv(g.numel(), BLOCK),)](g, which, dx, g.numel(), H, W, C, BLOCK)
        return dx, torch.where(which < _NONE, g, 0).sum((0, 2, 3), dtype=torch.float32)


def pool(x: Tensor, bias: Tensor) -> Tensor:
    out: Tensor = Pool.apply(x, bias)
    return out
