"""relu(maxpool(conv(x)) + bias) of 5x5 kernels, one pass forward and two or three back, for CUDA.

The forward pass remembers a byte for each pooled number, and the passes back make the convolution's gradient from it.
A pass is a kernel of our own that also convolves, so that the convolution's output is never in memory, or, where
PyTorch's convolution is quicker, that convolution and a kernel for the rest. Our sums are in a fixed order.
`benchmarks/scale/kernels.py` finds which is quicker, and the blocks below.
"""

from __future__ import annotations

import functools
from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor
from torch.nn.functional import conv2d

from fedveca.tasks import conv_kernels as programs

CHANNELS = 32  # of the output
_OFF = 4  # in place of which of the four is the maximum: the ReLU is off
_POOLED = 1024  # pooled numbers of a program, behind PyTorch's convolution
_MOST_INPUTS = 64  # channels
_TYPES = {torch.float32: tl.float32, torch.bfloat16: tl.bfloat16}
_LARGE = 2**18  # pixels of a batch
_SHARED_BYTES = 200 * 2**10  # of memory that a program may share: the blocks were tuned where there is so much
KernelPass = Literal["forward", "weight"]


class Blocks(NamedTuple):
    """How a pass is cut into programs."""

    pixels: int  # of the output: pooled ones in the forward pass
    depth: int  # of the products of one step, along kernel and channels
    warps: int
    stages: int  # steps whose loads are under way
    splits: int = 1  # of the pixels, for the gradient of the weight; more programs and more sums to add
    tall: bool = False  # whether the weight's gradient is computed transposed


def find_blocks(which: KernelPass, x: Tensor) -> Blocks | None:
    """The quickest blocks on an H200; None where PyTorch's convolution is quicker."""
    B, C, H, W = x.shape
    large = B * H * W >= _LARGE
    if not _shares_enough(x.device) or (C >= 16 and (which == "forward" or large)):
        return None
    if which == "forward":
        return Blocks(32, 32, 2, 1) if C == 1 else Blocks(16, 16, 2, 1)
    if C >= 16:
        return Blocks(32, 128, 4, 2, splits=264)
    if C == 1:
        return Blocks(128, 64, 4, 1, splits=264, tall=True)
    return Blocks(64, 128, 8, 1, 132, True) if large else Blocks(32, 128, 8, 1, 264, True)


@functools.cache
def _shares_enough(device: torch.device) -> bool:
    if device.type != "cuda":
        return True
    index = torch.cuda.current_device() if device.index is None else device.index
    shared: int = triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"]
    return shared >= _SHARED_BYTES


class Way(NamedTuple):
    """In which arithmetic the products are."""

    dtype: torch.dtype
    precision: str

    @classmethod
    def choose(cls, x: Tensor) -> Way:
        """As PyTorch does for a convolution: autocast's type, and TF32 where cuDNN may take it."""
        casts = torch.is_autocast_enabled(x.device.type)
        dtype = torch.get_autocast_dtype(x.device.type) if casts else x.dtype
        return cls(dtype, "tf32" if torch.backends.cudnn.allow_tf32 else "ieee")


