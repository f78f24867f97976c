"""The board's server: what it finds, how it reads a growing run, what it rejects."""

from __future__ import annotations

import asyncio
import json
import os
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
from torch import Tensor

from fedveca import Experiment, Run, from_arrays, resume, run
from fedveca.cli import main
from fedveca.runs.folder_writer import STOP_MARK
from fedveca.runs.interrupt import PYTHON, Stopped, how_to_resume
from fedveca.runs.lock import lock_folder
from fedveca.runs.observers import Observer
from fedveca.runs.schema import SCHEMA, Round
from fedveca.views.board.app import make_app
from fedveca.views.board.downsample import average_blocks, thin_curve
from fedveca.views.board.files import is_locked
from fedveca.views.board.guard import Guard
from fedveca.views.board.index import QUIET_SECONDS, RunIndex
from fedveca.views.board.tail import RunTail

SMALL = Experiment(model="svm", rounds=6, batch=8, clients=4, tau_max=6)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one of them deeper."""
    root = tmp_path_factory.mktemp("runs")
    run(SMALL, root / "plain", device="cpu")
    run(Experiment(model="svm", rounds=4, batch=8, clients=4, method="fedavg", seed=3), root / "deep/er", device="cpu")
    return root


class Client:
    """A browser of few words: it asks, and keeps its cookies."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.transport, self.cookies = httpx.ASGITransport(make_app(root, **more)), httpx.Cookies()

    def get(self, path: str, method: str = "GET", **more: Any) -> httpx.Response:
        async def answer() -> httpx.Response:
            async with httpx.AsyncClient(
                transport=self.transport, base_url="http://127.0.0.1:8765", cookies=self.cookies
            ) as client:
                response = await client.request(method, path, **more)
                self.cookies = client.cookies
                return response

        return asyncio.run(answer())


def ask(root: Path, path: str) -> httpx.Response:
    return Client(root).get(path)


def written(folder: Path, lines: list[Any], tail: str = "", **settings: Any) -> Path:
    """A run folder that is not finished."""
    folder.mkdir(parents=True)
    (folder / "experiment.toml").write_text(Experiment(**settings).toml())
    texts = (line if isinstance(line, str) else json.dumps(line) for line in lines)
    (folder / "rounds.jsonl").write_text("".join(f"{text}\n" for text in texts) + tail)
    return folder


def line(k: int, tau: list[int], **more: Any) -> dict[str, Any]:
    return {"round": k, "ids": list(range(len(tau))), "tau": tau, "test_accuracy": k / 100, "seconds": 0.5} | more


# the list


def test_runs_are_listed_with_their_settings_state_and_closing_values(runs: Path) -> None:
    rows = {row["id"]: row for row in ask(runs, "/api/runs").json()["runs"]}
    assert set(rows) == {"plain", "deep/er"}
    kept = Run.open(runs / "plain").summary["kept"]
    assert (rows["plain"]["metric"], rows["plain"]["score"]) == ("test_accuracy", kept["test_accuracy"])
    assert (rows["plain"]["rounds"], rows["plain"]["of"], rows["plain"]["state"]) == (6, 6, "finished")
    assert (rows["deep/er"]["method"], rows["deep/er"]["seed"], rows["deep/er"]["data"]) == ("fedavg", 3, "digits")


