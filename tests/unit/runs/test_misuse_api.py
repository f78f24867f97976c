"""Wrong uses of the Python API: each gets one sentence that names what was given, and leaves nothing on the disk."""

from __future__ import annotations

import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import fedveca
from fedveca import (
    Dataset,
    Experiment,
    FedAvg,
    FedProx,
    FedVeca,
    Run,
    build,
    compare,
    from_arrays,
    from_hugging_face,
    from_partitioner,
    from_torch,
    resume,
    run,
)
from fedveca.algorithms import Algorithm
from fedveca.runs.observers import Observer
from fedveca.views.figures.curves import draw_curves
from fedveca.views.figures.run import draw_figure
from fedveca.views.paths import find_runs
from fedveca.views.report.report import write_report

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
NUMBERS = X @ np.array([1.0, -2.0, 0.5, 0.0])
E = Experiment(partition="iid", clients=3, rounds=2, batch=8, lr=0.05, tau_0=2)
D, F = from_arrays(X, LABELS), from_arrays(X, NUMBERS)
DONE = run(E, data=D)
IDS = RNG.integers(0, 4, (60, 6))
IDS[7, 3] = 9  # one rare id
TOKENS = from_arrays(IDS, RNG.integers(0, 2, 60), tokens=True, test=(np.minimum(IDS, 3)[:9], IDS[:9, 0] % 2))

Call = Callable[[Path], Any]


def net(outputs: int = 3) -> nn.Sequential:
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def trained(e: Any = E, **given: Any) -> Call:
    """A call that runs into a folder."""
    return lambda t: run(e, t / "a", **given)


def compared(*given: Any, **more: Any) -> Call:
    seeds = given[0] if given else 1
    options: dict[str, Any] = {"methods": ("fedavg",), "data": D} | more
    return lambda t: compare(E, seeds, t / "a", **options)


class Odd(nn.Module):
    """A model that does what the function says."""

    def __init__(self, forward: Callable[[Any, Tensor], Any], outputs: int = 3) -> None:
        super().__init__()
        self.fc, self.odd, self.calls = nn.Linear(4, outputs), forward, 0

    def forward(self, x: Tensor) -> Any:
        return self.odd(self, x)


def odd(forward: Callable[[Any, Tensor], Any]) -> dict[str, Any]:
    return {"data": D, "model": Odd(forward)}


def counted(module: Any, x: Tensor) -> Tensor:
    module.calls += 1
    return module.fc(x) * module.calls


def attends_over_the_batch(module: Any, x: Tensor) -> Tensor:
    scores = module.fc(x)
    return torch.softmax(scores @ scores.T, 1) @ scores


def not_finite() -> nn.Module:
    module = net()
    module.get_parameter("0.weight").data[0, 0] = float("nan")
    return module


def hidden_batchnorm() -> nn.Module:
    """Mixes rows only once its last layer has left zero."""
    module = Odd(lambda m, x: m.fc((x - x.mean(0)) / (x.std(0) + 1)))
    nn.init.zeros_(module.fc.weight)
    return module


