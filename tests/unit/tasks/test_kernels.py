"""The CNN's CUDA kernels give PyTorch's numbers: here Triton's interpreter runs them on the CPU, in its own process."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
interpreted = pytest.mark.skipif(not INTERPRETED, reason="runs in the interpreter's process")
SHAPES = [(3, 1, 6, 14), (2, 3, 8, 8), (3, 32, 4, 4)]  # the last block of pixels is not full


@pytest.mark.slow
@pytest.mark.skipif(INTERPRETED, reason="this is the interpreter's process")
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="Triton is not installed")
def test_kernels_in_the_interpreter() -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__]
    done = subprocess.run(command, env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def kernels() -> Iterator[Any]:
    """The kernels, with two faults of the interpreter of Triton 3.6 fixed.

    It multiplies the bits of bfloat16 as integers, and NumPy 2.4 no longer takes its scalars as the ends of loops.
    """
    from triton.runtime import interpreter

    from fedveca.tasks import kernels

    def as_float(v: Any) -> Any:
        if str(v.dtype.scalar) != "bf16":
            return v
        wide = (v.data.astype("uint32") << 16).view("float32")
        return interpreter.TensorHandle(wide, interpreter.tl.float32)

    def patch_tensor(tensor: Any, scope: Any) -> None:
        patched(tensor, scope)
        scope.set_attr(tensor, "__index__", lambda self: int(self.handle.data.item()))

    multiply, patched = interpreter.InterpreterBuilder.create_dot, interpreter._patch_lang_tensor
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            interpreter.InterpreterBuilder,
            "create_dot",
            lambda self, a, b, *more: multiply(self, as_float(a), as_float(b), *more),
        )
        patch.setattr(interpreter, "_patch_lang_tensor", patch_tensor)
        yield kernels


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.max_pool2d(functional.conv2d(x, weight, padding=2), 2) + bias[:, None, None])


def draw(shape: tuple[int, ...], order: torch.memory_format) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).contiguous(memory_format=order).requires_grad_()
    weight = 0.1 * torch.randn((32, shape[1], 5, 5), generator=generator)
    bias = 0.5 * torch.randn(32, generator=generator)
    return x, weight.contiguous(memory_format=order).requires_grad_(), bias.requires_grad_()


def slopes(y: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """The gradients of the inputs for one of y that is the same at each call."""
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return torch.autograd.grad(y, inputs, g)


@interpreted
@pytest.mark.parametrize("order", [torch.contiguous_format, torch.channels_last], ids=["rows", "channels last"])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_are_those_of_pytorch(kernels: Any, shape: tuple[int, ...], order: torch.memory_format) -> None:
    inputs = draw(shape, order)
    y = kernels.conv_pool(*inputs, channels_last=order == torch.channels_last)
    assert y.is_contiguous(memory_format=order)
    expected = plain(*inputs)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert bool((y == 0).any())
    assert bool((y > 0).any())
    for got, want in zip(slopes(y, inputs), slopes(expected, inputs), strict=True):
        torch.testing.assert_close(got, want, rtol=1e-5, atol=2e-5)
    with torch.no_grad():
        assert torch.equal(kernels.conv_pool(*inputs), y)


@interpreted
@pytest.mark.parametrize("blocks", [(16, 128, 4, 1, 1, False), (64, 16, 4, 1, 3, True), (32, 64, 4, 1, 200, False)])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_any_blocks_give_the_same(kernels: Any, shape: tuple[int, ...], blocks: tuple[Any, ...]) -> None:
    inputs = draw(shape, torch.channels_last)
    expected, way, cut = plain(*inputs), kernels.Way(torch.float32, "ieee"), kernels.Blocks(*blocks)
    _, dw, db = slopes(expected, inputs)
    g = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    x, weight, bias = (v.detach() for v in inputs)
    y, which = kernels.run_forward(x, weight, bias, way, cut)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    g = g.contiguous(memory_format=torch.channels_last)
    found = kernels.run_weight_gradient(g, which, x, weight, way, cut)
    torch.testing.assert_close(found, (dw, db), rtol=1e-5, atol=2e-5)


@interpreted
@pytest.mark.parametrize("ours", ["", "forward", "weight"])
@pytest.mark.parametrize("shape", SHAPES[1:], ids=str)
def test_passes_of_pytorch_give_the_same(
    kernels: Any, shape: tuple[int, ...], ours: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each pass may be PyTorch's convolution and a kernel for the rest."""
    blocks = kernels.Blocks(16, 128, 4, 1, 2)
    monkeypatch.setattr(kernels, "find_blocks", lambda which, x: blocks if which == ours else None)
    inputs = draw(shape, torch.contiguous_format)
    y, expected = kernels.conv_pool(*inputs, channels_last=False), plain(*inputs)
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
    assert y.is_contiguous()
    for wanted in (inputs, inputs[2:], inputs[1:2], inputs[:1]):
        found = slopes(kernels.conv_pool(*inputs), wanted)
        torch.testing.assert_close(found, slopes(plain(*inputs), wanted), rtol=1e-5, atol=2e-5)
    with torch.no_grad():
        assert torch.equal(kernels.conv_pool(*inputs), y)


