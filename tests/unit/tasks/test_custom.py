"""Custom objects: data of every kind, model, loss, metric, partition and method; and what is said of bad ones."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from recorded import require_number
from safetensors.torch import load_file
from torch import Tensor, nn

import fedveca
from fedveca import Dataset, Experiment, FedAvg, compare, from_arrays, from_hugging_face, from_torch, resume, run
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.compare import make_table
from fedveca.runs.export import export_run
from fedveca.runs.folder import Run
from fedveca.runs.observers import Observer
from fedveca.runs.setting_fields import Precision
from fedveca.views.figures.curves import draw_curves
from fedveca.views.terminal.comparison import make_method_table
from fedveca.views.terminal.screen import Screen

RNG = np.random.default_rng(0)
X = RNG.normal(size=(120, 4))
LABELS = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
NUMBERS = X @ np.array([1.0, -2.0, 0.5, 0.0])
E = Experiment(partition="iid", clients=3, rounds=3, batch=8, lr=0.05, tau_0=3)


def net(outputs: int = 3) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, outputs))


def near(scores: Tensor, y: Tensor) -> Tensor:
    return ((scores[:, 0] - y).abs() < 0.5).float()


def worst(scores: Tensor, y: Tensor) -> Tensor:
    return (scores[:, 0] - y).abs().max()


def huber(scores: Tensor, y: Tensor) -> Tensor:
    return nn.functional.huber_loss(scores[:, 0], y, reduction="none")


def wider(scores: Tensor, y: Tensor) -> Tensor:
    return huber(scores, y) * 2


# data


def test_arrays_become_a_data_set() -> None:
    data = from_arrays(X, LABELS)
    assert (data.name, data.classes, data.pixels, data.writer) == ("custom:arrays", 3, "as-is", None)
    assert (data.x.shape, data.x.dtype, data.y.dtype) == ((96, 4), torch.float32, torch.int64)
    assert (len(data.x_test), len(data.y_test)) == (24, 24)
    whole = torch.cat([data.x, data.x_test])
    assert {tuple(row) for row in whole.tolist()} == {tuple(row) for row in X.astype(np.float32).tolist()}
    assert torch.equal(from_arrays(X, LABELS).x_test, data.x_test)  # held back once and for all
    kept = X.copy()
    data.x.zero_()
    assert np.array_equal(X, kept)  # the user's arrays stay the user's


@pytest.mark.parametrize("make", [list, torch.as_tensor, lambda v: np.asarray(v, ">f4"), lambda v: np.asarray(v)[:]])
def test_many_kinds_of_arrays(make: Any) -> None:
    assert torch.allclose(from_arrays(make(X.tolist()), LABELS).x, from_arrays(X, LABELS).x)


def test_numbers_labels_tokens_and_images() -> None:
    assert from_arrays(X, NUMBERS).classes == 0
    assert from_arrays(X, LABELS[:, None]).y.shape == (96,)
    assert from_arrays(X, LABELS > 0).classes == 2
    assert from_arrays(X, np.stack([NUMBERS, NUMBERS], 1)).y.shape == (96, 2)
    assert from_arrays(X.astype(int), LABELS).x.dtype == torch.float32
    assert from_arrays(abs(X).astype(int), LABELS, tokens=True).x.dtype == torch.int64
    images = RNG.integers(0, 256, (120, 1, 8, 8)).astype(np.uint8)
    data = from_arrays(images, LABELS, test=(images[:7], LABELS[:7]))
    assert (data.x.dtype, data.pixels, len(data.x), len(data.x_test)) == (torch.uint8, "unit", 120, 7)
    frame = pytest.importorskip("pandas").DataFrame(X)
    assert torch.equal(from_arrays(frame, LABELS).x, from_arrays(X, LABELS).x)


def test_grey_pictures_are_divided_by_255_as_others_are() -> None:
    grey, labels = RNG.integers(0, 256, (60, 5, 4)).astype(np.uint8), np.arange(60) % 3
    data, pictures = from_arrays(grey, labels), from_arrays(grey[:, None], labels)
    assert (data.x.dtype, data.x.shape, data.pixels) == (torch.uint8, (48, 5, 4), "unit")
    e = replace(E, model="mlp")  # it flattens a row: the channel makes no difference
    one, other = run(e, data=data), run(e, data=pictures)
    assert all(torch.equal(v, other.model[name]) for name, v in one.model.items())
    raw = run(replace(e, pixels="as-is"), data=data)
    assert not torch.equal(raw.model["1.weight"], one.model["1.weight"])
    assert run(replace(e, pixels="unit"), data=data).rounds[-1]["test_loss"] == one.rounds[-1]["test_loss"]
    with pytest.raises(ValueError, match=r"pixels=standardised needs images; .* have the shape \[5, 4\]"):
        run(replace(e, pixels="standardised"), data=data)
    table = from_arrays(grey[:, :, 0], labels)  # a table of small numbers
    assert (table.x.dtype, table.pixels) == (torch.float32, "as-is")


def test_pictures_of_pil_are_divided_by_255() -> None:
    image = pytest.importorskip("PIL.Image")
    grey = RNG.integers(0, 256, (10, 5, 4)).astype(np.uint8)
    data = from_torch([(image.fromarray(picture), i % 2) for i, picture in enumerate(grey)])
    assert (image.fromarray(grey[0]).mode, data.pixels, data.x.shape) == ("L", "unit", (8, 5, 4))
    assert torch.equal(data.x, from_arrays(grey, np.arange(10) % 2).x)


def test_whole_numbers_of_every_width_and_masks_without_a_masked_value() -> None:
    whole = RNG.integers(0, 100, (120, 4))
    for kind in (np.uint16, np.uint32, np.uint64, np.int8, ">u4"):
        assert torch.equal(from_arrays(whole.astype(kind), LABELS.astype(kind)).x, from_arrays(whole, LABELS).x)
    tokens = from_arrays(torch.tensor(whole).to(torch.uint16), LABELS, tokens=True)
    assert torch.equal(tokens.x, from_arrays(whole, LABELS, tokens=True).x)
    assert torch.equal(from_arrays(np.ma.masked_array(X, X > 1e9), LABELS).x, from_arrays(X, LABELS).x)


BAD = [
    (lambda: from_arrays(X[:, 0], LABELS), r"x has the shape \[120\]; it needs a row for each example"),
    (lambda: from_arrays(X, LABELS[:7]), "x and y do not fit: 120 rows and 7 targets"),
    (lambda: from_arrays(X[:0], LABELS[:0]), "x and y have no rows"),
    (lambda: from_arrays([["a"]] * 5, [0] * 5), "x holds <U1, not numbers"),
    (lambda: from_arrays(X, ["a", "b"] * 60), r"y holds <U1, not numbers; np.unique\(y, return_inverse=True\)"),
    (lambda: from_arrays([[1.0], [1.0, 2.0]], [0, 1]), "x is not an array"),
    (lambda: from_arrays(np.where(np.isin(X, X[17]), np.nan, X), LABELS), r"x is not finite in row 17"),
    (lambda: from_arrays(X, np.where(NUMBERS > 0, np.inf, 1.0)), "y is not finite in row"),
    (lambda: from_arrays(X, LABELS - 1), "y holds the label -1; labels are 0 ... C - 1"),
    (lambda: from_arrays(X, LABELS + 500), "y goes up to 502 with 120 rows"),
    (lambda: from_arrays(X, LABELS, test=1.5), r"test=1.5 is out of range; it is a share in \(0, 1\)"),
    (lambda: from_arrays(X[:1], LABELS[:1]), "1 rows are too few to hold back 1"),
    (lambda: from_arrays(X, LABELS, test=cast("Any", (X, LABELS, X))), "test is 3 things"),
    (lambda: from_arrays(X, LABELS, test=(X[:, :3], LABELS)), r"x of test has rows of shape \[3\]"),
    (lambda: from_arrays(X, LABELS, test=(X, NUMBERS)), "y of test has rows of shape"),
    (lambda: from_arrays(X, LABELS, writer=["a"]), r"writer has the shape \[1\]; it names one owner for each of 120"),
    (lambda: from_arrays(X, LABELS, tokens=True), "tokens are whole numbers from 0 up"),
    (lambda: from_torch(iter(())), "cannot be counted and indexed"),
    (lambda: from_torch([]), "the data set has no rows"),
    (lambda: from_torch([1, 2]), r"the data set gives int for a row; it must give pairs \(x, y\)"),
    (lambda: from_torch([(X[0], 1), (X[1, :2], 1)]), r"x of row 1 has the shape \[2\], of row 0 \[4\]"),
]


@pytest.mark.parametrize(("make", "said"), BAD)
def test_bad_data_are_named(make: Any, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        make()


def test_a_torch_data_set() -> None:
    pairs = torch.utils.data.TensorDataset(torch.tensor(X), torch.tensor(LABELS))
    data, arrays = from_torch(pairs), from_arrays(X, LABELS)
    assert data.name == "custom:TensorDataset"
    assert torch.equal(data.x, arrays.x)
    assert torch.equal(data.y_test, arrays.y_test)
    held = from_torch(pairs, test=torch.utils.data.TensorDataset(torch.tensor(X[:9]), torch.tensor(LABELS[:9])))
    assert (len(held.x), len(held.x_test)) == (120, 9)


def test_a_hugging_face_data_set_and_a_partitioner() -> None:
    datasets = pytest.importorskip("datasets")
    partitioners = pytest.importorskip("flwr_datasets.partitioner")
    columns = {f"c{i}": X[:, i].tolist() for i in range(4)}
    table = datasets.Dataset.from_dict({**columns, "y": LABELS.tolist(), "who": ["a", "b"] * 60})
    data = from_hugging_face(table, ["c0", "c1", "c2", "c3"], "y", writer="who")
    assert torch.allclose(data.x, from_arrays(X, LABELS).x)
    assert data.writer is not None
    assert set(data.writer.tolist()) == {0, 1}
    with pytest.raises(ValueError, match="the data set has no column 'label'; it has c0, c1"):
        from_hugging_face(table, "c0", "label")
    pictures = RNG.integers(0, 256, (6, 5, 4, 3)).astype(np.uint8)
    features = datasets.Features({"img": datasets.Image(), "y": datasets.Value("int64")})
    seen = datasets.Dataset.from_dict({"img": list(pictures), "y": [0, 1] * 3}, features=features)
    images = from_hugging_face(seen, "img", "y", test=seen)
    assert torch.equal(images.x, torch.from_numpy(pictures).permute(0, 3, 1, 2))
    parts = partitioners.IidPartitioner(num_partitions=4)
    parts.dataset = table
    dealt = fedveca.from_partitioner(parts, ["c0", "c1", "c2", "c3"], "y")
    assert dealt.name == "custom:IidPartitioner"
    done = run(replace(E, partition="writer", clients=4), data=dealt)
    assert sorted(done.rounds[0]["ids"]) == [0, 1, 2, 3]


# model, loss, metric, partition


def test_ones_own_module_is_trained_and_left_alone(capfd: pytest.CaptureFixture[str]) -> None:
    module = net()
    before = {name: v.clone() for name, v in module.state_dict().items()}
    done = run(replace(E, rounds=8), data=from_arrays(X, LABELS), model=module)
    assert all(torch.equal(v, before[name]) for name, v in module.state_dict().items())
    module.load_state_dict(done.model)
    data = from_arrays(X, LABELS)
    share = float((module(data.x_test).argmax(1) == data.y_test).float().mean())
    assert done.summary["kept"]["test_accuracy"] == pytest.approx(share)
    assert share > 0.5
    e = done.experiment
    assert (e.data, e.model, e.loss, e.metric) == ("custom:arrays", "custom:Sequential", "auto", "auto")
    assert capfd.readouterr() == ("", "")


class Tied(nn.Module):
    """One matrix under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)
        self.outer.weight = self.inner.weight
        self.last = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.last(self.outer(torch.tanh(self.inner(x))))
        return out