class Words(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.fc = nn.Embedding(4, 3), nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(self.embedding(x).mean(1))


def squares(scores: Tensor, y: Tensor) -> Tensor:
    return (scores[:, 0] - y) ** 2


def with_loss(loss: Any) -> dict[str, Any]:
    return {"data": F, "model": nn.Linear(4, 1), "loss": loss}


def shifts_scores(scores: Tensor, y: Tensor) -> Tensor:
    return (scores.sub_(1.0)[:, 0] - y) ** 2


def clears_targets(scores: Tensor, y: Tensor) -> Tensor:
    return squares(scores, y.zero_())


def no_value(scores: Tensor, y: Tensor) -> None: ...


def a_word(scores: Tensor, y: Tensor) -> str:
    return "good"


def a_pair(scores: Tensor, y: Tensor) -> Tensor:
    return torch.ones(2)


class Bare(Algorithm):
    """Has no `lr`."""

    update, finish = FedAvg.update, FedAvg.finish


class NoState(FedAvg):
    def update(self, state: Any, ids: Tensor, p: Tensor, report: Any) -> Any:
        return None


class Cut(FedAvg):
    def update(self, state: Any, ids: Tensor, p: Tensor, report: Any) -> Any:
        return state._replace(w=state.w[:3]), {}


class Raises(FedAvg):
    def finish(self, order: Any, s: Any, w: Tensor, tau: Tensor) -> Any:
        raise KeyError("momentum\nof the client")


class NoPair(FedAvg):
    def step(self, order: Any, s: Any, w: Tensor, g: Tensor) -> Any:
        return w


class Notes(FedAvg):
    def update(self, state: Any, ids: Tensor, p: Tensor, report: Any) -> Any:
        return super().update(state, ids, p, report)[0], {"note": {1, 2}}


@dataclass
class Settings:
    lr: float = 0.1


class Unreadable(torch.utils.data.Dataset[Any]):
    def __len__(self) -> int:
        return 3

    def __getitem__(self, i: int) -> Any:
        raise OSError("row is gone\nsee the log")


def by_hand(**other: Any) -> Dataset:
    return replace(D, **other)


def csr() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.eye(5).to_sparse_csr()


def jagged() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.nested.nested_tensor([torch.ones(2), torch.ones(3)])


def without_gradients(t: Path) -> Any:
    with torch.no_grad():
        return run(E, t / "a", data=D, model=net())


def inferring(t: Path) -> Any:
    with torch.inference_mode():
        return run(E, t / "a", data=D, model=net())


SPARSE = SimpleNamespace(toarray=lambda: np.eye(5))  # as SciPy's
FIVE = [0, 1, 0, 1, 0]
LARGE = 2**64 - 1
ANY: Any = None

DATA: list[tuple[Call, str]] = [
    (lambda t: from_arrays(torch.eye(5).to_sparse(), FIVE), "x is a torch.sparse_coo tensor; to_dense()"),
    (lambda t: from_arrays(csr(), FIVE), "x is a torch.sparse_csr tensor; to_dense()"),
    (lambda t: from_arrays(jagged(), [0, 1]), "x is a torch.strided tensor; to_dense()"),
    (lambda t: from_arrays(torch.eye(5) * 1j, FIVE), "x is a tensor of torch.complex64 on cpu, not of real numbers"),
    (lambda t: from_arrays(torch.eye(5, device="meta"), FIVE), "on meta, not of real numbers"),
    (lambda t: from_arrays(np.eye(5) * 1j, FIVE), "x holds complex128, not numbers"),
    (lambda t: from_arrays(SPARSE, FIVE), "x is SimpleNamespace, not an array; toarray() makes one"),
    (lambda t: from_arrays((i for i in range(3)), [0, 1, 0]), "x is generator, not an array; rows of numbers"),
    (lambda t: from_arrays(np.array([[len]] * 5), FIVE), "x holds <built-in function len>, not numbers"),
    (lambda t: from_arrays(None, FIVE), "x is NoneType, not an array"),
    (lambda t: from_arrays({"a b": [1, 2]}, [0, 1]), "x has an input called 'a b'; it is the name of an argument"),
    (lambda t: from_arrays({1, 2}, [0, 1]), "x is set, not an array"),
    (lambda t: from_arrays(Path("rows.csv"), [0]), "x='rows.csv' is not an .npy file of numbers: No such file"),
    (lambda t: from_arrays("rows", [0]), "x='rows' is not an .npy file of numbers: No such file or directory"),
    (lambda t: from_arrays(X, "labels.npy"), "y='labels.npy' is not an .npy file of numbers: No such file"),
    (lambda t: from_arrays(X, LABELS, lazy=True), "and lazy=True reads from a file: give the path of an .npy file"),
    (lambda t: from_arrays(X, LABELS, lazy=ANY), "lazy=None is neither True nor False"),
    (lambda t: from_arrays([["1", "2"]] * 5, FIVE), "x holds <U1, not numbers"),
    (lambda t: from_arrays(np.zeros(5, [("a", "f4")]), FIVE), "x holds [('a', '<f4')], not numbers"),
    (lambda t: from_arrays(np.full((5, 2), "2026-01-01", "datetime64[D]"), FIVE), "x holds datetime64[D]"),
    (lambda t: from_arrays(np.zeros((120, 0)), LABELS), "x has the shape [120, 0]"),
    (lambda t: from_arrays(np.ma.masked_array(X, X > 1), LABELS), "x is a masked array with"),
    (lambda t: from_arrays(X, np.ma.masked_array(LABELS, LABELS > 1)), "y is a masked array with"),
    (lambda t: from_arrays(np.full((5, 1), 1e300), FIVE), "x is not finite in row 0 (5 rows in all)"),
    (lambda t: from_arrays(np.full((120, 2), LARGE, np.uint64), LABELS, tokens=True), f"x holds {LARGE}"),
    (lambda t: from_arrays(X, np.full(120, LARGE, np.uint64)), f"y holds {LARGE}"),
    (lambda t: from_arrays(X, None), "y is NoneType, not an array"),
    (lambda t: from_arrays(X, [None] * 120), "y holds None, not numbers"),
    (lambda t: from_arrays(X, np.array(["a", "b"] * 60, object)), "y holds text, not numbers; np.unique(y,"),
    (lambda t: from_arrays(X, 3), "y is one number"),
    (lambda t: from_arrays(X, np.zeros((120, 0), int)), "y has the shape [120, 0]"),
    (lambda t: from_arrays(X, LABELS, test=cast("Any", [X, LABELS])), "test=[array("),
    (lambda t: from_arrays(X, LABELS, test=ANY), "test=None is out of range"),
    (lambda t: from_arrays(X, LABELS, test=float("nan")), "test=nan is out of range"),
    (lambda t: from_arrays(X, LABELS, test=True), "test=True is out of range"),
    (lambda t: from_arrays(X, LABELS, test=("a", "b")), "x of test='a' is not an .npy file of numbers"),
    (lambda t: from_arrays(X, LABELS, test=(X[:0], LABELS[:0])), "x and y of test have no rows"),
    (lambda t: from_arrays(X, LABELS, tokens=ANY), "tokens=None is neither True nor False"),
    (lambda t: from_arrays(X, LABELS, writer=[None] * 120), "writer names no owner of row 0 (120 rows in all)"),
    (lambda t: from_arrays(X, LABELS, writer=[1.0, np.nan] * 60), "writer names no owner of row 1 (60 rows in all)"),
    (lambda t: from_arrays(X, LABELS, writer=np.array(["a", 1] * 60, object)), "writer holds names of several kinds"),
    (lambda t: from_arrays(X, LABELS, writer=[[1], [1, 2]] * 60), "writer is not a list of owners"),
    (lambda t: from_arrays(X, LABELS, writer="me"), "writer has the shape []"),
    (lambda t: from_arrays(X, LABELS, name=ANY), "name=None is not a name"),
    (lambda t: from_arrays(X, LABELS, name=""), "name='' is not a name"),
    (lambda t: from_arrays(X, LABELS, name="a\nb"), r"name='a\nb' is not a name"),
    (lambda t: from_arrays(X, LABELS, name="a" * 10**6), "is not a name; it is text of 1 to 100 printable characters"),
    (lambda t: from_torch(None), "the data set (NoneType) cannot be counted and indexed"),
    (lambda t: from_torch(Unreadable()), "the data set (Unreadable) fails at row 0: row is gone"),
    (lambda t: from_torch([("text", 1)] * 5), "the data set: x of row 0 holds <U4, not numbers"),
    (lambda t: from_torch([(None, 1)] * 5), "the data set: x of row 0 is NoneType, not an array"),
    (lambda t: from_torch([(X[0], "cat")] * 5), "y of row 0 holds <U3, not numbers; np.unique"),
    (lambda t: from_torch([{"x": 1}] * 3), "the data set gives dict for a row"),
    (lambda t: from_torch([(X[0], 1)] * 5, test=[]), "test has no rows"),
    (lambda t: from_hugging_face(None, "x", "y"), "the data set is NoneType, not a datasets.Dataset"),
    (lambda t: from_hugging_face({"x": [1]}, "x", "y"), "the data set is dict, not a datasets.Dataset"),
    (
        lambda t: from_hugging_face(SimpleNamespace(column_names={"train": ["x"], "test": ["x"]}), "x", "y"),
        "the data set is of several splits (train, test); give one of them",
    ),
    (lambda t: from_hugging_face({}, [], "y"), "x=[] names no column"),
    (lambda t: from_partitioner(None, "x", "y"), "the partitioner (NoneType) does not give its parts"),
    (lambda t: run(E, t / "a", data=by_hand(x=X)), "x of the data is ndarray, not a tensor"),
    (lambda t: run(E, t / "a", data=by_hand(y=D.y[:5])), "x and y of the data do not fit: [96, 4] and [5]"),
    (lambda t: run(E, t / "a", data=by_hand(y=D.y.int())), "are torch.float32 and torch.int32"),
    (lambda t: run(E, t / "a", data=by_hand(classes=2)), "hold labels 0 to 2; classes=2 allows 0 to 1"),
    (lambda t: run(E, t / "a", data=by_hand(pixels="255")), "pixels of the data is '255'"),
    (lambda t: run(E, t / "a", data=by_hand(writer=D.y[:3])), "writer of the data is not a tensor with one owner"),
    (lambda t: run(E, t / "a", data=by_hand(name="mine")), "data is a Dataset called 'mine'; the name"),
    (lambda t: run(E, t / "a", data=cast("Any", ("x", "y"))), "data is tuple; from_arrays(x, y)"),
    (lambda t: run(E, t / "a", data=cast("Any", "digits")), "data is str; from_arrays(x, y)"),
]

MODELS: list[tuple[Call, str]] = [
    (trained(data=D, model=not_finite()), "parameter 0.weight is not finite (NaN or infinity)"),
    (trained(**odd(lambda m, x: m.fc(x.mul_(1.5)))), "the model (Odd) changes its input in place"),
    (trained(**odd(counted)), "the model (Odd) gives other scores each time in evaluation mode"),
    (trained(**odd(lambda m, x: (m.fc(x) * 0 - 1).log())), "the model (Odd) gives NaN as a score"),
    (trained(**odd(lambda m, x: m.fc(x).detach())), "the model (Odd) gives scores without a gradient"),
    (trained(**odd(lambda m, x: nn.functional.one_hot(m.fc(x).argmax(1), 3))), "gives scores without a gradient"),
    (trained(**odd(lambda m, x: None)), "the model (Odd): it returns NoneType; a model gives a tensor of scores"),
    (trained(**odd(lambda m, x: m.fc(x).softmax(0))), "the model (Odd) mixes rows"),
    (trained(**odd(lambda m, x: m.fc(x) - m.fc(x).mean(0))), "the model (Odd) mixes rows"),
    (trained(**odd(lambda m, x: m.fc(x).cumsum(0))), "the model (Odd) mixes rows"),
    (trained(**odd(attends_over_the_batch)), "mixes rows: the scores of a row change with the other rows of its batch"),
    (trained(data=D, model=hidden_batchnorm()), "the model (Odd) mixes rows"),
    (
        trained(data=D, model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, track_running_stats=False))),
        "the model (Sequential): 1 has no running statistics (track_running_stats=False)",
    ),
    (trained(data=D, model=nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3, momentum=None))), "momentum=None"),
    (trained(data=D, model=nn.Linear), "the model (Linear) cannot be built for rows of shape [4] and 3 classes"),
    (trained(data=D, model=net().state_dict()), "model is OrderedDict; it is a torch.nn.Module or a factory"),
    (trained(data=D, model=3), "model is int"),
    (trained(data=D, model=lambda shape: net()), "takes 1 positional argument but 2 were given"),
    (trained(data=D, model=nn.Linear(4, 3, device="meta")), "the model (Linear) cannot be built"),
    (trained(data=TOKENS, model=Words()), "does not fit all rows of the training data, whose ids go up to 9"),
    (trained(replace(E, model="svm"), data=TOKENS), "model=svm takes numbers, and x holds tokens"),
    (trained(replace(E, model="cnn"), data=D), "model=cnn needs images [channels, height, width]"),
    (trained(replace(E, model="nowhere:f")), "model=nowhere:f cannot be imported"),
    (without_gradients, "cannot be trained where gradients are off"),
    (inferring, "cannot be trained where gradients are off"),
]

