"""What the board makes of several runs: groups with mean and band, looks of methods, CSV files, reports."""

from __future__ import annotations

import csv
import io
import re
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_board import SMALL, Client, ask, line, written

from fedveca import Experiment, Run, run
from fedveca.algorithms.registry import DASHES, methods
from fedveca.runs.schema import get_number
from fedveca.views.board import export
from fedveca.views.board.downsample import average_runs, thin_band
from fedveca.views.series import compute_band, find_look


@pytest.fixture(scope="module")
def seeds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three seeds of one method, the last one shorter, and one run of another method."""
    root = tmp_path_factory.mktemp("seeds")
    for seed, rounds in ((0, 6), (1, 6), (2, 4)):
        run(Experiment(model="svm", rounds=rounds, batch=8, clients=4, seed=seed), root / f"x/{seed}", device="cpu")
    run(Experiment(model="svm", rounds=6, batch=8, clients=4, method="fedavg"), root / "other", device="cpu")
    return root


# the list


def test_a_row_has_every_setting_and_the_latest_recorded_values(seeds: Path) -> None:
    answer = ask(seeds, "/api/runs").json()
    rows = {row["id"]: row for row in answer["runs"]}
    assert answer["common"]["lr"] == SMALL.lr
    assert rows["x/2"]["settings"] == {"seed": 2, "rounds": 4}  # what differs from most
    assert rows["other"]["settings"] == {"method": "fedavg"}
    kept, last = Run.open(seeds / "x/0").summary["kept"], Run.open(seeds / "x/0").rounds[-1]
    values = rows["x/0"]["values"]
    assert values["test_loss"] == pytest.approx(kept["test_loss"], rel=1e-5)
    assert values["premise"] == pytest.approx(get_number(last, "premise"), rel=1e-5)
    assert (values["kept_round"], "round" in values) == (kept["round"], False)


def test_settings_and_values_of_the_list_are_bounded(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [line(0, [1], **{f"n{i}": i for i in range(500)}) | {"m" * 5000: 1}])
    (folder / "experiment.toml").write_text("".join(f's{i} = "{"v" * 300}"\n' for i in range(200)))
    row = ask(tmp_path, "/api/runs").json()["runs"][0]
    assert len(row["values"]) <= 32
    assert len(ask(tmp_path, "/api/runs").content) < 10_000


# groups


def test_a_band_is_the_report_s(seeds: Path) -> None:
    groups = [("group", f"0:x/{seed}") for seed in range(3)] + [("group", "1:other")]
    for axis, name in (("round", "test_loss"), ("round", "train_loss"), ("steps", "test_loss"), ("seconds", "L")):
        answer = Client(seeds).get("/api/bands", params=[*groups, ("name", name), ("x", axis)]).json()["groups"]
        band = compute_band([Run.open(seeds / f"x/{seed}") for seed in range(3)], name)
        x, mean, std, n = answer["0"][name]
        order = np.argsort(band["x"]["rounds" if axis == "round" else axis], kind="stable")
        for mine, other in ((x, band["x"]["rounds" if axis == "round" else axis]), (mean, band["mean"])):
            assert mine == pytest.approx([other[i] for i in order], rel=1e-5)
        assert std == pytest.approx([band["std"][i] for i in order], rel=1e-4, abs=1e-9)
        assert n == [band["seeds"][i] for i in order]
        assert set(answer["1"]) == {name}


def test_the_deviation_is_a_sample_s_and_absent_rounds_do_not_count() -> None:
    first = (np.array([1, 2, 3]), np.array([1.0, 2, 3]), np.array([1.0, 2, np.nan]))
    second = (np.array([1, 2, 2]), np.array([1.0, 2, 2]), np.array([3.0, 9, 4]))  # round 2 was written twice
    x, mean, std, n = (values.tolist() for values in average_runs([first, second]))
    assert (x, mean, n) == ([1, 2], [2, 3], [2, 2])
    assert std == pytest.approx([2**0.5, 2**0.5])
    assert [values.tolist() for values in average_runs([])] == [[], [], [], []]


def test_a_long_band_is_thinned_and_keeps_its_ends() -> None:
    columns = [np.arange(5000.0), np.sin(np.arange(5000.0)), np.ones(5000), np.full(5000, 3.0)]
    thin = thin_band(columns, 300)
    assert {len(values) for values in thin} == {len(thin[0])}
    assert len(thin[0]) <= 100
    assert (thin[0][0], thin[0][-1], thin[1][0], thin[3].tolist()[5]) == (0, 4999, 0, 3)


@pytest.mark.parametrize("member", ["x/0", "a:x/0", "-1:x/0", "12345:x/0", ":x/0", "²:x/0"])
def test_a_group_that_is_none_is_rejected(seeds: Path, member: str) -> None:
    answer = Client(seeds).get("/api/bands", params=[("group", member), ("name", "L")])
    assert answer.status_code == 400
    assert answer.json()["error"].startswith(f"group={member} is not a group; allowed:")


@pytest.mark.parametrize("name", ["..", "../x/0", "/etc", "x/../x/0", "", "no"])
def test_a_group_names_runs_of_the_board_only(seeds: Path, name: str) -> None:
    answer = Client(seeds).get("/api/bands", params=[("group", f"0:{name}"), ("name", "L")])
    assert (answer.status_code, answer.json()) == (404, {"error": f"{name!r} is not a run of this board"})


# looks


def test_looks_are_those_of_the_report(seeds: Path) -> None:
    names = [*methods(), "mine", "<b>"]
    looks = Client(seeds).get("/api/looks", params=[("method", name) for name in names]).json()
    assert list(looks) == names
    for name in names:
        title, colour, dash = find_look(name)
        assert looks[name] == {"title": title, "colour": colour, "dash": list(DASHES[dash])}


# CSV


def read_csv(root: Path, *pairs: tuple[str, str]) -> list[list[str]]:
    answer = Client(root).get("/api/csv", params=list(pairs))
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith("text/csv")
    return list(csv.reader(io.StringIO(answer.text)))


def test_a_csv_has_every_round_of_the_runs(seeds: Path) -> None:
    head, *rows = read_csv(seeds, ("run", "x/0"), ("run", "x/2"), ("name", "test_loss"))
    told = Run.open(seeds / "x/0").column("test_loss")
    assert head == ["run", "round", "test_loss"]
    assert [(row[0], int(row[1])) for row in rows] == [
        *(("x/0", k) for k in range(1, 7)),
        *(("x/2", k) for k in range(1, 5)),
    ]
    assert [float(row[2]) for row in rows[:6]] == told  # not rounded
    head, *rows = read_csv(seeds, ("run", "x/0"), ("name", "test_loss"), ("x", "steps"), ("from", "1"), ("to", "1"))
    assert head == ["run", "round", "steps", "test_loss"]


def test_a_csv_of_a_heat_map_has_a_row_per_client(seeds: Path) -> None:
    head, *rows = read_csv(seeds, ("run", "x/0"), ("name", "tau"), ("from", "2"), ("to", "3"))
    assert head == ["run", "round", "client", "tau"]
    records: Any = Run.open(seeds / "x/0").rounds[1:3]
    expected = [[r["round"] + 1, i, t] for r in records for i, t in zip(r["ids"], r["tau"], strict=True)]
    assert [[int(row[1]), int(row[2]), float(row[3])] for row in rows] == expected


def test_a_csv_is_bounded_and_says_so(seeds: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(export, "MOST_CSV_ROWS", 5)
    answer = ask(seeds, "/api/csv?run=x/0&name=test_loss")
    said = "test_loss has more than 5 rows; choose fewer runs or fewer rounds"
    assert (answer.status_code, answer.json()) == (400, {"error": said})


def test_a_name_that_nobody_recorded_is_an_error(seeds: Path) -> None:
    answer = ask(seeds, "/api/csv?run=x/0&name=nothing")
    assert (answer.status_code, answer.json()) == (400, {"error": "none of these runs recorded nothing"})


def test_a_name_in_a_csv_is_neither_a_formula_nor_a_header(tmp_path: Path) -> None:
    odd = 'x"\r\nset-cookie: a=b'
    written(tmp_path / "=cmd()", [line(0, [1], **{odd: 3})])
    answer = Client(tmp_path).get("/api/csv", params={"run": "=cmd()", "name": odd})
    assert answer.headers["content-disposition"] == 'attachment; filename="x___set-cookie__a_b.csv"'
    assert list(csv.reader(io.StringIO(answer.text)))[1] == ["'=cmd()", "1", "3.0"]


# reports


def test_a_report_is_the_one_that_the_command_writes(seeds: Path) -> None:
    before = {path: path.stat().st_mtime_ns for path in seeds.rglob("*")}
    answer = ask(seeds, "/api/report?run=x/0&run=other")
    assert answer.status_code == 200
    assert answer.headers["content-type"].startswith("text/html")
    assert "FedVeca" in answer.text
    assert "FedAvg" in answer.text
    assert {path: path.stat().st_mtime_ns for path in seeds.rglob("*")} == before  # folders are only read


def test_a_report_gets_an_origin_of_its_own(seeds: Path) -> None:
    client = Client(seeds)
    answer = client.get("/api/report?run=x/0")
    policies = answer.headers.get_list("content-security-policy")
    assert len(policies) == 1  # the page's would forbid its scripts, and two would both hold
    assert policies[0].startswith("sandbox ")
    assert "allow-same-origin" not in policies[0]
    assert "default-src 'none'" in policies[0]
    assert re.search(
        r"http-equiv=.Content-Security-Policy. content=.default-src 'none'; script-src 'sha256-", answer.text
    )
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "content-disposition" not in answer.headers
    file = client.get("/api/report?run=x/0&file=1")
    assert file.headers["content-disposition"] == 'attachment; filename="fedveca-report.html"'


def test_a_report_of_a_damaged_run_is_a_sentence(tmp_path: Path) -> None:
    written(tmp_path / "a", ["{"])
    answer = ask(tmp_path, "/api/report?run=a")
    assert answer.status_code == 400
    assert "is not a run folder: line 1 of rounds.jsonl is not JSON" in answer.json()["error"]
    assert ask(tmp_path, "/api/report").json() == {"error": "run is missing"}


@pytest.mark.parametrize(("name", "most"), [("REPORT_BYTES", 1000), ("REPORT_PARTS", 10)])
def test_a_report_of_too_much_is_rejected_before_it_is_read(
    seeds: Path, monkeypatch: pytest.MonkeyPatch, name: str, most: int
) -> None:
    monkeypatch.setattr(export, name, most)
    answer = ask(seeds, "/api/report?run=x/0")
    assert answer.status_code == 400
    assert "are too large for a report from the board" in answer.json()["error"]


def test_one_report_is_made_at_a_time(seeds: Path) -> None:
    with export._reporting:
        answer = ask(seeds, "/api/report?run=x/0")
    assert (answer.status_code, answer.json()) == (
        503,
        {"error": "another report is being made; ask again when it is done"},
    )
    assert ask(seeds, "/api/report?run=x/0").status_code == 200


# who may ask


@pytest.mark.parametrize("what", ["runs", "report?run=x/0", "csv?run=x/0&name=L", "bands?group=0:x/0&name=L", "looks"])
def test_pages_of_other_sites_get_no_answers(seeds: Path, what: str) -> None:
    client = Client(seeds)
    for site in ("cross-site", "same-site"):
        answer = client.get(f"/api/{what}", headers={"sec-fetch-site": site})
        assert (answer.status_code, "another site" in answer.text) == (403, True)
    assert client.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200  # a link to the board
    assert client.get(f"/api/{what}", headers={"sec-fetch-site": "same-origin"}).status_code == 200


@pytest.mark.parametrize("what", ["report?run=x/0", "csv?run=x/0&name=L", "bands?group=0:x/0&name=L", "looks?method=a"])
def test_new_answers_have_the_guard_of_the_others(seeds: Path, what: str) -> None:
    client = Client(seeds, host="0.0.0.0", token="secret")
    assert client.get(f"/api/{what}").status_code == 403
    assert Client(seeds).get(f"/api/{what}", headers={"host": "evil.example"}).status_code == 421
    assert Client(seeds).get(f"/api/{what}", "POST").status_code == 405


def test_reports_and_lists_are_answered_side_by_side(seeds: Path) -> None:
    answers: list[int] = []
    paths = ["/api/runs", "/api/report?run=x/0", "/api/curves?run=x/0&name=L"] * 2
    threads = [threading.Thread(target=lambda p=path: answers.append(ask(seeds, p).status_code)) for path in paths]  # type: ignore[misc]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 6
    assert set(answers) <= {200, 503}