@pytest.mark.parametrize("clients", [3, 9])  # one by one and mapped
def test_tied_weights_are_handed_out_under_every_name(clients: int, tmp_path: Path) -> None:
    module, data = Tied(), from_arrays(X, LABELS)
    start = deepcopy(module)
    done = run(replace(E, clients=clients), tmp_path / "a", data=data, model=module)
    assert done.model.keys() == module.state_dict().keys()
    export_run(Run.open(tmp_path / "a"), "safetensors", tmp_path / "b.safetensors")
    stored = load_file(tmp_path / "a" / "model.safetensors"), load_file(tmp_path / "b.safetensors")
    for found in (done.model, Run.open(tmp_path / "a").model, *stored):
        module = deepcopy(start)
        module.load_state_dict(found, strict=True)
        assert module.outer.weight is module.inner.weight
        share = float((module(data.x_test).argmax(1) == data.y_test).float().mean())
        assert done.summary["kept"]["test_accuracy"] == pytest.approx(share)
    again = resume(tmp_path / "a", rounds=5, data=data, model=start)
    assert len(again.rounds) == 5


class Squeezed(nn.Module):
    """Drops the rows' dimension where there is one row."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 1)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc(x).squeeze()
        return out


class Attention(nn.Module):
    """Over the places of a row."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.last = nn.MultiheadAttention(2, 1, batch_first=True), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        places = x.view(-1, 2, 2)
        out: Tensor = self.last(self.attention(places, places, places)[0].flatten(1))
        return out


