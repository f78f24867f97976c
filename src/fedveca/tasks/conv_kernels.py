"""The CUDA kernels of a convolution, its pooling and the passes back, in Triton; `fedveca.tasks.kernels` runs them."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _find_taps(start, CHANNELS: tl.constexpr, DEPTH: tl.constexpr):
    """Row, column and channel of the kernel for DEPTH products from start on, and which of them exist.

    What is one number for all of them is a tensor of one: the kernels then compute it once.
    """
    at = tl.arange(0, DEPTH)
    if CHANNELS % DEPTH == 0:
        tap = start // CHANNELS + tl.zeros([1], tl.int32)
        channel = start % CHANNELS + at
    elif DEPTH % CHANNELS == 0:
        tap = start // CHANNELS + at // CHANNELS
        channel = at % CHANNELS
    else:
        tap = (start + at) // CHANNELS
        channel = (start + at) % CHANNELS
    return tap // 5, tap % 5, channel, tap < 25


@triton.jit
def _load_patch(x, b, row, col, ci, real, sb, sc, sh, sw, H: tl.constexpr, W: tl.constexpr):
    """x[b, ci, row, col] with zeros around the image; what is not `real` is 0 as well."""
    there = real & (row >= 0) & (row < H) & (col >= 0) & (col < W)
    return tl.load(x + b[:, None] * sb + row * sh + col * sw + ci[None, :] * sc, mask=there, other=0.0)


@triton.jit
def _take_larger(most, first, value, j: tl.constexpr):
    above = (value > most) | (value != value)
    return tl.where(above, value, most), tl.where(above, j, first)


@triton.jit(do_not_specialize=["n"])
def convolve_and_pool(
    x, weight, bias, y, which, n, sb, sc, sh, sw, vo, vi, vh, vw, yb, yc, yh, yw,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, KEEP: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr, PIXELS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A program has some pooled pixels in all channels, and a sum for each of the four places in their windows."""
    p = tl.program_id(0) * PIXELS + tl.arange(0, PIXELS)
    inside = p < n
    j = p % (W // 2)
    i = p // (W // 2) % (H // 2)
    b = p // ((H // 2) * (W // 2))
    co = tl.arange(0, CO)
    a = tl.zeros([PIXELS, CO], tl.float32)
    a1, a2, a3 = a, a, a
    for start in range(0, 25 * CI, DEPTH):
        kh, kw, ci, known = _find_taps(start, CI, DEPTH)
        w = tl.load(weight + (kh * vh + kw * vw + ci * vi)[:, None] + co[None, :] * vo, mask=known[:, None], other=0.0)
        w = w.to(TYPE)
        real = inside[:, None] & known[None, :]
        row = (i * 2 - 2)[:, None] + kh[None, :]
        col = (j * 2 - 2)[:, None] + kw[None, :]
        v = _load_patch(x, b, row, col, ci, real, sb, sc, sh, sw, H, W)
        v1 = _load_patch(x, b, row, col + 1, ci, real, sb, sc, sh, sw, H, W)
        v2 = _load_patch(x, b, row + 1, col, ci, real, sb, sc, sh, sw, H, W)
        v3 = _load_patch(x, b, row + 1, col + 1, ci, real, sb, sc, sh, sw, H, W)
        a = tl.dot(v.to(TYPE), w, a, input_precision=PRECISION)
        a1 = tl.dot(v1.to(TYPE), w, a1, input_precision=PRECISION)
        a2 = tl.dot(v2.to(TYPE), w, a2, input_precision=PRECISION)
        a3 = tl.dot(v3.to(TYPE), w, a3, input_precision=PRECISION)
    most, first = _take_larger(a, tl.zeros([PIXELS, CO], tl.int32), a1, 1)
    most, first = _take_larger(most, first, a2, 2)
    most, first = _take_larger(most, first, a3, 3)
    most = most + tl.load(bias + co).to(tl.float32)[None, :]
    at = (b * yb + i * yh + j * yw)[:, None] + co[None, :] * yc
    tl.store(y + at, tl.where(most < 0, 0.0, most).to(y.dtype.element_ty), mask=inside[:, None])
    if KEEP:
        off = tl.where(most > 0, first, 4).to(tl.uint8)
        tl.store(which + p[:, None] * CO + co[None, :], off, mask=inside[:, None])


@triton.jit
def pool(x, bias, y, which, n, yb, yc, yh, yw, H: tl.constexpr, W: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr):
    """The rest of the forward pass behind PyTorch's convolution x, channels last."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)  # of the pooled numbers, channels last
    inside = at < n
    c = at % C
    j = at // C % (W // 2)
    i = at // (C * (W // 2)) % (H // 2)
    b = at // (C * (W // 2) * (H // 2))
    corner = ((b * H + i * 2) * W + j * 2) * C + c
    most = tl.load(x + corner, mask=inside, other=0.0).to(tl.float32)
    first = tl.zeros([SIZE], tl.int32)
    for k in tl.static_range(1, 4):
        value = tl.load(x + corner + ((k // 2) * W + k % 2) * C, mask=inside, other=0.0).to(tl.float32)
        most, first = _take_larger(most, first, value, k)
    most = most + tl.load(bias + c, mask=inside, other=0.0).to(tl.float32)
    value = tl.where(most < 0, 0.0, most).to(y.dtype.element_ty)
    tl.store(y + b * yb + i * yh + j * yw + c * yc, value, mask=inside)
    tl.store(which + at, tl.where(most > 0, first, 4).to(tl.uint8), mask=inside)


@triton.jit
def unpool(g, which, dz, n, W: tl.constexpr, C: tl.constexpr, SIZE: tl.constexpr):
    """The gradient of the convolution's output, for PyTorch's passes back; all channels last."""
    at = tl.program_id(0) * SIZE + tl.arange(0, SIZE)
    inside = at < n
    c = at % C
    j = at // C % (W // 2)
    row = at // (C * (W // 2))  # counts through the images: their height is even
    corner = (row * 2 * W + j * 2) * C + c
    value = tl.load(g + at, mask=inside, other=0.0)
    first = tl.load(which + at, mask=inside, other=4).to(tl.int32)
    for k in tl.static_range(4):
        tl.store(dz + corner + ((k // 2) * W + k % 2) * C, tl.where(first == k, value, 0.0), mask=inside)


@triton.jit
def _load_slope(g, which, b, row, col, co, there, H: tl.constexpr, W: tl.constexpr, CO: tl.constexpr):
    """The gradient of the convolution's output at [b, co, row, col]: g where that was the window's maximum."""
    at = ((b * (H // 2) + (row >> 1)) * (W // 2) + (col >> 1)) * CO + co
    value = tl.load(g + at, mask=there, other=0.0)
    first = tl.load(which + at, mask=there, other=4).to(tl.int32)
    return tl.where(first == (row & 1) * 2 + (col & 1), value, 0.0)


@triton.jit(do_not_specialize=["n", "steps"])
def find_weight_gradient(
    g, which, x, parts, n, steps, sb, sc, sh, sw,
    H: tl.constexpr, W: tl.constexpr, CI: tl.constexpr, CO: tl.constexpr, TALL: tl.constexpr,
    TYPE: tl.constexpr, PRECISION: tl.constexpr, PIXELS: tl.constexpr, DEPTH: tl.constexpr,
):  # fmt: skip
    """A program sums over its part of the pixels, for some columns of the weight as [CO, 5 * 5 * CI], and the bias."""
    part, column = tl.program_id(0), tl.program_id(1)
    kh, kw, ci, known = _find_taps(column * DEPTH, CI, DEPTH)
    co = tl.arange(0, CO)
    acc = tl.zeros([DEPTH, CO] if TALL else [CO, DEPTH], tl.float32)
    seen = tl.zeros([PIXELS, CO], tl.float32)
    for step in range(steps):
        q = (part * steps + step) * PIXELS + tl.arange(0, PIXELS)
        inside = q < n
        w = q % W
        h = q // W % H
        b = q // (H * W)
        slope = _load_slope(g, which, b[:, None], h[:, None], w[:, None], co[None, :], inside[:, None], H, W, CO)
        seen += slope.to(tl.float32)
        row = (h - 2)[:, None] + kh[None, :]
        col = (w - 2)[:, None] + kw[None, :]
        v = _load_patch(x, b, row, col, ci, inside[:, None] & known[None, :], sb, sc, sh, sw, H, W).to(TYPE)
        if TALL:
            acc = tl.dot(tl.trans(v), slope.to(TYPE), acc, input_precision=PRECISION)
        else:
            acc = tl.dot(tl.trans(slope.to(TYPE)), v, acc, input_precision=PRECISION)
    if TALL:
        acc = tl.trans(acc)
    mine = parts + part * (25 * CI + 1) * CO
    k = column * DEPTH + tl.arange(0, DEPTH)
    tl.store(mine + co[:, None] * (25 * CI) + k[None, :], acc, mask=known[None, :])
    if column == 0:
        tl.store(mine + 25 * CI * CO + co, tl.sum(seen, 0))


@triton.jit(do_not_specialize=["splits"])
def add_parts(parts, out, splits, SIZE: tl.constexpr, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """The sum of parts [splits, SIZE] over its rows."""
    at = tl.program_id(0) * COLUMNS + tl.arange(0, COLUMNS)
    acc = tl.zeros([ROWS, COLUMNS], tl.float32)
    for start in range(0, splits, ROWS):
        row = start + tl.arange(0, ROWS)
        there = (row < splits)[:, None] & (at < SIZE)[None, :]
        acc += tl.load(parts + row[:, None] * SIZE + at[None, :], mask=there, other=0.0)
    tl.store(out + at, tl.sum(acc, 0), mask=at < SIZE)
