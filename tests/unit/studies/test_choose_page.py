"""What docs/choose.md and README say of the study of rivals is what its results give."""

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
from studies.rivals.fresh import FRESH_SEEDS
from studies.rivals.grid import compare_grid, find_rate_loss, index_grid, list_cells, make_grid_table
from studies.rivals.run import (
    GRID,
    RATES,
    RIVALS,
    SEEDS,
    TUNING_SEED,
    RivalOutcome,
    Unit,
    is_thinned,
    make_rival,
    read_cases,
)

DOCS = Path(__file__).parents[3] / "docs"
PAGE = (DOCS / "choose.md").read_text("utf-8")


@pytest.fixture(scope="module")
def units() -> list[Unit]:
    stored: list[Unit] = json.loads((DOCS / "results" / "rivals.json").read_text("utf-8"))
    assert len(keep_complete(stored)) == len(stored)
    return stored


@pytest.fixture(scope="module")
def standings(units: list[Unit]) -> dict[str, list[results.Standing]]:
    return results.rank_methods(units, "last")


def find(ranked: list[results.Standing], method: str) -> results.Standing:
    return next(one for one in ranked if one.method == method)


def test_the_tables_are_those_of_the_results(
    units: list[Unit], standings: dict[str, list[results.Standing]], tmp_path: Path
) -> None:
    for table in (
        results.make_advice_table(units, standings),
        results.make_main_table(units, "last"),
        results.make_group_table(units, standings),
        make_grid_table(units),
        swings.make_swing_table(units),
    ):
        assert table in PAGE
    swings.draw(units, tmp_path / "rivals.svg")
    assert (tmp_path / "rivals.svg").read_bytes() == (DOCS / "results" / "rivals.svg").read_bytes()


def test_cases_that_were_not_run_are_named(units: list[Unit]) -> None:
    (missing,) = (case for case in read_cases() if case not in list_cases(units))
    assert is_thinned(missing)
    assert f"`{missing}` of `cases.toml` has not been run" in PAGE
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
        f"With a fifth of the clients per round it holds on {last['a fifth']} of {count['a fifth']} cases",
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
    (cifar,) = (one for one in results.judge_cases(units, "last") if one.case == "cifar-dirichlet05-partial")
    assert len(cifar.ahead) == len(RIVALS) - 1
    (unit,) = (unit for unit in units if (unit["case"], unit["method"]) == (cifar.case, "fedvecam"))
    mean = statistics.fmean(run["last"] for run in unit["runs"].values())
    assert f"FedVecaM has {mean:.2f} % and is ahead of all ten rivals beyond chance" in PAGE


def test_other_methods_are_judged_in_the_same_way(
    units: list[Unit], standings: dict[str, list[results.Standing]]
) -> None:
    ranked = standings["all"]
    said = " for SCAFFOLD tuned, 12 for FedACG, 12 for FedAdam, 11 for FedDyn and 10 for SCAFFOLD."
    named = ("scaffold tuned", "fedacg", "fedadam", "feddyn", "scaffold")
    level = [find(ranked, method).level for method in named]
    assert f"on {level[0]} of {len(list_cases(units))} cases{said}" in PAGE
    assert level == [13, *(int(n) for n in re.findall(r"(\d+) for", said))]
    fedveca = find(ranked, "fedveca")
    assert f"FedVeca is level on {fedveca.level}" in PAGE
    assert f"{fedveca.distance:.2f} points from the best on average" in PAGE
    comparisons = [one for method in RIVALS for one in results.compare_units(units, "last", method)]
    assert all(one.p >= results.LEVEL for one in comparisons if one.case in ("heart", "synthetic"))
    prox = [one for one in results.compare_units(units, "last", "fedprox") if one.rival == "fedavg"]
    assert [one.lead < 0 for one in prox if one.p < results.LEVEL] == [True] * 3
    assert "it is never ahead of FedAvg beyond chance, and behind it on three cases" in PAGE
    linear = [c for c in group_cases(units)["all clients, linear"] if c not in ("heart", "synthetic")]
    mean = {(u["case"], u["method"]): statistics.fmean(r["last"] for r in u["runs"].values()) for u in units}
    assert statistics.fmean(mean[c, "fedadam"] for c in linear) < statistics.fmean(mean[c, "scaffold"] for c in linear)


