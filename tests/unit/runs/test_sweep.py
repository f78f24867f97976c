"""Sweeps: what is tried for whom, what is chosen and by which rows, and that nothing is repeated."""

from __future__ import annotations

import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import require_number
from same_runs import SMALL

import fedveca
from fedveca import Experiment, Observer, Run, sweep
from fedveca.errors import UserError
from fedveca.runs import search
from fedveca.runs.compare import find_budget
from fedveca.runs.run import run as run_alone
from fedveca.runs.search import GridSearch, ValueRange, check_space, parse_space, split_sweep
from fedveca.runs.sweep import Sweep
from fedveca.runs.sweep_file import TrialEntry, choose_trial, list_edges, read_sweep
from fedveca.tasks.datasets.dataset import load

E = Experiment(**(SMALL | {"rounds": 3, "tau_0": 3}))
METHODS = ("fedveca", "fedavg")
GRID = {"lr": (0.01, 0.1), "alpha": (0.9, 0.95)}


class Counter(Observer):
    """Counts the rounds that are run."""

    def __init__(self) -> None:
        self.rounds = 0

    def round(self, record: Any) -> None:
        self.rounds += 1


@pytest.fixture(scope="module")
def swept(tmp_path_factory: pytest.TempPathFactory) -> Sweep:
    return sweep(E, GRID, 2, tmp_path_factory.mktemp("sweep") / "out", methods=METHODS, device="cpu")


# what is tried


def test_words_with_several_values_are_swept() -> None:
    fixed, swept = split_sweep(["lr=0.1,0.2", "rounds=5", "tau_0=2..9", "optimizer=sgd,adam", "augment=crop,flip"])
    assert fixed == ["rounds=5", "augment=crop,flip"]
    assert parse_space(swept) == {
        "lr": (0.1, 0.2),
        "tau_0": ValueRange(2, 9, whole=True),
        "optimizer": ("sgd", "adam"),
    }
    assert split_sweep(["epochs=2..5"]) == (["epochs=2..5"], {})