HONEST: list[tuple[nn.Module, dict[str, Any]]] = [
    (nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Linear(6, 3)), {}),
    (nn.Sequential(nn.Linear(4, 6), nn.GroupNorm(2, 6), nn.ReLU(inplace=True), nn.Linear(6, 3)), {}),
    (nn.Sequential(nn.Unflatten(1, (2, 2)), nn.InstanceNorm1d(2), nn.Flatten(), nn.Linear(4, 3)), {}),
    (nn.Sequential(nn.ReLU(inplace=True), nn.Linear(4, 3)), {}),
    (nn.Sequential(nn.Linear(4, 3), nn.Softmax(1)), {}),
    (Attention(), {}),
    (net().eval(), {}),
    (nn.utils.parametrizations.weight_norm(nn.Linear(4, 3)), {}),
    (Squeezed(), {"data": from_arrays(X, NUMBERS), "loss": lambda scores, y: (scores.reshape(y.shape) - y) ** 2}),
]


@pytest.mark.parametrize(
    ("module", "custom"), HONEST, ids=lambda v: type(v).__name__ if isinstance(v, nn.Module) else ""
)
@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_models_that_keep_rows_apart_are_trained(module: nn.Module, custom: Any, precision: Precision) -> None:
    done = run(replace(E, precision=precision), **({"data": from_arrays(X, LABELS), "model": module} | custom))
    assert len(done.rounds) == 3