LOSSES: list[tuple[Call, str]] = [
    (trained(**with_loss("mse")), "loss='mse' is a name, which goes into the settings: Experiment(loss=...)"),
    (trained(data=D, metric="f1"), "metric='f1' is a name, which goes into the settings: Experiment(metric=...)"),
    (trained(**with_loss(lambda s, y: squares(s, y).detach())), "gives torch.float32 without a gradient"),
    (trained(**with_loss(lambda s, y: squares(s, y).long())), "gives torch.int64 without a gradient"),
    (trained(**with_loss(lambda s, y: squares(s, y) * float("nan"))), "gives NaN for the first rows"),
    (trained(**with_loss(lambda s, y: squares(s, y) * torch.rand(len(y)))), "gives other values each time"),
    (trained(**with_loss(lambda s, y: squares(s, y).cumsum(0))), "mixes rows: that of the last row changes"),
    (trained(**with_loss(lambda s, y: squares(s, y) - squares(s, y).mean())), "mixes rows: that of the first row"),
    (trained(**with_loss(lambda s: s)), "takes 1 positional argument but 2 were given"),
    (trained(**with_loss(no_value)), "loss (no_value) gives NoneType for 2 rows"),
    (trained(**with_loss(nn.L1Loss)), "loss (L1Loss)"),
    (trained(**with_loss(shifts_scores)), "loss (shifts_scores) changes the scores in place"),
    (trained(**with_loss(clears_targets)), "loss (clears_targets) changes the targets in place"),
    (trained(**with_loss([])), "loss is list; it is a function of (scores, y)"),
    (trained(data=F, metric=no_value), "metric (no_value) fails on the 24 test rows"),
    (trained(data=F, metric=a_word), "metric (a_word) fails on the 24 test rows"),
    (trained(data=F, metric=a_pair), "metric (a_pair) gives [2] for 24 rows"),
    (trained(data=F, metric=clears_targets), "metric (clears_targets) changes the targets in place"),
    (trained(replace(E, metric="absolute_error")), "metric=absolute_error does not fit the targets of these data"),
    (trained(replace(E, metric="accuracy"), data=F), "metric=accuracy is for labels; y holds numbers"),
    (trained(replace(E, loss="squared_error")), "loss (squared_error) cannot take scores [2, 10] and targets [2]"),
]

