"""Budgets: a run ends where another round would exceed its own, and rivals get what the first method used up."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from same_runs import SMALL

import fedveca
from fedveca import Experiment, Run, compare
from fedveca.cli import main
from fedveca.errors import UserError
from fedveca.runs.budget import COST_KINDS, CostKind, RunBudget, measure_cost, parse_budget
from fedveca.runs.compare import FairBy, apply_budget, find_budget
from fedveca.runs.early_stopping import EarlyStopping
from fedveca.runs.schema import Round
from fedveca.runs.search import make_grid
from fedveca.runs.sweep import sweep
from fedveca.views.comparison import compare_curves, find_protocol, list_totals
from fedveca.views.comparison_text import explain_table
from fedveca.views.report.commands import make_commands
from fedveca.views.report.text import ask_question
from fedveca.views.series import group_curves

E = Experiment(**(SMALL | {"rounds": 4, "tau_0": 3}))
AVG = replace(E, method="fedavg", rounds=50)
STEPS = 3 * E.clients  # of one round of FedAvg


# the setting


def test_a_budget_is_a_kind_and_a_number() -> None:
    assert parse_budget("") is None
    assert parse_budget("rows:2e5") == RunBudget("rows", 200000)
    assert [str(parse_budget(text)) for text in ("rows:200000", "seconds:0.125")] == ["rows:200000", "seconds:0.125"]


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("rows", "budget=rows: 'rows' is not of the form rows:NUMBER"),
        ("hours:3", "budget=hours:3: 'hours' is not known; allowed: steps:NUMBER | rows:NUMBER | bytes:NUMBER | "),
        ("rows:many", "budget=rows:many is out of range; allowed: a number above 0, at most 1e+15"),
        ("rows:nan", "budget=rows:nan is out of range"),
        ("rows:0", "budget=rows:0 is out of range"),
        ("clock:15", "budget=clock:15 needs simulated devices, such as devices=uniform"),
        ("rows:1,steps:1", "budget=rows:1,steps:1 names 2 kinds; it is one of steps, rows, bytes, seconds, clock"),
    ],
)
def test_a_text_that_is_not_a_budget_is_rejected(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        Experiment(budget=text)
    assert str(error.value).startswith(sentence)


def test_what_a_round_costs() -> None:
    record = {"tau": [2, 3], "rows": 70, "bytes_up": 10, "bytes_down": 5, "seconds": 0.5}
    assert [measure_cost(record, kind) for kind in COST_KINDS] == [5, 70, 15, 0.5]
    assert [measure_cost({}, kind) for kind in COST_KINDS] == [0, 0, 0, 0]


def test_another_round_is_judged_by_the_mean_of_those_so_far() -> None:
    budget = RunBudget("rows", 30)
    assert [budget.allows_another(10 * k, k) for k in (1, 2, 3)] == [True, True, False]
    assert not budget.allows_another(40, 1)


# the end of a run


@pytest.mark.parametrize("kind", ["steps", "rows", "bytes"])
def test_a_run_takes_as_many_rounds_as_its_budget_allows(kind: CostKind) -> None:
    one = measure_cost(fedveca.run(replace(AVG, rounds=1), device="cpu").rounds[0], kind)
    for total, rounds in ((3 * one, 3), (3 * one - 1, 2), (one / 2, 1)):
        done = fedveca.run(replace(AVG, budget=f"{kind}:{total}"), device="cpu")
        assert (len(done.rounds), done.ended) == (rounds, "budget")
        assert "test_accuracy" in done.rounds[-1]  # the last round is tested, whatever it is


@pytest.fixture
def devices(tmp_path: Path) -> str:
    """A second per row of a gradient: a round of FedAvg with 3 steps takes 3 * batch seconds."""
    file = tmp_path / "slow.toml"
    file.write_text("[slow]\nbackward_ms = 1000\n", "utf-8")
    return str(file)


def test_a_budget_of_simulated_seconds_ends_a_run(devices: str, tmp_path: Path) -> None:
    """The clock is counted since the start: three rounds of 24 s fit into 80 s, and a resumed run ends there too."""
    e = replace(AVG, devices=devices, keep="last", batch=8)
    for total, rounds in ((72, 3), (71.9, 2), (80, 3), (1, 1)):
        done = fedveca.run(e.replace(budget=f"clock:{total}"), device="cpu")
        assert (done.column("clock"), done.ended) == ([24.0 * (k + 1) for k in range(rounds)], "budget")
    e = e.replace(budget="clock:100")
    fedveca.run(e.replace(rounds=2), tmp_path / "half", device="cpu")
    resumed = fedveca.resume(tmp_path / "half", rounds=50, device="cpu")
    assert (resumed.column("clock")[-1], resumed.ended) == (96.0, "budget")


@pytest.mark.slow
def test_methods_with_the_same_budget_have_equal_budgets(devices: str, tmp_path: Path) -> None:
    """They take different numbers of rounds and local steps in the same simulated time, and may be compared."""
    e = replace(E, rounds=50, devices=devices, budget="clock:400", batch=8, probe=32)
    runs = compare(e, 2, tmp_path / "out", methods=("fedveca", "fedavg"), device="cpu")
    assert {run.ended for run in runs} == {"budget"}
    assert len({run.summary["tau_all"] for run in runs}) > 1
    assert compare_curves(group_curves(runs)).budgets == ""
    other = compare(e.replace(budget=""), 2, tmp_path / "free", methods=("fedveca", "fedavg"), device="cpu")
    assert find_protocol(group_curves(other))  # as before: by steps


def test_without_reaching_it_a_run_has_all_its_rounds() -> None:
    done = fedveca.run(replace(AVG, rounds=3, budget=f"steps:{10 * STEPS}"), device="cpu")
    assert (len(done.rounds), done.ended) == (3, None)


def test_a_budget_in_seconds_ends_a_run() -> None:
    assert fedveca.run(replace(AVG, budget="seconds:1e-9"), device="cpu").ended == "budget"


def test_a_round_that_is_judged_twice_counts_once() -> None:
    early = EarlyStopping(replace(AVG, budget="steps:20"), "accuracy", "higher")
    for k in range(4):
        record: Round = {"round": k, "ids": [0], "left_out": [], "tau": [5]}
        assert [early.judge(record) for _ in range(2)] == [k == 3] * 2


def test_a_resumed_run_ends_in_the_same_round(tmp_path: Path) -> None:
    e = replace(AVG, budget=f"steps:{5 * STEPS}")
    whole = fedveca.run(e, tmp_path / "whole", device="cpu")

    class Stop:
        rounds = 0

        def __call__(self) -> bool:
            self.rounds += 1
            return self.rounds == 2

    with pytest.raises(fedveca.Stopped):
        fedveca.run(e, tmp_path / "half", device="cpu", stop=Stop())
    assert len(Run.open(tmp_path / "half").rounds) == 2
    done = fedveca.resume(tmp_path / "half", device="cpu")
    assert len(done.rounds) == len(whole.rounds) == 5
    assert done.ended == "budget"
    with pytest.raises(UserError, match="ended after round 5, because another round would exceed its budget"):
        fedveca.resume(tmp_path / "half", rounds=80, device="cpu")


# fair comparisons


@pytest.mark.parametrize("fair", ["rows", "bytes"])
def test_every_rival_gets_what_the_first_method_used_up(fair: FairBy, tmp_path: Path) -> None:
    methods = ("fedveca", "fedavg", "scaffold", "corrected")
    runs = compare(E, 2, tmp_path, methods=methods, device="cpu", fair=fair)
    kind: CostKind = "rows" if fair == "rows" else "bytes"
    for seed in (0, 1):
        first, *rivals = (run for run in runs if run.experiment.seed == seed)
        total = sum(measure_cost(record, kind) for record in first.rounds)
        assert first.experiment == replace(E, seed=seed)
        assert find_budget(first, kind) == total
        for rival in rivals:
            spent = [measure_cost(record, kind) for record in rival.rounds]
            assert rival.experiment.budget == f"{kind}:{total}"
            assert rival.experiment.tau_all == 0
            assert sum(spent) * (1 + 1 / len(spent)) > total  # another round would be too many
            if rival.experiment.method != "corrected":  # whose rounds differ
                assert sum(spent) <= total
                assert {tau for record in rival.rounds for tau in record["tau"]} == {E.tau_0}
    protocol = find_protocol(group_curves(runs))
    assert protocol is not None
    assert (protocol.kind, protocol.setter.method) == (kind, "fedveca")
    again = compare(E, 2, tmp_path, methods=methods, device="cpu", fair=fair)  # nothing is repeated
    assert [len(run.rounds) for run in again] == [len(run.rounds) for run in runs]


def test_the_views_say_what_was_equal(tmp_path: Path) -> None:
    runs = compare(E, 2, tmp_path, methods=("fedveca", "fedavg"), device="cpu", fair="rows")
    curves = group_curves(runs)
    assert [curve.label for curve in curves] == ["FedVeca", "FedAvg"]  # without the rounds that a rival may take
    comparison = compare_curves(curves)
    assert comparison.budgets == ""
    sentence = next(text for text in explain_table(comparison) if "gradient rows" in text)
    assert sentence.startswith("Every method takes as many rounds as the gradient rows of FedVeca allow")
    assert not any("Ended early" in text for text in explain_table(comparison))
    assert "Every method takes as many rounds as the gradient rows of FedVeca allow." in ask_question(curves)
    totals = list_totals(comparison)
    assert set(totals) == {"FedVeca", "FedAvg"}
    mine = [run for run in runs if run.experiment.method == "fedavg"]
    assert totals["FedAvg"]["rows"] == sum(run.summary["rows"] for run in mine) / 2
    command = next(text for text in make_commands(curves) if text.startswith("fedveca compare"))
    assert f"rounds={E.rounds}" in command
    assert command.endswith("--methods fedveca,fedavg --seeds 2 --fair rows")


def test_a_rival_whose_first_round_is_too_much_makes_budgets_differ(tmp_path: Path) -> None:
    e = replace(E, rounds=1, probe=1)
    slow = {"fedavg": {"tau_0": 40}}
    runs = compare(e, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu", fair="rows", settings=slow)
    assert "gradient rows" in compare_curves(group_curves(runs)).budgets


def test_steps_are_shared_out_as_before() -> None:
    budget = RunBudget("steps", 120)
    assert apply_budget(E, "fedavg", budget) == replace(E, tau_all=120)
    assert apply_budget(E, "fedveca", budget) == E
    assert apply_budget(replace(E, tau_all=7), "fedavg", None).tau_all == 7


def test_time_warns_that_it_does_not_repeat(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first, second = compare(E, 1, tmp_path, methods=("fedveca", "fedavg"), device="cpu", fair="time")
    assert caplog.messages[0] == "seconds differ from run to run: a comparison with fair=time does not repeat exactly"
    total = round(sum(record["seconds"] for record in first.rounds), 6)
    assert second.experiment.budget == f"seconds:{total}"


@pytest.mark.parametrize(
    ("settings", "fair", "sentence"),
    [
        ({}, "energy", "fair='energy' is not known; it is one of steps, rows, bytes, time"),
        ({"lr_schedule": "cosine"}, "rows", "lr_schedule=cosine cannot go with fair=rows, "),
        ({"budget": "rows:5"}, "bytes", "budget=rows:5 cannot go with fair=bytes: "),
    ],
)
def test_what_does_not_go_together_is_rejected(settings: Any, fair: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        compare(replace(E, **settings), 1, tmp_path / "out", methods=("fedavg",), fair=fair)
    assert str(error.value).startswith(sentence)
    assert not (tmp_path / "out").exists()


# each method at its own rates


def test_settings_to_tune_have_usual_values() -> None:
    e = replace(E, lr=0.05)
    assert make_grid("lr,server_lr", e) == {"lr": (0.005, 0.0167, 0.05, 0.15, 0.5), "server_lr": (0.3, 1.0, 3.0)}
    assert make_grid("lr=0.1,0.2,server_lr", e) == {"lr": "0.1,0.2", "server_lr": (0.3, 1.0, 3.0)}
    assert make_grid("server_lr,alpha=0.9,0.95", e) == {"server_lr": (0.3, 1.0, 3.0), "alpha": "0.9,0.95"}


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("mu", "mu has no usual values to try; name some, such as mu=A,B"),
        ("lrs", "lrs is not a setting; did you mean lr?"),
        ("lr,lr=1,2", "lr,lr=1,2: lr stands there twice"),
        ("lr,0.1", "lr,0.1: '0.1' is not a setting"),
    ],
)
def test_settings_that_cannot_be_tuned_are_rejected(text: str, sentence: str) -> None:
    with pytest.raises(UserError) as error:
        make_grid(text, E)
    assert str(error.value) == sentence


@pytest.mark.slow
def test_a_tuned_comparison_chooses_by_the_training_loss_of_other_seeds(tmp_path: Path) -> None:
    """Without validation rows no row is held back, and test rows have no part in the choice."""
    done = sweep(
        E, {"lr": (0.001, 0.1)}, 1, tmp_path, methods=("fedveca", "fedavg"), tuning_seeds=2, device="cpu",
        fair="rows", choose_by="training",
    )  # fmt: skip
    content = done.content
    assert (content["quantity"], content["better"], content["val"]) == ("train_loss", "lower", 0.0)
    assert content["tuning_seeds"] == [10_000, 10_001]
    assert done.settings == {"fedveca": {"lr": 0.1}, "fedavg": {"lr": 0.1}}
    for entry in content["methods"]:
        home = tmp_path / "tuning" / entry["method"]
        tuned = {path.name: Run.open(path) for path in home.iterdir()}
        assert len(tuned) == 4
        assert entry.get("rows") == sum(run.summary["rows"] for run in tuned.values())
        for trial in entry["trials"]:
            mine = [run for run in tuned.values() if run.experiment.lr == trial["settings"]["lr"]]
            mine.sort(key=lambda run: run.experiment.seed)
            assert trial["values"] == [min(record["train_loss"] or 9 for record in run.rounds) for run in mine]
            assert entry["method"] == "fedveca" or all(run.ended == "budget" for run in mine)
    first, second = done.runs
    assert second.experiment.budget == f"rows:{first.summary['rows']}"
    assert second.experiment.val == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"participation": 0.5}, "participation=0.5 leaves no training loss by which settings could be chosen; "),
        ({"keep": "last"}, "keep=last leaves no training loss by which settings could be chosen; "),
        ({"val": 0.1}, "val=0.1 holds rows back to choose by; "),
    ],
)
def test_a_choice_by_the_training_loss_needs_one(settings: Any, sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError) as error:
        sweep(
            replace(E, **settings), {"lr": (0.1, 0.2)}, 1, tmp_path / "out", methods=("fedavg",), choose_by="training"
        )
    assert str(error.value).startswith(sentence)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_the_command_line_compares_by_rows_and_tunes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["compare", "rounds=2", "model=svm", "tau_0=2", "--seeds", "1", "--methods", "fedveca,fedavg", "--json"]
    words += ["--fair", "rows", "--device", "cpu", "--workers", "1", "--out", str(tmp_path / "out")]
    tune = ["--tune", "lr=0.01,0.05", "--tune-seeds", "1"]
    assert main([*words, *tune]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["fair"] == "rows"
    assert set(result["settings"]) == {"fedveca", "fedavg"}
    assert result["sweep"]["tuning_seeds"] == [10_000]
    assert set(result["totals"]["FedAvg"]) == set(COST_KINDS)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/**/summary.json")}
    assert len(times) == 2 * 2 + 2
    assert main([*words, *tune]) == 0  # nothing is run again
    assert {path: path.stat().st_mtime_ns for path in tmp_path.glob("out/**/summary.json")} == times
    text = (tmp_path / "out" / "report.html").read_text("utf-8")
    assert "the lowest training loss of a run" in text
    assert main([*words, "--tune-seeds", "1"]) == 2
    assert "--tune-seeds 1 needs --tune, such as --tune lr" in capsys.readouterr().err