def test_tokens_up_to_the_last_of_the_vocabulary_are_trained() -> None:
    x = RNG.integers(0, 4, (60, 6))
    model = nn.Sequential(nn.Embedding(4, 2), nn.Flatten(), nn.Linear(12, 2))
    assert len(run(E, data=from_arrays(x, x[:, 0] % 2, tokens=True), model=model).rounds) == 3
    held = x.copy()
    held[50, 2] = 4
    with pytest.raises(ValueError, match="rows of the test data, whose ids go up to 4: index out of range"):
        run(E, data=from_arrays(x, x[:, 0] % 2, tokens=True, test=(held, x[:, 0] % 2)), model=model)


def test_a_device_of_torchs_is_taken_by_its_name() -> None:
    done = run(E, data=D, device=torch.device("cpu"))  # type: ignore[arg-type]
    assert done.rounds[-1]["test_loss"] == run(E, data=D, device="cpu").rounds[-1]["test_loss"]


def test_an_observer_cannot_change_the_record() -> None:
    class Clears(Observer):
        def round(self, record: Any) -> None:
            record["tau"].clear()
            record.clear()

    done, quiet = run(E, data=D, observers=[Clears()]), run(E, data=D)
    assert [line["tau"] for line in done.rounds] == [line["tau"] for line in quiet.rounds]
    assert done.summary["tau_all"] == quiet.summary["tau_all"] > 0


