"""The models that can be named: their numbers of parameters, gradients and starts, and the rows that they take."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from fedveca import models
from fedveca.errors import UserError
from fedveca.tasks.models import MODELS, model
from fedveca.tasks.models.norm import count_groups
from fedveca.tasks.module_problem import FEW, ModuleProblem
from fedveca.tasks.problem import Problem

CLASSES, LETTERS, T = 10, 12, 7
IMAGES = ("vgg11", "resnet18")
TEXTS = ("lstm", "gpt")
Rows = tuple[Tensor, Tensor]


def images(n: int, shape: tuple[int, ...] = (3, 8, 8), seed: int = 0) -> Rows:
    g = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=g), torch.randint(0, CLASSES, (n,), generator=g)


def texts(n: int, seed: int = 0) -> Rows:
    line = torch.randint(0, LETTERS, (n, T + 1), generator=torch.Generator().manual_seed(seed))
    return line[:, :-1], line[:, 1:]


def make(name: str, seed: int = 0, init: str = "paper", hidden: int = 6) -> ModuleProblem:
    if name in TEXTS:
        made: Problem = model(name, (T,), LETTERS, sample=texts(8), hidden=hidden, layers=2, seed=seed, init=init)
    else:
        made = model(name, (3, 8, 8), CLASSES, hidden=hidden, seed=seed, init=init)
    assert isinstance(made, ModuleProblem)
    return made


def rows_of(name: str, n: int) -> Rows:
    return texts(n) if name in TEXTS else images(n)


ALL = ("logistic", *IMAGES, *TEXTS)


@pytest.mark.parametrize("name", ALL)
def test_the_gradient_is_that_of_finite_differences(name: str) -> None:
    """In float64, along ten directions."""
    made = make(name)
    module, (x, y) = made.module.double(), rows_of(name, 5)
    x = x.double() if x.is_floating_point() else x
    parameters = list(module.parameters())

    def loss() -> Tensor:
        scores = module(x)
        return nn.functional.cross_entropy(scores.flatten(0, -2), y.flatten())

    gradient = torch.autograd.grad(loss(), parameters)
    g = torch.Generator().manual_seed(1)
    for _ in range(10):
        along = [torch.randn(p.shape, dtype=p.dtype, generator=g) for p in parameters]
        slope = float(sum((a * d).sum() for a, d in zip(gradient, along, strict=True)))
        values = []
        for h in (1e-7, -2e-7):
            with torch.no_grad():
                for p, d in zip(parameters, along, strict=True):
                    p.add_(h * d)
                values.append(float(loss()))
        with torch.no_grad():
            for p, d in zip(parameters, along, strict=True):
                p.add_(1e-7 * d)
        assert (values[0] - values[1]) / 2e-7 == pytest.approx(slope, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n == "resnet18" else n for n in ALL])
def test_many_clients_have_the_gradients_of_each_alone(name: str) -> None:
    made, n = make(name), FEW + 2
    x, y = rows_of(name, 3 * n)
    x, y = x.view(n, 3, *x.shape[1:]), y.view(n, 3, *y.shape[1:])
    w = made.init() + 0.01 * torch.randn(n, made.size, generator=torch.Generator().manual_seed(2))
    together = made.gradients(w, x, y)
    for i in range(n):
        alone = made.gradients(w[i : i + 1], x[i : i + 1], y[i : i + 1])
        torch.testing.assert_close((together[0][i], together[1][i]), (alone[0][0], alone[1][0]), rtol=1e-4, atol=1e-5)


def test_recurrent_layers_take_clients_one_by_one() -> None:
    """PyTorch has no form of them for many clients at once, and warns; the transformer is written so that it has."""
    assert not make("lstm").mapped
    assert make("gpt").mapped


def test_the_numbers_of_parameters() -> None:
    def count(module: nn.Module) -> int:
        return sum(p.numel() for p in module.parameters())

    assert count(models.Vgg11((3, 32, 32), 10)) == 9_750_922  # FedNova's
    assert count(models.Vgg11((1, 28, 28), 10)) == 9_750_922 - 2 * 9 * 64
    assert count(models.Vgg11((3, 32, 32), 10, norm="group")) == 9_750_922 + 2 * 2752
    assert count(models.ResNet18((3, 32, 32), 10)) == 11_173_962  # as with BatchNorm
    assert count(models.ResNet18((3, 32, 32), 10, norm="batch")) == 11_173_962
    assert count(models.ResNet18((3, 224, 224), 1000)) == 11_689_512  # ImageNet's
    lstm = models.TokenLstm(90, hidden=256, layers=2)
    assert count(lstm) == 90 * 8 + 4 * 256 * (8 + 256 + 2) + 4 * 256 * (256 + 256 + 2) + 257 * 90  # FLUTE's
    block = 4 * 128 + 128 * 384 + 384 + 128 * 128 + 128 + 2 * 128 * 512 + 512 + 128
    assert count(models.Gpt(65, 64, width=128, layers=4)) == 2 * 65 * 128 + 64 * 128 + 4 * block + 256
    assert model("logistic", (1, 28, 28), 10).size == 7850


@pytest.mark.parametrize("name", ALL)
def test_w_0_is_the_seeds_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = make(name, seed=3).init()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(one, make(name, seed=3).init())
    assert not torch.equal(one, make(name, seed=4).init())


@pytest.mark.slow
def test_published_starts() -> None:
    """He's: variance 2 / (9 x channels out); GPT-2's: 0.02, less where a block adds to the stream."""
    for name in IMAGES:
        for key, v in make(name, hidden=32).named(make(name, hidden=32).init()).items():
            if v.dim() == 4 and v.shape[2:] == (3, 3) and v.numel() > 5000:
                assert float(v.std()) == pytest.approx(math.sqrt(2 / (9 * v.shape[0])), rel=0.05), key
    named = make("gpt", hidden=64).named(make("gpt", hidden=64).init())
    assert float(named["blocks.0.attention.inputs.weight"].std()) == pytest.approx(0.02, rel=0.05)
    assert float(named["blocks.1.mlp.2.weight"].std()) == pytest.approx(0.01, rel=0.05)
    assert not torch.equal(make("vgg11").init(), make("vgg11", init="torch").init())


def test_gpt_and_lstm_by_hand() -> None:
    """The same scores from products written out."""
    x, _ = texts(3)
    p = dict((made := make("gpt", hidden=64)).module.named_parameters())  # two heads of 32
    assert made.module.blocks[0].attention.heads == 2  # type: ignore[index, union-attr]
    h = p["tokens.weight"][x] + p["places.weight"][:T]
    for b in ("blocks.0", "blocks.1"):
        inner = nn.functional.layer_norm(h, (64,), p[f"{b}.norm1.weight"], p[f"{b}.norm1.bias"])
        qkv = inner @ p[f"{b}.attention.inputs.weight"].T + p[f"{b}.attention.inputs.bias"]
        q, k, v = (part.view(3, T, 2, 32).transpose(1, 2) for part in qkv.split(64, -1))
        seen = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(3, T, 64)
        h = h + seen @ p[f"{b}.attention.outputs.weight"].T + p[f"{b}.attention.outputs.bias"]
        inner = nn.functional.layer_norm(h, (64,), p[f"{b}.norm2.weight"], p[f"{b}.norm2.bias"])
        inner = nn.functional.gelu(inner @ p[f"{b}.mlp.0.weight"].T + p[f"{b}.mlp.0.bias"])
        h = h + inner @ p[f"{b}.mlp.2.weight"].T + p[f"{b}.mlp.2.bias"]
    want = nn.functional.layer_norm(h, (64,), p["norm.weight"], p["norm.bias"]) @ p["scores.weight"].T
    torch.testing.assert_close(made.module(x), want, rtol=1e-4, atol=1e-5)

    lstm = models.TokenLstm(LETTERS, hidden=5, layers=1)
    p = dict(lstm.named_parameters())
    state = cell = torch.zeros(3, 5)
    for t in range(T):
        gates = p["tokens.weight"][x[:, t]] @ p["lstm.weight_ih_l0"].T + p["lstm.bias_ih_l0"]
        i, f, g, o = (gates + state @ p["lstm.weight_hh_l0"].T + p["lstm.bias_hh_l0"]).chunk(4, 1)
        cell = f.sigmoid() * cell + i.sigmoid() * g.tanh()
        state = o.sigmoid() * cell.tanh()
        want = state @ p["scores.weight"].T + p["scores.bias"]
        torch.testing.assert_close(lstm(x)[:, t], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", TEXTS)
def test_no_place_sees_what_comes_later(name: str) -> None:
    made, (x, _) = make(name), texts(4)
    other = x.clone()
    other[:, 4:] = (other[:, 4:] + 1) % LETTERS
    w = made.init()
    torch.testing.assert_close(made.scores(w, x)[:, :4], made.scores(w, other)[:, :4])
    assert not torch.allclose(made.scores(w, x)[:, 4:], made.scores(w, other)[:, 4:])


def test_resnet_by_hand() -> None:
    net = models.ResNet18((3, 8, 8), CLASSES, width=4)
    x, _ = images(2)
    p = dict(net.named_parameters())

    def norm(h: Tensor, key: str) -> Tensor:
        return nn.functional.group_norm(h, count_groups(h.shape[1]), p[f"{key}.weight"], p[f"{key}.bias"])

    h = norm(nn.functional.conv2d(x, p["stem.0.weight"], padding=1), "stem.1").relu()
    for stage in range(4):
        for block in range(2):
            key, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
            inner = norm(nn.functional.conv2d(h, p[f"{key}.conv1.weight"], None, stride, 1), f"{key}.norm1").relu()
            inner = norm(nn.functional.conv2d(inner, p[f"{key}.conv2.weight"], padding=1), f"{key}.norm2")
            if stride == 2:
                h = norm(nn.functional.conv2d(h, p[f"{key}.shortcut.0.weight"], None, 2), f"{key}.shortcut.1")
            h = (h + inner).relu()
    want = h.mean((2, 3)) @ p["fc.weight"].T + p["fc.bias"]
    torch.testing.assert_close(net(x), want, rtol=1e-4, atol=1e-5)


def test_vgg_by_hand() -> None:
    net = models.Vgg11((1, 28, 28), CLASSES, width=4)
    x, _ = images(2, (1, 28, 28))
    convolutions = [m for m in net.features if isinstance(m, nn.Conv2d)]
    assert [m.out_channels for m in convolutions] == [4, 8, 16, 16, 32, 32, 32, 32]
    h, sides = x, []
    for at, conv in enumerate(convolutions):
        h = conv(h).relu()
        if at in (0, 1, 3, 5, 7):
            h = nn.functional.max_pool2d(nn.functional.pad(h, (0, h.shape[3] % 2, 0, h.shape[2] % 2)), 2)  # h >= 0
            sides.append(h.shape[2])
    assert sides == [14, 7, 4, 2, 1]
    for layer in net.head:
        h = layer(h.flatten(1))
    torch.testing.assert_close(net(x), h, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("shape", [(1, 28, 28), (3, 32, 32), (3, 33, 45), (2, 96, 65)])
@pytest.mark.parametrize("name", IMAGES)
def test_images_of_any_size(name: str, shape: tuple[int, ...]) -> None:
    made = model(name, shape, CLASSES, hidden=2)
    assert isinstance(made, ModuleProblem)
    assert made.scores(made.init(), images(2, shape)[0]).shape == (2, CLASSES)


def test_norm_and_dropout_are_where_they_were_asked_for() -> None:
    def kinds(net: nn.Module) -> set[type]:
        return {type(m) for m in net.modules()} & {nn.GroupNorm, nn.BatchNorm2d, nn.Dropout}

    assert kinds(models.ResNet18((3, 8, 8), 10, 4)) == {nn.GroupNorm}
    assert kinds(models.ResNet18((3, 8, 8), 10, 4, norm="batch")) == {nn.BatchNorm2d}
    assert kinds(models.ResNet18((3, 8, 8), 10, 4, norm="none")) == set()
    assert kinds(models.Vgg11((3, 8, 8), 10, 4)) == set()
    assert kinds(models.Vgg11((3, 8, 8), 10, 4, norm="batch", dropout=0.5)) == {nn.BatchNorm2d, nn.Dropout}
    assert kinds(models.Gpt(9, 4, 8, 1)) == set()
    assert kinds(models.Gpt(9, 4, 8, 1, dropout=0.1)) == {nn.Dropout}
    assert sum(isinstance(m, nn.Dropout) for m in models.Vgg11((3, 8, 8), 10, 4, dropout=0.5).modules()) == 2
    assert models.TokenLstm(9, 4, 2, dropout=0.3).lstm.dropout == 0.3
    assert models.TokenLstm(9, 4, 1, dropout=0.3).lstm.dropout == 0.0  # else PyTorch warns


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: model("vgg11", (60,), 10), r"model=vgg11 needs images .* of 8 x 8 or more, not \[60\]"),
        (
            lambda: model("resnet18", (3, 32, 7), 10),
            r"model=resnet18 needs images .* not \[3, 32, 7\]",
        ),
        (
            lambda: model("lstm", (60,), 10),
            r"model=lstm needs rows of tokens \[T\] and a target for each of them, y \[T\], "
            r"not numbers \[60\] with y \[\]",
        ),
        (
            lambda: model("gpt", (7,), 12, sample=(texts(8)[0], texts(8)[1][:, 0])),
            r"model=gpt needs rows of tokens .*, not tokens \[7\] with y \[\]",
        ),
        (
            lambda: model("logistic", (7,), 12, sample=texts(8)),
            "model=logistic takes numbers, and x holds tokens; take lstm, gpt or a model with an Embedding",
        ),
        (
            lambda: model("mlp", (7,), 12, sample=texts(8)),
            "model=mlp takes numbers, and x holds tokens; take lstm, gpt or a model with an Embedding",
        ),
    ],
)
def test_rows_that_do_not_fit_get_one_sentence(call: Callable[[], Problem], said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}$"):
        call()


def test_lenet_is_the_tutorials() -> None:
    """62,006 parameters on CIFAR-10, as in PyTorch's tutorial; the scores are those of its layers in a row."""
    made = model("lenet", (3, 32, 32), CLASSES)
    assert isinstance(made, ModuleProblem)
    assert made.size == 62_006
    net, (x, _) = made.module, images(3, (3, 32, 32))
    layers = dict(net.named_children())
    for name in ("conv1", "conv2"):
        x = nn.functional.max_pool2d(layers[name](x).clamp(min=0), 2)
    x = x.flatten(1)
    for name in ("fc1", "fc2"):
        x = layers[name](x).clamp(min=0)
    assert torch.allclose(net(images(3, (3, 32, 32))[0]), layers["fc3"](x), atol=1e-6)
    assert model("lenet", (1, 28, 28), CLASSES).size == 44_426
    with pytest.raises(UserError, match=r"model=lenet needs images .* of 16 x 16 or more, not \[1, 8, 8\]"):
        model("lenet", (1, 8, 8), CLASSES)


