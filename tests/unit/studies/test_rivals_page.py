"""What docs/rivals.md, docs/choose.md and README say of the study of rivals is what its results give."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path

import pytest

from fedveca import run
from fedveca.runs.schema import get_number
from fedveca.tasks.datasets.dataset import load
from studies.rivals import results, swings
from studies.rivals.averaged import METHODS, AveragedUnit, compare_averaged, make_averaged_table
from studies.rivals.cases import (
    TEST_ROWS,
    count_test_rows,
    find_family,
    group_cases,
    keep_complete,
    list_cases,
    name_rival,
)
from studies.rivals.grid import compare_grid, find_rate_loss, index_grid, list_cells
from studies.rivals.page import make_tables
from studies.rivals.run import (
    GRID,
    LADDER,
    RATES,
    RIVALS,
    SEEDS,
    Unit,
    is_complete,
    list_tuned,
    make_rival,
    read_cases,
    read_plan,
)

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "rivals.md").read_text("utf-8")
CHOOSE = (DOCS / "choose.md").read_text("utf-8")
README = (DOCS.parent / "README.md").read_text("utf-8")


@pytest.fixture(scope="module")
def units() -> list[Unit]:
    stored: list[Unit] = json.loads((DOCS / "results" / "rivals.json").read_text("utf-8"))
    assert len(keep_complete(stored)) == len(stored)
    assert all(is_complete(unit) for unit in stored)
    return stored


@pytest.fixture(scope="module")
def standings(units: list[Unit]) -> dict[str, list[results.Standing]]:
    return results.rank_methods(units, "last")


def test_the_tables_are_those_of_the_results(units: list[Unit], tmp_path: Path) -> None:
    for name, tables in make_tables(units).items():
        for table in tables:
            assert table in (DOCS / name).read_text("utf-8")
    swings.draw(units, tmp_path / "rivals.svg")
    assert (tmp_path / "rivals.svg").read_bytes() == (DOCS / "results" / "rivals.svg").read_bytes()


def test_cases_that_were_not_run_are_named(units: list[Unit]) -> None:
    (missing,) = (case for case in read_cases() if case not in list_cases(units))
    assert not read_plan(missing).counts
    assert f"`{missing}` of `cases.toml`, ResNet-18 with GroupNorm on CIFAR-10, has not been run" in PAGE
    assert f"python -m studies.rivals {missing} --device cuda --out" in PAGE


def test_whether_fedvecam_is_first_or_tied(units: list[Unit], standings: dict[str, list[results.Standing]]) -> None:
    last, kept = results.count_level(units, "last"), results.count_level(units, "kept")
    count = {group: len(cases) for group, cases in group_cases(units).items()}
    share = {name: level["all"] / count["all"] for name, level in (("last", last), ("kept", kept))}
    answer = "Yes" if min(share.values()) >= 0.8 else "No"
    for sentence in (
        f"Is FedVecaM first or tied on at least 80 % of the cases? {answer}.",
        f"On {last['all']} of the {count['all']} cases ({share['last']:.0%}".replace("%", " %"),
        f"with kept models on {kept['all']} of {count['all']} ({share['kept']:.0%}".replace("%", " %"),
        f"On the {count['other data']} cases whose data took no part in its choice, that holds on "
        f"{last['other data']} with last models; on the {count['data of the choice']} others on "
        f"{last['data of the choice']}.",
        f"Where all clients take part it holds on {last['all clients']} of {count['all clients']} cases.",
        f"With a fifth of the clients per round it holds on {last['a fifth']} of {count['a fifth']} cases.",
    ):
        assert sentence in PAGE, sentence
    for verdict in results.judge_cases(units, "last"):
        for lead in verdict.behind:
            said = rf"`{verdict.case}`[^`]*{name_rival(lead.rival)} is ahead by {-lead.lead:.2f} points"
            assert re.search(said, PAGE), said
    full, part = standings["all clients"], standings["a fifth"]
    assert (full[0].method, part[0].method) == ("fedvecam", "fedvecam")
    assert f"FedVecaM has the smallest mean distance from the best there, {full[0].distance:.2f} points" in PAGE
    assert full[1].method == "fedacg"
    assert f"; FedACG has {full[1].distance:.2f}." in PAGE
    assert f"FedVecaM is nearest to the best there, {part[0].distance:.2f} points from it on average" in PAGE
    near, then = standings["other data"][:2]
    assert (near.method, then.method) == ("scaffold tuned", "fedvecam")
    assert f"SCAFFOLD tuned is, with {near.distance:.2f} points; FedVecaM has {then.distance:.2f}." in PAGE
    (cifar,) = (one for one in results.judge_cases(units, "last") if one.case == "cifar-dirichlet05-partial")
    assert len(cifar.ahead) == len(RIVALS) - 1
    (unit,) = (unit for unit in units if (unit["case"], unit["method"]) == (cifar.case, "fedvecam"))
    mean = statistics.fmean(run["last"] for run in unit["runs"].values())
    assert f"FedVecaM has {mean:.2f} % and is ahead of all ten rivals beyond chance" in PAGE


def test_other_methods_are_judged_in_the_same_way(
    units: list[Unit], standings: dict[str, list[results.Standing]]
) -> None:
    level = {one.method: one.level for one in standings["all"] if one.method != "fedvecam"}
    named = sorted(level, key=lambda method: -level[method])[:4]
    first, *others = (
        f"{name_rival(method)} {'is level ' * (method == named[0])}on {level[method]}" for method in named
    )
    assert level["feddyn"] == level["corrected"] == max(n for method, n in level.items() if method not in named)
    said = f"of the {len(list_cases(units))} cases {', '.join([first, *others])} and FedDyn on {level['feddyn']}."
    assert said in PAGE
    comparisons = [one for method in RIVALS for one in results.compare_units(units, "last", method)]
    assert all(one.p >= results.LEVEL for one in comparisons if one.case == "heart")
    prox = [one for one in results.compare_units(units, "last", "fedprox") if one.rival == "fedavg"]
    assert [one.lead < 0 for one in prox if one.p < results.LEVEL] == [True] * 4
    assert "it is never ahead of FedAvg beyond chance, and behind it on four cases" in CHOOSE


def test_what_a_rate_and_a_method_cost(units: list[Unit], standings: dict[str, list[results.Standing]]) -> None:
    loss = {method: find_rate_loss(units, method, list_cases(units)) for method in GRID}
    assert sorted(loss, key=lambda method: loss[method]) == ["fedvecam", "fedavg", "scaffold"]
    near, far = standings["all"][0], standings["all"][-1]
    assert (near.method, far.method) == ("fedvecam", "fedveca")
    assert (
        f"a rate costs {loss['fedvecam']:.1f} points (FedVecaM) to {loss['scaffold']:.1f} points (SCAFFOLD)" in CHOOSE
    )
    assert f"a method costs {near.distance:.1f} points (FedVecaM) to {far.distance:.1f} points (FedVeca)" in CHOOSE
    assert (
        f"a rate is {loss['fedvecam']:.2f} points from the best one on average, {loss['fedavg']:.2f} for FedAvg and "
        f"{loss['scaffold']:.2f} for SCAFFOLD" in PAGE
    )
    cnn = {method: find_rate_loss(units, method, group_cases(units)["all clients, CNN"]) for method in GRID}
    assert f"it is {cnn['fedvecam']:.2f} points, and {cnn['fedavg']:.2f} for FedAvg" in PAGE


def test_what_to_take_where_nobody_tunes(units: list[Unit]) -> None:
    groups, grid = group_cases(units), index_grid(units)
    cnn = [*groups["all clients, CNN"], *groups["a fifth, CNN"]]
    others = [case for case in groups["all"] if case not in cnn]

    def mean(method: str, cases: list[str], rate: float) -> float:
        return statistics.fmean(grid[method][cell]["last"] for cell in list_cells(cases, [rate]))

    for rate in RATES[:-1]:
        assert mean("fedvecam", others, rate) > max(mean(method, others, rate) for method in GRID[1:])
    best = max(mean("fedvecam", others, rate) for rate in RATES)
    assert [rate for rate in RATES if mean("fedvecam", others, rate) > best - 0.5] == [0.03, 0.1]
    said = f"`lr=0.1` for a linear model or a network of dense layers ({mean('fedvecam', others, 0.1):.2f} %; "
    assert f"{said}{mean('fedvecam', others, 0.03):.2f} % with 0.03)" in CHOOSE
    for rate in RATES[:-1]:
        assert mean("fedvecam", cnn, rate) > max(mean(method, cnn, rate) for method in GRID[1:])
    assert max(RATES, key=lambda rate: mean("fedvecam", cnn, rate)) == 0.01


def test_where_fedvecam_fails_and_others_do_not(units: list[Unit]) -> None:
    grid, against = index_grid(units), {rival: compare_grid(units, rival) for rival in GRID[1:]}
    fedavg, scaffold = against["fedavg"], against["scaffold"]
    count = len(grid["fedvecam"])
    assert fedavg.failed == scaffold.failed == []
    assert f"Not by its results, in {count} runs." in PAGE
    assert [(cell.case, cell.rate) for cell in fedavg.diverged] == [
        ("cifar-case3", "0.3"),
        ("cifar-dirichlet05-partial", "0.1"),
    ]
    ends = [grid["fedavg"][cell]["last"] for cell in fedavg.diverged]
    assert f"FedAvg's runs end at {ends[0]:.2f} and {ends[1]:.2f} % there" in PAGE
    svms, cnns = (
        [sum(cell.case.startswith(names) for cell in a.spared) for a in against.values()]
        for names in ("svm", ("cnn", "cifar"))
    )
    assert {cell.rate for cell in fedavg.spared} == {"0.3"}
    assert {cell.rate for cell in scaffold.spared if cell.case.startswith("svm")} == {"0.1", "0.3"}
    said = (
        f"FedAvg fails in {len(fedavg.spared)} runs in which FedVecaM does not, of which {svms[0]} are SVMs at 0.3 and"
    )
    assert f"{said} {cnns[0]} is a CNN" in PAGE
    said = f"SCAFFOLD in {len(scaffold.spared)}, of which {svms[1]} are SVMs at 0.1 or 0.3 and {cnns[1]} CNNs"
    assert said in PAGE
    assert f"ahead of FedAvg in {fedavg.ahead} of {count} runs and more than a point behind in {fedavg.behind}" in PAGE
    assert f"for SCAFFOLD it is {scaffold.ahead} and {scaffold.behind}" in PAGE


def test_how_far_runs_end_below_their_best_round(units: list[Unit]) -> None:
    far = {c: swings.count_far(swings.list_swings(units, c, "fedvecam")) for c in list_cases(units)}
    total, count = sum(far.values()), len(far) * len(SEEDS)
    assert f"true of {count - total} of its {count} tuned runs, and false of {total}" in PAGE
    for case, runs in far.items():
        assert not runs or re.search(rf"\b{runs} on `?{case}\b", PAGE), case
    few = sum(runs for case, runs in far.items() if count_test_rows(case) < 450)
    assert f"{few} of the {total} runs are on cases with about 400 test rows or fewer" in PAGE
    assert (total - few, far["cifar-case3"], far["mlp-case3"]) == (4, 3, 1)
    lost = sorted(swings.list_swings(units, "cifar-case3", "fedvecam"))[-3:]
    mlp = max(swings.list_swings(units, "mlp-case3", "fedvecam"))
    assert (
        f"The run on `mlp-case3` ends {mlp:.2f} points below its best round, and those on `cifar-case3` "
        f"{lost[0]:.1f} to {lost[2]:.1f} points." in PAGE
    )
    mean = {c: statistics.fmean(swings.list_swings(units, c, "fedvecam")) for c in far}
    held = [value for value in mean.values() if value <= swings.FAR]
    assert (len(held), mean["heart"] > swings.FAR) == (len(far) - 1, True)
    assert f"true on {len(held)} of the {len(far)} cases, on which the largest is {max(held):.2f} points" in PAGE
    below = {m: sum(swings.count_far(swings.list_swings(units, c, m)) for c in far) for m in swings.list_rivals()}
    low, high = min(below, key=below.__getitem__), max(below, key=below.__getitem__)
    assert (low, high) == ("scaffold", "fedexp")
    assert f"{below[low]} (SCAFFOLD) to {below[high]} (FedExP) end so far below" in PAGE
    ours = statistics.fmean(swings.list_swings(units, "heart", "fedvecam"))
    theirs = statistics.fmean(s for m in swings.list_rivals() for s in swings.list_swings(units, "heart", m))
    assert f"end {theirs:.2f} points below their best rounds on average, FedVecaM's {ours:.2f}" in PAGE
    small, large = (100 * math.sqrt(0.05 / count_test_rows(case)) for case in ("heart", "cifar-case3"))
    assert f"{small:.2f} points with heart's 254 rows, and {large:.2f} with 10,000" in PAGE


def test_on_heart_disease_training_on_all_rows_in_one_place_ends_below_its_best_round_too() -> None:
    """So no method that minimises the training loss ends near its best round there."""
    below, falls = [], 0
    for seed in SEEDS:
        e = make_rival("heart", "fedavg", {"lr": 0.01}, seed).replace(method="centralised")
        done = run(e, device="cpu")
        accuracy = [100 * (get_number(record, "test_accuracy") or 0.0) for record in done.rounds]
        losses = [get_number(record, "train_loss") or math.inf for record in done.rounds]
        falls += losses[-1] < losses[accuracy.index(max(accuracy))]
        below.append(max(accuracy) - accuracy[-1])
    said = f"with the rate 0.01 ends {statistics.fmean(below):.2f} points below its best round on average"
    assert said in PAGE
    assert f"more than one point in {swings.count_far(below)} of the {len(below)} runs" in PAGE
    assert falls > len(below) / 2
    assert "in most of them the training loss is lower at the end than at the best round" in PAGE


def test_test_rows_are_those_of_the_data() -> None:
    for name in ("heart", "digits"):
        assert len(load(name).y_test) == TEST_ROWS[name]
    rows = [len(load("synthetic", clients=20, seed=seed).y_test) for seed in SEEDS]
    assert int(statistics.fmean(rows)) == TEST_ROWS["synthetic"]


def test_what_each_method_spent_of_the_budget(units: list[Unit]) -> None:
    spent = {method: results.find_spent(units, method) for method in RIVALS}
    ends = {m: (min(low for low, _ in by.values()), max(high for _, high in by.values())) for m, by in spent.items()}
    low, high = ends["fedvecam"]
    assert f"FedVecaM's runs have {100 * low:.0f} to {100 * high:.0f} % of the budget" in PAGE
    equal = [method for method in RIVALS if ends[method] == (1, 1)]
    assert len(equal) == 8
    assert "Gradient rows are equal for eight of the rivals only." in PAGE
    assert {*RIVALS} - {*equal} == {"fedvecam", "fedveca", "corrected"}
    above = {case: most for case, (_, most) in spent["fedvecam"].items() if most > 1.01}
    assert f"a run of it is more than 1 % above on {len(above)} cases" in PAGE
    assert all(f"`{case}` ({100 * most:.0f} %)" in PAGE for case, most in above.items())
    assert [one.case for one in results.judge_cases(units, "last") if one.case in above and one.ahead] == [
        "svm-dirichlet01",
        "synthetic",
        "mlp-dirichlet01",
    ]
    low, high = (end(ends[m][k] for m in ("fedveca", "corrected")) for k, end in enumerate((min, max)))
    assert f"stopped after 100 rounds and have {100 * low:.0f} to {100 * high:.0f} %" in PAGE


def test_limits_of_the_tuning_are_counted(units: list[Unit]) -> None:
    above: dict[str, int] = {}
    for unit in units:
        for name, value in unit["settings"].items():
            if name in ("lr", "server_lr") and value not in {tried[name] for tried in list_tuned(unit["method"])}:
                assert (name, value) == ("lr", 1.0) != LADDER[-1]
                above[unit["method"]] = above.get(unit["method"], 0) + 1
    assert above == {"fedavg": 5, "fedprox": 2, "fedveca": 1, "fedacg": 1}
    assert "a rate above the first five for FedAvg (1 on five cases), FedProx, FedVeca and FedACG" in PAGE
    earlier = [unit for unit in units if not read_plan(unit["case"]).beyond]
    assert {find_family(unit["case"]) for unit in earlier} == {"CNN"}
    lowest = [(unit["case"], unit["method"]) for unit in earlier if unit["settings"]["lr"] == RATES[0]]
    assert ("cifar-case3", "fedvecam") in lowest
    assert f"it chose 0.003, the lowest, for {len(lowest)} of the {len(earlier)} pairs" in PAGE
    assert not [unit for unit in earlier if unit["settings"]["lr"] == RATES[-1]]


def test_fresh_seeds_of_the_cnns(units: list[Unit]) -> None:
    fresh: list[Unit] = json.loads((DOCS / "results" / "rivals-fresh-cnn.json").read_text("utf-8"))
    cases = [case for case in read_cases() if find_family(case) == "CNN" and read_plan(case).counts]
    assert list_cases(fresh) == cases
    methods = [method for method in RIVALS if any(unit["method"] == method for unit in fresh)]
    assert {(unit["case"], unit["method"]) for unit in fresh} == {(case, m) for case in cases for m in methods}
    known = {(u["case"], u["method"]): statistics.fmean(run["last"] for run in u["runs"].values()) for u in units}
    total = {method: sum(known[case, method] for case in cases) for method in RIVALS}
    assert {*sorted(total, key=total.__getitem__)[-4:]} == {*methods}  # the nearest to the best
    tuned = {(unit["case"], unit["method"]): unit["settings"] for unit in units}
    assert all(unit["settings"] == tuned[unit["case"], unit["method"]] for unit in fresh)
    assert all({*map(int, unit["runs"])} == {*SEEDS} for unit in fresh)
    assert results.make_main_table(fresh, "last", methods) in PAGE
    assert results.count_level(fresh, "last")["all"] == len(cases)
    (behind,) = (v for v in results.judge_cases(fresh, "kept") if v.behind)
    (lead,) = behind.behind
    assert (behind.case, lead.rival) == ("cnn-case3", "fedadam")
    far = {case: swings.count_far(swings.list_swings(fresh, case, "fedvecam")) for case in cases}
    assert {case for case, count in far.items() if count} == {"cifar-case3"}
    below = {m: sum(swings.count_far(swings.list_swings(fresh, case, m)) for case in cases) for m in methods}
    worst = min(run["last"] for unit in fresh if unit["case"] == "cnn-case3" for run in unit["runs"].values())
    for sentence in (
        f"**None of the three is ahead of FedVecaM's last model beyond chance on any of the {len(cases)} cases.**",
        f"With kept models FedAdam is ahead on `cnn-case3`, by {-lead.lead:.2f} points.",
        f"FedVecaM's last model is more than a point below its best round in {below['fedvecam']} of "
        f"{len(cases) * len(SEEDS)} runs, both on `cifar-case3`; of the others' runs it is "
        f"{below['scaffold tuned']} (SCAFFOLD tuned), {below['fedacg']} (FedACG) and {below['fedadam']} (FedAdam).",
        f"One run of FedACG ends at {worst:.1f} %",
    ):
        assert sentence in PAGE, sentence
    assert "On fresh seeds three rivals ran; none of them is ahead of its last model beyond chance." in README
    assert len(methods) == 4


def test_what_an_average_gives_to_rivals(units: list[Unit]) -> None:
    averaged: list[AveragedUnit] = json.loads((DOCS / "results" / "rivals-averaged.json").read_text("utf-8"))
    cases = {unit["case"] for unit in averaged}
    assert cases == {case for case in read_cases() if find_family(case) != "CNN"}
    assert {(unit["case"], unit["method"]) for unit in averaged} == {(c, m) for c in cases for m in METHODS}
    assert make_averaged_table(units, averaged) in PAGE
    clear = [lead for lead in compare_averaged(units, averaged) if lead.p < results.LEVEL]
    behind = {m: [lead.case for lead in clear if lead.rival == m and lead.lead < 0] for m in METHODS}
    ahead = {m: sum(lead.rival == m and lead.lead > 0 for lead in clear) for m in METHODS}
    tuned, acg = behind["scaffold tuned"], behind["fedacg"]
    assert len({*tuned, *acg}) == 2
    assert not behind["fedavg"]
    known = {(u["case"], u["method"]): statistics.fmean(r["last"] for r in u["runs"].values()) for u in units}
    with_it, without = (
        {m: statistics.fmean(known[c, "fedvecam"] - value[c, m] for c in cases) for m in METHODS}
        for value in ({(u["case"], u["method"]): statistics.fmean(u["runs"].values()) for u in averaged}, known)
    )
    name = "scaffold tuned"
    for sentence in (
        f"SCAFFOLD tuned is ahead of FedVecaM beyond chance on {len(tuned)} of the {len(cases)} cases and FedACG on "
        f"{len(acg)}, on two different ones; FedVecaM is ahead of them on {ahead[name]} and {ahead['fedacg']}.",
        f"SCAFFOLD tuned is {with_it[name]:.2f} points behind FedVecaM with the average and {without[name]:.2f} "
        f"without it, FedACG {with_it['fedacg']:.2f} and {without['fedacg']:.2f}, FedAvg {with_it['fedavg']:.2f} and "
        f"{without['fedavg']:.2f}.",
    ):
        assert sentence in PAGE, sentence
    assert 0.4 < with_it[name] / without[name] < 0.6
    assert "the average is worth about half of FedVecaM's lead over a tuned SCAFFOLD" in PAGE
    assert (
        f"Where they are ({len(cases)} cases without a CNN), SCAFFOLD with a tuned server step and FedACG are ahead "
        f"of it on {len(tuned)} case each, and behind it on {ahead[name]} and {ahead['fedacg']}." in README
    )


def test_readme_says_the_same(units: list[Unit], standings: dict[str, list[results.Standing]]) -> None:
    level = results.count_level(units, "last")
    count = {group: len(cases) for group, cases in group_cases(units).items()}
    assert (
        f"Its last model is ahead of every rival, or level within chance, on {level['all']} of {count['all']} cases: "
        f"on {level['all clients']} of {count['all clients']} where all clients take part, and on {level['a fifth']} "
        f"of {count['a fifth']} with a fifth of them per round" in README
    )
    near, then = standings["all"][:2]
    assert (near.method, then.method) == ("fedvecam", "fedacg")
    assert f"nearest to the best method of each case, {near.distance:.2f} points from it on average" in README
    assert f"FedACG has {then.distance:.2f}" in README
    assert f"{count['data of the choice']} of the cases have data on which it was chosen" in README
    tuned, ours = standings["other data"][:2]
    assert (
        f"On the other {count['other data']}, SCAFFOLD with a tuned server step is a little nearer to the best, "
        f"{tuned.distance:.2f} points against {ours.distance:.2f}." in README
    )