def test_the_same_list_is_not_sent_twice(runs: Path) -> None:
    client = Client(runs)
    first = client.get("/api/runs")
    again = client.get("/api/runs", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_states(tmp_path: Path) -> None:
    old = time.time() - QUIET_SECONDS - 60
    for name in ("running", "inactive", "paused", "damaged"):
        folder = written(tmp_path / name, [line(0, [1])])
        if name == "inactive":
            for path in folder.iterdir():
                os.utime(path, (old, old))
    (tmp_path / "paused" / STOP_MARK).write_text('{"rounds": 1, "of": 80, "time": 1.0}')
    (tmp_path / "damaged/rounds.jsonl").unlink()
    run(Experiment(model="svm", rounds=3, batch=8, lr=1e30), tmp_path / "diverged", device="cpu")
    rows = {row.id: row for row in RunIndex(tmp_path).list_runs()}
    states = ("running", "inactive", "paused", "damaged", "diverged")
    assert {name: row.state for name, row in rows.items()} == {name: name for name in states}
    assert "no new round for more than 5 min" in rows["inactive"].why
    assert "smaller lr" in rows["diverged"].why
    assert rows["damaged"].why == "rounds.jsonl is missing"
    assert rows["paused"].resume == how_to_resume(tmp_path / "paused")
    assert (rows["running"].resume, rows["diverged"].resume) == ("", "")


def test_a_run_with_fewer_rounds_than_its_summary_records_is_damaged(tmp_path: Path) -> None:
    run(SMALL, tmp_path / "a", device="cpu")
    index = RunIndex(tmp_path)
    assert index.list_runs()[0].state == "finished"
    rounds = tmp_path / "a/rounds.jsonl"
    lines = rounds.read_text().splitlines(keepends=True)
    for kept in (4, 0):
        rounds.write_text("".join(lines[:kept]))
        row = index.list_runs()[0]
        why = f"rounds.jsonl ends at round {kept}, but summary.json records 6 rounds"
        assert (row.state, row.why) == ("damaged", why)


def test_a_run_is_running_while_its_lock_is_held(tmp_path: Path) -> None:
    index, asked = RunIndex(tmp_path), []

    class Look(Observer):
        def round(self, record: Round) -> None:
            asked.append(index.list_runs()[0].state)

    with pytest.raises(Stopped):
        run(SMALL, tmp_path / "a", device="cpu", observers=[Look()], stop=lambda: len(asked) == 2)
    assert set(asked) == {"running"}
    assert (tmp_path / "a/.lock").exists()  # it stays, and says nothing by itself
    row = index.list_runs()[0]
    assert (row.state, row.rounds, row.of) == ("paused", len(asked), 6)
    assert row.resume == how_to_resume(tmp_path / "a")
    assert RunIndex(tmp_path).list_runs()[0].state == "paused"  # a board that starts after it, too
    with lock_folder(tmp_path / "a"):
        assert index.list_runs()[0].state == "running"  # it was resumed
    (tmp_path / "a" / STOP_MARK).unlink()
    row = index.list_runs()[0]
    assert (row.state, row.why) == ("inactive", "its process ended before the last round")  # killed
    custom = json.loads((tmp_path / "a/environment.json").read_text()) | {"started_by": PYTHON}
    (tmp_path / "a/environment.json").write_text(json.dumps(custom))
    assert "fedveca.resume(" in RunIndex(tmp_path).list_runs()[0].resume


def test_a_free_lock_is_asked_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []

    def look(path: Path) -> bool | None:
        asked.append(path)
        return is_locked(path)

    monkeypatch.setattr("fedveca.views.board.index.is_locked", look)
    folder = written(tmp_path / "a", [line(0, [1])])
    (folder / ".lock").write_text("1")
    index = RunIndex(tmp_path)
    assert [index.list_runs()[0].state for _ in range(3)] == ["inactive"] * 3
    assert len(asked) == 1  # asking takes the lock for an instant: a resuming process could meet it


# metrics


def within_half(scores: Tensor, targets: Tensor) -> Tensor:
    return ((scores.squeeze(-1) - targets).abs() < 0.5).double()


def regression(root: Path, name: str, **custom: Any) -> Path:
    """A run on data with numbers as targets."""
    x = torch.randn(120, 3, generator=torch.Generator().manual_seed(0))
    data = from_arrays(x, x @ torch.tensor([1.0, -2.0, 0.5]))
    settings = Experiment(clients=3, rounds=4, batch=8, partition="iid")
    run(settings, root / name, device="cpu", data=data, model=torch.nn.Linear(3, 1), **custom)
    return root / name


@pytest.fixture(scope="module")
def metrics(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Runs with the metrics of regression, of one's own with a direction, and of one's own without."""
    root = tmp_path_factory.mktemp("metrics")
    regression(root, "regression")
    regression(root, "silent", metric=within_half)
    stated = regression(root, "stated", metric=within_half) / "environment.json"
    stated.write_text(json.dumps(json.loads(stated.read_text()) | {"better": {"test_within_half": "higher"}}))
    return root


@pytest.mark.parametrize(
    ("name", "metric", "label", "better"),
    [
        ("regression", "test_absolute_error", "absolute error", "lower"),
        ("silent", "test_within_half", "within half", None),
        ("stated", "test_within_half", "within half", "higher"),
    ],
)
def test_the_score_is_that_of_the_run_s_metric(
    metrics: Path, name: str, metric: str, label: str, better: str | None
) -> None:
    row = next(row for row in RunIndex(metrics).list_runs() if row.id == name)
    kept: Any = Run.open(metrics / name).summary["kept"]
    assert (row.metric, row.label, row.better, row.score) == (metric, label, better, kept[metric])
    assert row.loss == kept["test_loss"]
    (metrics / name / "summary.json").rename(metrics / "aside")
    try:
        row = next(row for row in RunIndex(metrics).list_runs() if row.id == name)
        last: Any = Run.open(metrics / name).rounds[-1]
        assert (row.metric, row.better, row.score) == (metric, better, last[metric])
    finally:
        (metrics / "aside").rename(metrics / name / "summary.json")


def test_the_schema_is_served_and_custom_names_are_described_with_their_curves(metrics: Path) -> None:
    schema = ask(metrics, "/api/schema").json()
    assert set(schema) == set(SCHEMA)
    assert schema["test_absolute_error"] == SCHEMA["test_absolute_error"]._asdict()
    assert (schema["test_accuracy"]["unit"], schema["train_loss"]["at"]) == ("share", "start")
    answer = ask(metrics, "/api/curves?run=regression&run=silent&run=stated&name=test_within_half").json()["runs"]
    assert answer["regression"]["custom"] == {}
    told = answer["stated"]["custom"]["test_within_half"]
    assert (told["label"], told["better"]) == ("Test within half", "higher")
    assert answer["silent"]["custom"]["test_within_half"]["better"] is None
    assert len(answer["stated"]["curves"]["test_within_half"][0]) == 4


@pytest.mark.parametrize(
    ("value", "shown"), [(1e305, False), (1e149, True), (True, False), ("0.5", False), (None, False), (0.25, True)]
)
def test_a_number_is_what_it_is_everywhere_else(tmp_path: Path, value: Any, shown: bool) -> None:
    written(tmp_path / "a", [line(0, [1], test_accuracy=value, x=value)])
    assert RunIndex(tmp_path).list_runs()[0].score == (value if shown else None)
    curves = ask(tmp_path, "/api/curves?run=a&name=x").json()["runs"]["a"]["curves"]
    assert curves["x"] == ([[1], [value]] if shown else [[], []])


def test_a_flag_is_a_curve_of_ones_and_zeros(tmp_path: Path) -> None:
    written(tmp_path / "a", [line(0, [1], accepted=True), line(1, [1], accepted=False)])
    answer = ask(tmp_path, "/api/curves?run=a&name=accepted").json()["runs"]["a"]
    assert answer["curves"]["accepted"] == [[1, 2], [1, 0]]


def test_folders_that_are_no_runs_or_damaged_ones_never_break_the_list(tmp_path: Path) -> None:
    for name, content in (("toml", "rounds = = 3"), ("bytes", "\x00\xff")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "experiment.toml").write_bytes(content.encode("latin-1"))
    written(tmp_path / "torn", [line(0, [1, 2]), line(1, [2, 3])], '{"round": 2, "ids": [0')
    (written(tmp_path / "listed", ["[1, 2]", "null", "{}"]) / "summary.json").write_text("[]")
    (tmp_path / "nothing/in/here").mkdir(parents=True)
    written(tmp_path / ".hidden", [])
    rows = {row["id"]: row for row in ask(tmp_path, "/api/runs").json()["runs"]}
    assert set(rows) == {"toml", "bytes", "torn", "listed"}
    assert "experiment.toml is not TOML" in rows["toml"]["why"]
    assert (rows["torn"]["rounds"], rows["torn"]["score"]) == (2, 0.01)
    assert "summary.json is not a JSON object" in rows["listed"]["why"]


def test_new_rounds_and_new_runs_are_seen_at_the_next_look(tmp_path: Path) -> None:
    index = RunIndex(tmp_path)
    assert index.list_runs() == []
    folder = written(tmp_path / "a", [line(0, [1])], rounds=10)
    assert [row.rounds for row in index.list_runs()] == [1]
    with open(folder / "rounds.jsonl", "a") as rounds:
        rounds.write(json.dumps(line(1, [1])) + "\n")
    written(tmp_path / "b", [])
    assert sorted(row.rounds for row in index.list_runs()) == [0, 2]


# reading


def test_curves_and_heat_maps_are_what_the_run_recorded(runs: Path) -> None:
    told = Run.open(runs / "plain")
    answer = ask(runs, "/api/curves?run=plain&name=test_loss&name=train_loss&name=tau_k").json()["runs"]["plain"]
    x, y = answer["curves"]["test_loss"]
    assert x == [1, 2, 3, 4, 5, 6]
    assert y == pytest.approx(told.column("test_loss"), rel=1e-5)
    assert answer["curves"]["train_loss"][0] == [0, 1, 2, 3, 4, 5]  # of the model before the round
    assert set(answer["lists"]) >= {"tau", "A", "beta", "delta"}
    heat = ask(runs, "/api/heat?run=plain&name=tau").json()
    assert heat["z"] == [list(row) for row in zip(*told.column("tau"), strict=True)]
    assert (heat["x"], heat["y"]) == ([1, 2, 3, 4, 5, 6], [0, 1, 2, 3])
    steps, _ = ask(runs, "/api/curves?run=plain&name=tau_k&x=steps").json()["runs"]["plain"]["curves"]["tau_k"]
    assert steps == list(np.cumsum([sum(record["tau"]) for record in told.rounds]))
    rows, _ = ask(runs, "/api/curves?run=plain&name=tau_k&x=rows").json()["runs"]["plain"]["curves"]["tau_k"]
    assert rows == list(np.cumsum([record["rows"] for record in told.rounds]))


def test_a_method_that_pools_all_rows_has_one_client(tmp_path: Path) -> None:
    run(replace(SMALL, method="centralised"), tmp_path / "a", device="cpu")
    heat = ask(tmp_path, "/api/heat?run=a&name=tau").json()
    assert (heat["y"], len(heat["z"]), len(heat["z"][0])) == ([0], 1, 6)


def test_a_window_asks_for_a_part_of_the_axis(runs: Path) -> None:
    path = "run=plain&name=test_loss&from=3&to=4"
    x, _ = ask(runs, f"/api/curves?{path}").json()["runs"]["plain"]["curves"]["test_loss"]
    assert x == [2, 3, 4, 5]  # and one more on either side
    assert ask(runs, "/api/heat?run=plain&name=tau&from=3&to=4").json()["x"] == [3, 4]


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [line(k, [k, 2 * k]) for k in range(3)], clients=2)
    tail = RunTail(folder / "rounds.jsonl", 2, 100)
    tail.read()
    size = (folder / "rounds.jsonl").stat().st_size
    with open(folder / "rounds.jsonl", "r+") as rounds:
        rounds.write("#" * (size - 1) + "\n" + json.dumps(line(3, [9, 9])) + '\n{"round": 4, "ta')
    tail.read()
    assert list(tail.columns["round"].values) == [0, 1, 2, 3]
    assert tail.damaged == 0
    with open(folder / "rounds.jsonl", "a") as rounds:
        rounds.write('u": [1, 1], "ids": [0, 1]}\n')
    tail.read()
    assert tail.read_heat_map("tau", 0, 9, 9, 9)["z"] == [[0, 1, 2, 9, 1], [0, 2, 4, 9, 1]]


def test_a_resumed_run_is_begun_again(tmp_path: Path) -> None:
    run(SMALL, tmp_path / "a", device="cpu")
    client = Client(tmp_path)
    first = client.get("/api/curves?run=a&name=test_loss").json()["runs"]["a"]
    resume(tmp_path / "a", rounds=8, device="cpu")
    again = client.get("/api/curves?run=a&name=test_loss").json()["runs"]["a"]
    assert (first["rounds"], again["rounds"]) == (6, 8)
    assert again["curves"]["test_loss"][1][:6] == first["curves"]["test_loss"][1]


def test_damaged_lines_are_counted_and_left_out(tmp_path: Path) -> None:
    bad = ["{", "[]", '{"round": -1}', '{"round": "x"}', "[" * 100_000, '{"round": true}']
    written(tmp_path / "a", [line(0, [1]), *bad, line(2, [1]), line(1, [1])], '{"round": 3')
    answer = ask(tmp_path, "/api/curves?run=a&name=test_accuracy").json()["runs"]["a"]
    assert answer["curves"]["test_accuracy"][0] == [1, 3]
    assert answer["damaged"] == len(bad) + 1


def test_faults_and_clients_left_out_are_told(tmp_path: Path) -> None:
    faults = [{"client": 1, "what": "crashed"}, "odd", {"client": 2}]
    written(tmp_path / "a", [line(0, [1]), line(1, [1], left_out=[1, 3], faults=faults)], clients=4)
    told = ask(tmp_path, "/api/run?run=a").json()
    assert [(f["round"], f["client"], f["what"]) for f in told["faults"]] == [
        (2, "1", "crashed"),
        (2, "2", "None"),
        (2, "3", "left out: its answer was not finite"),
    ]
    assert told["settings"]["clients"] == 4


def test_the_log_is_read_by_pages(tmp_path: Path) -> None:
    written(tmp_path / "a", [line(k, [k]) for k in range(25)])
    page = ask(tmp_path, "/api/log?run=a&count=10").json()
    assert [x["round"] for x in page["lines"]] == list(range(15, 25))
    earlier = ask(tmp_path, f"/api/log?run=a&count=10&before={page['first']}").json()
    assert [x["round"] for x in earlier["lines"]] == list(range(5, 15))


def test_values_that_are_no_numbers_leave_gaps(tmp_path: Path) -> None:
    odd = line(1, [3, 4], test_accuracy=None, L="x", tau_k=10**400) | {"ids": [0, 7]}
    written(tmp_path / "a", [line(0, [1, 2], L=1.0, tau_k=2), odd, line(2, [5, 6], L=3.0)], clients=2)
    curves = ask(tmp_path, "/api/curves?run=a&name=L&name=tau_k&name=nothing").json()["runs"]["a"]["curves"]
    assert curves == {"L": [[1, 3], [1, 3]], "tau_k": [[1], [2]], "nothing": [[], []]}
    assert ask(tmp_path, "/api/heat?run=a&name=tau").json()["z"] == [[1, None, 5], [2, None, 6]]


# thinning


def test_a_thinned_curve_is_a_line_within_its_extremes() -> None:
    x, y = np.arange(10_000.0), np.random.default_rng(0).normal(size=10_000)
    y[4321], y[77], y[5] = 50, -50, np.nan
    at, means, low, high = thin_curve(x, y, 300)
    assert len(at) <= 100
    assert (high.max(), low.min(), at[0], at[-1], means[0], means[-1]) == (50, -50, 0, 9999, y[0], y[-1])
    assert (np.diff(at) > 0).all()
    assert (low <= means).all()
    assert (means <= high).all()
    assert np.abs(np.delete(means, [0, -1])).max() < 1  # what swings is not a solid area


def test_a_short_curve_is_not_thinned() -> None:
    x, y = np.arange(150.0), np.arange(150.0)
    assert [values.tolist() for values in thin_curve(x, y, 300)] == [x.tolist(), y.tolist()]


def test_blocks_are_means_of_what_is_there() -> None:
    matrix = np.arange(35.0).reshape(5, 7)
    matrix[0, 0] = np.nan
    matrix[4] = np.nan
    down, across = np.indices(matrix.shape)
    pieces = [(down[:2].ravel(), across[:2].ravel(), matrix[:2].ravel())]
    pieces.append((down[2:].ravel(), across[2:].ravel(), matrix[2:].ravel()))
    means, tall, wide = average_blocks(pieces, (5, 7), 3, 4)
    assert (tall, wide, means.shape) == (2, 2, (3, 4))
    assert means[0, 0] == pytest.approx(np.nanmean(matrix[:2, :2]))
    assert means[1, 3] == pytest.approx(matrix[2:4, 6].mean())
    assert np.isnan(means[2]).all()


def test_more_clients_than_memory_allows_are_averaged_as_they_come(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedveca.views.board.tail._CELLS", 20)
    folder = written(tmp_path / "a", [line(0, [1, 3, 5, 7, 9]), line(1, [2, 4]) | {"ids": [3, 4]}], clients=5)
    tail = RunTail(folder / "rounds.jsonl", 5, 8)
    tail.read()
    assert tail.read_heat_map("tau", 0, 9, 99, 99)["z"] == [[2, None], [6, 2], [9, 4]]


# who may ask, and for what


@pytest.mark.parametrize("name", ["..", "../plain", "/etc", "plain/..", "a/../plain", "", "plain\x00", "no", "link"])
@pytest.mark.parametrize("what", ["run", "curves", "heat", "log", "csv", "report"])
def test_nothing_outside_the_folder_is_read(runs: Path, name: str, what: str, tmp_path: Path) -> None:
    root = tmp_path / "board"
    root.mkdir()
    written(root / "plain", [line(0, [1])])
    (root / "link").symlink_to(runs / "plain")
    answer = Client(root).get(f"/api/{what}", params={"run": name, "name": "tau"})
    assert answer.status_code == 404
    assert answer.json() == {"error": f"{name!r} is not a run of this board"}
    assert [row["id"] for row in ask(root, "/api/runs").json()["runs"]] == ["plain"]


def test_links_and_pipes_in_a_run_folder_are_not_opened(runs: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [])
    (folder / "rounds.jsonl").unlink()
    (folder / "rounds.jsonl").symlink_to(runs / "plain/rounds.jsonl")
    os.mkfifo(folder / "summary.json")
    (folder / "environment.json").symlink_to(runs / "plain/environment.json")
    assert ask(tmp_path, "/api/curves?run=a&name=test_loss").json()["runs"]["a"]["rounds"] == 0
    told = ask(tmp_path, "/api/run?run=a").json()
    assert (told["environment"], told["summary"]) == ({}, {})
    assert ask(tmp_path, "/api/runs").json()["runs"][0]["rounds"] == 0


@pytest.mark.parametrize("path", ["/board.js", "/format.js", "/board.css", "/plotly.js", "/", "/icon.svg"])
def test_the_page_is_whole(runs: Path, path: str) -> None:
    answer = ask(runs, path)
    assert answer.status_code == 200
    assert len(answer.content) > 100
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/app.py", "/../app.py", "/%2e%2e/app.py", "/page/board.js", "/api/", "/api/shelf"])
def test_nothing_else_is_served(runs: Path, path: str) -> None:
    assert ask(runs, path).status_code == 404


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("curves?run=plain&width=0", "width=0 is out of range; allowed: 10 to 4000"),
        (
            "curves?run=plain&x=days",
            "x=days is not known; allowed: round | steps | rows | bytes | seconds | clock | joules",
        ),
        ("curves?run=plain&from=nan", "from=nan is not a number"),
        ("heat?name=tau", "run is missing"),
        ("log?run=plain&count=1.5", "count=1.5 is out of range; allowed: 1 to 500"),
        ("curves?" + "&".join(f"run={i}" for i in range(65)), "65 times run is too many; at most 64"),
    ],
)
def test_a_bad_question_is_answered_with_a_sentence(runs: Path, path: str, said: str) -> None:
    answer = ask(runs, f"/api/{path}")
    assert (answer.status_code, answer.json()) == (400, {"error": said})


@pytest.mark.parametrize("path", ["/", "/api/runs", "/plotly.js", "/api/curves?run=plain"])
def test_a_token_guards_everything(runs: Path, path: str) -> None:
    client = Client(runs, host="0.0.0.0", token="secret")
    assert client.get(path).status_code == 403
    assert client.get(path, params={"token": "secreT"}).status_code == 403
    assert client.get(path, headers={"cookie": "fedveca_board_8765=no; =; x"}).status_code == 403
    assert client.get(path, headers={"authorization": "Bearer secret"}).status_code == 200
    entry = client.get("/?token=secret")
    assert (entry.status_code, entry.headers["location"]) == (303, "/")
    assert "HttpOnly; SameSite=Strict" in entry.headers["set-cookie"]
    assert client.get(path).status_code == 200  # by the cookie


@pytest.mark.parametrize(
    ("bound", "host", "passes"),
    [
        ("127.0.0.1", "127.0.0.1:8765", True),
        ("127.0.0.1", "localhost", True),
        ("127.0.0.1", "[::1]:1", True),
        ("127.0.0.1", "evil.example", False),
        ("127.0.0.1", "127.0.0.1.evil.example", False),
        ("127.0.0.1", "", False),
        ("127.0.0.1", "10.0.0.7", False),
        ("127.0.0.1", "[::1", True),
        ("0.0.0.0", "10.0.0.7:8765", True),
        ("0.0.0.0", "evil.example", False),
        ("0.0.0.0", "lab.example:1", True),
        ("::", "[fe80::1]:9", True),
    ],
)
def test_a_page_of_another_name_is_rejected(bound: str, host: str, passes: bool) -> None:
    async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

    assert Guard(nothing, bound, "", ("lab.example",)).accepts(host) is passes


def test_another_name_or_method_gets_nothing(runs: Path) -> None:
    client = Client(runs)
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 421
    answer = client.get("/api/runs", "POST")
    assert (answer.status_code, answer.text) == (405, "the board is read-only")


# the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([__file__], f"{__file__} is not a folder; name the one that holds runs"),
        ([".", "--port", "70000"], "--port 70000 is out of range; allowed: 0 to 65535"),
    ],
)
def test_the_command_rejects_in_a_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board", *words]) == 2
    assert capsys.readouterr().err.startswith(f"fedveca: {said}")


def test_a_port_that_is_taken(tmp_path: Path, capsys: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["board", str(tmp_path), "--port", str(port)]) == 2
    assert "cannot be used: Address already in use; --port 0 chooses a free one" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.delitem(sys.modules, "fedveca.views.board.app")
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert main(["board", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().endswith("needs the extra fedveca[board]: pip install 'fedveca[board]'")
