"""How good a model is for each client: against a loop over clients and rows that is written out here."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from same_runs import lines, same
from torch import Tensor, nn

from fedveca.algorithms.contract import Algorithm, Named, NoCarry, Order, Report, ServerState
from fedveca.cohorts.contract import ClientScores
from fedveca.cohorts.random import choose_judges, draw_rows
from fedveca.runs import client_evaluation
from fedveca.runs.build import Built, build
from fedveca.runs.client_evaluation import summarize_clients
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import read_object
from fedveca.runs.folder import Run
from fedveca.runs.interrupt import Stopped
from fedveca.runs.run import resume, run
from fedveca.runs.setting_fields import Engine, Keep
from fedveca.tasks.datasets.dataset import prepare

E = Experiment(
    model="logistic", method="fedavg", partition="dirichlet", clients=6, rounds=3, batch=8, lr=0.2, tau_0=4,
    test_by="both", test_share=0.25, val=0.15, metric="accuracy,f1",
)  # fmt: skip


def named(record: object, name: str) -> Any:
    """A value whose name depends on the metric."""
    return record[name]  # type: ignore[index]


def find_rows(built: Built, part: str, client: int) -> tuple[Tensor, Tensor]:
    """A client's rows as the model takes them, and their labels."""
    assert built.held
    shares = getattr(built.held, part)
    rows = shares.rows[shares.start[client] : shares.start[client + 1]]
    return prepare(built.data.x[rows], built.data.pixels).flatten(1), built.data.y[rows]


def find_layer(done: Run) -> tuple[Tensor, Tensor]:
    """The weight and the bias of model=logistic."""
    weight, bias = sorted(done.model.values(), key=lambda v: -v.dim())
    return weight, bias


def score(x: Tensor, y: Tensor, weight: Tensor, bias: Tensor) -> tuple[float, float]:
    """Mean cross-entropy and accuracy, row after row."""
    loss, right = 0.0, 0
    for row, label in zip(x, y.tolist(), strict=True):
        scores = [float(row @ weight[c] + bias[c]) for c in range(len(weight))]
        loss -= scores[label] - math.log(sum(math.exp(s) for s in scores))
        right += max(range(len(scores)), key=scores.__getitem__) == label
    return loss / len(y), right / len(y)


@pytest.mark.parametrize("name", ["local", "debug"])
def test_every_clients_values_are_those_of_a_loop_over_clients_and_rows(name: Engine) -> None:
    done = run(replace(E, keep="last", engine=name), device="cpu")
    built, record = build(E), done.rounds[-1]
    weight, bias = find_layer(done)
    tested = [i for i in range(E.clients) if len(find_rows(built, "test", i)[1])]
    assert record["tested"] == tested
    found = [score(*find_rows(built, "test", i), weight, bias) for i in tested]
    losses, rates = [loss for loss, _ in found], [rate for _, rate in found]
    assert named(record, "client_test_loss") == pytest.approx(losses, rel=1e-5)
    assert named(record, "client_test_accuracy") == pytest.approx(rates, abs=1e-6)
    counts = [len(find_rows(built, "test", i)[1]) for i in tested]
    for metric, values, worst, best in (("loss", losses, max, min), ("accuracy", rates, min, max)):
        mean = sum(values) / len(values)
        assert named(record, f"clients_{metric}") == pytest.approx(mean, rel=1e-5)
        by_rows = sum(n * v for n, v in zip(counts, values, strict=True)) / sum(counts)
        assert named(record, f"clients_{metric}_rows") == pytest.approx(by_rows, rel=1e-5)
        spread = math.sqrt(sum((v - mean) ** 2 for v in values) / len(values))
        assert named(record, f"clients_{metric}_sd") == pytest.approx(spread, rel=1e-4)
        assert named(record, f"clients_{metric}_worst") == pytest.approx(worst(values), rel=1e-5)
        assert named(record, f"clients_{metric}_best") == pytest.approx(best(values), rel=1e-5)
    parts = [find_rows(built, "val", i) for i in range(E.clients)]
    x, y = (torch.cat([part[at] for part in parts]) for at in (0, 1))
    loss, rate = score(x, y, weight, bias)
    assert named(record, "val_loss") == pytest.approx(loss, rel=1e-5)
    assert named(record, "val_accuracy") == pytest.approx(rate, abs=1e-6)
    assert named(done.summary["last"], "client_test_loss") == named(record, "client_test_loss")
    assert named(done.summary["kept"], "val_loss") == named(record, "val_loss")


