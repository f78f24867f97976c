"""What views draw, from runs to plain lists; every number worked by hand."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run
from fedveca.views import series


def made(lines: list[Any], summary: Any = None, **settings: Any) -> Run:
    return Run(Experiment(**settings), lines, {} if summary is None else summary)


def line(k: int, **more: Any) -> dict[str, Any]:
    return {"round": k, "ids": [0, 1], "tau": [2, 3], "bytes_up": 10, "bytes_down": 20, "seconds": 0.5} | more


def test_rows_are_the_recorded_ones_or_those_of_the_mini_batches() -> None:
    lines = [line(0, tau=[2, 3]), line(1, tau=[2, 3], rows=1000)]
    assert series.sum_costs(made(lines))["rows"] == [5 * 32, 5 * 32 + 1000]
    assert [series.counts_probes(made(lines[at:])) for at in (0, 1)] == [False, True]


def test_band_has_mean_spread_and_every_axis() -> None:
    first = made([line(0, test_loss=1.0, train_loss=9.0), line(1, test_loss=0.5, train_loss=7.0)])
    second = made([line(0, test_loss=3.0, tau=[4, 5])], seed=1)
    band = series.compute_band([first, second], "test_loss")
    assert band == {
        "x": {"rounds": [1, 2], "steps": [7, 10], "rows": [7 * 32, 10 * 32], "bytes": [30, 60], "seconds": [0.5, 1.0]},
        "mean": [2.0, 0.5],
        "std": [math.sqrt(2), 0.0],
        "seeds": [2, 1],
    }
    train = series.compute_band([first], "train_loss")  # of the model that the round starts from
    assert (train["x"]["rounds"], train["x"]["steps"], train["mean"]) == ([0, 1], [0, 5], [9.0, 7.0])


def test_what_is_no_number_is_left_out() -> None:
    lines = [line(0, test_loss="<b>", test_accuracy=True), line(1, test_loss=math.nan), line(2, test_loss=4)]
    assert series.compute_band([made(lines)], "test_loss")["mean"] == [4]
    assert series.list_metrics([made(lines)]) == ["test_loss"]
    assert series.sum_costs(made([{"tau": "x", "bytes_up": None}]))["steps"] == [0]


def test_metrics_come_from_the_lines() -> None:
    assert series.list_metrics([made([line(0, test_r2=0.1, test_mse=1.0, test_loss=2.0, train_loss=1)])]) == [
        "test_loss",
        "test_r2",  # the main metric: it was recorded first
        "test_mse",
        "train_loss",
    ]


def test_a_direction_is_what_the_schema_or_the_runs_state() -> None:
    def directed(direction: Any) -> Run:
        return Run(Experiment(), [], {}, directions={"test_r2": direction})

    names = ("test_accuracy", "test_loss", "test_r2", "test_mse")
    assert [series.find_direction([directed("higher")], name) for name in names] == ["higher", "lower", "higher", None]
    assert series.find_direction([made([]), directed("higher")], "test_r2") == "higher"
    assert series.find_direction([directed("lower"), directed("higher")], "test_r2") is None


def test_heat_knows_who_was_absent_and_keeps_within_its_bounds() -> None:
    rounds = [line(0, tau=[2, 3]), line(1, ids=[1], tau=[7]), line(2, tau=[4, math.inf])]
    assert series.make_heat_map(made(rounds), "tau") == {
        "clients": [0, 1],
        "rounds": [1, 2, 3],
        "z": [[2, None, 4], [3, 7, None]],
        "all": 2,
    }
    many = made([line(k, ids=list(range(1000)), tau=list(range(1000))) for k in range(50)])
    heat = series.make_heat_map(many, "tau", clients=5, rounds=4)
    assert (heat["clients"], heat["rounds"], heat["all"]) == ([0, 250, 500, 749, 999], [1, 17, 34, 50], 1000)
    assert [row[0] for row in heat["z"]] == heat["clients"]


def test_curves_are_named_by_what_tells_them_apart() -> None:
    def labels(*settings: dict[str, Any]) -> list[tuple[str, int]]:
        return [(c.label, len(c.runs)) for c in series.group_curves(made([], **s) for s in settings)]

    assert labels({"method": "fedavg"}, {"seed": 1}, {"seed": 0}) == [("FedVeca", 2), ("FedAvg", 1)]
    assert labels({"alpha": 0.5}, {"alpha": 0.9}, {"method": "fedavg"}) == [
        ("FedVeca alpha=0.5", 1),
        ("FedVeca alpha=0.9", 1),
        ("FedAvg", 1),
    ]
    assert labels({"clients": 5}, {"clients": 9}, {"method": "fedavg", "tau_all": 7}) == [
        ("FedVeca", 1),
        ("FedVeca clients=9", 1),
        ("FedAvg", 1),
    ]  # only what differs from the most common value
    assert labels({"lr": 0.1}, {"method": "fedavg", "lr": 0.2}) == [("FedVeca lr=0.1", 1), ("FedAvg lr=0.2", 1)]
    assert labels({"method": "fedavg", "tau_all": 7}, {"method": "fedavg", "tau_all": 8, "seed": 1}) == [("FedAvg", 2)]
    assert labels({"method": "fedavg", "tau_all": 7}, {"method": "fedavg", "tau_all": 8}) == [
        ("FedAvg tau_all=7", 1),
        ("FedAvg tau_all=8", 1),
    ]
    looks = [(c.colour, c.dash) for c in series.group_curves(made([], lr=0.001 * (i + 1)) for i in range(20))]
    assert len(set(looks)) == 20


def test_a_method_keeps_its_colour_among_settings_of_several() -> None:
    settings: list[dict[str, Any]] = [
        {"alpha": 0.5},
        {"alpha": 0.9},
        {"method": "fedavg"},
        {"method": "fedavg", "lr": 0.1},
    ]
    curves = series.group_curves(made([], **s) for s in settings)
    assert [c.colour for c in curves] == [series.find_look(c.method)[1] for c in curves]
    assert [c.dash for c in curves] == ["-", "--", "--", "-."]


def test_a_seed_counts_once() -> None:
    """The same run done twice is not two seeds, and a run of the same seed that went less far is left out."""
    lines = [line(0, test_loss=1.0), line(1, test_loss=0.5)]
    slower = [record | {"seconds": 9.0} for record in lines]
    other = [line(0, test_loss=7.0)]
    runs = [made(lines), made(slower), made(other), made(lines, seed=3)]
    (curve,) = series.group_curves(runs)
    assert [run.experiment.seed for run in curve.runs] == [0, 3]
    assert (curve.identical, curve.conflicting) == (1, 1)
    assert curve.runs[0] is runs[0]
    (row,) = series.tabulate([curve])
    assert (row.seeds, row.models["last"]["test_loss"]) == (2, (0.5, 0.0, 2))


def test_values_of_single_seeds_stand_at_the_points_of_the_band() -> None:
    first = made([line(0, test_loss=1.0), line(1), line(2, test_loss=0.5)])
    second = made([line(0, test_loss=3.0)], seed=1)
    assert series.compute_band([first, second], "test_loss")["x"]["rounds"] == [1, 3]
    assert series.list_seed_values([first, second], "test_loss") == [[1.0, 0.5], [3.0, None]]


def test_sections_hold_what_may_be_compared() -> None:
    runs = [made([], model=m, data="digits", seed=s) for m in ("svm", "mlp") for s in (0, 1)]
    assert [[r.experiment.model for r in mine] for mine in series.group_sections(runs)] == [["svm"] * 2, ["mlp"] * 2]
    many = [made([], partition=p, lr=0.01 * (i + 1)) for p in ("case1", "case2") for i in range(8)]
    assert [len(mine) for mine in series.group_sections(many)] == [8, 8]


def test_table_leaves_diverged_runs_out_and_counts_what_is_missing() -> None:
    end = {"round": 1, "test_loss": 1.0, "test_accuracy": 0.5}
    done = {"tau_all": 40, "kept": end, "last": end | {"test_loss": 3.0}}
    lines = [line(0, test_loss=2.0, test_accuracy=0.25)]
    runs = [
        made(lines, done),
        made(lines, done | {"kept": end | {"test_accuracy": 0.7}, "tau_all": 60}, seed=1),
        made(lines, done | {"kept": end | {"test_accuracy": 0.0}, "stopped": "why", "tau_all": 1}, seed=2),
        made(lines, method="fedavg"),
        made(lines, done | {"kept": end | {"test_accuracy": 1.0}}, method="centralised"),
    ]
    rows = series.tabulate(series.group_curves(runs))
    assert [(r.label, r.seeds, r.diverged, r.unfinished) for r in rows] == [
        ("FedVeca", 3, 1, 0),
        ("FedAvg", 1, 0, 1),
        ("centralised", 1, 0, 0),
    ]
    assert rows[0].models["kept"]["test_accuracy"] == (0.6, pytest.approx(math.sqrt(0.02)), 2)
    assert rows[0].steps == (50, pytest.approx(math.sqrt(200)), 2)  # of the runs that did not diverge
    assert rows[1].models["kept"]["test_loss"].mean is None
    assert (rows[1].models["last"]["test_loss"].mean, rows[1].steps.mean) == (2.0, 5)
    assert (rows[1].seconds.mean, rows[1].traffic.mean) == (0.5, 30)
    assert rows[0].by_seed["kept"]["test_accuracy"] == {0: 0.5, 1: 0.7}


def test_partition_is_what_the_run_wrote(tmp_path: Path) -> None:
    done = run(Experiment(model="svm", rounds=1, clients=4, partition="case2"), tmp_path / "a")
    part = series.read_partition(done)
    assert part is not None
    assert part["clients"] == [0, 1, 2, 3]
    assert part["sizes"] == [sum(row) for row in part["labels"]]
    assert sum(part["sizes"]) == 1438
    assert all(n == 0 for i, row in enumerate(part["labels"]) for label, n in enumerate(row) if label % 4 != i)
    many = run(Experiment(model="svm", rounds=1, clients=1000, partition="iid"), tmp_path / "b")
    told = json.loads((tmp_path / "b" / "partition.json").read_text())
    assert (told["all"], len(told["clients"]), told["clients"][-1]) == (1000, 200, 999)
    shown = series.read_partition(many)
    assert shown is not None
    assert len(shown["clients"]) == 100
    whole: Any = {"all": 2, "clients": [0, 1], "sizes": [3, 4], "labels": [[1, 2], [4, 0]]}
    (tmp_path / "a" / "partition.json").write_text(json.dumps(whole))
    assert series.read_partition(done) == whole
    odd: list[dict[str, Any]] = [
        {"sizes": ["x", 4]},
        {"sizes": [3]},
        {"sizes": [3.5, 4]},
        {"sizes": [-3, 4]},
        {"sizes": [2**63, 4]},
        {"labels": [[1, 2], [4]]},
        {"labels": [[], []]},
        {"labels": []},
        {"labels": [1, 2]},
        {"clients": [True, 1]},
        {"clients": {"0": 0}},
        {"all": None},
    ]
    for torn in ("", "[]", '{"clients": 3}', "[" * 5000, *(json.dumps(whole | part) for part in odd)):
        (tmp_path / "a" / "partition.json").write_text(torn)
        assert series.read_partition(done) is None
    assert series.read_partition(made([])) is None


def test_simulated_time_is_an_axis_where_every_run_has_it() -> None:
    """`clock` counts from the start, `joules` per round; a run without devices has neither."""
    timed = made([{"tau": [1], "clock": 2.0, "joules": 5.0, "test_loss": 1.0}, {"clock": 3.5, "joules": 1.0}])
    plain = made([{"tau": [1], "test_loss": 1.0}])
    assert series.sum_costs(timed)["clock"] == [2.0, 3.5]
    assert series.sum_costs(timed)["joules"] == [5.0, 6.0]
    assert list(series.list_axes([timed])) == [*series.AXES, "clock", "joules"]
    assert series.list_axes([timed, plain]) == series.list_axes([plain]) == series.AXES
    assert series.compute_band([timed], "test_loss")["x"]["clock"] == [2.0]
    assert "clock" not in series.compute_band([timed, plain], "test_loss")["x"]
