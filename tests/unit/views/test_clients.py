"""How a model does for each client, wherever people look; numbers of the helper's clients are worked by hand."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from client_runs import count_rows, record_clients, write_client_run
from rich.console import Console
from test_board import ask, line, written

from fedveca.cli import main
from fedveca.errors import UserError
from fedveca.runs.folder import Run
from fedveca.runs.schema import Round
from fedveca.trackers.tracking import to_values
from fedveca.views.board.index import RunIndex
from fedveca.views.clients import (
    compute_distribution,
    find_quartiles,
    list_client_metrics,
    list_client_points,
    list_models,
    read_confusion,
)
from fedveca.views.comparison import compare_curves
from fedveca.views.figures.run import draw_figure
from fedveca.views.paths import find_runs
from fedveca.views.report.clients import make_client_tables, make_clients, make_confusions
from fedveca.views.report.report import write_report
from fedveca.views.report.table import make_csv
from fedveca.views.series import group_curves, list_metrics
from fedveca.views.terminal.comparison import make_method_table
from fedveca.views.terminal.runs import list_results, show_difference, show_run
from fedveca.views.terminal.tables import make_client_table

FEW: Any = {"clients": 12, "rounds": 5, "lr": 0.01}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two methods and three seeds; clients were tested with the model, and after local steps."""
    root = tmp_path_factory.mktemp("runs")
    for method in ("fedavg", "scaffold"):
        for seed in (0, 1, 2):
            write_client_run(root / f"{method}-{seed}", method, seed, tuned=True, confusion=True, **FEW)
    return root


@pytest.fixture
def plain(tmp_path: Path) -> Run:
    """A run whose clients test nothing."""
    folder = write_client_run(tmp_path / "plain", **FEW)
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    first = ("client", "tested", "tuned")
    kept = [{name: v for name, v in one.items() if not name.startswith(first)} for one in lines]
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in kept))
    end = {"round": 5, "test_loss": 0.5, "test_accuracy": 0.5}
    (folder / "summary.json").write_text(json.dumps({"tau_all": 25, "seconds": 1, "last": end, "kept": end}))
    return Run.open(folder)


def make_console(width: int) -> Console:
    return Console(width=width, highlight=False, record=True, file=io.StringIO())


def opened(root: Path) -> list[Run]:
    return find_runs([root])[0]


