"""What terminal and report say of methods over seeds; every number worked by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.statistics import CostMean, Spread
from fedveca.views import comparison as views
from fedveca.views import comparison_text as texts
from fedveca.views import targets
from fedveca.views.report.table import make_cost_table, make_csv, make_gaps, make_result_table
from fedveca.views.series import group_curves
from fedveca.views.targets import Reached

BATCH = Experiment().batch


def made(method: str, seed: int, values: list[float], steps: int = 10, **settings: Any) -> Run:
    """A run with these accuracies after its rounds; each took so many local steps, 3 bytes and 2 seconds."""
    rounds: list[Any] = [
        {"round": k, "ids": [0], "left_out": [], "tau": [steps], "bytes_up": 1, "bytes_down": 2, "seconds": 2.0}
        | {"test_loss": 1 - value, "test_accuracy": value}
        for k, value in enumerate(values)
    ]
    end: Any = {"round": len(values), "test_loss": 1 - values[-1], "test_accuracy": values[-1]}
    summary: Any = {"tau_all": steps * len(values), "kept": end, "last": end}
    return Run(Experiment(method=method, seed=seed, rounds=len(values), **settings), rounds, summary)


def compared(*runs: Run) -> views.Comparison:
    return views.compare_curves(group_curves(runs))


TWO = [  # methods, of three seeds each
    made("fedveca", s, [0.3, 0.7, v]) for s, v in enumerate((0.92, 0.94, 0.93))
] + [made("fedavg", s, [0.2, 0.5, v]) for s, v in enumerate((0.71, 0.73, 0.72))]


def test_differences_to_the_best_are_listed_for_programs() -> None:
    """0.92, 0.94, 0.93 and 0.71, 0.73, 0.72: each pair is 0.21 apart, so the interval has no width."""
    gaps = {(gap["model"], gap["quantity"]): gap for gap in views.list_gaps(compared(*TWO))}
    assert set(gaps) == {(w, n) for w in ("kept", "last") for n in ("test_accuracy", "test_loss")}
    gap = gaps["kept", "test_accuracy"]
    assert (gap["best"], gap["method"], gap["seeds"], gap["clear"]) == ("fedveca", "fedavg", 3, True)
    assert gap["mean"] == pytest.approx(-0.21)
    assert gap["interval"] == pytest.approx((-0.21, -0.21))
    assert gaps["last", "test_loss"]["mean"] == pytest.approx(0.21)
    one = views.list_gaps(compared(TWO[0], TWO[3]))[0]
    assert (one["interval"], one["seeds"], one["clear"]) == (None, 1, False)


def test_a_winner_is_clearly_better_than_every_rival() -> None:
    c = compared(*TWO)
    assert views.find_leader(c, "kept", "test_accuracy") == views.find_winner(c, "kept", "test_accuracy") == 0
    assert views.find_gap(c, 0, "kept", "test_accuracy") is None
    gap = views.find_gap(c, 1, "kept", "test_accuracy")
    assert gap is not None
    assert (gap.mean, gap.n) == (pytest.approx(-0.21), 3)
    close = compared(*TWO, *(made("fednova", s, [0.2, 0.5, v]) for s, v in enumerate((0.93, 0.9, 0.93))))
    assert views.find_leader(close, "kept", "test_accuracy") == 0
    assert views.find_winner(close, "kept", "test_accuracy") is None  # FedNova is within chance
    pooled = compared(*TWO, *(made("centralised", s, [0.9, 0.9, 0.99]) for s in (0, 1, 2)))
    assert views.find_winner(pooled, "kept", "test_accuracy") == 0  # it is not a rival


def test_equal_means_have_no_best() -> None:
    c = compared(made("fedveca", 0, [0.8]), made("fedavg", 0, [0.8]))
    assert views.find_leader(c, "kept", "test_accuracy") is None
    assert texts.give_answer(c) == "FedVeca and FedAvg have the same test accuracy of the kept models: 80.00 %."


def test_seeds_that_are_not_shared_cannot_be_paired() -> None:
    c = compared(made("fedveca", 0, [0.8]), made("fedavg", 1, [0.5]))
    assert views.find_gap(c, 1, "kept", "test_accuracy") is None
    assert views.find_winner(c, "kept", "test_accuracy") is None
    assert texts.give_answer(c).endswith("no seed is shared, so the difference has no paired interval.")


@pytest.mark.parametrize(
    ("other", "said"),
    [
        (made("fedavg", 0, [0.5, 0.9]), "1 to 2 rounds"),
        (made("fedavg", 0, [0.9], steps=12), "10 to 12 local steps"),
        (made("fedavg", 0, [0.9], steps=11), ""),
        (made("centralised", 0, [0.9], steps=50), ""),
    ],
)
def test_nothing_is_the_best_across_budgets(other: Run, said: str) -> None:
    c = compared(made("fedveca", 0, [0.5]), other)
    assert c.budgets == said
    assert (views.find_leader(c, "kept", "test_accuracy") is None) == bool(
        said or other.experiment.method == "centralised"
    )
    if said:
        assert texts.give_answer(c) == (
            f"No method is called the best, because the budgets differ: {said}. The highest mean test accuracy of the "
            f"kept models is that of {c.rows[1].label}: 90.00 % (one seed)."
        )


def test_a_total_that_was_given_is_no_other_budget() -> None:
    """By the paper's protocol rivals take at most as many steps, rounded down: that is said, not warned of."""
    rival = made("fedavg", 0, [0.4, 0.6], steps=8, tau_all=20)
    c = compared(made("fedveca", 0, [0.5, 0.7]), rival)
    assert c.budgets == ""
    assert (
        "Methods with fixed steps take at most as many local steps as FedVeca (rounded down per client and round): "
        "16 compared with 20." in texts.explain_table(c)
    )