def test_every_model_has_a_line_of_text() -> None:
    assert list(MODELS) == ["cnn", "gpt", "lenet", "logistic", "lstm", "mlp", "resnet18", "svm", "vgg11"]
    assert all(entry.text for entry in MODELS.values())


# from BatchNorm to GroupNorm


@pytest.mark.parametrize(
    ("channels", "most", "groups"),
    [(64, 32, 32), (32, 32, 16), (48, 32, 24), (7, 32, 1), (2, 32, 1), (512, 32, 32), (64, 4, 4), (6, 4, 3)],
)
def test_groups_divide_the_channels_and_have_two_of_them(channels: int, most: int, groups: int) -> None:
    assert count_groups(channels, most) == groups


class Mixed(nn.Module):
    """All three kinds, one of them nested."""

    def __init__(self) -> None:
        super().__init__()
        self.image = nn.Sequential(nn.Conv2d(3, 8, 3), nn.Sequential(nn.BatchNorm2d(8), nn.ReLU()))
        self.row = nn.BatchNorm1d(8, affine=False)
        self.volume = nn.BatchNorm3d(4, eps=1e-3)
        self.fc = nn.Linear(8, 2)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(self.row(self.image(x).mean((2, 3))))
        return out


def test_every_batch_norm_becomes_a_group_norm_of_a_copy() -> None:
    net = Mixed().double()
    net.image[1][0].weight.requires_grad_(False)  # type: ignore[index, union-attr]
    made = models.to_group_norm(net, groups=2)
    assert isinstance(net.row, nn.BatchNorm1d)
    assert not any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in made.modules())
    assert not list(made.buffers())
    assert isinstance(made, Mixed)
    image, volume = made.image[1][0], made.volume  # type: ignore[index]
    assert isinstance(image, nn.GroupNorm)
    assert (image.num_groups, image.num_channels, image.weight.dtype) == (2, 8, torch.float64)
    assert not image.weight.requires_grad
    assert image.bias.requires_grad
    assert (getattr(volume, "num_groups", 0), volume.eps) == (2, 1e-3)
    assert made.row.weight is None
    assert torch.equal(made.fc.weight, net.fc.weight)
    assert made(torch.randn(4, 3, 6, 6, dtype=torch.float64)).shape == (4, 2)
    assert isinstance(models.to_group_norm(nn.BatchNorm2d(4)), nn.GroupNorm)