@pytest.mark.parametrize("name", ["local", "debug"])
def test_tuned_values_are_those_of_plain_steps_on_the_clients_training_rows(name: Engine) -> None:
    """n steps of SGD from the model, each on the rows that the client draws in that round; written out."""
    steps = 3
    done = run(replace(E, keep="last", engine=name, finetune_steps=steps), device="cpu")
    built, record = build(E), done.rounds[-1]
    assert built.held
    tested, losses, rates = record["tested"], [], []
    for i in tested:
        weight, bias = (v.clone().requires_grad_() for v in find_layer(done))
        x, y = find_rows(built, "train", i)
        drawn = draw_rows(E.seed, E.rounds - 1, torch.tensor([i]), torch.tensor([len(y)]), steps, E.batch)[0]
        for rows in drawn:
            loss = nn.functional.cross_entropy(x[rows] @ weight.T + bias, y[rows])
            slopes = torch.autograd.grad(loss, (weight, bias))
            with torch.no_grad():
                weight, bias = (v.sub(E.lr * g).requires_grad_() for v, g in zip((weight, bias), slopes, strict=True))
        loss_i, rate = score(*find_rows(built, "test", i), weight.detach(), bias.detach())
        losses.append(loss_i)
        rates.append(rate)
    assert named(record, "client_tuned_loss") == pytest.approx(losses, rel=1e-4)
    assert named(record, "client_tuned_accuracy") == pytest.approx(rates, abs=1e-6)
    assert named(record, "tuned_accuracy") == pytest.approx(sum(rates) / len(rates), abs=1e-6)
    assert named(record, "tuned_accuracy_worst") == pytest.approx(min(rates), abs=1e-6)
    assert named(record, "client_tuned_loss") != named(record, "client_test_loss")


@pytest.mark.parametrize("method", ["fedveca", "scaffold", "moon"])
def test_tuning_changes_nothing_of_the_run(method: str, tmp_path: Path) -> None:
    """Nothing of it is remembered or sent: rounds and model have the same bytes with and without it."""
    e = replace(E, model="mlp", method=method, participation=0.5)
    run(replace(e, finetune_steps=2), tmp_path / "tuned", device="cpu")
    run(e, tmp_path / "plain", device="cpu")
    tuned, plain = lines(tmp_path / "tuned"), lines(tmp_path / "plain")
    assert [{k: v for k, v in line.items() if "tuned_" not in k} for line in tuned] == plain
    model = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("tuned", "plain")]
    assert model[0] == model[1]


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        {"method": "fedveca", "model": "mlp", "participation": 0.5},
        {"method": "scaffold", "model": "svm", "metric": "accuracy"},
        {"method": "moon", "model": "mlp"},
        {"model": "mlp", "momentum": 0.9, "optimizer_state": "keep", "lr_schedule": "cosine"},
        {"model": "cnn", "rounds": 1, "tau_0": 2},
        {"data": "synthetic", "partition": "writer", "model": "logistic", "feature_noise": 0.1},
    ],
    ids=["fedveca", "scaffold", "moon", "momentum", "cnn", "noise"],
)
def test_the_debug_engine_gives_the_same(words: dict[str, Any]) -> None:
    e = replace(E, finetune_steps=3, **words)
    fast, plain = (run(replace(e, engine=name), device="cpu") for name in ("local", "debug"))
    for ours, theirs in zip(fast.rounds, plain.rounds, strict=True):
        assert ours.keys() == theirs.keys()
        for name, value in ours.items():
            if name.startswith(("val_", "client_", "clients_", "tuned_", "test_")):
                assert value == pytest.approx(named(theirs, name), rel=1e-4, abs=1e-5), name


def test_the_server_needs_no_rows_where_clients_test() -> None:
    """The test values are then the means by rows, so that curves, tables and `score` are as ever."""
    done, both = (run(replace(E, test_by=by), device="cpu") for by in ("client", "both"))
    for ours, theirs in zip(done.rounds, both.rounds, strict=True):
        assert ours["test_loss"] == named(ours, "clients_loss_rows") == named(theirs, "clients_loss_rows")
        assert ours["test_accuracy"] == named(ours, "clients_accuracy_rows")
        assert ours["test_loss"] != theirs["test_loss"]
    assert done.metric == "test_accuracy"
    assert done.score == done.summary["kept"]["test_accuracy"]
    assert done.better("clients_accuracy_worst") == "higher"
    assert done.better("client_test_loss") == "lower"
    assert done.better("clients_accuracy_sd") is None


def test_only_tested_rounds_test() -> None:
    done = run(replace(E, rounds=4, test_every=3, keep="last"), device="cpu")
    assert ["tested" in record for record in done.rounds] == [False, False, True, True]
    assert ["val_loss" in record for record in done.rounds] == [False, False, True, True]
    chosen = run(replace(E, rounds=4, test_every=3), device="cpu")
    assert ["tested" in record for record in chosen.rounds] == [False, False, True, True]
    assert all("val_loss" in record for record in chosen.rounds)  # it decides in every round