@interpreted
def test_where_pytorch_is_quicker(kernels: Any) -> None:
    def find(which: str, *shape: int) -> Any:
        return kernels.find_blocks(which, torch.empty(1).expand(shape))

    assert [find("forward", 100, channels, 32, 32) is None for channels in (1, 3, 15, 16, 32)] == [False] * 3 + [
        True
    ] * 2
    assert [find("weight", batch, 32, 16, 16) is None for batch in (100, 1023, 1024)] == [False, False, True]
    assert find("weight", 255, 3, 32, 32) != find("weight", 256, 3, 32, 32)
    assert find("weight", 10_000, 1, 28, 28) == find("weight", 10, 1, 28, 28)


@interpreted
@pytest.mark.parametrize("autocast", [True, False])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_bfloat16(kernels: Any, shape: tuple[int, ...], autocast: bool) -> None:
    exact = draw(shape, torch.channels_last)
    inputs = exact if autocast else tuple(v.detach().bfloat16().requires_grad_() for v in exact)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        y = kernels.conv_pool(*inputs)
    assert y.dtype == torch.bfloat16
    found = slopes(y, inputs)
    assert [v.dtype for v in found] == [v.dtype for v in inputs]
    for got, want in zip((y, *found), (expected := plain(*exact), *slopes(expected, exact)), strict=True):
        assert float(((got.float() - want).norm() / want.norm()).detach()) < 0.1  # at close maxima another one may win


@interpreted
def test_the_first_of_equal_maxima_has_the_gradient(kernels: Any) -> None:
    x, weight, bias = draw((2, 3, 8, 8), torch.contiguous_format)
    x = torch.ones_like(x).requires_grad_()  # inside the image all windows are ties
    inputs = x, weight, bias
    torch.testing.assert_close(
        slopes(kernels.conv_pool(*inputs), inputs), slopes(plain(*inputs), inputs), rtol=1e-5, atol=2e-5
    )


@interpreted
def test_where_the_relu_is_off_there_is_no_gradient(kernels: Any) -> None:
    x, weight, _ = draw((2, 3, 8, 8), torch.contiguous_format)
    inputs = x, weight, torch.full((32,), -100.0).requires_grad_()
    y = kernels.conv_pool(*inputs)
    assert not y.any()
    assert not any(bool(v.any()) for v in slopes(y, inputs))


@interpreted
def test_nan_stays(kernels: Any) -> None:
    x, weight, bias = draw((2, 3, 8, 8), torch.contiguous_format)
    with torch.no_grad():
        x[0, 1, 3, 3] = torch.nan
    inputs = x, weight, bias
    y, expected = kernels.conv_pool(*inputs), plain(*inputs)
    assert bool(y[0].isnan().any())
    assert not bool(y[1].isnan().any())
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    for got, want in zip(slopes(y, (weight,)), slopes(expected, (weight,)), strict=True):
        assert torch.equal(got.isnan(), want.isnan())


@interpreted
def test_only_what_is_asked_for(kernels: Any) -> None:
    x, weight, bias = draw((2, 3, 8, 8), torch.contiguous_format)
    (dw,) = slopes(kernels.conv_pool(x.detach(), weight, bias.detach()), (weight,))
    (dx,) = slopes(kernels.conv_pool(x, weight.detach(), bias.detach()), (x,))
    both = slopes(kernels.conv_pool(x, weight, bias), (x, weight))
    assert torch.equal(dx, both[0])
    assert torch.equal(dw, both[1])


@interpreted
def test_what_fits(kernels: Any) -> None:
    weight = torch.empty(32, 3, 5, 5)
    assert kernels.fits(torch.empty(10_000, 3, 32, 32), weight)
    assert kernels.fits(torch.empty(1).expand(10_000, 32, 32, 32), torch.empty(32, 32, 5, 5))
    for shape in ((2, 3, 7, 8), (2, 3, 8, 7), (0, 3, 8, 8)):
        assert not kernels.fits(torch.empty(shape), weight)
    assert not kernels.fits(torch.empty(1).expand(2_200_000, 3, 32, 32), weight)
    assert not kernels.fits(torch.empty(2, 3, 8, 8), torch.empty(32, 3, 3, 3))
    assert not kernels.fits(torch.empty(2, 3, 8, 8), torch.empty(16, 3, 5, 5))
    assert not kernels.fits(torch.empty(2, 3, 8, 8).double(), weight.double())
    assert not kernels.fits(torch.empty(2, 128, 8, 8), torch.empty(32, 128, 5, 5))