def test_a_factory_starts_from_the_seed() -> None:
    data = from_arrays(X, LABELS)
    ends = [run(replace(E, seed=s), data=data, model=lambda shape, n: nn.Linear(shape[0], n)).model for s in (0, 0, 1)]
    assert torch.equal(ends[0]["weight"], ends[1]["weight"])
    assert not torch.equal(ends[0]["weight"], ends[2]["weight"])


@pytest.mark.parametrize("clients", [3, 9])  # one by one and mapped
def test_regression_is_the_same_by_hand(clients: int) -> None:
    """One step of every client from zero: w = -lr grad of the mean squared error over the rows drawn."""
    data = from_arrays(X, NUMBERS)
    module = nn.Linear(4, 1, bias=False)
    nn.init.zeros_(module.weight)
    e = replace(E, method="fedavg", rounds=1, tau_0=1, clients=clients, keep="last")
    built = build(e, data=data, model=module)
    done = run(e, data=data, model=module)
    from fedveca.cohorts import random as draws

    ids, shares = torch.arange(clients), built.shares
    index = draws.draw_rows(0, 0, ids, shares.sizes, 1, 8)[:, 0] + shares.start[:-1, None]
    x, y = data.x[shares.rows][index], data.y[shares.rows][index]
    p = shares.sizes / shares.sizes.sum()
    want = 0.05 * sum((p[i] * (2 * y[i, :, None] * x[i]).mean(0) for i in range(clients)), torch.zeros(4))
    assert torch.allclose(done.model["weight"][0], want, atol=1e-6)
    error = (data.x_test @ want - data.y_test).abs().mean()
    assert done.summary["last"]["test_absolute_error"] == pytest.approx(float(error), rel=1e-5)
    assert "test_accuracy" not in done.summary["last"]


@pytest.mark.parametrize("partition", ["shards", "quantity", "case1", "writer"])
def test_numbers_to_predict_are_dealt_too(partition: str) -> None:
    data = from_arrays(X, NUMBERS, writer=["a", "b", "c"] * 40)
    done = run(replace(E, partition=partition, rounds=6, lr=0.01), data=data)
    assert require_number(done.rounds[-1], "test_loss") < require_number(done.rounds[0], "test_loss")