def test_targets_are_levels_that_a_rival_reaches() -> None:
    c = compared(*TWO)
    assert [target.value for target in c.targets] == [0.8, 0.9, 0.95]
    costs = c.targets[1].costs
    for axis, cost in {"rounds": 3, "steps": 30, "rows": 30 * BATCH, "bytes": 9, "seconds": 6}.items():
        reached = costs[0][axis]
        assert reached[1:] == (cost, cost, 3, 3, False)
        assert reached.cost is not None
        assert (reached.cost.mean, *(reached.cost.interval or ())) == pytest.approx((cost, cost, cost))
    assert costs[1]["rounds"] == Reached(None, math.inf, math.inf, 0, 3)
    assert all(reached["rounds"].arrived == 0 for reached in c.targets[2].costs)  # 95 % is never reached, and is shown
    low = compared(made("fedveca", 0, [0.3, 0.7]), made("fedavg", 0, [0.2, 0.5]))
    assert [target.value for target in low.targets] == [0.5, 0.6, 0.7]
    assert targets.find_main_target(low.targets).value == 0.5  # both methods reach it


def test_the_cost_until_a_target_knows_seeds_that_never_reach_it() -> None:
    runs = [made("fedveca", s, v) for s, v in enumerate(([0.3, 0.8, 0.8], [0.3, 0.4, 0.8], [0.3, 0.4, 0.5]))]
    (costs,) = compared(*runs).targets[-1].costs
    assert costs["rounds"][1:] == (2, 3, 2, 3, False)
    assert texts.format_reached("rounds", costs["rounds"]) == "in 2 of 3 seeds (2 to 3)"
    one = Reached(CostMean(2, None, 1), 2, 2, 1, 3)
    assert texts.format_reached("rounds", one) == "in 1 of 3 seeds (2)"
    assert texts.format_reached("rounds", Reached(None, math.inf, math.inf, 0, 3)) == "never"
    assert texts.format_reached("steps", Reached(CostMean(1200, None, 1), 1200, 1200, 1, 1)) == "1,200"
    both = Reached(CostMean(2_500_000, (1e6, 3e8), 2), 2e6, 3e6, 2, 2)
    assert texts.format_reached("bytes", both) == "2.5 [1, 300]"
    said = texts.explain_costs(compared(*runs))
    assert said[1].startswith("Where some seeds never reach it: how many do")
    (cells,) = (row[2] for row in make_cost_table(compared(*runs)).rows)  # type: ignore[union-attr]
    assert (cells[-5].text, cells[-5].small) == ("2 of 3", "seeds (2 to 3)")


