"""The CNN's convolutions in C against PyTorch's in float64; skipped where there is no compiler."""

from __future__ import annotations

import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call, grad, vmap
from torch.nn import functional

from fedveca.tasks.live_bytes import LiveBytes
from fedveca.tasks.models import model
from fedveca.tasks.models.cnn import Cnn
from fedveca.tasks.native import convolution
from fedveca.tasks.native.library import load_kernels

pytestmark = pytest.mark.skipif(load_kernels("convolution") is None, reason="nothing was compiled here")

SHAPES = [
    *((2, channels, 6, 14) for channels in (1, 2, 3, 4, 16, 32, 48, 64)),
    *((3, channels, 2, 2) for channels in (1, 3, 32)),
    *((1, channels, 10, width) for channels in (1, 16) for width in (4, 8, 12, 16, 18, 20, 22)),
    *((33, channels, 4, 6) for channels in (3, 16)),  # more than one part
    (5, 1, 28, 28),
    (5, 32, 14, 14),
    (2, 3, 32, 32),
    (2, 32, 16, 16),
]
ORDERS = {"rows": torch.contiguous_format, "channels last": torch.channels_last}
orders = pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)


def plain(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return torch.relu(functional.max_pool2d(functional.conv2d(x, weight, padding=2), 2) + bias[:, None, None])


def draw(*shape: int, order: torch.memory_format = torch.contiguous_format) -> tuple[Tensor, Tensor, Tensor]:
    """x, weight and bias; the gradient of x is asked for where there is a kernel for it."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(shape, generator=generator).contiguous(memory_format=order)
    weight = 0.1 * torch.randn((32, shape[1], 5, 5), generator=generator)
    bias = 0.5 * torch.randn(32, generator=generator)
    wide = shape[1] >= 16
    return x.requires_grad_(wide), weight.contiguous(memory_format=order).requires_grad_(), bias.requires_grad_()


def asked(inputs: tuple[Tensor, ...]) -> list[Tensor]:
    return [v for v in inputs if v.requires_grad]


def slopes(y: Tensor, inputs: list[Tensor], order: torch.memory_format = torch.contiguous_format) -> tuple[Tensor, ...]:
    """The gradients of the inputs for one of y that is the same at each call."""
    g = torch.randn(y.shape, generator=torch.Generator().manual_seed(1)).to(y.dtype)
    return torch.autograd.grad(y, inputs, g.contiguous(memory_format=order))


def find_error(got: Tensor, want: Tensor) -> float:
    return float((got.detach() - want.detach()).norm() / want.detach().norm())


@orders
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_numbers_are_those_of_float64(shape: tuple[int, ...], order: torch.memory_format) -> None:
    inputs = draw(*shape, order=order)
    assert convolution.fits(inputs[0], inputs[1])
    y = convolution.conv_pool(*inputs, channels_last=order == torch.channels_last)
    assert y.is_contiguous(memory_format=order)
    exact = tuple(v.detach().double().requires_grad_(v.requires_grad) for v in inputs)
    expected = plain(*exact)
    assert find_error(y, expected) < 1e-6
    assert bool((y == 0).any())
    assert bool((y > 0).any())
    wanted = slopes(expected, asked(exact))
    for order_of_g in ORDERS.values():
        for got, want in zip(slopes(convolution.conv_pool(*inputs), asked(inputs), order_of_g), wanted, strict=True):
            assert got.shape == want.shape
            assert find_error(got, want) < 1e-6
    with torch.no_grad():
        assert torch.equal(convolution.conv_pool(*inputs), y)


@pytest.mark.parametrize("channels", [1, 3, 32])
def test_any_strides(channels: int) -> None:
    base, weight, bias = draw(4, channels, 16, 12)
    other = torch.zeros(32, 2 * channels, 5, 5)
    other[:, ::2] = weight.detach()
    g = torch.randn(1, 32, 4, 12).expand(2, -1, -1, -1).transpose(2, 3)[:, :, ::2]  # in neither of the known orders
    for x in (base.detach()[::2, :, ::2], base.detach()[:1].expand(2, -1, -1, -1), base.detach()[1:3].transpose(2, 3)):
        x = x[:, :, :, : 2 * (x.shape[3] // 2)].requires_grad_(channels >= 16)
        inputs = x, other[:, ::2].requires_grad_(), torch.stack([bias.detach()] * 2, 1)[:, 0].requires_grad_()
        expected = plain(*inputs)
        y = convolution.conv_pool(*inputs)
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5)
        same = torch.randn(1, 32, 1, 1).expand_as(y) if y.shape != g.shape else g
        found, wanted = (torch.autograd.grad(v, asked(inputs), same) for v in (y, expected))
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("channels", [1, 3, 32])
def test_the_first_of_equal_maxima_has_the_gradient(channels: int) -> None:
    x, weight, bias = draw(2, channels, 8, 20)
    with torch.no_grad():
        x.fill_(1)  # inside the image all windows are ties
        x[1] = 0
    inputs = x, weight, bias
    found, wanted = slopes(convolution.conv_pool(*inputs), asked(inputs)), slopes(plain(*inputs), asked(inputs))
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize("channels", [1, 32])
def test_where_the_relu_is_off_there_is_no_gradient(channels: int) -> None:
    x, weight, _ = draw(2, channels, 8, 8)
    inputs = x, weight, torch.full((32,), -100.0).requires_grad_()
    y = convolution.conv_pool(*inputs)
    assert not y.any()
    assert not any(bool(v.any()) for v in slopes(y, asked(inputs)))


@pytest.mark.parametrize("value", [torch.nan, torch.inf, -torch.inf])
@pytest.mark.parametrize("where", ["x", "weight", "bias"])
@pytest.mark.parametrize("channels", [1, 3, 16])
def test_what_is_not_finite_stays(channels: int, where: str, value: float) -> None:
    inputs = dict(zip(("x", "weight", "bias"), draw(2, channels, 8, 12), strict=True))
    with torch.no_grad():
        inputs[where].view(-1)[7] = value
    x, weight, bias = inputs.values()
    y, expected = convolution.conv_pool(x, weight, bias), plain(x, weight, bias)
    assert where == "bias" or not expected.isfinite().all()
    assert not (y.isfinite() & ~expected.isfinite()).any()
    if where != "weight" or value != value:  # zeros around an image times infinity are left out by PyTorch
        torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-5, equal_nan=True)
    for got, want in zip(slopes(y, [weight, bias]), slopes(expected, [weight, bias]), strict=True):
        assert bool(got.isfinite().all()) <= bool(want.isfinite().all())


@pytest.mark.parametrize("channels", [1, 32])
def test_a_gradient_that_is_not_finite_stays(channels: int) -> None:
    inputs = draw(2, channels, 8, 8)
    y, expected = convolution.conv_pool(*inputs), plain(*inputs)
    g = torch.randn(y.shape)
    g[0, 5][expected[0, 5] > 0] = torch.nan
    for got, want in zip(
        torch.autograd.grad(y, asked(inputs), g), torch.autograd.grad(expected, asked(inputs), g), strict=True
    ):
        assert not want.isfinite().all()
        assert torch.equal(got.isfinite(), want.isfinite()) or got.dim() == 4
        assert not got.isfinite().all()


@pytest.mark.parametrize("channels", [1, 32])
def test_an_image_does_not_depend_on_its_batch(channels: int) -> None:
    x, weight, bias = draw(70, channels, 6, 10)
    g = torch.randn(70, 32, 3, 5)
    together = convolution.conv_pool(x, weight, bias)
    alone = torch.cat([convolution.conv_pool(row[None], weight, bias) for row in x])
    assert torch.equal(together, alone)
    if channels > 1:
        assert torch.equal(torch.autograd.grad(together, x, g)[0], torch.autograd.grad(alone, x, g)[0])


@pytest.mark.parametrize("channels", [1, 32])
def test_the_same_bytes_on_any_number_of_threads(channels: int) -> None:
    inputs = draw(200, channels, 6, 10)

    def work(threads: int) -> tuple[Tensor, ...]:
        torch.set_num_threads(threads)
        y = convolution.conv_pool(*inputs)
        return y, *slopes(y, asked(inputs))

    before = torch.get_num_threads()
    try:
        first, *others = [work(threads) for threads in (1, 2, 3, 7)]
        with ThreadPoolExecutor(4) as pool:
            others += pool.map(work, [1] * 12)
    finally:
        torch.set_num_threads(before)
    for found in others:
        assert all(torch.equal(a, b) for a, b in zip(found, first, strict=True))


def test_defaults_of_the_caller_do_not_matter() -> None:
    inputs = draw(2, 32, 8, 8)
    expected = convolution.conv_pool(*inputs)
    wanted = slopes(expected, [*inputs])
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"):
            y = convolution.conv_pool(*inputs)
            found = torch.autograd.grad(y, inputs, torch.ones_like(y))
            assert convolution._find_checked.__wrapped__(convolution._get_library()) is not None
    finally:
        torch.set_default_dtype(before)
    assert torch.equal(y, expected)
    assert [v.dtype for v in found] == [v.dtype for v in wanted]


def test_only_what_is_asked_for() -> None:
    x, weight, bias = draw(2, 32, 8, 8)
    everything = slopes(convolution.conv_pool(x, weight, bias), [x, weight, bias])
    for i in range(3):
        inputs = [v if i == j else v.detach() for j, v in enumerate((x, weight, bias))]
        (alone,) = slopes(convolution.conv_pool(inputs[0], inputs[1], inputs[2]), [inputs[i]])
        assert torch.equal(alone, everything[i])


def test_a_leaf_or_what_was_computed() -> None:
    x, weight, bias = draw(2, 32, 8, 8)
    found, wanted = (torch.autograd.grad(f(x * 2, weight.exp(), bias).sum(), (x, weight, bias))
                     for f in (convolution.conv_pool, plain))  # fmt: skip
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_a_gradient_of_a_gradient() -> None:
    inputs = draw(2, 32, 6, 8)

    def twice(y: Tensor) -> tuple[Tensor, ...]:
        first = torch.autograd.grad(y.square().sum(), inputs, create_graph=True)
        return torch.autograd.grad(sum((v.square().sum() for v in first), torch.tensor(0.0)), inputs)

    torch.testing.assert_close(twice(convolution.conv_pool(*inputs)), twice(plain(*inputs)), rtol=1e-3, atol=1e-1)


def test_many_gradients_at_once() -> None:
    inputs = draw(2, 32, 6, 8)
    y, expected = convolution.conv_pool(*inputs), plain(*inputs)
    g = torch.randn(3, *y.shape)
    found, wanted = (torch.autograd.grad(v, inputs, g, is_grads_batched=True) for v in (y, expected))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def test_what_fits() -> None:
    def fit(*shape: int, outputs: int = 32, size: int = 5, **how: Any) -> bool:
        return convolution.fits(torch.empty(shape, **how), torch.empty(outputs, shape[1], size, size, **how))

    assert all(fit(2, channels, 8, 8) for channels in (1, 3, 4, 16, 64))
    assert not any(fit(2, channels, 8, 8) for channels in (5, 15, 17, 80))
    assert not any(fit(*shape) for shape in ((2, 3, 7, 8), (2, 3, 8, 7), (0, 3, 8, 8), (2, 3, 0, 8), (1, 3, 256, 256)))
    assert not fit(2, 3, 8, 8, size=3)
    assert not fit(2, 3, 8, 8, outputs=16)
    assert not fit(2, 3, 8, 8, dtype=torch.float64)
    assert not fit(2, 3, 8, 8, device="meta")
    weight = torch.empty(32, 3, 5, 5)
    assert not convolution.fits(torch.empty(3, 8, 8), weight)
    assert not convolution.fits(torch.empty(2, 1, 8, 8), weight)
    assert not convolution.fits(torch.empty(2, 3, 8, 8, requires_grad=True), weight)
    with torch.no_grad():
        assert convolution.fits(torch.empty(2, 3, 8, 8, requires_grad=True), weight)


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_transforms_find_pytorch() -> None:
    """Under vmap, grad, forward-mode differentiation, autocast and tracing the model is computed as before."""
    net = Cnn((1, 8, 8), 3)
    x = torch.randn(4, 1, 8, 8)
    parameters = {name: p.detach() for name, p in net.named_parameters()}

    def compute(p: dict[str, Tensor], row: Tensor) -> Tensor:
        out: Tensor = functional_call(net, p, (row[None],))
        return out.sum()

    each = vmap(grad(compute), in_dims=(None, 0))(parameters, x)
    together = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    for name, want in zip(parameters, together, strict=True):
        torch.testing.assert_close(each[name].sum(0), want, rtol=1e-3, atol=1e-4)
    with forward_ad.dual_level():
        y = net(forward_ad.make_dual(x, torch.ones_like(x)))
        assert forward_ad.unpack_dual(y).tangent is not None
    with LiveBytes():
        assert not convolution.fits(x, net.conv1.weight)
    with torch.autocast("cpu", torch.bfloat16):
        assert not convolution.fits(x, net.conv1.weight)
        assert net(x).dtype == torch.bfloat16
    with torch.no_grad():
        torch.testing.assert_close(torch.jit.trace(net, x)(x), net(x), rtol=1e-4, atol=1e-4)


def test_wrong_functions_are_not_used(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch) -> None:
    right = convolution._load()
    wrong = SimpleNamespace(**{name: getattr(right, name) for name in ("run_forward", "run_narrow_weight_gradient")})
    wrong.run_input_gradient = wrong.run_weight_gradient = lambda *_: 1
    with caplog.at_level(logging.WARNING):
        assert convolution._find_checked.__wrapped__(wrong) is None
    assert "PyTorch's operations are used" in caplog.text
    monkeypatch.setattr(convolution, "load_kernels", lambda name: None)
    assert convolution._load() is None


def test_no_memory_is_said() -> None:
    full: Any = SimpleNamespace(run_forward=lambda *_: 0)
    with pytest.raises(MemoryError):
        convolution._find_output(full, *draw(2, 3, 8, 8), True)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32)])
def test_the_gradient_of_the_model(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    problem = model("cnn", shape, 10)
    rows = torch.rand(1, 20, *shape, generator=torch.Generator().manual_seed(0))  # some draws have ties in a pooling
    w, x, y = problem.init()[None], rows, torch.arange(20)[None] % 10
    loss, g = problem.gradients(w, x, y)
    value, scores = problem.losses(w[0], x[0], y[0])
    monkeypatch.setattr(convolution, "_load", lambda: None)
    other_loss, other_g = problem.gradients(w, x, y)
    assert find_error(g, other_g) < 1e-5
    assert find_error(loss, other_loss) < 1e-5
    other_value, other_scores = problem.losses(w[0], x[0], y[0])
    assert find_error(scores, other_scores) < 1e-5
    assert find_error(value, other_value) < 1e-5
    assert not torch.equal(scores, other_scores)  # the kernels were used