@pytest.mark.parametrize("metric", [near, worst])
def test_ones_own_loss_and_metric(metric: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data, name = from_arrays(X, NUMBERS), f"test_{metric.__name__}"
    done = run(E, tmp_path / "a", data=data, model=net(1), loss=huber, metric=metric)
    module = net(1)
    module.load_state_dict(done.model)
    with torch.no_grad():
        scores = module(data.x_test)
    kept = done.summary["kept"]
    assert require_number(kept, name) == pytest.approx(float(metric(scores, data.y_test).mean()), rel=1e-5)
    assert kept["test_loss"] == pytest.approx(float(huber(scores, data.y_test).mean()), rel=1e-5)
    assert set(kept) == {"round", "test_loss", name}
    assert Run.open(tmp_path / "a").metric == done.metric == name
    assert (done.experiment.loss, done.experiment.metric) == ("custom:huber", f"custom:{metric.__name__}")
    with Screen() as screen:
        screen.summarize(done)
        screen.print(make_method_table([done], "mine"))
        screen.start(done.experiment, None)
        screen.round(done.rounds[-1])
        screen.end(done)
    assert metric.__name__ in capsys.readouterr().out
    draw_curves([done], tmp_path / "a.svg", "mine")
    assert f"test {metric.__name__}" in (tmp_path / "a.svg").read_text()


def test_sequences_have_a_label_at_every_place() -> None:
    x = RNG.integers(0, 5, (60, 6))
    y = (x + 1) % 5
    model = nn.Sequential(nn.Embedding(5, 5), nn.Linear(5, 5))
    for clients in (3, 8):
        done = run(replace(E, rounds=10, clients=clients, lr=0.5), data=from_arrays(x, y, tokens=True), model=model)
        assert require_number(done.summary["last"], "test_accuracy") > 0.6


def test_ones_own_partition() -> None:
    data = from_arrays(X, LABELS)
    mine = [[0, 5, 2], np.arange(10, 40), torch.arange(40, 96)]
    built = build(E, data=data, partition=mine)
    assert built.shares.sizes.tolist() == [3, 30, 56]
    assert built.shares.rows[:3].tolist() == [0, 2, 5]
    assert (built.experiment.partition, built.experiment.clients) == ("custom:list", 3)
    alone = build(replace(E, method="centralised"), data=data, partition=mine)
    assert alone.shares.rows.tolist() == [0, 2, 5, *range(10, 96)]

    def halves(data: Dataset, clients: int, seed: int) -> list[Tensor]:
        return list(torch.arange(len(data.y)).tensor_split(clients + seed))

    built = build(replace(E, seed=1, clients=2), data=data, partition=halves)
    assert (built.experiment.partition, built.experiment.clients) == ("custom:halves", 3)


def broken(data: Dataset, clients: int, seed: int) -> list[Tensor]:
    raise KeyError("hospital")


D = from_arrays(X, LABELS)
F = from_arrays(X, NUMBERS)
NONSENSE = [
    ({"data": X}, r"data is ndarray; from_arrays\(x, y\) and its like make a Dataset of it"),
    ({"data": D, "model": "mlp"}, "model is str; it is a torch.nn.Module or a factory"),
    ({"data": D, "model": nn.Linear(3, 3)}, r"the model \(Linear\) does not fit rows of shape \[4\]"),
    ({"data": D, "model": nn.Linear(4, 2)}, r"gives scores \[2, 2\] for 2 rows; 3 classes need \[2, 3\]"),
    ({"data": D, "model": nn.BatchNorm1d(4, momentum=None)}, "has momentum=None.*give it a momentum such as 0.1"),
    ({"data": D, "model": lambda shape, n: None}, "returned NoneType; a factory"),
    ({"data": D, "model": nn.Embedding(4, 3)}, r"an Embedding wants whole numbers: from_arrays\(..., tokens=True\)"),
    ({"data": F, "model": net(3)}, r"loss .squared_error. cannot take scores \[2, 3\] and targets \[2\].*astype.int"),
    ({"data": F, "loss": nn.functional.mse_loss, "model": nn.Flatten(0)}, "has no parameters"),
    ({"data": F, "loss": lambda s, y: (s[:, 0] - y).mean()}, r'gives \[\] for 2 rows.*reduction="none"'),
    ({"data": F, "loss": lambda s, y: (s - y) ** 2}, r"mixes rows.*scores \[2, 1\] and targets \[2\]"),
    ({"data": F, "loss": 3}, r"loss is int; it is a function of \(scores, y\)"),
    ({"data": F, "metric": lambda s, y: s.sum()}, "metric is called '<lambda>'"),
    ({"data": F, "metric": near, "model": nn.Linear(4, 1), "loss": lambda s, y: 1 / 0}, "loss .* cannot take"),
    ({"data": D, "model": net(1), "loss": huber}, "metric=accuracy needs .* give a custom metric"),
    ({"data": D, "partition": "mine"}, "partition is str; it is a list"),
    ({"data": D, "partition": []}, "partition is list; it is a list that holds each client's rows"),
    ({"data": D, "partition": [[0], []]}, "partition leaves client 1 without a row"),
    ({"data": D, "partition": [[0], [96]]}, "client 1 has row 96; there are rows 0 to 95 to train on"),
    ({"data": D, "partition": [[0, 0], [1]]}, "client 0 has a row twice"),
    ({"data": D, "partition": [[0.5], [1]]}, "client 0 has torch.float64"),
    ({"data": D, "partition": broken}, "partition .custom:broken. fails: 'hospital'"),
    ({"data": D, "method": FedAvg}, r"method is the class FedAvg; give an object of it, FedAvg\(lr=...\)"),
    ({"data": D, "method": object()}, "method is object, which is not a subclass of fedveca.algorithms.Algorithm"),
]


@pytest.mark.parametrize(("custom", "said"), NONSENSE)
def test_what_is_wrong_with_an_object_is_named(custom: Any, said: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=said):
        run(E, tmp_path / "a", **custom)
    assert not (tmp_path / "a").exists()


def test_an_unknown_keyword_is_refused() -> None:
    with pytest.raises(TypeError, match="modle"):
        run(E, data=D, modle=net())  # type: ignore[call-arg]


@pytest.mark.parametrize("partition", ["case2", "case3", "dirichlet"])
def test_rules_of_labels_refuse_numbers(partition: str) -> None:
    with pytest.raises(ValueError, match=f"partition={partition} needs one label per row"):
        run(replace(E, partition=partition), data=F)
    with pytest.raises(ValueError, match="model=svm has its own loss"):
        run(replace(E, model="svm"), data=F)


# method, compare, resume


@dataclass(frozen=True)
class Lazy(FedAvg):
    """FedAvg that goes a part of the way."""

    part: float = 0.5

    def update(self, state: Any, ids: Tensor, p: Tensor, report: Any) -> Any:
        return state._replace(w=state.w - self.part * self.lr * report.mean["G"]), {}


def test_ones_own_method() -> None:
    done = run(E, data=D, model=net(), method=Lazy(0.02, 1.0))
    assert (done.experiment.method, done.experiment.lr) == ("custom:Lazy(lr=0.02, part=1.0)", 0.02)
    same = run(replace(E, method="fedavg", lr=0.02), data=D, model=net())
    assert all(torch.equal(v, same.model[name]) for name, v in done.model.items())


@dataclass(frozen=True)
class TakesTheName(FedAvg):
    """FedAvg with a vector under the name of the model's running statistics."""

    where: str = "finish"

    def order(self, state: Any) -> Any:
        order = super().order(state)
        return order._replace(aux={"statistics": state.w}) if self.where == "order" else order

    def memory(self, w: Tensor) -> Any:
        return {"statistics": w} if self.where == "memory" else {}

    def finish(self, order: Any, s: Any, w: Tensor, tau: Tensor) -> Any:
        vectors, numbers, memory = super().finish(order, s, w, tau)
        return vectors | ({"statistics": w} if self.where == "finish" else {}), numbers, memory


@pytest.mark.parametrize("engine", ["local", "debug"])
@pytest.mark.parametrize("where", ["order", "memory", "finish"])
def test_a_vector_cannot_have_the_name_of_the_running_statistics(where: str, engine: Any) -> None:
    said = f"{where} gives a vector called 'statistics', which is the name of the model's running statistics; give it"
    with pytest.raises(UserError, match=said):
        run(replace(E, engine=engine), data=D, model=net(), method=TakesTheName(0.02, where))


@dataclass(frozen=True)
class Counting(FedAvg):
    """Remembers how often it was asked: a trial of it works on a copy."""

    calls: list[int] = field(default_factory=list, repr=False)

    def update(self, state: Any, ids: Tensor, p: Tensor, report: Any) -> Any:
        self.calls.append(len(ids))
        return super().update(state, ids, p, report)


def test_a_method_is_tried_on_a_copy() -> None:
    method = Counting(0.05)
    torch.manual_seed(3)
    before = torch.get_rng_state()
    done = run(E, data=D, method=method)
    assert (method.calls, len(done.rounds)) == ([3, 3, 3], 3)
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.slow
def test_comparing_objects(tmp_path: Path) -> None:
    methods: Any = ("fedveca", "fedavg", "centralised", Lazy(0.05), Lazy(0.05, 0.9))
    custom: Any = {"data": F, "model": net(1), "metric": worst, "partition": [range(40), range(40, 96)]}
    runs = compare(E, 2, tmp_path, methods=methods, **custom)
    assert [len(r.rounds) for r in runs] == [3] * 10
    rows = make_table(runs)
    assert [row["method"] for row in rows][3:] == ["custom:Lazy(lr=0.05, part=0.5)", "custom:Lazy(lr=0.05, part=0.9)"]
    assert all(set(row["kept"]) == {"test_loss", "test_worst"} for row in rows)
    assert (tmp_path / "Lazy-lr=0.05-part=0.9-seed1" / "summary.json").exists()
    draw_curves(runs, tmp_path / "c.svg", "mine")
    again = compare(E, 2, tmp_path, methods=methods, **custom)
    assert [r.summary["seconds"] for r in again] == [r.summary["seconds"] for r in runs]  # not repeated
    with pytest.raises(ValueError, match="workers=2: custom objects are compared in this process"):
        compare(E, 1, tmp_path / "b", methods=methods, workers=2)
    with pytest.raises(ValueError, match="methods are named twice"):
        compare(E, 1, tmp_path / "b", methods=(Lazy(0.1), Lazy(0.1)))


def test_a_run_of_objects_goes_on_with_the_same_ones(tmp_path: Path) -> None:
    e = replace(E, rounds=6)
    custom: Any = {"data": F, "model": net(1), "loss": huber, "metric": near, "partition": [range(30), range(30, 96)]}
    whole = run(e, tmp_path / "whole", method=Lazy(0.05), **custom)
    run(replace(e, rounds=3), tmp_path / "part", method=Lazy(0.05), **custom)
    done = resume(tmp_path / "part", rounds=6, method=Lazy(0.05), **custom)
    assert all(torch.equal(v, whole.model[name]) for name, v in done.model.items())
    assert (tmp_path / "part/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()

    names = (
        r"method=custom:Lazy.*, data=custom:arrays, model=custom:Sequential, loss=.*, metric=.*, partition=custom:list"
    )
    with pytest.raises(
        ValueError, match=rf"custom objects \({names}\); resume it with: fedveca\.resume\('.*/part', \.\.\.\)"
    ):
        resume(tmp_path / "part", rounds=7)
    with pytest.raises(ValueError, match=r"data=custom:arrays is an object that was given from Python; give it again"):
        resume(tmp_path / "part", rounds=7, method=Lazy(0.05))
    with pytest.raises(ValueError, match=r"method=custom:Lazy\(lr=0.05, part=0.5\) is an object"):
        resume(tmp_path / "part", rounds=7, **custom)
    others: list[dict[str, Any]] = [
        {"method": Lazy(0.06)},
        {"data": from_arrays(X + 1, NUMBERS)},
        {"model": nn.Linear(4, 1)},
        {"partition": [range(31), range(31, 96)]},
        {"loss": wider},
    ]
    for other in others:
        with pytest.raises(ValueError, match="belongs to another experiment or other data"):
            resume(tmp_path / "part", rounds=7, **({"method": Lazy(0.05)} | custom | other))


def test_the_command_line_says_that_objects_are_pythons(capsys: pytest.CaptureFixture[str]) -> None:
    from fedveca.cli import main

    assert main(["run", "data=custom:mine"]) == 2
    assert "data=custom:mine is an object that was given from Python" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("y", "warns"),
    [
        ([0.0, 1.0, 0.0, 1.0], True),
        ([0.0, 1.0, 2.0, 2.0], True),
        ([0.0, 0.5, 1.0, 1.0], False),
        ([1.0, 2.0, 3.0, 4.0], False),
        ([0.0, 0.0, 0.0, 0.0], False),
    ],
)
def test_numbers_that_look_like_labels_are_named(y: list[float], warns: bool, caplog: pytest.LogCaptureFixture) -> None:
    data = from_arrays(np.zeros((4, 2), np.float32), np.array(y))
    assert data.classes == 0
    last = int(max(y))
    said = (
        f"y holds 0.0 to {last}.0, not of an integer type, so they are numbers to predict; y.astype(int) makes labels"
    )
    assert caplog.messages == [said] * warns


def test_a_metric_that_is_not_finite_is_named(caplog: pytest.LogCaptureFixture) -> None:
    def nothing(scores: Tensor, y: Tensor) -> Tensor:
        return torch.tensor(float("nan"))

    run(Experiment(rounds=1, batch=8), metric=nothing, device="cpu")
    said = "metric (nothing) is not finite for the untrained model; rounds in which that is so have no value of it"
    assert caplog.messages == [said]


def test_a_metric_called_loss_is_rejected() -> None:
    def loss(scores: Tensor, y: Tensor) -> Tensor:
        return scores[:, 0]

    with pytest.raises(
        UserError, match="metric is called 'loss', a name that the record uses itself; give the function"
    ):
        run(Experiment(rounds=1), metric=loss, device="cpu")