def test_weights_are_kept_and_the_statistics_of_training_are_put_into_them() -> None:
    fresh = nn.BatchNorm2d(6)
    with torch.no_grad():
        fresh.weight.copy_(torch.arange(1.0, 7.0))
        fresh.bias.copy_(-torch.arange(6.0))
    made = models.to_group_norm(fresh, groups=3)
    assert torch.equal(made.weight, fresh.weight)  # type: ignore[arg-type]
    assert torch.equal(made.bias, fresh.bias)  # type: ignore[arg-type]

    x = torch.randn(1, 6, 40, 40) * torch.arange(1.0, 7.0)[:, None, None] + torch.arange(6.0)[:, None, None]
    fresh.running_mean, fresh.running_var = x.mean((0, 2, 3)), x.var((0, 2, 3), correction=0)
    fresh.eval()
    made = models.to_group_norm(fresh, groups=3)  # a row with just these statistics
    torch.testing.assert_close(made(x), fresh(x), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("module", "groups", "said"),
    [
        (nn.BatchNorm2d(4), 0, "groups=0 is out of range; it is a whole number from 1 up"),
        (nn.BatchNorm2d(4), 2.0, "groups=2.0 is out of range; it is a whole number from 1 up"),
        (
            nn.Sequential(nn.Linear(2, 1), nn.BatchNorm1d(1)),
            32,
            "1 is a BatchNorm1d of one channel; normalised within a row it would be a constant",
        ),
    ],
)
def test_what_cannot_be_converted_is_named(module: nn.Module, groups: int, said: str) -> None:
    with pytest.raises(UserError, match=f"^{said}$"):
        models.to_group_norm(module, groups)


def test_a_lazy_batch_norm_is_named() -> None:
    with pytest.raises(UserError, match=r"^0 is a lazy BatchNorm; call the model once before it is converted$"):
        models.to_group_norm(nn.Sequential(nn.LazyBatchNorm2d()))


@pytest.mark.slow
def test_a_model_with_batch_norm_trains_once_converted() -> None:
    from fedveca import Experiment, run

    net = models.to_group_norm(models.ResNet18((1, 8, 8), 10, width=4, norm="batch"))
    result = run(Experiment(data="digits", rounds=2, batch=16, tau_0=2), model=net)
    net.load_state_dict(result.model)