METHODS: list[tuple[Call, str]] = [
    (trained(data=D, method="fedavg"), "method is str, which is not a subclass of fedveca.algorithms.Algorithm"),
    (trained(data=D, method=Settings()), "method is Settings, which is not a subclass of fedveca.algorithms.Algorithm"),
    (trained(data=D, method=Bare()), "lr=None is not float"),
    (trained(data=D, method=NoState(0.1)), "method (NoState) fails in a small trial round: cannot unpack"),
    (trained(data=D, method=Cut(0.1)), "update gives w [3] and tau [3], not [515] and [3]"),
    (trained(data=D, method=Raises(0.1)), "method (Raises) fails in a small trial round: 'momentum"),
    (trained(data=D, method=NoPair(0.1)), "method (NoPair) fails in a small trial round"),
    (trained(data=D, method=Notes(0.1)), "Object of type set is not JSON serializable"),
    (lambda t: run(E, data=D, method=FedAvg(ANY)), "lr=None is not float"),
    (lambda t: run(E, data=D, method=FedAvg("fast")), "lr='fast' is not float"),  # type: ignore[arg-type]
    (lambda t: run(E, data=D, method=FedAvg(float("nan"))), "lr=nan is out of range"),
    (lambda t: run(E, data=D, method=FedAvg(-0.1)), "lr=-0.1 is out of range"),
    (lambda t: run(E, data=D, method=FedAvg(torch.tensor([0.1, 0.2]))), "lr=tensor([0.1000, 0.2000]) is not float"),  # type: ignore[arg-type]
    (lambda t: run(E, data=D, method=FedVeca(0.05, 2.0)), "alpha=2.0 is out of range; allowed: (0, 1)"),
    (lambda t: run(E, data=D, method=FedVeca(0.05, 0.9, 0)), "tau_max=0 is out of range"),
    (lambda t: run(E, data=D, method=FedProx(0.05, float("nan"))), "mu=nan is out of range"),
    (compared(methods=()), "methods=() are no methods"),
    (compared(methods="fedavg"), "methods='fedavg' are no methods"),
    (compared(methods={"fedavg"}), "methods={'fedavg'} are no methods"),
    (compared(methods=("fedavg", "fedagv")), "methods: 'fedagv' is not known"),
    (compared(methods=("fedavg", FedAvg)), "method is the class FedAvg"),
    (compared(methods=("fedavg", None)), "method is NoneType, which is not a subclass of fedveca.algorithms.Algorithm"),
    (lambda t: compare(E, 1, t / "a", methods=("fedavg", FedProx(0.1, -1.0)), data=D), "mu=-1.0 is out of range"),
    (compared(method=FedAvg(0.1)), "compare takes methods=(...), names or objects, not method="),
    (compared(0), "seeds=0 is out of range; it is a whole number from 1 to 10000"),
    (compared("2"), "seeds='2' is out of range"),
    (compared(1.5), "seeds=1.5 is out of range"),
    (compared(True), "seeds=True is out of range"),
    (compared(10**9), "seeds=1000000000 is out of range"),
    (compared(workers=0), "workers=0 is out of range"),
    (compared(workers="2"), "workers='2' is out of range"),
    (compared(observers=3), "observers: 3 is not an Observer; see fedveca.Observer"),
    (compared(observers=[print]), "is not an Observer"),
    (compared(device="tpu"), "device='tpu' is not known; it is 'auto', 'cpu' or 'cuda'"),
    (compared(model=nn.Linear(3, 3)), "the model (Linear) does not fit rows of shape [4]"),
    (lambda t: compare(ANY, 1, t / "a"), "experiment=None is not an Experiment"),
    (lambda t: compare(E, 1, ANY), "out=None is not a path"),
    (lambda t: compare(E, 1, "", data=D), "out='' is empty"),
    (lambda t: compare(replace(E, seed=2**31 - 1), 2, t / "a", data=D), "seed=2147483648 is out of range"),
]