def test_what_a_rate_and_a_method_cost(units: list[Unit], standings: dict[str, list[results.Standing]]) -> None:
    loss = {method: find_rate_loss(units, method, list_cases(units)) for method in GRID}
    assert sorted(loss, key=lambda method: loss[method]) == ["fedvecam", "fedavg", "scaffold"]
    near, far = standings["all"][0], standings["all"][-1]
    assert (near.method, far.method) == ("fedvecam", "fedveca")
    assert f"a rate costs {loss['fedvecam']:.1f} points (FedVecaM) to {loss['scaffold']:.1f} points (SCAFFOLD)" in PAGE
    assert f"a method costs {near.distance:.1f} points (FedVecaM) to {far.distance:.1f} points (FedVeca)" in PAGE
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
    assert f"{said}{mean('fedvecam', others, 0.03):.2f} % with 0.03)" in PAGE
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
    assert f"{few} of the {total} runs are on cases with fewer than 450 test rows" in PAGE
    assert total - few == far["cifar-case3"] == 3
    lost = sorted(swings.list_swings(units, "cifar-case3", "fedvecam"))[-3:]
    assert f"On `cifar-case3` the three runs are {lost[0]:.1f} to {lost[2]:.1f} points below" in PAGE
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
    below = []
    for seed in SEEDS[:3]:
        e = make_rival("heart", "fedavg", {"lr": 0.01}, seed).replace(method="centralised")
        done = run(e, device="cpu")
        accuracy = [100 * (get_number(record, "test_accuracy") or 0.0) for record in done.rounds]
        best = accuracy.index(max(accuracy))
        losses = [get_number(record, "train_loss") or math.inf for record in done.rounds]
        assert best < 25
        assert losses[-1] < losses[best]
        below.append(accuracy[best] - accuracy[-1])
    said = f"seeds 501 to 503, ends {min(below):.1f} to {max(below):.1f} points below its best round"
    assert said in PAGE


def test_test_rows_are_those_of_the_data() -> None:
    for name in ("heart", "digits"):
        assert len(load(name).y_test) == TEST_ROWS[name]
    rows = [len(load("synthetic", clients=20, seed=seed).y_test) for seed in SEEDS]
    assert int(statistics.fmean(rows)) == TEST_ROWS["synthetic"]
    assert max(rows) < 450


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
        "mlp-dirichlet01",
    ]
    low, high = (end(ends[m][k] for m in ("fedveca", "corrected")) for k, end in enumerate((min, max)))
    assert f"stopped after 100 rounds and have {100 * low:.0f} to {100 * high:.0f} %" in PAGE


def test_limits_of_the_tuning_are_counted(units: list[Unit]) -> None:
    edges = {method: results.count_edges(units, method) for method in RIVALS}
    assert {edges[method][1] for method in ("fedavg", "fedprox", "feddyn")} == {8}
    assert max(high for _, high in edges.values()) == 8
    assert f"and on {edges['fedvecam'][1]} for FedVecaM" in PAGE
    assert "On 8 of the 19 cases it chose the highest, 0.3, for FedAvg, FedProx and FedDyn" in PAGE
    assert f"0.003, for FedACG on {edges['fedacg'][0]} and for FedVecaM on {edges['fedvecam'][0]}" in PAGE
    worst: list[RivalOutcome] = [
        run
        for unit in units
        if (unit["case"], unit["method"]) == ("digits-dirichlet05-partial", "scaffold tuned")
        for run in unit["runs"].values()
    ]
    assert f"one of the ten runs ends at {min(run['last'] for run in worst):.1f} %" in PAGE


def test_fresh_seeds_say_the_same() -> None:
    fresh: list[Unit] = json.loads((DOCS / "results" / "rivals-fresh.json").read_text("utf-8"))
    assert {*fresh[0]["runs"]} == {str(seed) for seed in FRESH_SEEDS}
    assert not {*map(int, fresh[0]["runs"])} & {*SEEDS, TUNING_SEED}
    assert keep_complete(fresh) == fresh
    assert {*list_cases(fresh)} == {case for case in read_cases() if find_family(case) != "CNN"}
    last, kept = results.count_level(fresh, "last"), results.count_level(fresh, "kept")
    count = {group: len(cases) for group, cases in group_cases(fresh).items()}
    ranked = {one.method: one for one in results.rank_methods(fresh, "last")["all"]}
    assert [*ranked][:2] == ["fedvecam", "fedacg"]
    (behind,) = (v for v in results.judge_cases(fresh, "last") if v.behind)
    (lead,) = behind.behind
    assert (behind.case, lead.rival) == ("svm-dirichlet05-partial-100", "feddyn")
    far = {c: swings.count_far(swings.list_swings(fresh, c, "fedvecam")) for c in list_cases(fresh)}
    below = [
        sum(swings.count_far(swings.list_swings(fresh, c, m)) for c in list_cases(fresh)) for m in swings.list_rivals()
    ]
    for sentence in (
        f"beyond chance on {last['all']} of {count['all']} cases** ({100 * last['all'] / count['all']:.0f} %)",
        f"on {last['all clients']} of {count['all clients']} where all clients take part, and on {last['a fifth']} of "
        f"{count['a fifth']} with a fifth of them per round, where FedDyn is ahead by {-lead.lead:.2f} points",
        f"With kept models it is {kept['all']} of {count['all']}.",
        f"On the {count['other data']} cases whose data took no part in the choice it holds on {last['other data']}.",
        f"{ranked['fedvecam'].distance:.2f} points on average; FedACG has {ranked['fedacg'].distance:.2f}, FedAdam "
        f"{ranked['fedadam'].distance:.2f}, SCAFFOLD {ranked['scaffold'].distance:.2f} and SCAFFOLD tuned "
        f"{ranked['scaffold tuned'].distance:.2f}",
        f"in {sum(far.values())} of {len(far) * len(FRESH_SEEDS)} runs, of which {far['heart']} are on heart",
        f"of each rival's runs it is {min(below)} (SCAFFOLD) to {max(below)} (FedExP)",
    ):
        assert sentence in PAGE, sentence


