"""Models: gradients that agree with autograd however they are taken, and refusals in one sentence."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from fedveca.errors import UserError
from fedveca.tasks.custom import import_object
from fedveca.tasks.metrics import METRICS, evaluate_rows, metric
from fedveca.tasks.models import model
from fedveca.tasks.module_problem import FEW, ModuleProblem
from fedveca.tasks.problem import Problem
from fedveca.tasks.svm import SquaredSvm

SHAPE, CLASSES = (1, 8, 8), 10


def batch(n: int, rows: int = 6, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    """x [n, B, ...], y [n, B] and uneven weights [n, B] that sum to 1."""
    g = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, rows, *shape, generator=g), torch.randint(0, CLASSES, (n, rows), generator=g)
    return x, y, torch.rand(n, rows, generator=g).softmax(1)


def network(name: str, shape: tuple[int, ...] = SHAPE, seed: int = 0) -> ModuleProblem:
    made = model(name, shape, CLASSES, seed=seed)
    assert isinstance(made, ModuleProblem)
    return made


def slow_svm(w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    sign = torch.where(y % 2 == 0, 1.0, -1.0)
    return 0.05 * (w**2).sum() + (weight * 0.5 * torch.relu(1 - sign * (x.flatten(1) @ w)) ** 2).sum()


def slow_network(made: ModuleProblem, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> Tensor:
    scores = functional_call(made.module, made.named(w), (x,))
    return (weight * nn.functional.cross_entropy(scores, y, reduction="none")).sum()


def slow(problem: Problem, w: Tensor, x: Tensor, y: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """F [n] and grad F [n, P] by plain autograd, one client at a time."""
    losses, gradients = [], []
    for i in range(len(w)):
        leaf = w[i].clone().requires_grad_()
        args = leaf, x[i], y[i], weight[i]
        loss = slow_network(problem, *args) if isinstance(problem, ModuleProblem) else slow_svm(*args)
        gradients.append(torch.autograd.grad(loss, leaf)[0])
        losses.append(loss.detach())
    return torch.stack(losses), torch.stack(gradients)


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("n", [1, FEW, FEW + 3])  # one by one, and mapped
@pytest.mark.parametrize("name", ["svm", "mlp", "cnn"])
def test_gradients_are_autograds(name: str, n: int, weighted: bool) -> None:
    problem = model(name, SHAPE, CLASSES)
    x, y, weight = batch(n)
    w = problem.init() + 0.1 * torch.randn(n, problem.size, generator=torch.Generator().manual_seed(1))
    loss, gradient = problem.gradients(w, x, y, weight if weighted else None)
    want = slow(problem, w, x, y, weight if weighted else torch.full_like(weight, 1 / weight.shape[1]))
    assert (loss.shape, gradient.shape) == ((n,), (n, problem.size))
    assert not loss.requires_grad
    assert not gradient.requires_grad
    torch.testing.assert_close((loss, gradient), want, rtol=1e-4, atol=1e-5)


def test_a_client_alone_is_the_client_among_many() -> None:
    made = network("mlp")
    x, y, _ = batch(FEW + 1)
    w = made.init() + 0.1 * torch.randn(FEW + 1, made.size, generator=torch.Generator().manual_seed(1))
    alone = [made.gradients(w[i : i + 1], x[i : i + 1], y[i : i + 1]) for i in range(FEW + 1)]
    together = made.gradients(w, x, y)
    torch.testing.assert_close(torch.cat([g for _, g in alone]), together[1], rtol=1e-5, atol=1e-7)
    torch.testing.assert_close(torch.cat([loss for loss, _ in alone]), together[0], rtol=1e-6, atol=0.0)


@pytest.mark.parametrize("name", ["svm", "mlp", "cnn"])
def test_losses_are_the_loss_and_accuracy_of_one_model(name: str) -> None:
    problem = model(name, SHAPE, CLASSES)
    x, y, _ = batch(1, rows=40)
    w = problem.init() + 0.05 * torch.randn(problem.size, generator=torch.Generator().manual_seed(1))
    loss, scores = problem.losses(w, x[0], y[0])
    accuracy = evaluate_rows(problem, w, [(x[0], y[0])])["accuracy"]
    assert isinstance(accuracy, float)
    torch.testing.assert_close(loss, problem.gradients(w[None], x, y)[0][0], rtol=1e-5, atol=1e-6)
    if isinstance(problem, ModuleProblem):
        assert torch.equal(scores, functional_call(problem.module, problem.named(w), (x[0],)))
        assert accuracy == pytest.approx(float((scores.argmax(1) == y[0]).float().mean()))
    else:
        odd = (x[0].flatten(1) @ w < 0).long()
        assert accuracy == pytest.approx(float((odd == y[0] % 2).float().mean()))
    assert 0 < accuracy < 1


def test_svm_by_hand() -> None:
    svm = SquaredSvm(2)
    x, y = torch.tensor([[[1.0, 0.0], [0.0, 2.0]]]), torch.tensor([[4, 7]])  # even: +1, odd: -1
    loss, gradient = svm.gradients(torch.tensor([[0.5, 0.5]]), x, y)
    # slacks 1 - 0.5 and 1 + 1; F = 0.05 * 0.5 + (0.125 + 2) / 2; grad = 0.1 w + (-0.5 x_0 + 2 x_1) / 2
    assert float(loss) == pytest.approx(0.025 + 1.0625)
    assert gradient[0].tolist() == pytest.approx([0.05 - 0.25, 0.05 + 2.0])
    assert torch.equal(svm.init(), torch.zeros(2))
    assert svm.named(svm.init()).keys() == {"w"}


# the flat vector


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_flat_and_named_are_two_views_of_one_model(name: str) -> None:
    made = network(name, (3, 8, 8))
    w = torch.randn(made.size, generator=torch.Generator().manual_seed(0))
    named = made.named(w)
    assert torch.equal(made.flat(list(named.values())), w)
    own = dict(made.module.named_parameters())
    assert {key: v.shape for key, v in named.items()} == {key: p.shape for key, p in own.items()}
    for key, v in made.named(made.init()).items():
        assert torch.equal(v, own[key])
    made.module.load_state_dict(named)  # what a run keeps, a user loads
    x = torch.randn(4, 3, 8, 8, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(made.module(x), made.scores(w, x), rtol=1e-4, atol=1e-4)


def test_convolution_weights_lie_channels_last() -> None:
    made = network("cnn", (3, 8, 8))
    w = torch.arange(made.size, dtype=torch.float32)
    conv = made.named(w)["conv1.weight"]
    assert conv.shape == (32, 3, 5, 5)
    assert conv.is_contiguous(memory_format=torch.channels_last)
    assert conv[0, :, 0, 0].tolist() == [0.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("shape", "inner"), [((1, 28, 28), 1568), ((3, 32, 32), 2048), ((1, 8, 8), 128), ((2, 9, 14), 192)]
)
def test_cnn_has_the_papers_sizes(shape: tuple[int, int, int], inner: int) -> None:
    made = network("cnn", shape)
    assert {key: tuple(s) for key, s in made.shapes.items()} == {
        "conv1.weight": (32, shape[0], 5, 5),
        "conv1.bias": (32,),
        "conv2.weight": (32, 32, 5, 5),
        "conv2.bias": (32,),
        "fc1.weight": (256, inner),
        "fc1.bias": (256,),
        "fc2.weight": (10, 256),
        "fc2.bias": (10,),
    }
    assert made.size == 832 + 800 * (shape[0] - 1) + 25_632 + 256 * (inner + 1) + 2570


def test_cnn_is_the_papers_network() -> None:
    """conv, ReLU, maxpool, twice; fc, ReLU; fc: in the paper's order of ReLU and pooling."""
    made = network("cnn")
    p = dict(made.module.named_parameters())
    x = torch.randn(3, *SHAPE, generator=torch.Generator().manual_seed(0))
    h = x
    for layer in ("conv1", "conv2"):
        h = nn.functional.conv2d(h, p[f"{layer}.weight"], p[f"{layer}.bias"], padding=2)
        h = nn.functional.max_pool2d(torch.relu(h), 2)
    h = torch.relu(h.flatten(1) @ p["fc1.weight"].T + p["fc1.bias"])
    want = h @ p["fc2.weight"].T + p["fc2.bias"]
    torch.testing.assert_close(made.scores(made.init(), x), want, rtol=1e-4, atol=1e-4)


