"""relu(maxpool(conv(x)) + bias) of 5x5 kernels for the CPU: one pass forward and one or two back, in C.

It has the form of `fedveca.tasks.kernels`, which is the same for CUDA. Sums are in an order that depends on the shapes
alone, whatever the number of threads.
"""

from __future__ import annotations

import ctypes
import functools
import itertools
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Protocol

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter
from torch.nn.functional import conv2d, max_pool2d

from fedveca.tasks.native.library import load_kernels

_log = logging.getLogger(__name__)

_OUTPUTS = 32  # channels
_NARROW = 4  # channels that are convolved one by one
_WIDE = 16  # more of them are a multiple of it
_MOST_INPUTS = 64
_MOST_PIXELS = 2**14  # of an image
_PART = 32  # images whose gradients are summed at once
_SHARE = 64  # images that make a thread worthwhile
_CLOSE = 1e-4  # how near to PyTorch's numbers those of a compiled file are before it is used
ImageRange = tuple[int, int]  # the first image and the one after the last


def fits(x: Tensor, weight: Tensor) -> bool:
    """Whether there are kernels for it, here and now: none that is recorded, compiled, mapped or cast."""
    if not _is_eager() or torch.is_autocast_enabled("cpu") or x.device.type != "cpu" or x.dim() != 4:
        return False
    _, channels, height, width = x.shape
    known = channels <= _NARROW or (channels % _WIDE == 0 and channels <= _MOST_INPUTS)
    sized = height % 2 == 0 and width % 2 == 0 and height * width <= _MOST_PIXELS and x.numel() > 0
    plain = type(x) is Tensor and type(weight) in (Tensor, Parameter) and weight.device == x.device
    matching = weight.shape == (_OUTPUTS, channels, 5, 5) and x.dtype == weight.dtype == torch.float32
    wants_no_input = channels > _NARROW or not (torch.is_grad_enabled() and x.requires_grad)
    return known and sized and plain and matching and wants_no_input and has_kernels()


def _is_eager() -> bool:
    """Whether operations are computed where they stand, and nothing else looks at them."""
    recorded = torch.compiler.is_compiling() or torch._C._is_tracing() or torch._C._len_torch_dispatch_stack() > 0
    return not (recorded or torch._C._are_functorch_transforms_active() or forward_ad._current_level >= 0)


def conv_pool(x: Tensor, weight: Tensor, bias: Tensor, *, channels_last: bool = True) -> Tensor:
    """relu(max_pool2d(conv2d(x, weight, padding=2), 2) + bias) where it `fits`; y channels last, unless said."""
    if torch.is_grad_enabled() and (x.requires_grad or weight.requires_grad or bias.requires_grad):
        out: Tensor = PooledConvolution.apply(x, weight, bias, channels_last)  # type: ignore[no-untyped-call]
        return out
    return _find_output(_get_library(), x, weight, bias, channels_last, keep=False)[0]


class _Context(Protocol):
    """What PyTorch keeps between a pass forward and the one back."""

    saved_tensors: tuple[Tensor, ...]
    needs_input_grad: tuple[bool, ...]

    def save_for_backward(self, *tensors: Tensor) -> None: ...