def test_fresh_seeds_of_the_cnns(units: list[Unit]) -> None:
    fresh: list[Unit] = json.loads((DOCS / "results" / "rivals-fresh-cnn.json").read_text("utf-8"))
    cases = [case for case in read_cases() if find_family(case) == "CNN" and not is_thinned(case)]
    assert list_cases(fresh) == cases
    methods = [method for method in RIVALS if any(unit["method"] == method for unit in fresh)]
    assert {(unit["case"], unit["method"]) for unit in fresh} == {(case, m) for case in cases for m in methods}
    known = {(u["case"], u["method"]): statistics.fmean(run["last"] for run in u["runs"].values()) for u in units}
    total = {method: sum(known[case, method] for case in cases) for method in RIVALS}
    assert {*sorted(total, key=total.__getitem__)[-4:]} == {*methods}  # the nearest to the best
    assert all({*map(int, unit["runs"])} == {*FRESH_SEEDS} for unit in fresh)
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
        f"{len(cases) * len(FRESH_SEEDS)} runs, both on `cifar-case3`; of the others' runs it is "
        f"{below['scaffold tuned']} (SCAFFOLD tuned), {below['fedacg']} (FedACG) and {below['fedadam']} (FedAdam).",
        f"One run of FedACG ends at {worst:.1f} %",
    ):
        assert sentence in PAGE, sentence
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    said = "none of them is ahead of its last model beyond chance on the"
    assert f"only three rivals ran on fresh seeds; {said} {len(cases)} cases" in readme
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
    assert len({case for mine in behind.values() for case in mine}) == 3
    assert not behind["fedavg"]
    known = {(u["case"], u["method"]): statistics.fmean(r["last"] for r in u["runs"].values()) for u in units}
    with_it, without = (
        {m: statistics.fmean(known[c, "fedvecam"] - value[c, m] for c in cases) for m in METHODS}
        for value in ({(u["case"], u["method"]): statistics.fmean(u["runs"].values()) for u in averaged}, known)
    )
    tuned = "scaffold tuned"
    for sentence in (
        f"SCAFFOLD tuned is ahead of FedVecaM beyond chance on {len(behind[tuned])} of the {len(cases)} cases and "
        f"FedACG on {len(behind['fedacg'])}, on three different ones in all; FedVecaM is ahead of them on "
        f"{ahead[tuned]} and {ahead['fedacg']}.",
        f"SCAFFOLD tuned is {with_it[tuned]:.2f} points behind FedVecaM with the average and {without[tuned]:.2f} "
        f"without it, FedACG {with_it['fedacg']:.2f} and {without['fedacg']:.2f}, FedAvg {with_it['fedavg']:.2f} and "
        f"{without['fedavg']:.2f}.",
    ):
        assert sentence in PAGE, sentence
    readme = (DOCS.parent / "README.md").read_text("utf-8")
    said = f"is ahead of it on {len(behind[tuned])} of these {len(cases)}, and behind it on {ahead[tuned]}."
    assert said in readme


def test_readme_says_the_same(units: list[Unit], standings: dict[str, list[results.Standing]]) -> None:
    readme, level = (DOCS.parent / "README.md").read_text("utf-8"), results.count_level(units, "last")
    count = {group: len(cases) for group, cases in group_cases(units).items()}
    assert (
        f"no rival is ahead of its last model beyond chance on {level['all']} of {count['all']} cases: "
        f"on {level['all clients']} of {count['all clients']} where all clients take part, and on {level['a fifth']} "
        f"of {count['a fifth']} with a fifth of them per round" in readme
    )
    near, then = standings["all"][:2]
    assert (near.method, then.method) == ("fedvecam", "fedacg")
    assert f"nearest to the best over all {count['all']}, {near.distance:.2f} points on average" in readme
    assert f"FedACG has {then.distance:.2f}" in readme
    assert f"{count['data of the choice']} of the cases have data on which it was chosen" in readme
    fresh: list[Unit] = json.loads((DOCS / "results" / "rivals-fresh.json").read_text("utf-8"))
    again, of = results.count_level(fresh, "last")["all"], len(list_cases(fresh))
    assert f"On ten fresh seeds, for the {of} cases without a CNN, it is {again} of {of}." in readme