PARTITIONS: list[tuple[Call, str]] = [
    (trained(data=D, partition=["ab", "c"]), "partition: client 0 has str of <U2; row numbers [n] are needed"),
    (trained(data=D, partition=[None, [1]]), "partition: client 0 has NoneType of object"),
    (trained(data=D, partition=[{0, 1}, {2}]), "partition: client 0 has set of object"),
    (trained(data=D, partition=[[[0], [1, 2]], [3]]), "partition: client 0 has no list of row numbers"),
    (trained(data=D, partition={0: [1]}), "partition is dict; it is a list"),
    (trained(data=D, partition=(rows for rows in ([0], [1]))), "partition is generator; it is a list"),
    (trained(data=D, partition=[0, 1, 2]), "client 0 has torch.int64 []; row numbers [n] are needed"),
    (trained(data=D, partition=[np.ones(96, bool)]), "client 0 has torch.bool [96]"),
    (trained(data=D, partition=[[-1], [0]]), "client 0 has row -1"),
    (trained(data=D, partition=lambda data, clients: []), "takes 2 positional arguments but 3 were given"),
    (trained(data=D, partition=lambda data, clients, seed: None), "partition is NoneType"),
    (trained(replace(E, partition="writer"), data=D), "from_arrays(..., writer=...)"),
    (trained(replace(E, clients=1000), data=D), "clients=1000 is more than the 96 training rows"),
]