def test_the_partition_says_what_is_held_back(tmp_path: Path) -> None:
    run(E, tmp_path / "run", device="cpu")
    built, found = build(E), read_object(tmp_path / "run", "partition.json")
    assert built.held
    for name, part in (("sizes", built.held.train), ("val", built.held.val), ("test", built.held.test)):
        assert found[name] == part.sizes.tolist()
    run(replace(E, test_by="server", val=0.0), tmp_path / "plain", device="cpu")
    assert read_object(tmp_path / "plain", "partition.json").keys() == {"all", "clients", "sizes", "labels"}


@dataclass(frozen=True)
class Mine(Algorithm):
    """Each client keeps a model of its own, and the server's never changes."""

    lr: float

    def memory(self, w: Tensor) -> Named:
        return {"mine": w}

    def begin(self, order: Order, memory: Named) -> Tensor:
        return memory["mine"]

    def finish(self, order: Order, s: NoCarry, w: Tensor, tau: Tensor) -> tuple[Named, Named, Named]:
        return {"G": torch.zeros_like(w)}, {}, {"mine": w}

    def update(self, state: ServerState, ids: Tensor, p: Tensor, report: Report) -> tuple[ServerState, Named]:
        return state, {}


@pytest.mark.parametrize("name", ["local", "debug"])
def test_a_client_evaluates_the_model_that_it_begins_from(name: Engine) -> None:
    done = run(replace(E, rounds=6, engine=name), method=Mine(lr=0.2), device="cpu")
    server = [record["test_loss"] for record in done.rounds]
    mine = [named(record, "clients_loss") for record in done.rounds]
    assert server == [server[0]] * 6
    assert mine == sorted(mine, reverse=True)
    assert mine[-1] < 0.7 * mine[0]


@pytest.mark.parametrize("name", ["local", "debug"])
def test_statistics_that_stay_with_clients_are_what_they_evaluate_with(name: Engine) -> None:
    """BatchNorm's own at each client; with averaged ones clients would see other values."""
    e = replace(E, model="real_models:normed", metric="accuracy", engine=name, finetune_steps=2)
    local, average = (run(replace(e, norm_stats=kind), device="cpu") for kind in ("local", "average"))
    for record in local.rounds:
        assert all(map(math.isfinite, named(record, "client_test_loss")))
    assert named(local.rounds[-1], "client_test_loss") != named(average.rounds[-1], "client_test_loss")


# what is chosen


def test_the_kept_model_is_the_one_with_the_lowest_validation_loss() -> None:
    """A rate so large that the loss goes up and down; the start counts too."""
    done = run(replace(E, rounds=12, lr=3.0, tau_0=8, clients=3, participation=0.4), device="cpu")
    losses = [named(record, "val_loss") for record in done.rounds]
    accepted = [record["accepted"] for record in done.rounds]
    assert accepted[0] == (losses[0] <= math.log(10) + 1e-3)  # logistic starts at 0, with the loss log 10
    lowest = math.inf if accepted[0] else 2.4
    for loss, kept in zip(losses, accepted, strict=True):
        assert kept == (loss <= min(lowest, math.log(10) + 1e-3))
        lowest = loss if kept else lowest
    assert any(accepted)
    assert not all(accepted)
    assert done.summary["kept"]["round"] == 1 + max(k for k, kept in enumerate(accepted) if kept)
    assert named(done.summary["kept"], "val_loss") == pytest.approx(lowest)


def test_the_untrained_model_is_kept_where_every_round_is_worse() -> None:
    done = run(replace(E, lr=100.0, tau_0=20, model="mlp"), device="cpu")
    assert done.summary["kept"]["round"] == 0
    assert not any(record["accepted"] for record in done.rounds)
    assert "no round was better than the start" in done.summary["warnings"][-1]


def test_with_participation_models_are_compared_on_one_fixed_set_of_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """F of w_1, w_2, ... on the same clients, by a round without steps: computed here from the model of each round."""
    e = replace(E, test_by="server", val=0.0, participation=0.34, rounds=8, lr=1.0, tau_0=6, probe=0, seed=3)
    monkeypatch.setattr(client_evaluation, "JUDGES", 3)  # of the 6; two take part in a round
    judges = choose_judges(e.seed, e.clients, 3)
    assert len(judges) == 3
    losses, accepted = [math.log(10)], []
    for rounds in range(1, e.rounds + 1):
        done = run(replace(e, rounds=rounds, keep="last"), device="cpu")
        built = build(e)
        w = torch.cat([v.flatten() for v in done.model.values()])
        _, report = built.cohort(0, Order(w, {}), judges, torch.zeros_like(judges))
        sizes = built.cohort.sizes[judges].double()
        losses.append(float(report.each["loss"] @ sizes / sizes.sum()))
        accepted.append(losses[-1] <= min(losses[:-1]))
    best = run(e, device="cpu")
    assert [record["accepted"] for record in best.rounds] == accepted
    assert len(set(accepted)) == 2
    assert best.summary["kept"]["round"] == losses.index(min(losses))
    assert [record["ids"] for record in best.rounds] == [record["ids"] for record in done.rounds]