def test_a_target_that_runs_have_is_among_the_targets() -> None:
    runs = [replace(run, experiment=replace(run.experiment, target=0.7)) for run in TWO]
    assert [target.value for target in compared(*runs).targets] == [0.7, 0.8, 0.9, 0.95]
    entries = views.list_targets(compared(*runs))
    assert entries[0] == {
        "quantity": "test_accuracy",
        "target": 0.7,
        "method": "FedVeca",
        "cost": "rounds",
        "mean": pytest.approx(2),
        "interval": pytest.approx((2, 2)),
        "reached": 3,
        "seeds": 3,
    }
    assert {entry["mean"] for entry in entries if entry["target"] == 0.95} == {None}


def test_runs_that_ended_early_are_named() -> None:
    short = made("fedavg", 0, [0.3, 0.8])
    short.summary["ended"] = "target"
    c = compared(made("fedveca", 0, [0.3, 0.8, 0.9]), replace(short, experiment=replace(short.experiment, rounds=3)))
    assert texts.describe_early_ends(c.curves) == "Ended early by target or patience: FedAvg after round 2."
    assert texts.describe_early_ends(c.curves) in texts.explain_table(c)
    assert c.budgets == "20 to 30 local steps"


def test_a_loss_alone_has_targets_on_its_way_down() -> None:
    def lossy(method: str, values: list[float]) -> Run:
        run = made(method, 0, values)
        for record, value in zip(run.rounds, values, strict=True):
            del record["test_accuracy"]
            record["test_loss"] = value
        end: Any = {"round": 3, "test_loss": values[-1]}
        run.summary.update({"kept": end, "last": end})
        return run

    c = compared(lossy("fedveca", [2.0, 1.0, 0.1]), lossy("fedavg", [2.0, 1.5, 0.9]))
    assert [target.value for target in c.targets] == [1.1, 0.48, 0.2]
    assert [costs["rounds"].lowest for costs in c.targets[0].costs] == [2, 3]
    assert views.find_winner(c, "kept", "test_loss") is None
    assert views.find_leader(c, "kept", "test_loss") == 0
    assert texts.give_answer(c).startswith("FedVeca has the best test loss of the kept models, 0.1000 (one seed)")


def test_repeats_are_reported() -> None:
    c = compared(*TWO, TWO[0], made("fedavg", 1, [0.1, 0.1, 0.1]))
    assert texts.explain_repeats(c.curves) == [
        "1 run repeats a seed with identical results and is not counted again.",
        "1 run repeats a seed with other results and is left out: of each seed, the run that went furthest is shown.",
    ]
    assert [row.seeds for row in c.rows] == [3, 3]


def test_results_have_a_spread_only_over_several_seeds() -> None:
    assert texts.format_result("test_accuracy", Spread(0.5, 0.0, 1)) == "50.00 %"
    assert texts.format_result("test_accuracy", Spread(0.5, 0.0, 2)) == "50.00 ±0.00 %"
    assert texts.format_result("test_loss", Spread(None, 0.0, 0)) == "-"


def test_the_tables_of_a_report() -> None:
    c = compared(*TWO)
    table = make_result_table(c)
    assert [part.heading for part in table.parts] == [
        "kept model, which is the last one",
        "minus the best, [95\N{NO-BREAK SPACE}%]",
        "cost of a run",
        "",
    ]
    (label, _, cells), (other, _, behind) = table.rows
    assert (label, other) == ("FedVeca", "FedAvg")
    assert [(cell.text, cell.small, cell.best) for cell in cells[:3]] == [
        ("93.00", "±1.00 %", True),
        ("0.0700", "±0.0100", True),
        ("best", "", False),
    ]
    assert (behind[2].text, behind[2].small) == ("−21.00", "[−21.00, −21.00]")
    costs = make_cost_table(c)
    assert costs is not None
    assert costs.parts[1].heading == "test accuracy ≥ 90 %"
    assert [cell.text for cell in costs.rows[0][2][5:10]] == ["3", "30", f"{30 * BATCH:,}", "9e-06", "6"]
    assert costs.rows[0][2][5].small == "[3, 3]"
    assert [cell.text for cell in costs.rows[0][2][10:]] == ["never"] * 5
    gaps = make_gaps(c)
    assert gaps is not None
    assert (gaps["best"], gaps["labels"], gaps["unit"]) == ("FedVeca", ["FedAvg"], "points")
    assert make_gaps(compared(*TWO[::3])) is None  # one seed has no interval