CALLS: list[tuple[Call, str]] = [
    (lambda t: run(ANY, t / "a"), "experiment=None is not an Experiment; Experiment(rounds=10) makes one"),
    (lambda t: run({}, t / "a"), "experiment={} is not an Experiment; Experiment(**settings)"),  # type: ignore[arg-type]
    (lambda t: run("digits-case3", t / "a"), "Experiment.preset('digits-case3') makes one of this preset"),  # type: ignore[arg-type]
    (lambda t: run(Experiment, t / "a"), "is not an Experiment; Experiment() makes one"),  # type: ignore[arg-type]
    (lambda t: build(ANY), "experiment=None is not an Experiment"),
    (lambda t: build(E, "tpu"), "device='tpu' is not known"),
    (trained(data=D, observers=3), "observers: 3 is not an Observer; see fedveca.Observer"),
    (trained(data=D, observers=[Observer(), []]), "observers: [] is not an Observer"),
    (trained(data=D, observers="print"), "observers: 'print' is not an Observer"),
    (trained(data=D, observers=[Observer]), "is not an Observer"),
    (trained(data=D, stop=True), "stop=True is not a function"),
    (trained(data=D, device=None), "device=None is not known"),
    (trained(data=D, device=0), "device=0 is not known"),
    (trained(data=D, device=torch.device("cpu", 1)), "device='cpu:1' is not known"),
    (trained(data=D, cohort=3), "cohort=3 needs sizes"),
    (
        trained(cohort=lambda k, order, ids, tau: None),
        "needs sizes and weights, tensors, to be called for a round, and data=...",
    ),
    (lambda t: run(E, 3, data=D), "out=3 is not a path"),  # type: ignore[arg-type]
    (lambda t: run(E, True, data=D), "out=True is not a path"),  # type: ignore[arg-type]
    (lambda t: run(E, b"a", data=D), "out=b'a' is not a path"),  # type: ignore[arg-type]
    (lambda t: run(E, "", data=D), "out='' is empty"),
    (lambda t: run(E, "a\0b", data=D), r"out='a\x00b' cannot be a folder"),
    (lambda t: run(E, "a" * 300, data=D), "cannot be a folder: File name too long"),
    (lambda t: run(E, "/dev/null/a", data=D), "/dev/null/a cannot be written"),
    (lambda t: resume(ANY), "out=None is not a path"),
    (lambda t: resume(""), "out='' is empty"),
    (lambda t: resume(t / "a"), "a is not a run folder: experiment.toml is missing"),
    (lambda t: resume(t, stop=1), "stop=1 is not a function"),  # type: ignore[arg-type]
    (lambda t: resume(t, observers=1), "observers: 1 is not an Observer"),  # type: ignore[arg-type]
    (lambda t: Run.open(t), "is not a run folder"),
    (lambda t: Run.open("a\0b"), r"a\x00b is not a run folder"),
    (lambda t: Experiment(lr=ANY), "lr=None is not float"),
    (lambda t: Experiment(rounds=np.int64(3)), "rounds=np.int64(3) is not int"),  # type: ignore[arg-type]
    (lambda t: Experiment(rounds=2.0), "rounds=2.0 is not int"),  # type: ignore[arg-type]
    (lambda t: Experiment(model=net()), "model=Sequential("),  # type: ignore[arg-type]
    (lambda t: Experiment(partition=[[0]]), "partition=[[0]] is not str"),  # type: ignore[arg-type]
    (lambda t: Experiment(seed=-1), "seed=-1 is out of range"),
    (lambda t: run(Experiment(data="custom:x"), t / "a"), "data=custom:x is an object that was given from Python"),
    (lambda t: find_runs([]), "paths=[] is not a list of folders"),
    (lambda t: find_runs(t), "is not a list of folders; name run folders"),  # type: ignore[arg-type]
    (lambda t: find_runs([t]), "holds no run folder"),
    (lambda t: find_runs([t / "a"]), "a is not a folder"),
    (lambda t: write_report([], t / "a.html"), "runs: [] is not a list of runs"),
    (lambda t: write_report([t], t / "a.html"), "is not a list of runs"),  # type: ignore[list-item]
    (lambda t: write_report(DONE, t / "a.html"), "is not a list of runs"),  # type: ignore[arg-type]
    (lambda t: draw_curves([], t / "a.svg", ""), "runs: [] is not a list of runs"),
    (lambda t: draw_curves([DONE], t / "a.xyz", ""), "a.xyz is not the name of a figure; it ends in .svg, .pdf, .png"),
    (lambda t: draw_curves([DONE], t / "b" / "a.svg", ""), "a.svg cannot be written"),
    (lambda t: draw_figure("loss", [DONE], t / "a.svg"), "the figure loss is not known; it is one of curves, tau"),
    (lambda t: draw_figure("tau", [None], t / "a.svg"), "runs: None is not a list of runs"),  # type: ignore[list-item]
    (lambda t: draw_figure("partition", [DONE], t / "a.svg"), "the figure partition needs a run folder"),
    (lambda t: draw_figure("curves", [DONE], t / "a"), "a is not the name of a figure"),
]