class PooledConvolution(torch.autograd.Function):
    """x [B, C, H, W], weight [_OUTPUTS, C, 5, 5], bias [_OUTPUTS] -> [B, _OUTPUTS, H/2, W/2]."""

    @staticmethod
    def forward(ctx: _Context, x: Tensor, weight: Tensor, bias: Tensor, channels_last: bool) -> Tensor:
        y, which = _find_output(_get_library(), x, weight, bias, channels_last)
        ctx.save_for_backward(x, weight, bias, which)
        return y

    @staticmethod
    def backward(ctx: _Context, g: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, bias, which = ctx.saved_tensors
        wanted = ctx.needs_input_grad[:3]
        again = torch.is_grad_enabled()  # whether the gradient will be differentiated itself
        several = torch._C._functorch.is_legacy_batchedtensor(g)  # of is_grads_batched
        if again or several or not _is_eager():
            inputs = [v for v, want in zip((x, weight, bias), wanted, strict=True) if want]
            with torch.enable_grad():
                y = _compute_plainly(x, weight, bias)
            found = iter(torch.autograd.grad(y, inputs, g, create_graph=again))
            return *(next(found) if want else None for want in wanted), None
        dx = _find_input_gradient(_get_library(), g, which, weight, x.shape) if wanted[0] else None
        dw, db = _find_weight_gradient(_get_library(), g, which, x) if wanted[1] or wanted[2] else (None, None)
        return dx, dw, db, None  # autograd drops what is not wanted


def _compute_plainly(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(max_pool2d(conv2d(x, weight, padding=2), 2) + bias[:, None, None])


def _find_output(
    library: ctypes.CDLL, x: Tensor, weight: Tensor, bias: Tensor, channels_last: bool, *, keep: bool = True
) -> tuple[Tensor, Tensor]:
    """y and, for the passes back, which of the four in a window is the maximum [B, H/2, W/2, _OUTPUTS] of uint8.

    Where it is not to be kept, the second tensor is empty.
    """
    images, _, height, width = x.shape
    order = torch.channels_last if channels_last else torch.contiguous_format
    y = torch.empty((images, _OUTPUTS, height // 2, width // 2), dtype=x.dtype, device=x.device, memory_format=order)
    which = x.new_empty((images, height // 2, width // 2, _OUTPUTS) if keep else (0,), dtype=torch.uint8)
    x, weight, bias = _order(x), _order(weight), bias.to(x.dtype).contiguous()

    def work(part: ImageRange) -> None:
        _call(library.run_forward, (x, weight, bias, y, which), x.shape, channels_last, part)

    _share(work, _split(images))
    return y, which


def _find_weight_gradient(library: ctypes.CDLL, g: Tensor, which: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """The gradients of weight and bias, summed in parts of as many images whatever the number of threads."""
    images, channels, _, _ = x.shape
    x, (g, last) = _order(x), _find_order(g)
    run = library.run_narrow_weight_gradient if channels <= _NARROW else library.run_weight_gradient
    parts = [(start, min(start + _PART, images)) for start in range(0, images, _PART)]
    found = [(g.new_zeros(_OUTPUTS, 5, 5, channels), g.new_zeros(_OUTPUTS)) for _ in parts]

    def work(part: ImageRange) -> None:
        _call(run, (g, which, x, *found[part[0] // _PART]), x.shape, last, part)

    _share(work, parts)
    dw, db = found[0]
    for more_dw, more_db in found[1:]:
        dw += more_dw
        db += more_db
    return dw.permute(0, 3, 1, 2), db


def _find_input_gradient(library: ctypes.CDLL, g: Tensor, which: Tensor, weight: Tensor, shape: torch.Size) -> Tensor:
    dx = torch.empty(shape, dtype=g.dtype, device=g.device, memory_format=torch.channels_last)
    weight, (g, last) = _order(weight), _find_order(g)

    def work(part: ImageRange) -> None:
        _call(library.run_input_gradient, (g, which, weight, dx), shape, last, part)

    _share(work, _split(shape[0]))
    return dx


def _order(v: Tensor) -> Tensor:
    """Channels last, in a copy where it is not."""
    return v.contiguous(memory_format=torch.channels_last)


def _find_order(g: Tensor) -> tuple[Tensor, bool]:
    """A gradient in one of the two orders that are known, and whether its channels are last."""
    last = g.is_contiguous(memory_format=torch.channels_last)
    return (g, last) if last or g.is_contiguous() else (_order(g), True)


def _call(
    run: Callable[..., int], tensors: Sequence[Tensor], shape: Sequence[int], channels_last: bool, part: ImageRange
) -> None:
    pointers = [ctypes.c_void_p(v.data_ptr()) for v in tensors]
    numbers = [ctypes.c_int64(number) for number in (*shape[1:], *part)]
    if not run(*pointers, ctypes.c_int(channels_last), *numbers):
        raise MemoryError("a convolution found no memory for one image")


def _split(images: int) -> list[ImageRange]:
    """A share for each thread; images do not depend on each other."""
    n = _count_threads(images)
    ends = [images * i // n for i in range(n + 1)]
    return list(itertools.pairwise(ends))


def _count_threads(images: int) -> int:
    return min(torch.get_num_threads(), -(-images // _SHARE))


def _share(work: Callable[[ImageRange], None], parts: Sequence[ImageRange]) -> None:
    """Threads that end with the call: a process may be forked between two calls."""
    n = _count_threads(parts[-1][1])
    if n == 1:
        for part in parts:
            work(part)
        return
    with ThreadPoolExecutor(n) as pool:
        list(pool.map(work, parts))


def _get_library() -> ctypes.CDLL:
    library = _load()
    assert library is not None, "it does not fit"
    return library


def has_kernels() -> bool:
    """Whether there are functions in C, here and now, for what fits."""
    return _load() is not None


def _load() -> ctypes.CDLL | None:
    library = load_kernels("convolution")
    return _find_checked(library) if library else None


@functools.cache
def _find_checked(library: ctypes.CDLL) -> ctypes.CDLL | None:
    """The compiled functions; None where they do not compute what PyTorch does."""
    with torch.inference_mode(False), torch.enable_grad():
        wrong = [channels for channels in (1, _WIDE) if not _agrees(library, channels)]
    if wrong:
        _log.warning("convolution.c does not compute what PyTorch does on this machine; PyTorch's operations are used")
    return None if wrong else library


def _agrees(library: ctypes.CDLL, channels: int) -> bool:
    generator = torch.Generator("cpu").manual_seed(0)
    draw = functools.partial(torch.randn, generator=generator, dtype=torch.float32, device="cpu")
    x, weight, bias = draw(2, channels, 6, 14), draw(_OUTPUTS, channels, 5, 5), draw(_OUTPUTS)
    y, which = _find_output(library, x, weight, bias, True)
    g = draw(y.shape)
    inputs = [v.requires_grad_() for v in (x, weight, bias)]
    expected = _compute_plainly(*inputs)
    dx, dw, db = torch.autograd.grad((expected * g).sum(), inputs)  # with g apart PyTorch loads its compiler
    found = [(y, expected.detach()), *zip(_find_weight_gradient(library, g, which, x.detach()), (dw, db), strict=True)]
    if channels > _NARROW:
        found.append((_find_input_gradient(library, g, which, weight.detach(), x.shape), dx))
    return all(bool((got - want).norm() <= _CLOSE * want.norm()) for got, want in found)