@pytest.mark.parametrize(
    ("grid", "said"),
    [
        ({}, "names no values to try"),
        ({"lr": "0.1,0.1"}, "lr=0.1,0.1 names 0.1 twice"),
        ({"lr": "0.1,x"}, "lr=x is not a number"),
        ({"lr": "0.2..0.1"}, r"lr=0.2..0.1 is not a range"),
        ({"lr": 0.1}, "lr=0.1 is not a list of values"),
        ({"lr": ()}, "is not a list of values"),
        ({"optimizer": "sgd..adam"}, "only numbers have ranges"),
        ({"clients": "5,10"}, "clients=5,10 cannot be swept: it is the same for all runs of a sweep"),
        ({"val": (0.1, 0.2)}, "cannot be swept"),
        ({"rate": (0.1, 0.2)}, "rate is not a setting"),
        ({"lr": (0.1, -1.0)}, "lr=-1.0 is out of range"),
        ({"lr": "0.1..inf"}, "is not a range"),
        ({"optimizer": "sgd,adm"}, "optimizer=adm is not known"),
        ({"lr": tuple(0.01 * (i + 1) for i in range(200)), "mu": tuple(0.01 * i for i in range(200))}, "combinations"),
    ],
)
def test_what_cannot_be_swept_is_rejected(grid: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError, match=said):
        check_space(E, parse_space(grid))


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"seeds": 0}, "seeds=0 is out of range"),
        ({"tuning_seeds": 0}, "tuning_seeds=0 is out of range"),
        ({"trials": 0}, "trials=0 is out of range"),
        ({"methods": ("fedavg", "fedavg")}, "fedavg is named twice"),
        (
            {"methods": ("fedavg", "fedprox"), "grid": {"alpha": (0.9, 0.95)}},
            "alpha is not a setting of fedavg, fedprox",
        ),
        ({"methods": (fedveca.FedAvg(lr=0.1),)}, "is an object, whose settings are fixed"),
        ({"methods": ("nobody",)}, "'nobody' is not known"),
        ({"workers": 2, "data": load("digits")}, "workers=2: runs with custom objects are in this process"),
    ],
)
def test_misuse_leaves_nothing_behind(more: dict[str, Any], said: str, tmp_path: Path) -> None:
    options: dict[str, Any] = {"grid": {"lr": (0.01, 0.1)}, "seeds": 1, "methods": METHODS, "device": "cpu"} | more
    with pytest.raises(UserError, match=said):
        sweep(E, options.pop("grid"), options.pop("seeds"), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_a_grid_has_every_combination() -> None:
    grid = GridSearch({"lr": (0.1, 0.2), "mu": (0.0, 1.0)})
    assert grid.planned == 4
    assert [tuple(mine.values()) for mine in grid.ask()] == [(0.1, 0.0), (0.1, 1.0), (0.2, 0.0), (0.2, 1.0)]
    assert grid.ask() == []
    assert GridSearch({}).ask() == [{}]


def test_only_settings_that_a_method_has_are_tried(swept: Any) -> None:
    tried = {entry["method"]: [trial["settings"] for trial in entry["trials"]] for entry in swept.content["methods"]}
    assert tried["fedavg"] == [{"lr": 0.01}, {"lr": 0.1}]
    assert len(tried["fedveca"]) == 4
    assert all(set(settings) == {"lr", "alpha"} for settings in tried["fedveca"])


# what is chosen


def test_chosen_is_the_best_mean_then_the_lowest_loss_then_the_first() -> None:
    def trial(mean: float | None, loss: float, lr: float) -> TrialEntry:
        return {"settings": {"lr": lr}, "values": [mean], "losses": [loss], "mean": mean, "loss": loss}

    trials = [trial(None, 0.0, 1), trial(0.5, 2.0, 2), trial(0.7, 3.0, 3), trial(0.7, 1.0, 4), trial(0.7, 1.0, 5)]
    assert choose_trial(trials, "higher") == trials[3]
    assert choose_trial(trials, "lower") == trials[1]
    assert choose_trial(trials[:1], "higher") is None
    assert list_edges({"method": "fedavg", "chosen": {"lr": 5}, "trials": trials}) == ["lr=5"]
    assert list_edges({"method": "fedavg", "chosen": {"lr": 3}, "trials": trials}) == []


def test_a_trial_has_the_validation_values_of_its_runs(swept: Any) -> None:
    content = swept.content
    assert (content["quantity"], content["better"], content["val"]) == ("val_accuracy", "higher", 0.1)
    assert (content["seeds"], content["tuning_seeds"]) == ([0, 1], [10_000, 10_001])
    for entry in content["methods"]:
        for trial in entry["trials"]:
            name = ",".join(f"{key}={value}" for key, value in trial["settings"].items())
            runs = [Run.open(swept.folder / "tuning" / entry["method"] / f"{name}-seed{s}") for s in (10_000, 10_001)]
            assert trial["values"] == [r.summary["kept"]["val_accuracy"] for r in runs]  # type: ignore[typeddict-item]
            assert trial["mean"] == pytest.approx(sum(trial["values"]) / 2)
            assert all(r.experiment.lr == trial["settings"]["lr"] for r in runs)
        best = max(entry["trials"], key=lambda trial: (trial["mean"], -trial["loss"]))
        assert entry["chosen"] == best["settings"] == swept.settings[entry["method"]]


def test_the_comparison_has_the_chosen_settings_and_equal_steps(swept: Any) -> None:
    assert [(r.experiment.method, r.experiment.seed) for r in swept.runs] == [
        ("fedveca", 0), ("fedavg", 0), ("fedveca", 1), ("fedavg", 1)
    ]  # fmt: skip
    for first, second in (swept.runs[:2], swept.runs[2:]):
        assert first.experiment.lr == swept.settings["fedveca"]["lr"]
        assert first.experiment.alpha == swept.settings["fedveca"]["alpha"]
        assert second.experiment.lr == swept.settings["fedavg"]["lr"]
        assert second.experiment.tau_all == find_budget(first)
    chosen = ",".join(f"{key}={value}" for key, value in swept.settings["fedveca"].items())
    for seed in (10_000, 10_001):  # the rivals' budget while they are tuned
        setter = Run.open(swept.folder / "tuning" / "fedveca" / f"{chosen}-seed{seed}")
        rival = Run.open(swept.folder / "tuning" / "fedavg" / f"lr=0.01-seed{seed}")
        assert rival.experiment.tau_all == find_budget(setter)
    alone = run_alone(swept.runs[1].experiment, device="cpu")
    assert alone.summary["kept"] == swept.runs[1].summary["kept"]


def test_the_choice_comes_from_validation_rows_only(tmp_path: Path) -> None:
    """With the test labels permuted, the test values differ and the choice and its values stay."""
    data = load("digits")
    order = torch.randperm(len(data.y_test), generator=torch.Generator().manual_seed(1))
    shuffled = replace(data, y_test=data.y_test[order])
    grid = {"lr": (0.003, 0.02, 0.2)}
    first, second = (
        sweep(E, grid, 1, tmp_path / name, methods=METHODS, device="cpu", data=rows)
        for name, rows in (("plain", data), ("shuffled", shuffled))
    )
    assert first.content == second.content
    assert first.settings == second.settings
    tested = [[require_number(r.summary["kept"], "test_accuracy") for r in done.runs] for done in (first, second)]
    assert min(tested[0]) > max(tested[1])


# a sweep is continued


def test_the_same_call_repeats_nothing_and_another_extends_it(tmp_path: Path) -> None:
    counter = Counter()
    options: dict[str, Any] = {"methods": ("fedavg",), "device": "cpu", "observers": [counter]}
    first = sweep(E, {"lr": (0.01, 0.1)}, 1, tmp_path / "out", **options)
    assert counter.rounds == 3 * E.rounds  # two trials and a reported run
    again = sweep(E, {"lr": (0.01, 0.1)}, 1, tmp_path / "out", **options)
    assert counter.rounds == 3 * E.rounds
    assert again.content == first.content
    assert json.loads((tmp_path / "out" / "sweep.json").read_text("utf-8")) == first.content
    sweep(E, {"lr": (0.01, 0.1, 0.0001)}, 2, tmp_path / "out", tuning_seeds=1, **options)
    assert counter.rounds == 5 * E.rounds  # one trial more, and one reported seed more
    with pytest.raises(UserError, match="holds a run with other settings"):
        sweep(replace(E, batch=9), {"lr": (0.01, 0.1)}, 1, tmp_path / "out", **options)


def test_a_sweep_that_is_stopped_is_resumed_in_its_round(tmp_path: Path) -> None:
    class Presses(Counter):
        def round(self, record: Any) -> None:
            super().round(record)
            if self.rounds == 4:
                signal.raise_signal(signal.SIGINT)

    options: dict[str, Any] = {"methods": ("fedavg",), "device": "cpu"}
    presses = Presses()
    with pytest.raises(fedveca.Stopped, match="the same command resumes it"):
        sweep(E, {"lr": (0.01, 0.1)}, 1, tmp_path / "out", observers=[presses], **options)
    counter = Counter()
    done = sweep(E, {"lr": (0.01, 0.1)}, 1, tmp_path / "out", observers=[counter], **options)
    assert presses.rounds + counter.rounds == 3 * E.rounds
    assert done.content == sweep(E, {"lr": (0.01, 0.1)}, 1, tmp_path / "whole", **options).content


def test_settings_that_diverge_are_not_chosen(tmp_path: Path) -> None:
    e = replace(E, rounds=20)
    done = sweep(e, {"lr": (1e4, 0.01)}, 1, tmp_path / "out", methods=("fedavg",), device="cpu")
    (entry,) = done.content["methods"]
    assert entry["trials"][0]["values"] == [None]
    assert entry["chosen"] == {"lr": 0.01}
    with pytest.raises(UserError, match=r"every run of fedavg diverged .* none of lr=10000\.0 can be chosen"):
        sweep(e, {"lr": (1e4,)}, 1, tmp_path / "all", methods=("fedavg",), device="cpu")


@pytest.mark.parametrize(
    "change",
    [
        {"better": "up"},
        {"methods": [{"method": "fedavg", "chosen": 3, "trials": []}]},
        {"methods": [{"method": "fedavg", "chosen": {"rate": 1}, "trials": []}]},
        {"methods": [{"method": "fedavg", "chosen": None, "trials": [{"settings": {}, "values": [1]}]}]},
        {"seeds": [True]},
        {"space": []},
    ],
)
def test_a_file_that_no_sweep_writes_is_not_read(change: dict[str, Any], swept: Any, tmp_path: Path) -> None:
    assert read_sweep(swept.folder) == swept.content
    (tmp_path / "sweep.json").write_text(json.dumps({**swept.content, **change}))
    assert read_sweep(tmp_path) is None
    assert read_sweep(tmp_path / "nothing") is None


# ranges


def test_without_optuna_a_range_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(UserError, match=r"lr=0.001..0.1 is a range, .* pip install 'fedveca\[sweep\]'"):
        sweep(E, {"lr": "0.001..0.1"}, 1, tmp_path / "out", methods=("fedavg",), device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_range_is_searched_the_same_way_each_time(tmp_path: Path) -> None:
    pytest.importorskip("optuna")
    options: dict[str, Any] = {"methods": ("fedavg",), "device": "cpu", "trials": 6}
    grid = {"lr": "0.001..0.5", "batch": (4, 8), "tau_0": "1..5"}
    first = sweep(E, grid, 1, tmp_path / "a", **options)
    counter = Counter()
    again = sweep(E, grid, 1, tmp_path / "a", observers=[counter], **options)
    other = sweep(E, grid, 1, tmp_path / "b", **options)
    assert counter.rounds == 0
    assert first.content == again.content == other.content
    (entry,) = first.content["methods"]
    assert len(entry["trials"]) == 6
    for trial in entry["trials"]:
        lr, batch, steps = (trial["settings"][key] for key in grid)
        assert 0.001 <= float(lr) <= 0.5
        assert batch in (4, 8)
        assert steps in range(1, 6)
    assert search.TRIALS_AT_ONCE == 4  # the second batch had heard of the first
