"""The study of 15 seconds: what counts as in time, what is chosen, and what docs/seconds.md says of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedveca.cohorts.clock.profiles import POPULATIONS
from fedveca.runs.clock_settings import read_devices
from studies.wang import results
from studies.wang import run as wang
from studies.wang.run import WangOutcome, WangUnit

DOCS = Path(__file__).parents[3] / "docs"


def make_outcome(loss: float) -> WangOutcome:
    return WangOutcome(
        last_loss=loss, last_accuracy=90 - 10 * loss, kept_loss=loss, kept_accuracy=90, train_loss=loss, rounds=3, tau=2
    )


def make_units(losses: dict[str, list[float]], fleet: str = "alike", case: str = "case3") -> list[WangUnit]:
    """Of every method of the study; those that are not named have a loss of 1."""
    found = []
    for method in wang.list_methods():
        mine = losses.get(method, [1.0, 1.01, 0.99])
        runs = {str(seed): make_outcome(loss) for seed, loss in enumerate(mine)}
        found.append(WangUnit(fleet=fleet, case=case, method=method, choice={}, tried=[({}, mine[0])], runs=runs))
    return found


def test_a_run_is_cut_at_its_time() -> None:
    """Round k starts at w_k, whose training loss it has, and ends at w_(k+1), whose test values it has."""
    rounds: list[Any] = [
        {"clock": clock, "train_loss": loss, "test_loss": test, "test_accuracy": test / 10, "tau": [2, 4 * k]}
        for k, (clock, loss, test) in enumerate([(5, 9.0, 1.0), (9, 3.0, 2.0), (15, 4.0, 3.0), (15.1, 1.0, 4.0)])
    ]
    found = wang.cut_run(rounds, 15)
    assert (found["last_loss"], found["last_accuracy"], found["rounds"]) == (3.0, 30.0, 3)
    assert (found["train_loss"], found["kept_loss"], found["kept_accuracy"]) == (3.0, 1.0, 10.0)  # w_1
    assert found["tau"] == pytest.approx((2 + 0 + 2 + 4 + 2 + 8) / 6)
    early = wang.cut_run(rounds, 6)
    assert (early["last_loss"], early["kept_loss"], early["train_loss"], early["rounds"]) == (1.0, 0.5, 9.0, 1)
    never = wang.cut_run(rounds, 4)
    assert (never["last_loss"], never["last_accuracy"], never["rounds"], never["tau"]) == (0.5, 0.0, 0, 1.0)


def test_the_settings_are_those_of_wang_et_al() -> None:
    e = wang.make_settings("alike", "case3", "adaptivetau", {}, 501)
    assert (e.model, e.data, e.clients, e.batch, e.lr) == ("svm", "mnist", 5, 100, 0.01)
    assert (e.tau_0, e.tau_max, e.wang_phi, e.wang_seconds) == (1, 100, 0.025, wang.SECONDS)
    assert e.devices == "five-raspberry-pis"
    fixed = [wang.make_settings("alike", "case1", m, {}, 501) for m in wang.list_methods() if m.startswith(wang.FIXED)]
    assert [(e.method, e.tau_0) for e in fixed] == [("fedavg", tau) for tau in (1, 2, 5, 10, 20, 50, 100)]
    assert wang.list_choices("fixed-5") == [{}]
    assert wang.list_choices("fedveca") == [{"alpha": 0.9}, {"alpha": 0.95}, {"alpha": 0.99}]
    assert {*wang.CHOOSING_SEEDS}.isdisjoint(wang.SEEDS)


def test_the_unequal_devices_are_theirs_and_slower_ones() -> None:
    (theirs,) = POPULATIONS["five-raspberry-pis"]
    for profile, factor in zip(read_devices(wang.FLEETS["mixed"]), (1, 3, 10), strict=True):
        assert profile.forward_ms == pytest.approx(factor * theirs.forward_ms, rel=1e-6)
        assert profile.backward_ms == pytest.approx(factor * theirs.backward_ms, rel=1e-6)
        for name in ("latency_ms", "spread", "network_spread"):
            assert getattr(profile, name) == pytest.approx(getattr(theirs, name), rel=1e-6)


def test_the_fixed_tau_is_chosen_on_other_seeds() -> None:
    """By the training loss of the choosing seeds, here the first value, and not by what is reported."""
    units = make_units({"fixed-5": [0.4, 0.9, 0.9], "fixed-10": [0.5, 0.1, 0.1]})
    assert results.index_units(units)["alike", "case3", results.CHOSEN]["method"] == "fixed-5"


def test_leads_are_paired_and_above_0_where_ours_is_better() -> None:
    units = make_units({"fedveca": [0.5, 0.6, 0.7], "adacomm": [0.6, 0.7, 0.801], "equaltime": [0.4, 0.61, 0.69]})
    by = {(one.ours, one.rival): one for one in results.compare_units(units, "last_loss")}
    assert by["fedveca", "adacomm"].lead.mean == pytest.approx(0.1, abs=1e-3)
    assert by["fedveca", "adacomm"].p < 0.05
    assert by["fedveca", "equaltime"].p == 1.0
    assert by["fedveca_time", "fedveca"].lead.mean == pytest.approx(-0.4)
    accuracy = {(one.ours, one.rival): one for one in results.compare_units(units, "last_accuracy")}
    assert accuracy["fedveca", "adacomm"].lead.mean == pytest.approx(1, abs=0.01)
    assert ("fedveca", "fedveca_time") not in by  # the same comparison from the other side


def test_only_complete_places_are_shown() -> None:
    units = make_units({})
    assert results.list_places([*units, *make_units({}, "mixed")[:-1]]) == [("alike", "case3")]


# what is stored, and what the page says


def read_units() -> list[WangUnit]:
    units: list[WangUnit] = json.loads((DOCS / "results" / "wang.json").read_text("utf-8"))
    return units


PAGE = (DOCS / "seconds.md").read_text("utf-8")


def test_every_stored_run_is_one_of_the_rules() -> None:
    units = read_units()
    assert len(results.list_places(units)) * len(wang.list_methods()) == len(units)
    for unit in units:
        assert [int(seed) for seed in unit["runs"]] == list(wang.SEEDS)
        assert [choice for choice, _ in unit["tried"]] == wang.list_choices(unit["method"])
        assert unit["choice"] == min(unit["tried"], key=lambda one: one[1])[0]


def test_the_page_shows_the_tables() -> None:
    units = read_units()
    tables = [results.make_table(units, "last_loss"), results.make_details(units)]
    tables += [results.make_leads(units, "last_loss", ours) for ours in results.OURS]
    tables += [results.make_leads(units, "kept_accuracy", "fedveca")]
    for table in tables:
        assert table in PAGE


def test_each_sentence_of_the_page_is_true() -> None:
    units = read_units()
    loss, points = (
        {(one.fleet, one.case, one.ours, one.rival): one for one in results.compare_units(units, value)}
        for value in ("last_loss", "last_accuracy")
    )
    by = results.index_units(units)
    rivals = (results.CHOSEN, "adaptivetau", "adacomm", "equaltime")

    def is_clear(fleet: str, case: str, ours: str, rival: str) -> bool:
        return loss[fleet, case, ours, rival].p < results.LEVEL

    def span(one: results.TimedLead, scale: float, digits: int, behind: bool = False) -> tuple[str, str]:
        """The size of a lead, or of a lag, and its interval."""
        assert one.lead.interval
        sign = -scale if behind else scale
        low, high = sorted(sign * end for end in one.lead.interval)
        return f"{sign * one.lead.mean:.{digits}f}", f"{low:.{digits}f} to {high:.{digits}f}"

    def mean(fleet: str, case: str, method: str, value: Any) -> float:
        return sum(results.list_values(by[fleet, case, method], value)) / len(wang.SEEDS)

    # Case 3 on equal devices
    for ours in results.OURS:
        for rival in rivals:
            assert loss["alike", "case3", ours, rival].lead.mean > 0
            assert is_clear("alike", "case3", ours, rival)
    (far, ends), (more, more_ends) = (
        span(loss["alike", "case3", "fedveca", "fixed"], 1000, 1),
        span(points["alike", "case3", "fedveca", "fixed"], 1, 2),
    )
    assert f"Its loss is {far} thousandths below that of the chosen fixed τ (95 % interval {ends})" in PAGE
    assert f"and its accuracy {more} points above it ({more_ends})" in PAGE
    # Cases 1 and 2
    for case, rival in ((case, rival) for case in ("case1", "case2") for rival in rivals):
        assert loss["alike", case, "fedveca", rival].lead.mean < 0
        assert is_clear("alike", case, "fedveca", rival) == ((case, rival) != ("case2", "adaptivetau"))
    (far, ends), (more, more_ends) = (
        span(loss["alike", "case1", "fedveca", "fixed"], 1000, 1, behind=True),
        span(points["alike", "case1", "fedveca", "fixed"], 1, 2, behind=True),
    )
    assert f"FedVeca is {far} thousandths ({ends}) and {more} points ({more_ends}) behind it" in PAGE
    assert [by["alike", f"case{n}", "fixed"]["method"] for n in (1, 2, 3)] == ["fixed-100", "fixed-10", "fixed-5"]
    assert by["mixed", "case3", "fixed"]["method"] == "fixed-2"
    fixed = [m for m in wang.list_methods() if m.startswith(wang.FIXED)]
    assert min(fixed, key=lambda m: mean("alike", "case1", m, "last_loss")) == "fixed-100"
    assert {unit["choice"]["alpha"] for unit in units if unit["method"] in results.OURS} == {0.95}
    assert f"and {mean('alike', 'case1', 'fedveca', 'tau'):.1f} on average" in PAGE
    steps = [mean("alike", case, "adaptivetau", "tau") for case in ("case1", "case2")]
    assert f"with {steps[0]:.1f} and {steps[1]:.1f} local steps on average" in PAGE
    far, ends = span(loss["alike", "case2", "fedveca", "fixed"], 1000, 1, behind=True)
    assert f"In Case 2 FedVeca is {far} thousandths ({ends}) behind the chosen τ" in PAGE
    # unequal devices
    assert not any(is_clear("mixed", "case3", "fedveca", rival) for rival in rivals)
    rounds = [mean(fleet, "case3", "fedveca", "rounds") for fleet in ("mixed", "alike")]
    assert f"{rounds[0]:.0f} rounds end within the time, compared with {rounds[1]:.0f} on equal ones" in PAGE
    assert f"FedVeca by time takes {mean('mixed', 'case3', 'fedveca_time', 'rounds'):.0f} rounds" in PAGE
    far, ends = span(loss["mixed", "case3", "fedveca_time", "fedveca"], 1000, 1)
    assert f"its loss is {far} thousandths below FedVeca's ({ends}; within chance by Holm's rule)" in PAGE
    found = {rival: is_clear("mixed", "case3", "fedveca_time", rival) for rival in (*rivals, "fedveca")}
    assert found == {"fixed": False, "adaptivetau": True, "adacomm": True, "equaltime": False, "fedveca": False}
    everyone = wang.list_methods()
    assert min(everyone, key=lambda m: mean("mixed", "case3", m, "last_loss")) == "equaltime"
    assert max(everyone, key=lambda m: mean("mixed", "case3", m, "last_accuracy")) == "fedveca_time"
    # FedVeca by time
    far, ends = span(loss["alike", "case3", "fedveca_time", "fedveca"], 1000, 1, behind=True)
    assert f"in Case 3 its loss is {far} thousandths higher ({ends})" in PAGE
    for case in ("case1", "case2"):
        low, high = loss["alike", case, "fedveca_time", "fedveca"].lead.interval or (1, 1)
        assert low < 0 < high
    assert f"τ = 100 has a loss of {mean('alike', 'case3', 'fixed-100', 'last_loss'):.4f} in Case 3" in PAGE


def test_the_figure_is_drawn_from_the_results(tmp_path: Path) -> None:
    results.draw(read_units(), tmp_path / "wang.svg")
    assert (tmp_path / "wang.svg").read_bytes() == (DOCS / "results" / "wang.svg").read_bytes()