def run_forward(
    x: Tensor, weight: Tensor, bias: Tensor, way: Way, blocks: Blocks, *, keep: bool = True, channels_last: bool = True
) -> tuple[Tensor, Tensor]:
    """y and which of the four in a window is the maximum (4: the ReLU is off), [B, H/2, W/2, CHANNELS] of uint8.

    Args:
        x: [B, C, H, W] with H and W even, in any order of dimensions.
        weight: [CHANNELS, C, 5, 5], likewise.
        bias: [CHANNELS].
        way: The arithmetic.
        blocks: How it is cut into programs.
        keep: Whether a gradient will be asked for; otherwise the second tensor is empty.
        channels_last: The order of y in memory.
    """
    B, C, H, W = x.shape
    y, which = _make_output(x, way.dtype, keep, channels_last)
    n = B * (H // 2) * (W // 2)
    programs.convolve_and_pool[(triton.cdiv(n, blocks.pixels),)](
        x, weight, bias, y, which, n, *x.stride(), *weight.stride(), *y.stride(),
        H, W, C, CHANNELS, keep, _TYPES[way.dtype], way.precision, blocks.pixels, blocks.depth,
        num_warps=blocks.warps, num_stages=blocks.stages,
    )  # fmt: skip
    return y, which


def run_pool(z: Tensor, bias: Tensor, *, channels_last: bool = True) -> tuple[Tensor, Tensor]:
    """The same for z [B, CHANNELS, H, W], the output of PyTorch's convolution."""
    _, C, H, W = z.shape
    z = z.contiguous(memory_format=torch.channels_last)
    y, which = _make_output(z, z.dtype, True, channels_last)
    programs.pool[(triton.cdiv(y.numel(), _POOLED),)](z, bias, y, which, y.numel(), *y.stride(), H, W, C, _POOLED)
    return y, which


def _make_output(x: Tensor, dtype: torch.dtype, keep: bool, channels_last: bool) -> tuple[Tensor, Tensor]:
    B, _, H, W = x.shape
    order = torch.channels_last if channels_last else torch.contiguous_format
    y = torch.empty((B, CHANNELS, H // 2, W // 2), dtype=dtype, device=x.device, memory_format=order)
    return y, torch.empty((B, H // 2, W // 2, CHANNELS) if keep else (0,), dtype=torch.uint8, device=x.device)


def run_weight_gradient(
    g: Tensor, which: Tensor, x: Tensor, weight: Tensor, way: Way, blocks: Blocks
) -> tuple[Tensor, Tensor]:
    """The gradients of weight [CHANNELS, C, 5, 5] and, in float32, of bias [CHANNELS], for g channels last."""
    B, C, H, W = x.shape
    pixels, depth, warps, stages, splits, tall = blocks
    size, n = CHANNELS * (25 * C + 1), B * H * W
    steps = triton.cdiv(triton.cdiv(n, pixels), splits)
    splits = triton.cdiv(n, pixels * steps)  # without empty ones
    out = torch.empty(size, dtype=torch.float32, device=x.device)
    parts = out if splits == 1 else torch.empty((splits, size), dtype=torch.float32, device=x.device)
    programs.find_weight_gradient[(splits, triton.cdiv(25 * C, depth))](
        g, which, x, parts, n, steps, *x.stride(),
        H, W, C, CHANNELS, tall, _TYPES[way.dtype], way.precision, pixels, depth, num_warps=warps, num_stages=stages,
    )  # fmt: skip
    if splits > 1:
        programs.add_parts[(triton.cdiv(size, 32),)](parts, out, splits, size, 32, 32, num_warps=4)
    dw = out[: CHANNELS * 25 * C].view(CHANNELS, 5, 5, C).permute(0, 3, 1, 2)
    return dw.to(weight.dtype), out[CHANNELS * 25 * C :]


def run_unpool(g: Tensor, which: Tensor) -> Tensor:
    """The gradient of the convolution's output [B, CHANNELS, H, W], channels last, for g channels last."""
    B, C, h, w = g.shape
    dz = torch.empty((B, C, 2 * h, 2 * w), dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
    programs.unpool[(triton.cdiv(g.numel(), _POOLED),)](g, which, dz, g.numel(), 2 * w, C, _POOLED)
    return dz


def run_convolution_gradients(
    dz: Tensor, x: Tensor, weight: Tensor, way: Way, want_input: bool, want_weight: bool
) -> tuple[Tensor | None, Tensor | None]:
    """PyTorch's gradients of x and weight, those that are wanted."""
    mask, one = [want_input, want_weight, False], [1, 1]
    cast = x.to(way.dtype), weight.to(way.dtype)
    dx, dw, _ = torch.ops.aten.convolution_backward(dz, *cast, None, one, [2, 2], one, False, [0, 0], 1, mask)
    return dx.to(x.dtype) if want_input else None, dw.to(weight.dtype) if want_weight else None


class ConvPool(torch.autograd.Function):
    """x [B, C, H, W], weight [CHANNELS, C, 5, 5], bias [CHANNELS] -> [B, CHANNELS, H/2, W/2]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, way: Way, channels_last: bool) -> Tensor:
        if blocks := find_blocks("forward", x):
            y, which = run_forward(x, weight, bias, way, blocks, channels_last=channels_last)
        else:
            y, which = run_pool(conv2d(x, weight, padding=2), bias, channels_last=channels_last)
        ctx.save_for_backward(x, weight, which)
        ctx.way, ctx.bias_type = way, bias.dtype
        return y

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        x, weight, which = ctx.saved_tensors
        g = g.contiguous(memory_format=torch.channels_last)
        want_input, want_weight, want_bias, *_ = ctx.needs_input_grad
        blocks = find_blocks("weight", x) if want_weight else None
        left = want_input, want_weight and not blocks  # for PyTorch
        dx, dw = (
            run_convolution_gradients(run_unpool(g, which), x, weight, ctx.way, *left) if any(left) else (None, None)
        )
        db = None
        if blocks:
            dw, db = run_weight_gradient(g, which, x, weight, ctx.way, blocks)
        elif want_bias:
            db = torch.where((which < _OFF).permute(0, 3, 1, 2), g, 0).sum((0, 2, 3), dtype=torch.float32)
        return dx, dw, db.to(ctx.bias_type) if db is not None and want_bias else None, None, None


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether there are kernels for it: a 5x5 convolution to 32 channels of a batch whose numbers 32 bits can count."""
    if weight.shape[0] != CHANNELS or weight.shape[2:] != (5, 5) or x.shape[1] > _MOST_INPUTS:
        return False
    last = sum((size - 1) * stride for size, stride in zip(x.shape, x.stride(), strict=True))
    most = max(last, CHANNELS * x.shape[0] * x.shape[2] * x.shape[3], x.numel())
    known = {x.dtype, weight.dtype, Way.choose(x).dtype} <= _TYPES.keys()
    even = x.shape[2] % 2 == 0 and x.shape[3] % 2 == 0
    return known and even and x.numel() > 0 and most < 2**31 - 2**16


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor, *, channels_last: bool = True) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, padding=2), 2) + bias) where it `fits`; y channels last, unless said."""
    way = Way.choose(x)
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        out: Tensor = ConvPool.apply(x, weight, bias, way, channels_last)
        return out
    if blocks := find_blocks("forward", x):
        return run_forward(x, weight, bias, way, blocks, keep=False, channels_last=channels_last)[0]
    return run_pool(conv2d(x, weight, padding=2), bias, channels_last=channels_last)[0]