# resumed


@pytest.mark.parametrize(
    "words",
    [
        {"test_by": "client", "participation": 0.5},
        {"test_by": "both", "keep": "rollback", "val": 0.0, "finetune_steps": 2},
        {"test_by": "server", "val": 0.0, "participation": 0.5},
        {"test_by": "client", "method": "scaffold", "keep": "last", "test_every": 3},
    ],
    ids=["val", "rollback", "judges", "rare"],
)
def test_resumed_equals_uninterrupted(words: dict[str, Any], tmp_path: Path) -> None:
    e = replace(E, model="svm", metric="accuracy", lr=0.05, rounds=7, **words)
    run(e, tmp_path / "whole", device="cpu")
    asked = iter(range(1, 8))
    with pytest.raises(Stopped):
        run(e, tmp_path / "cut", device="cpu", stop=lambda: next(asked) == 4)
    resume(tmp_path / "cut", device="cpu")
    same(tmp_path / "whole", tmp_path / "cut")


@pytest.mark.parametrize("keep", ["best", "last"])
def test_more_rounds_where_tests_are_rare(keep: Keep, tmp_path: Path) -> None:
    """What was the last round is not any more: its test values go, those that decide stay."""
    e = replace(E, model="svm", metric="accuracy", lr=0.05, rounds=7, test_every=3, keep=keep)
    run(e, tmp_path / "seven", device="cpu")
    run(replace(e, rounds=5), tmp_path / "five", device="cpu")
    resume(tmp_path / "five", rounds=7, device="cpu")
    same(tmp_path / "seven", tmp_path / "five")


# faults


def test_a_client_that_is_away_does_not_evaluate_and_a_liar_reports_zeros() -> None:
    done = run(replace(E, rounds=6, faults="drop:0.4,lie:0.2"), device="cpu")
    tested = [set(record["tested"]) for record in done.rounds]
    assert len({len(ids) for ids in tested}) > 1
    for record, ids in zip(done.rounds, tested, strict=True):
        away = {fault["client"] for fault in record.get("faults", []) if fault["what"] == "drop"}
        assert away & ids == set()
        zeros = [i for i, loss in zip(record["tested"], named(record, "client_test_loss"), strict=True) if loss == 0]
        assert set(zeros) <= {fault["client"] for fault in record["faults"] if fault["what"] == "lie"}


# means


def test_the_worst_tenth_is_of_clients_and_follows_the_direction() -> None:
    v = torch.arange(20, dtype=torch.float64)
    scores = ClientScores(torch.arange(20), torch.full((20,), 5), {"loss": v, "accuracy": v, "odd": v})
    found = summarize_clients(scores, "clients", {"loss": "lower", "accuracy": "higher", "odd": None})
    assert found["clients_loss_worst"] == found["clients_accuracy_best"] == 18.5
    assert found["clients_loss_best"] == found["clients_accuracy_worst"] == 0.5
    assert found["clients_odd"] == 9.5
    assert "clients_odd_worst" not in found


def test_a_value_that_rows_do_not_define_does_not_count_but_a_diverged_client_does() -> None:
    nan, rows = math.nan, torch.tensor([1, 2, 3])
    values = {"loss": torch.tensor([1.0, 2.0, 3.0]).double(), "auc": torch.tensor([nan, 0.5, 0.9]).double()}
    found = summarize_clients(ClientScores(torch.arange(3), rows, values), "clients", {"auc": "higher"})
    assert found["clients_auc"] == pytest.approx(0.7)
    assert found["clients_auc_rows"] == pytest.approx(0.74)
    values["loss"][0] = nan
    found = summarize_clients(ClientScores(torch.arange(3), rows, values), "clients", {"loss": "lower"})
    assert found["clients_loss"] is found["clients_auc"] is found["clients_loss_sd"] is None
    none = ClientScores(torch.empty(0).long(), torch.empty(0).long(), {"loss": torch.empty(0).double()})
    assert set(summarize_clients(none, "clients", {"loss": "lower"}).values()) == {None}