def test_the_papers_start() -> None:
    made = network("cnn", (1, 28, 28))
    named = made.named(made.init())
    for key, v in named.items():
        if key.endswith("bias"):
            assert torch.equal(v, torch.full_like(v, 0.1)), key
        else:
            assert float(v.abs().max()) <= 0.2, key
    sd = float(named["fc1.weight"].std())  # of a normal cut at two of its deviations: 0.88 of 0.1
    assert sd == pytest.approx(0.088, abs=0.0005)
    free = model("cnn", (1, 28, 28), CLASSES, init="torch")
    assert float(free.named(free.init())["fc1.weight"].abs().max()) <= 1 / 1568**0.5


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_w_0_is_the_seeds_alone(name: str) -> None:
    torch.manual_seed(1)
    before = torch.get_rng_state()
    one = model(name, SHAPE, CLASSES, seed=3).init()
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(2)
    assert torch.equal(one, model(name, SHAPE, CLASSES, seed=3).init())
    assert not torch.equal(one, model(name, SHAPE, CLASSES, seed=4).init())


def test_mlp_has_the_hidden_units_asked_for() -> None:
    assert model("mlp", SHAPE, CLASSES, hidden=7).size == 64 * 7 + 7 + 7 * 10 + 10


# a user's own

OWN = """
import torch
from torch import nn

number = 3

def good(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(shape[0] * shape[1] * shape[2], classes))

def untracked(shape, classes):
    norm = nn.BatchNorm2d(4, track_running_stats=False)
    return nn.Sequential(nn.Conv2d(1, 4, 3), norm, nn.Flatten(), nn.Linear(144, classes))

def narrow(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 3))

def scalar(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, classes), nn.Flatten(0))

def misfit(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(784, classes))

def frozen(shape, classes):
    return good(shape, classes).requires_grad_(False)

def double(shape, classes):
    return good(shape, classes).double()

def empty(shape, classes):
    return nn.Flatten()

def no_module(shape, classes):
    return lambda x: x

def unwilling(shape, classes):
    raise AssertionError

def no_factory():
    return None

def lazy(shape, classes):
    return nn.Sequential(nn.Flatten(), nn.LazyLinear(classes))

class Noisy(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return self.fc(nn.functional.dropout(x.flatten(1), 0.5, True))

class Pair(nn.Module):
    def __init__(self, shape, classes):
        super().__init__()
        self.fc = nn.Linear(64, classes)

    def forward(self, x):
        return {"hidden": self.fc(x.flatten(1))}
"""


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A module of the user's in the working directory."""
    name = f"own_{tmp_path.name.replace('-', '_')}"
    (tmp_path / f"{name}.py").write_text(OWN)
    (tmp_path / f"{name}_torn.py").write_text("def f(:\n")
    monkeypatch.chdir(tmp_path)
    return name