@pytest.fixture(autouse=True)
def no_hang() -> Iterator[None]:
    """A call that does not come back is a fault of its own."""
    if sys.platform == "win32":
        yield
        return

    def late(number: int, frame: Any) -> None:
        raise TimeoutError("the call did not come back within two minutes")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


MISUSES = [*DATA, *MODELS, *LOSSES, *METHODS, *PARTITIONS, *CALLS]


@pytest.mark.parametrize(("call", "said"), MISUSES, ids=[said[:60] for _, said in MISUSES])
def test_misuse(call: Call, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        call(tmp_path)
    text = str(caught.value)
    assert said in text
    assert "\n" not in text
    assert "--" not in text
    assert len(text) < 500
    assert not list(tmp_path.iterdir())


RESUMED: list[tuple[dict[str, Any], str]] = [
    ({"rounds": -1}, "rounds=-1 is out of range"),
    ({"rounds": "5"}, "rounds='5' is not int"),
    ({"rounds": True}, "rounds=True is not int"),
    ({"rounds": 1}, "is finished: 2 rounds are done"),
    ({}, "is finished: 2 rounds are done"),
    ({"rounds": 3, "data_dir": 3}, "data_dir=3 is not str"),
    ({"rounds": 3, "device": "gpu"}, "device='gpu' is not known"),
    ({"rounds": 3, "observers": [print]}, "is not an Observer; see fedveca.Observer"),
    ({"rounds": 3, "data": None}, "data=custom:arrays is an object that was given from Python"),
    ({"rounds": 3, "data": F}, "belongs to another experiment or other data"),
    ({"rounds": 3, "data": X}, "data is ndarray"),
    ({"rounds": 3, "model": nn.Linear(3, 3)}, "the model (Linear) does not fit rows of shape [4]"),
    ({"rounds": 3, "method": FedAvg}, "method is the class FedAvg"),
    ({"rounds": 3, "partition": [[0], []]}, "partition leaves client 1 without a row"),
    ({"rounds": 3, "loss": "mse"}, "loss='mse' is a name"),
]


@pytest.fixture(scope="module")
def former(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("former") / "a"
    run(E, folder, data=D)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize(("given", "said"), RESUMED, ids=[said for _, said in RESUMED])
def test_a_run_is_resumed_wrongly(given: dict[str, Any], said: str, former: Path) -> None:
    before = content(former)
    with pytest.raises(ValueError) as caught:  # noqa: PT011
        resume(former, **({"data": D} | given))
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)
    assert content(former) == before


@pytest.mark.parametrize("call", [lambda out: run(E, out, data=D), lambda out: compare(E, 1, out, data=D)])
def test_a_folder_that_holds_a_run_is_not_written(call: Any, former: Path) -> None:
    before = content(former)
    with pytest.raises(ValueError, match=r"/a already holds a run; name another folder$"):
        call(former)
    assert content(former) == before


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: run(E, epochs=3), "unexpected keyword argument 'epochs'"),  # type: ignore[call-arg]
        (lambda: run(E, watch=print), "unexpected keyword argument 'watch'"),  # type: ignore[call-arg]
        (lambda: FedAvg(), "missing 1 required positional argument: 'lr'"),  # type: ignore[call-arg]
        (lambda: from_arrays(X), "missing 1 required positional argument: 'y'"),  # type: ignore[call-arg]
        (lambda: compare(E, 1), "missing 1 required positional argument: 'out'"),  # type: ignore[call-arg]
        (lambda: Run.open(3), "not int"),  # type: ignore[arg-type]
    ],
)
def test_what_python_itself_rejects(call: Any, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TypeError, match=said) as caught:
        call()
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("method", [None, FedAvg, Bare()])
def test_a_method_that_is_none_is_named_by_its_suite(method: Any) -> None:
    with pytest.raises(AssertionError) as caught:
        fedveca.testing.check_algorithm(method)
    assert "\n" not in str(caught.value)