def test_a_csv_has_full_precision_and_no_formula() -> None:
    head, first, second = make_csv(compared(*TWO)).splitlines()
    assert head.split(",")[:5] == ["method", "seeds", "diverged", "kept_test_accuracy_mean", "kept_test_accuracy_std"]
    values = dict(zip(head.split(","), second.split(","), strict=True))
    assert float(values["kept_test_accuracy_mean"]) == pytest.approx(0.72)
    assert float(values["kept_test_accuracy_minus_best_low"]) == pytest.approx(-0.21)
    assert dict(zip(head.split(","), first.split(","), strict=True))["kept_test_accuracy_minus_best"] == ""
    evil = make_csv(compared(made("custom:=cmd()", 0, [0.5])))
    assert evil.splitlines()[1].startswith("'=cmd()")


def test_two_seeds_have_no_interval_and_nothing_is_marked() -> None:
    """With two seeds Student's interval is wider than what is possible: -13.93 [-113.03, +85.17] points."""
    c = compared(*(run for run in TWO if run.experiment.seed < 2))
    gap = views.find_gap(c, 1, "kept", "test_accuracy")
    assert gap is not None
    assert (gap.mean, gap.interval, gap.n) == (pytest.approx(-0.21), None, 2)
    assert views.find_winner(c, "kept", "test_accuracy") is None
    assert make_gaps(c) is None
    assert [part.heading for part in make_result_table(c).parts][1] == "minus the best"
    assert {entry["interval"] for entry in views.list_targets(c)} == {None}
    said = [texts.give_answer(c), *texts.explain_table(c), *texts.explain_costs(c)]
    assert said[0].endswith("21.00 points behind; with two seeds, this may be chance.")
    assert sum("too few for an interval" in text for text in said) == 1
    assert not any("95 %" in text for text in said)
    assert "A cost until a target is the geometric mean over seeds." in said


@pytest.mark.parametrize(
    ("ended", "budget", "high"),
    [("", "", 10), ("target", "", 10), ("target", "steps:1000", 24_000), ("budget", "steps:1000", 5)],
)
def test_a_cost_s_interval_ends_at_what_a_run_could_use_up(ended: str, budget: str, high: int) -> None:
    """1, 1 and 5 rounds: the t interval of their logarithms ends at 17.3 rounds (3.6 standard errors), runs do not."""
    short = 5 if ended else 10
    runs = [made("fedveca", s, [0.9] * short) for s in (0, 1)] + [made("fedveca", 2, [0.2] * 4 + [0.9] * (short - 4))]
    for run in runs:
        if ended:
            run.summary["ended"] = ended  # type: ignore[typeddict-item]
    c = compared(*(replace(run, experiment=replace(run.experiment, rounds=10, budget=budget)) for run in runs))
    reached = next(target for target in c.targets if target.value == 0.9).costs[0]["rounds"]
    assert reached.cost is not None
    assert reached.cost.interval is not None
    low, top = reached.cost.interval
    assert 0 < low < reached.cost.mean < top
    assert top == pytest.approx(min(high, 5 ** (1 / 3) * math.exp(4.302653 * math.log(5) / 3)), rel=1e-5)
    assert reached.cut == (high < 17)
    assert any("ends at what a run could use up" in text for text in texts.explain_costs(c)) == (high < 17)


def test_the_costs_of_a_run_have_a_heading_each() -> None:
    """Simulated devices have seconds and joules until targets, but none of these columns."""
    runs = [made("fedveca", 0, [0.9]), made("fedavg", 0, [0.8])]
    for run in runs:
        run.rounds[0].update({"clock": 3.0, "joules": 4.0})  # type: ignore[typeddict-unknown-key]
    table = make_result_table(compared(*runs))
    assert all(len(cells) == sum(len(part.columns) for part in table.parts) for _, _, cells in table.rows)