def edited(folder: Path, change: Any) -> Run:
    """The run after a change of every line and of both models."""
    lines = [json.loads(text) for text in (folder / "rounds.jsonl").read_text().splitlines()]
    summary = json.loads((folder / "summary.json").read_text())
    for values in (*lines, summary["kept"], summary["last"]):
        change(values)
    (folder / "rounds.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "summary.json").write_text(json.dumps(summary))
    return Run.open(folder)


# numbers


def test_quartiles_are_those_of_a_hand_sort() -> None:
    assert find_quartiles([4, 1, 3, 2, 5]) == (2, 3, 4)
    assert find_quartiles([7]) == (7, 7, 7)
    assert find_quartiles([]) is None


def test_a_distribution_is_the_mean_over_seeds_of_each_run_s_numbers(runs: Path) -> None:
    mine = [run for run in opened(runs) if run.experiment.method == "fedavg"]
    found = compute_distribution(mine, "test_accuracy")
    assert found["x"]["rounds"] == [1, 2, 3, 4, 5]
    assert found["seeds"] == [3] * 5
    ends: list[Any] = [run.rounds[-1] for run in mine]
    for name, recorded in (("mean", "clients_accuracy"), ("worst", "clients_accuracy_worst")):
        assert found[name][-1] == pytest.approx(sum(end[recorded] for end in ends) / 3)  # type: ignore[literal-required]
    each = [sorted(end["client_test_accuracy"]) for end in ends]
    assert found["low"][-1] == pytest.approx(sum(v[2] + 0.75 * (v[3] - v[2]) for v in each) / 3)  # place 11 / 4 = 2.75
    assert found["middle"][-1] == pytest.approx(sum((v[5] + v[6]) / 2 for v in each) / 3)
    tuned = compute_distribution(mine, "test_accuracy", "tuned")
    assert tuned["mean"][-1] == pytest.approx(sum(end["tuned_accuracy"] for end in ends) / 3)


def test_of_many_rounds_evenly_spaced_ones_are_drawn(tmp_path: Path) -> None:
    run = Run.open(write_client_run(tmp_path / "a", clients=3, rounds=50))
    rounds = compute_distribution([run], "test_accuracy", most=10)["x"]["rounds"]
    assert (len(rounds), rounds[0], rounds[-1]) == (10, 1, 50)


def test_without_lists_or_a_direction_what_is_known_stays(tmp_path: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        for name in list(values):
            if name.startswith("client_") or name.endswith(("_worst", "_best")):
                del values[name]

    run = edited(write_client_run(tmp_path / "a", **FEW), change)
    found = compute_distribution([run], "test_accuracy")
    assert len(found["mean"]) == 5
    assert found["worst"] == found["low"] == found["best"] == [None] * 5
    write_report([run], tmp_path / "report.html")
    draw_figure("clients", [run], tmp_path / "clients.svg")


def test_clients_stand_next_to_their_rows_and_labels(runs: Path) -> None:
    run = Run.open(runs / "fedavg-0")
    points = list_client_points(run, "test_accuracy", "last")
    assert [point.rows for point in points] == count_rows(12)
    assert [point.tested for point in points] == [n // 4 for n in count_rows(12)]
    assert [point.value for point in points] == run.summary["last"]["client_test_accuracy"]  # type: ignore[typeddict-item]
    assert (points[4].label, points[4].labels, points[4].share) == (1, 2, pytest.approx(55 / 60))
    kept = list_client_points(run, "test_accuracy", "kept")
    assert all(a.value < b.value for a, b in zip(kept, points, strict=True))  # a round earlier


def test_a_folder_without_a_partition_has_no_points_but_a_report(tmp_path: Path) -> None:
    run = Run.open(write_client_run(tmp_path / "a", **FEW))
    (tmp_path / "a" / "partition.json").unlink()
    assert list_client_points(run, "test_accuracy", "kept") == []
    write_report([run], tmp_path / "report.html")
    assert "cannot be drawn next to their rows" in (tmp_path / "report.html").read_text("utf-8")


@pytest.mark.parametrize(
    "matrix", ["x", [], [[1]] * 2, [[1, 2]], [[1, None], [1, 2]], [[1, -1], [0, 2]], [[1] * 300] * 300]
)
def test_a_matrix_that_is_none_is_not_drawn(matrix: Any) -> None:
    from fedveca.runs.experiment import Experiment

    end: Any = {"round": 1, "test_loss": 0.5, "test_confusion": matrix}
    summary: Any = {"tau_all": 1, "kept": end, "last": end}
    assert read_confusion(Run(Experiment(), [], summary), "kept") is None


def test_equal_models_are_listed_once(runs: Path, plain: Run) -> None:
    assert [which for _, which in list_models([plain])] == ["kept"]
    assert [which for _, which in list_models([Run.open(runs / "fedavg-0")])] == ["kept", "last"]


def test_the_first_metric_is_the_main_one(tmp_path: Path) -> None:
    def change(values: dict[str, Any]) -> None:
        accuracy = values.pop("test_accuracy")
        values |= {"test_f1": accuracy / 2, "test_accuracy": accuracy, "val_f1": 0.25, "val_loss": 1.0}
        values |= {f"clients_f1{end}": 0.5 for end in ("", "_rows", "_sd", "_worst", "_best")}

    run = edited(write_client_run(tmp_path / "a", **FEW), change)
    assert list_metrics([run]) == ["test_loss", "test_f1", "test_accuracy", "val_loss", "val_f1", "train_loss"]
    assert list_client_metrics([run]) == ["test_f1", "test_accuracy", "test_loss"]
    assert compare_curves(group_curves([run])).names == ["test_f1", "test_accuracy", "test_loss"]


# report


def test_the_table_has_mean_spread_and_both_ends_of_every_method(runs: Path) -> None:
    comparison = compare_curves(group_curves(opened(runs)))
    first, second = make_client_tables(comparison)
    assert (first.title, second.title) == ("Test accuracy", "Test loss")
    columns = ["mean", "by rows", "sd", "worst 10 %", "best 10 %"]
    assert [(part.heading, part.columns) for part in first.content.parts] == [
        ("global model, kept", columns),
        ("minus the best, [95\N{NO-BREAK SPACE}%]", ["worst 10 %"]),
        ("after local steps, kept", columns),
    ]
    rows = {label: cells for label, _, cells in first.content.rows}
    ends: list[Any] = [Run.open(runs / f"scaffold-{seed}").summary["kept"] for seed in (0, 1, 2)]
    worst = [100 * end["clients_accuracy_worst"] for end in ends]
    mean, spread = fmean(worst), stdev(worst)
    assert (rows["SCAFFOLD"][3].text, rows["SCAFFOLD"][3].small) == (f"{mean:.2f}", f"±{spread:.2f} %")
    assert [cell.best for cell in rows["SCAFFOLD"][:6]] == [
        True,
        True,
        False,
        True,
        True,
        False,
    ]  # a spread is not a merit
    assert rows["SCAFFOLD"][5].text == "best"
    assert rows["FedAvg"][5].text.startswith("−")


def test_csv_has_the_aggregates_in_full_precision(runs: Path) -> None:
    head, *lines = make_csv(compare_curves(group_curves(opened(runs)))).splitlines()
    names = head.split(",")
    value = float(dict(zip(names, lines[0].split(","), strict=True))["kept_clients_accuracy_worst_mean"])
    ends: list[Any] = [Run.open(runs / f"fedavg-{seed}").summary["kept"] for seed in (0, 1, 2)]
    assert value == pytest.approx(sum(end["clients_accuracy_worst"] for end in ends) / 3, rel=1e-12)
    assert "last_tuned_loss_best_std" in names


def test_a_report_says_in_words_what_it_draws(runs: Path) -> None:
    curves = group_curves(opened(runs))
    data = make_clients(curves)
    assert data
    assert [curve["label"] for curve in data["curves"]] == ["FedAvg", "SCAFFOLD"]
    assert (data["stages"], data["classes"]) == (["clients", "tuned"], 3)
    assert re.fullmatch(
        r"Test accuracy over the clients of FedAvg, global model: after round 5 the mean has [\d.]+ %, the worst "
        r"tenth has [\d.]+ %, the best has [\d.]+ %\.",
        data["curves"][0]["alternatives"]["clients"]["test_accuracy"],
    )
    assert [model["label"] for model in data["models"]][:3] == [
        "FedAvg, seed 0, kept model",
        "FedAvg, seed 0, last model",
        "SCAFFOLD, seed 0, kept model",
    ]
    said = data["models"][0]["alternatives"]["clients"]["test_accuracy"]
    assert "client 3 with 50 rows" in said
    confusion = make_confusions(curves)[0]
    assert confusion["counts"] == [[13, 2, 1], [3, 11, 0], [0, 5, 8]]
    assert "label 2: 62 % right, most often taken for 1" in confusion["alternative"]


def test_a_run_without_client_values_has_no_such_parts(plain: Run, tmp_path: Path) -> None:
    write_report([plain], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert 'id="s0-clients"' not in text
    assert 'id="s0-confusion"' not in text
    assert make_client_table(plain) is None
    with pytest.raises(UserError, match="needs runs whose clients test the model"):
        draw_figure("clients", [plain], tmp_path / "clients.svg")


# terminal


@pytest.mark.parametrize("width", [110, 60])
def test_a_run_s_end_shows_the_tenths_in_narrow_terminals_too(width: int, runs: Path) -> None:
    run = Run.open(runs / "fedavg-0")
    console = make_console(width)
    show_run(console, run, next(row for row in RunIndex(runs).list_runs() if row.id == "fedavg-0"))
    text = console.export_text()
    assert max(map(len, text.splitlines()[1:-1])) <= width
    assert re.search(r"test accuracy of 12 clients *\nmodel +mean +worst 10 % +best 10 %", text)
    kept: Any = run.summary["kept"]
    shown = re.search(r"^kept +(\S+) % +(\S+) % +(\S+) %$", text, re.MULTILINE)
    assert shown
    names = ("clients_accuracy", "clients_accuracy_worst", "clients_accuracy_best")
    assert [float(v) for v in shown.groups()] == [pytest.approx(100 * kept[name], abs=0.005) for name in names]
    assert re.search(r"^last, tuned +\S+ %", text, re.MULTILINE)


def test_a_comparison_has_a_column_of_the_worst_tenth(runs: Path) -> None:
    console = make_console(110)
    console.print(make_method_table(opened(runs), "name", 110))
    text = console.export_text()
    assert re.search(r"worst 10 %.*\n.*of clients \(%\)", text)
    narrow = make_console(60)
    narrow.print(make_method_table(opened(runs), "name", 60))
    text = narrow.export_text()
    assert max(map(len, text.splitlines())) <= 60
    assert re.search(r"worst 10 %.*\n.*of clients \(%\)", text)  # it was asked for


def test_two_runs_differ_in_their_worst_tenth_too(runs: Path, plain: Run) -> None:
    first, second = (Run.open(runs / name) for name in ("fedavg-0", "scaffold-0"))
    ends: list[Any] = [run.summary["kept"] for run in (first, second)]
    worst = "clients_accuracy_worst"
    assert list_results(first, second)[f"kept {worst}"] == (ends[0][worst], ends[1][worst])
    console = make_console(80)
    show_difference(console, first, second)
    assert "kept accuracy of the worst 10 %" in console.export_text()
    assert not any("worst" in name for name in list_results(plain, plain))


# figures, notebook, trackers


@pytest.mark.parametrize("ending", ["svg", "png"])
def test_the_figure_has_a_panel_per_method_and_stage(ending: str, runs: Path, tmp_path: Path) -> None:
    out = tmp_path / f"clients.{ending}"
    assert main(["figure", str(runs), "--what", "clients", "-o", str(out), "--quiet"]) == 0
    again = tmp_path / f"again.{ending}"
    draw_figure("clients", opened(runs), again)
    assert out.read_bytes() == again.read_bytes()
    if ending == "svg":
        text = out.read_text("utf-8")
        for title in ("FedAvg", "FedAvg after local steps", "SCAFFOLD after local steps", "worst tenth", "middle half"):
            assert f">{title}<" in text


def test_too_many_panels_are_rejected(tmp_path: Path) -> None:
    for i in range(13):
        write_client_run(tmp_path / str(i), clients=3, rounds=2, lr=0.01 + i / 1000)
    with pytest.raises(UserError, match="13 panels of clients; one figure shows at most 12"):
        draw_figure("clients", opened(tmp_path), tmp_path / "clients.svg")


def test_a_run_draws_its_clients(runs: Path, plain: Run) -> None:
    labels = [axis.get_ylabel() for axis in Run.open(runs / "fedavg-0").plot().axes]
    assert labels[-2] == "clients' test accuracy (%)"
    assert len(plain.plot().axes) == len(labels) - 1


def test_a_notebook_shows_the_aggregates(runs: Path, plain: Run) -> None:
    html = Run.open(runs / "fedavg-0")._repr_html_()
    for text in ("test accuracy of clients", "worst 10 %", "kept, tuned", "accuracy, worst 10 %"):
        assert f">{text}<" in html
    assert "worst" not in plain._repr_html_()


def test_trackers_get_aggregates_and_no_lists(runs: Path) -> None:
    record: Round = Run.open(runs / "fedavg-0").rounds[-1]
    record["ids"], record["tau"] = list(range(12)), [5] * 12  # as many as were tested
    numbers = to_values(record, 12).numbers
    assert numbers["clients_accuracy_worst"] == record["clients_accuracy_worst"]  # type: ignore[typeddict-item]
    assert numbers["tau/client_3"] == 5
    lists = ("client_", "tested", "test_confusion")
    assert [name for name in numbers if name.startswith(lists)] == []


# board


def test_the_board_has_the_report_s_distribution(runs: Path) -> None:
    found = ask(runs, "/api/clients?run=fedavg-0&name=client_test_accuracy").json()
    expected: Any = compute_distribution([Run.open(runs / "fedavg-0")], "test_accuracy")
    assert found.pop("x") == expected["x"]["rounds"]
    for name, values in found.items():
        assert values == pytest.approx(expected[name], rel=1e-5), name
    tuned = ask(runs, "/api/clients?run=fedavg-0&name=client_tuned_accuracy&from=2&to=3").json()
    assert tuned["x"] == [1, 2, 3, 4]
    assert ask(runs, "/api/clients?run=fedavg-0&name=tau").json()["x"] == []


def test_lists_run_over_the_clients_that_tested_and_not_over_those_that_took_part(tmp_path: Path) -> None:
    lines = [
        line(k, [5, 6]) | {"ids": [0, 1], "tested": [2, 3], "client_test_accuracy": [0.25, 0.75]} for k in range(3)
    ]
    written(tmp_path / "a", lines, clients=4)
    heat = ask(tmp_path, "/api/heat?run=a&name=client_test_accuracy").json()
    assert heat["z"] == [[None] * 3, [None] * 3, [0.25] * 3, [0.75] * 3]
    assert ask(tmp_path, "/api/heat?run=a&name=tau").json()["z"] == [[5] * 3, [6] * 3, [None] * 3, [None] * 3]
    rows = ask(tmp_path, "/api/csv?run=a&name=client_test_accuracy").text.splitlines()
    assert rows[:3] == ["run,round,client,client_test_accuracy", "a,1,2,0.25", "a,1,3,0.75"]


def test_quartiles_are_of_all_clients_where_blocks_are_averaged(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedveca.views.board.tail._CELLS", 8)
    write_client_run(tmp_path / "a", clients=40, rounds=4)
    found = ask(tmp_path, "/api/clients?run=a&name=client_test_accuracy").json()
    quartiles = find_quartiles(record_clients(3, 40, 0.03)["client_test_accuracy"])
    assert (found["low"][-1], found["middle"][-1], found["high"][-1]) == pytest.approx(quartiles, rel=1e-5)


def test_the_list_has_units_and_only_the_main_aggregates(runs: Path) -> None:
    answer = ask(runs, "/api/runs").json()
    values = answer["runs"][0]["values"]
    assert {"clients_accuracy", "clients_accuracy_worst", "tuned_accuracy"} <= values.keys()
    assert not any(name.endswith(("_rows", "_sd", "_best")) for name in values)
    assert answer["quantities"]["clients_accuracy_worst"]["unit"] == "share"
    assert answer["quantities"].keys() <= values.keys()


def test_answers_stay_short_with_many_clients(tmp_path: Path) -> None:
    write_client_run(tmp_path / "a", clients=300, rounds=30, tuned=True)
    details, log = (ask(tmp_path, f"/api/{what}?run=a") for what in ("run", "log"))
    assert len(details.content) < 10_000
    assert details.json()["summary"]["kept"]["clients_accuracy_worst"] > 0
    assert not any(name.startswith(("client_", "tested")) for name in log.json()["lines"][0])
    assert len(ask(tmp_path, "/api/clients?run=a&name=client_test_accuracy&width=30").content) < 3000


# folders of someone else's

ODD: list[dict[str, Any]] = [
    {"tested": [0, 0, 0]},
    {"tested": [-1, 10**18, 5]},
    {"tested": []},
    {"tested": [0, 1]},
    {"client_test_accuracy": [None] * 3},
    {"client_test_accuracy": [1e149, -1e149, 0]},
    {"clients_accuracy": None},
    {"clients_accuracy_worst": None, "clients_accuracy_best": None},
    {f"clients_m{i}{end}": 1 for i in range(300) for end in ("", "_rows")},
    {"clients_<b>": 1, "clients_<b>_rows": 1, "client_test_<b>": [1, 2, 3]},
]


@pytest.mark.parametrize("odd", ODD, ids=[f"{next(iter(odd))}-{i}" for i, odd in enumerate(ODD)])
def test_odd_values_of_clients_break_no_view(odd: dict[str, Any], tmp_path: Path) -> None:
    run = edited(write_client_run(tmp_path / "a", clients=3, rounds=3), lambda values: values.update(odd))
    write_report([run], tmp_path / "report.html")
    text = (tmp_path / "report.html").read_text("utf-8")
    assert "clients_<b>" not in text
    assert len(re.findall("<summary>Test m", text)) <= 12
    draw_figure("clients", [run], tmp_path / "clients.svg")
    show_run(make_console(80), run, RunIndex(tmp_path).list_runs()[0])
    run._repr_html_()
    for path in (
        "clients?run=a&name=client_test_accuracy",
        "heat?run=a&name=client_test_accuracy",
        "curves?run=a",
        "runs",
    ):
        assert ask(tmp_path, f"/api/{path}").status_code == 200
