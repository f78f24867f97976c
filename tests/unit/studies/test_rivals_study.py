"""The study of rivals: its budget, its leads by Holm's rule, and its groups. What pages say: test_choose_page.py."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from fedveca import Experiment, run
from fedveca.runs.folder import Run
from studies.rivals import results
from studies.rivals import run as rivals
from studies.rivals.cases import find_chance, group_cases, is_fresh, is_partial
from studies.rivals.fresh import add_run, list_missing
from studies.rivals.grid import compare_grid, find_rate_loss, has_failed, is_near_chance, make_grid_table
from studies.rivals.merge import merge_units
from studies.rivals.page import replace_table
from studies.rivals.run import GRID, GRID_SEEDS, LADDER, RATES, RIVALS, SEEDS, RivalOutcome, Tried, Unit
from studies.rivals.swings import count_far, list_swings, make_swing_table


def outcome(last: float, **more: Any) -> RivalOutcome:
    plain = RivalOutcome(last=last, kept=last, best=last, rows=1, diverged=False, returns=0)
    return plain | more  # type: ignore[return-value]


def unit(method: str, lasts: list[float], case: str = "heart") -> Unit:
    runs = {str(seed): outcome(last) for seed, last in enumerate(lasts)}
    return Unit(case=case, method=method, tuning=[], settings={}, runs=runs, grid={})


@pytest.mark.parametrize("method", ["fedavg", "fedvecam"])
def test_every_method_has_the_budget_of_the_case(method: str) -> None:
    """FedAvg takes 12 mini-batches per client and round; FedVecaM 10, and the probe is the rest."""
    e = rivals.make_rival("digits-case3", method, {"lr": 0.1}, 501)
    assert (e.tau_0, e.rounds) == ((10, 60) if method == "fedvecam" else (12, 60))
    done = run(e.replace(rounds=6), device="cpu")
    rows = [record["rows"] for record in done.rounds]
    assert sum(rows) == pytest.approx(rivals.count_budget("digits-case3") / 10, rel=0.02)


def test_methods_with_their_own_steps_count_up_to_the_budget() -> None:
    lines: list[Any] = [
        {"round": k, "rows": 10, "train_loss": loss, "test_accuracy": accuracy, "test_loss": 1.0}
        for k, (loss, accuracy) in enumerate([(3.0, 0.1), (2.0, 0.5), (1.0, 0.3), (0.5, 0.9)])
    ]
    summary: Any = {"last": {"test_accuracy": 0.9}, "kept": {"test_accuracy": 0.9}}
    done = Run(rivals.make_rival("heart", "fedveca", {}, 0), lines, summary)
    cut = rivals.describe_rival(done, 35)
    assert (cut["last"], cut["kept"], cut["best"], cut["rows"]) == (30.0, 50.0, 50.0, 30)
    assert rivals.describe_rival(done, 40)["last"] == 90.0


def test_holm_multiplies_by_how_many_are_left() -> None:
    assert results.correct_holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert results.correct_holm([0.9, 0.8]) == [1.0, 1.0]


def test_a_lead_is_clear_where_the_seeds_agree() -> None:
    ours = unit("fedvecam", [90.0, 91.0, 92.0, 93.0])
    far, near = unit("fedavg", [80.0, 81.2, 82.1, 83.0]), unit("feddyn", [91.0, 90.0, 93.0, 92.0])
    ahead = unit("scaffold", [95.0, 96.1, 97.0, 98.2])
    (verdict,) = results.judge_cases([ours, far, near, ahead], "last")
    assert verdict.place == 2
    assert [one.rival for one in verdict.behind] == ["scaffold"]
    assert verdict.behind[0].lead == pytest.approx(-5.075)
    assert [one.rival for one in verdict.ahead] == ["fedavg"]


def everyone(case: str, **lasts: float) -> list[Unit]:
    """Every method on a case with four seeds that agree; those not named reach 80 %."""
    found = [unit(m, [lasts.get(m, 80.0) + 0.01 * k for k in range(4)], case) for m in RIVALS]
    for one in found:
        one["settings"] = {"lr": 0.1}
    return found


def test_each_method_is_judged_as_fedvecam_is() -> None:
    units = everyone("heart", fedacg=90.0, fedvecam=85.0) + everyone("cifar-dirichlet05-partial", feddyn=82.0)
    ranked = results.rank_methods(units, "last")
    everything = {one.method: one for one in ranked["all"]}
    assert everything["fedacg"].distance == pytest.approx((0 + 2) / 2)
    assert everything["fedvecam"].distance == pytest.approx((5 + 2) / 2)
    assert everything["fedacg"].level == 1  # behind FedDyn on the second case
    assert everything["fedvecam"].level == 0
    assert everything["fedavg"].rates == [0.1]
    assert ranked["all"][0].method == "fedacg"
    assert results.count_level(units, "last")["all"] == 0
    assert [one.method for one in results.choose_methods(ranked["a fifth, CNN"])] == ["feddyn"]
    near = everyone("heart", fedacg=90.0, feddyn=89.75, fedavg=89.65)
    chosen = results.choose_methods(results.rank_methods(near, "last")["all clients, linear"])
    assert [one.method for one in chosen] == ["fedacg", "feddyn"]
    table = results.make_group_table(units, ranked)
    assert "| all: 2 | 3.50 (0) | 6.00 (0) |" in table


def test_cases_are_grouped_by_participation_model_and_skew() -> None:
    units = [one for case in rivals.read_cases() for one in everyone(case)]
    groups = group_cases(units)
    assert groups["all"] == list(rivals.read_cases())
    for parts in (("all clients", "a fifth"), ("data of the choice", "other data")):
        assert sorted(case for part in parts for case in groups[part]) == sorted(groups["all"])
    kinds = [f"{who}, {kind}" for who in ("all clients", "a fifth") for kind in ("linear", "MLP", "CNN")]
    assert sorted(case for kind in kinds for case in groups[kind]) == sorted(groups["all"])
    assert groups["a fifth, CNN"] == ["cifar-dirichlet05-partial"]
    assert groups["all clients, natural or synthetic clients"] == ["heart", "synthetic"]
    assert (is_partial("mlp-case3"), is_partial("mlp-dirichlet05-partial")) == (False, True)
    assert (is_fresh("svm-case3"), is_fresh("synthetic")) == (True, False)


def test_rows_are_parts_of_the_budget() -> None:
    one = unit("fedvecam", [80.0, 80.0])
    budget = rivals.count_budget("heart")
    one["runs"] = {"1": outcome(80.0, rows=budget // 2), "2": outcome(80.0, rows=budget)}
    assert results.find_spent([one], "fedvecam") == {"heart": (0.5, 1.0)}
    assert results.find_spent([one], "fedavg") == {}


def test_tuned_rates_at_the_edge_are_counted() -> None:
    units = [unit("fedacg", [1.0], case) for case in ("heart", "synthetic", "svm-case3")]
    for one, rate in zip(units, (0.003, 0.3, 0.3), strict=True):
        one["settings"] = {"lr": rate}
    assert results.count_edges(units, "fedacg") == (1, 2)


def test_a_run_near_chance_has_failed_whether_or_not_it_diverged() -> None:
    """The SVM and heart disease have two labels, the others ten."""
    assert [find_chance(case) for case in ("svm-case3", "heart", "mlp-case3", "synthetic")] == [50, 50, 10, 10]
    assert is_near_chance("svm-case3", outcome(55.0))
    assert not is_near_chance("svm-case3", outcome(55.1))
    assert not is_near_chance("cifar-case3", outcome(15.1))
    assert has_failed("cifar-case3", outcome(40.0, diverged=True))
    assert has_failed("cifar-case3", outcome(10.0))


def make_grid_units() -> list[Unit]:
    """On CIFAR-10: FedVecaM ends near chance at 0.03, FedAvg diverges at 0.1, SCAFFOLD is level but for 0.003."""
    ends = {
        "fedvecam": {0.03: outcome(10.0), 0.1: outcome(30.0, returns=2)},
        "fedavg": {0.1: outcome(30.0, diverged=True)},
        "scaffold": {0.003: outcome(38.0)},
    }
    units = everyone("cifar-case3")
    for one in units:
        if one["method"] in GRID:
            mine = ends[one["method"]]
            one["grid"] = {f"{r:g}": {str(s): mine.get(r, outcome(40.0)) for s in GRID_SEEDS} for r in RATES}
    return units


def test_fedvecam_is_compared_with_the_same_rate_and_seed() -> None:
    units = make_grid_units()
    against = compare_grid(units, "fedavg")
    assert against.diverged == []
    assert {cell.rate for cell in against.failed} == {"0.03"}
    assert {cell.rate for cell in against.spared} == {"0.1"}
    assert (len(against.failed), len(against.spared), against.ahead, against.behind) == (3, 3, 0, 3)
    assert (compare_grid(units, "scaffold").ahead, compare_grid(units, "scaffold").behind) == (3, 6)
    assert find_rate_loss(units, "fedvecam", ["cifar-case3"]) == pytest.approx((30 + 10) / 5)
    assert find_rate_loss(units, "scaffold", ["cifar-case3"]) == pytest.approx(2 / 5)
    table = make_grid_table(units)
    assert "| CNN | 0.03 | 3 | 10.00 | 40.00 | 40.00 | 0, 3 | 0, 0 | 0, 0 | 0 |" in table
    assert "| CNN | 0.1 | 3 | 30.00 | 30.00 | 40.00 | 0, 0 | 3, 0 | 0, 0 | 6 |" in table


def test_a_swing_is_the_best_round_minus_the_last_model() -> None:
    units = everyone("heart")
    for one in units:
        if one["method"] == "fedvecam":
            one["runs"] = {"1": outcome(80.0, best=81.0), "2": outcome(80.0, best=81.5)}
    assert list_swings(units, "heart", "fedvecam") == pytest.approx([1.0, 1.5])
    assert count_far([1.0, 1.5]) == 1
    assert "| heart | 254 | 1.25 | 1 of 2 | 0.00 | 0 of 40 |" in make_swing_table(units)


def test_new_units_take_the_place_of_the_stored_ones() -> None:
    stored = [unit("fedavg", [1.0]), unit("fedvecam", [2.0])]
    new = [unit("fedvecam", [3.0]), unit("fedvecam", [4.0], "synthetic")]
    assert merge_units(stored, new) == [stored[0], *new]


def test_a_table_is_replaced_by_its_head() -> None:
    page = "text\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n| c |\n|---|\n"
    assert replace_table(page, "| a | b |\n|---|---|\n| 3 | 4 |") == page.replace("1 | 2", "3 | 4")
    with pytest.raises(ValueError, match="not one table"):
        replace_table(page, "| d |\n|---|")


def tune_with(monkeypatch: pytest.MonkeyPatch, find: Callable[[float, float, int], float], method: str) -> Unit:
    """Tunes a method on heart disease, where a run reaches what `find` says of lr, server_lr and seed."""

    def pretend(e: Experiment, device: str) -> Run:
        assert (e.val, e.test_every, e.rounds) == (0.1, 60, 60)
        return Run(e, [], {"last": {"val_accuracy": find(e.lr, e.server_lr, e.seed)}})  # type: ignore[typeddict-item]

    monkeypatch.setattr(rivals, "run", pretend)
    tuning: list[Tried] = []
    found = unit(method, [1.0] * 10)
    rivals.tune(
        rivals.read_plan("heart"),
        rivals.list_tuned(method),
        tuning,
        lambda settings, seed: rivals.find_val_accuracy("heart", method, settings, seed, "cpu"),
    )
    found["settings"] = rivals.choose_settings(tuning)
    found["tuning"], found["runs"] = tuning, {str(seed): outcome(1.0) for seed in SEEDS}
    return found


def test_tuning_looks_beyond_the_values_that_it_tried_first(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tune_with(monkeypatch, lambda lr, _, __: -abs(lr - 1.0), "fedavg")
    assert found["settings"] == {"lr": 1.0}
    assert [settings["lr"] for settings, _ in found["tuning"]] == [*RATES, 1.0, 3.0]
    assert rivals.is_complete(found)
    lowest = tune_with(monkeypatch, lambda lr, _, __: -lr, "fedavg")
    assert lowest["settings"] == {"lr": LADDER[0]}
    assert rivals.is_complete(lowest)
    inside = tune_with(monkeypatch, lambda lr, _, __: -abs(lr - 0.03), "fedavg")
    assert [settings["lr"] for settings, _ in inside["tuning"]] == [*RATES]


def test_tuning_looks_beyond_each_setting_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tune_with(monkeypatch, lambda lr, server, _: -abs(lr - 0.03) - abs(server - 10.0), "scaffold tuned")
    assert found["settings"] == {"lr": 0.03, "method": "scaffold", "server_lr": 10.0}
    beyond = [settings for settings, _ in found["tuning"]][10:]
    assert beyond == [{"lr": 0.03, "method": "scaffold", "server_lr": 10.0}]


def test_the_two_best_settings_are_tuned_on_all_seeds(monkeypatch: pytest.MonkeyPatch) -> None:
    """On seed 601 the rate 0.1 is ahead of 0.03, which is ahead of it on the two others."""
    ends = {0.1: (0.9, 0.2, 0.2), 0.03: (0.8, 0.8, 0.8), 0.01: (0.7, 0.9, 0.9)}
    found = tune_with(monkeypatch, lambda lr, _, seed: ends.get(lr, (0, 0, 0))[seed - 601], "fedavg")
    assert found["settings"] == {"lr": 0.03}
    seeds = {settings["lr"]: len(accuracy) for settings, accuracy in found["tuning"]}
    assert seeds == {0.003: 1, 0.01: 1, 0.03: 3, 0.1: 3, 0.3: 1}


def test_what_is_left_of_a_unit_is_run(monkeypatch: pytest.MonkeyPatch) -> None:
    found = tune_with(monkeypatch, lambda lr, _, __: -abs(lr - 0.03), "fedavg")
    found["grid"] = {"0.1": {}}
    asked: list[int] = []

    def note(case: str, method: str, settings: object, seeds: list[int], device: str) -> dict[str, RivalOutcome]:
        assert settings == {"lr": 0.03}
        asked.extend(seeds)
        return {str(seed): outcome(2.0) for seed in seeds}

    monkeypatch.setattr(rivals, "measure_runs", note)
    del found["runs"]["511"]
    assert not rivals.is_complete(found)
    assert rivals.is_complete(rivals.measure_unit("heart", "fedavg", known=found))
    assert asked == [511]
    asked.clear()
    rivals.measure_unit("heart", "fedavg", known={**found, "settings": {"lr": 0.1}})
    assert asked == [*SEEDS]  # its runs have other settings


def test_fresh_runs_go_seed_by_seed_and_continue_where_they_ended() -> None:
    stored = [unit(method, [1.0], case) for case in ("heart", "svm-case3") for method in ("fedvecam", "fedavg")]
    jobs = list_missing(stored, [], ["heart"], [])
    assert [(job.unit["method"], job.seed) for job in jobs[:3]] == [
        ("fedvecam", 511),
        ("fedavg", 511),
        ("fedvecam", 512),
    ]
    assert {job.unit["case"] for job in jobs} == {"heart"}
    assert len(jobs) == 2 * len(SEEDS)
    found: list[Unit] = []
    for job in jobs[:3]:
        add_run(found, job, outcome(2.0))
    assert [(one["method"], [*one["runs"]]) for one in found] == [("fedvecam", ["511", "512"]), ("fedavg", ["511"])]
    assert list_missing(stored, found, ["heart"], []) == jobs[3:]
    only = list_missing(stored, found, ["heart", "svm-case3"], ["fedavg"])
    assert {job.unit["method"] for job in only} == {"fedavg"}
    assert len(only) == 2 * len(SEEDS) - 1
    assert not list_missing(stored, [], [], [])  # the study itself has these seeds
    assert list_missing([unit("fedavg", [1.0], "cnn-case3")], [], [], [])
    assert stored[0]["runs"] == {"0": outcome(1.0)}  # what the study has found stays apart


def test_a_case_may_have_a_plan_with_fewer_runs() -> None:
    assert rivals.read_plan("heart") == rivals.CasePlan()
    earlier = rivals.read_plan("cnn-case3")
    assert (earlier.tuning_seeds, earlier.beyond, earlier.seeds) == ((601,), False, tuple(range(501, 511)))
    assert (earlier.rates, earlier.grid, earlier.counts) == (RATES, GRID, True)
    assert not rivals.read_plan("resnet-case3").counts


def test_tuning_with_fewer_runs_looks_at_its_rates_and_its_seed_only() -> None:
    tuning: list[Tried] = []
    plan = rivals.read_plan("resnet-case3")
    rivals.tune(plan, rivals.list_tuned("fedavg", plan.rates), tuning, lambda settings, seed: settings["lr"] * seed)
    assert tuning == [({"lr": lr}, [lr * 601]) for lr in (0.01, 0.03, 0.1)]