def test_a_users_factory_beside_the_command(own: str) -> None:
    made = network(f"{own}:good")
    assert made.size == 650
    x, y, _ = batch(2)
    assert made.gradients(made.init().expand(2, -1), x, y)[1].shape == (2, 650)


@pytest.mark.parametrize(
    ("factory", "said"),
    [
        (
            "untracked",
            r"1 has no running statistics \(track_running_stats=False\), .*fedveca.models.to_group_norm$",
        ),
        ("narrow", r"gives scores \[2, 3\] for 2 rows; 10 classes need \[2, 10\]$"),
        ("scalar", r"gives scores \[20\] for 2 rows"),
        ("misfit", r"does not fit rows of shape \[1, 8, 8\]: mat1 and mat2 shapes"),
        ("frozen", "has no parameters to train, which are all frozen$"),
        ("double", r"parameter 1.weight is torch.float64; what is trained is float32 \(only frozen .* another type\)$"),
        ("empty", "has no parameters to train$"),
        ("no_module", r"returned function; a factory\(shape, classes\) gives a torch.nn.Module$"),
        ("unwilling", r"cannot be built for rows of shape \[1, 8, 8\] and 10 classes: AssertionError$"),
        ("no_factory", "cannot be built .* takes 0 positional arguments but 2 were given$"),
        ("lazy", "has lazy parameters; build it with the sizes that shape and classes give$"),
        ("Noisy", "gives other scores each time in evaluation mode: .* draw only where self.training is true$"),
        ("Pair", "it returns dict; a model gives a tensor of scores, or an object with `logits`$"),
        ("number", "is not callable; it must be a factory"),
        ("absent", "cannot be imported: module .* has no attribute 'absent'$"),
    ],
)
def test_a_users_factory_refused(own: str, factory: str, said: str) -> None:
    with pytest.raises(ValueError, match=f"model={own}:{factory},?:? {said}") as caught:
        model(f"{own}:{factory}", SHAPE, CLASSES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("no_such_module_here:f", "cannot be imported: No module named 'no_such_module_here'$"),
        ("{own}_torn:f", "cannot be imported: .*syntax"),
        (":f", "cannot be imported: Empty module name$"),
        (".relative:f", "cannot be imported: "),
        (
            "rnn",
            "is not known; it is cnn, gpt, lenet, logistic, lstm, mlp, resnet18, svm, vgg11 or package.module:factory$",
        ),
    ],
)
def test_what_is_no_factory_is_refused(own: str, name: str, said: str) -> None:
    name = name.format(own=own)
    with pytest.raises(ValueError, match=f"^model={name} {said}") as caught:
        model(name, SHAPE, CLASSES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("shape", [(60,), (1, 3, 28), (28, 28)])
def test_the_cnn_takes_images_only(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"^model=cnn needs images \[channels, height, width\]"):
        model("cnn", shape, CLASSES)


# metrics and their direction


def test_metrics_know_their_direction_and_unit() -> None:
    assert {name: (m.better, m.unit) for name, m in METRICS.items()} == {
        "accuracy": ("higher", "share"),
        "absolute_error": ("lower", ""),
        "f1": ("higher", "share"),
        "balanced_accuracy": ("higher", "share"),
        "precision": ("higher", "share"),
        "recall": ("higher", "share"),
        "top5": ("higher", "share"),
        "auc": ("higher", "share"),
        "perplexity": ("lower", ""),
        "confusion": (None, ""),
    }


def test_a_problem_carries_the_direction_of_its_metric() -> None:
    @metric(better="lower")
    def miss(scores: Tensor, y: Tensor) -> Tensor:
        return (scores.argmax(-1) != y).float()

    def silent(scores: Tensor, y: Tensor) -> Tensor:
        return miss(scores, y)

    made = {name: model("mlp", (4,), 2, metric=m) for name, m in (("auto", "auto"), ("miss", miss), ("silent", silent))}
    found = {name: (problem.metrics[0].name, problem.metrics[0].better) for name, problem in made.items()}
    assert found == {"auto": ("accuracy", "higher"), "miss": ("miss", "lower"), "silent": ("silent", None)}
    assert made["miss"].fork().metrics[0].better == "lower"
    assert model("mlp", (4,), 0, sample=(torch.rand(8, 4), torch.rand(8))).metrics[0].better == "lower"
    assert model("svm", (4,), 10).metrics[0].better == "higher"


def test_a_direction_is_one_of_two() -> None:
    with pytest.raises(UserError, match=r"^metric: better='up' is not known; allowed: higher \| lower$"):
        metric(better="up")  # type: ignore[arg-type]

    def wrong(scores: Tensor, y: Tensor) -> Tensor:
        return scores[:, 0]

    wrong.better = "up"  # type: ignore[attr-defined]
    with pytest.raises(UserError, match=r"^metric \(wrong\): better='up' is not known; allowed: higher \| lower$"):
        model("mlp", (4,), 2, metric=wrong)


# package.module:name


def test_an_object_is_imported_from_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_objects.py").write_text("thing = [1]\n")
    monkeypatch.chdir(tmp_path)
    path = list(sys.path)
    assert import_object("my_objects:thing", "rows") == [1]
    for name in ("my_objects:other", "no_such_module:thing", ":thing", "my_objects"):
        with pytest.raises(UserError, match=f"^rows={name} cannot be imported: "):
            import_object(name, "rows")
    assert sys.path == path
    sys.modules.pop("my_objects")
