"""The board's server: what it finds, how it reads a growing run, what it refuses."""

from __future__ import annotations

import asyncio
import fcntl
import json
import os
import socket
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

from fedveca import Experiment, Run, resume, run
from fedveca.cli import main
from fedveca.views.board import downsample as thin
from fedveca.views.board.app import app
from fedveca.views.board.guard import Guard
from fedveca.views.board.index import QUIET, RunIndex
from fedveca.views.board.tail import RunTail

SMALL = Experiment(model="svm", rounds=6, batch=8, clients=4, tau_max=6)


@pytest.fixture(scope="module")
def shelf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two finished runs, one of them deeper."""
    root = tmp_path_factory.mktemp("runs")
    run(SMALL, root / "plain", device="cpu")
    run(Experiment(model="svm", rounds=4, batch=8, clients=4, method="fedavg", seed=3), root / "deep/er", device="cpu")
    return root


class Client:
    """A browser of few words: it asks, and keeps its cookies."""

    def __init__(self, root: Path, **more: Any) -> None:
        self.transport, self.cookies = httpx.ASGITransport(app(root, **more)), httpx.Cookies()

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


def test_runs_are_listed_with_their_settings_state_and_closing_values(shelf: Path) -> None:
    rows = {row["id"]: row for row in ask(shelf, "/api/runs").json()["runs"]}
    assert set(rows) == {"plain", "deep/er"}
    kept = Run.open(shelf / "plain").summary["kept"]
    assert rows["plain"]["accuracy"] == kept["test_accuracy"]
    assert (rows["plain"]["rounds"], rows["plain"]["of"], rows["plain"]["state"]) == (6, 6, "finished")
    assert (rows["deep/er"]["method"], rows["deep/er"]["seed"], rows["deep/er"]["data"]) == ("fedavg", 3, "digits")


def test_the_same_list_is_not_sent_twice(shelf: Path) -> None:
    client = Client(shelf)
    first = client.get("/api/runs")
    again = client.get("/api/runs", headers={"if-none-match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


def test_states(tmp_path: Path) -> None:
    written(tmp_path / "running", [line(0, [1])])
    old = time.time() - QUIET - 60
    for name in ("quiet", "killed", "held"):
        folder = written(tmp_path / name, [line(0, [1])])
        (folder / ".lock").write_text("1" if name != "quiet" else "")
        if name == "quiet":
            (folder / ".lock").unlink()
        for path in folder.iterdir():
            os.utime(path, (old, old))
    run(Experiment(model="svm", rounds=3, batch=8, lr=1e30), tmp_path / "stopped", device="cpu")
    shelf = RunIndex(tmp_path)
    with open(tmp_path / "held/.lock") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        rows = {row["id"]: row for row in shelf.rows()}
    states = {name: row["state"] for name, row in rows.items()}
    assert states == {name: name if name != "held" else "running" for name in states}
    assert len(states) == 5
    assert "no new round for more than 5 min" in rows["quiet"]["why"]
    assert "smaller lr" in rows["stopped"]["why"]
    (tmp_path / "held/.lock").unlink()
    assert {row["id"]: row["state"] for row in shelf.rows()}["held"] == "stopped"  # its lock was seen, and went


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
    assert "experiment.toml cannot be read" in rows["toml"]["why"]
    assert (rows["torn"]["rounds"], rows["torn"]["accuracy"]) == (2, 0.01)
    assert "no table of names" in rows["listed"]["why"]


def test_new_rounds_and_new_runs_are_seen_at_the_next_look(tmp_path: Path) -> None:
    shelf = RunIndex(tmp_path)
    assert shelf.rows() == []
    folder = written(tmp_path / "a", [line(0, [1])], rounds=10)
    assert [row["rounds"] for row in shelf.rows()] == [1]
    with open(folder / "rounds.jsonl", "a") as rounds:
        rounds.write(json.dumps(line(1, [1])) + "\n")
    written(tmp_path / "b", [])
    assert sorted(row["rounds"] for row in shelf.rows()) == [0, 2]


# reading


def test_curves_and_heat_maps_are_what_the_run_recorded(shelf: Path) -> None:
    told = Run.open(shelf / "plain")
    answer = ask(shelf, "/api/curves?run=plain&name=test_loss&name=train_loss&name=tau_k").json()["runs"]["plain"]
    x, y = answer["curves"]["test_loss"]
    assert x == [1, 2, 3, 4, 5, 6]
    assert y == pytest.approx(told.column("test_loss"), rel=1e-5)
    assert answer["curves"]["train_loss"][0] == [0, 1, 2, 3, 4, 5]  # of the model before the round
    assert set(answer["lists"]) >= {"tau", "A", "beta", "delta"}
    heat = ask(shelf, "/api/heat?run=plain&name=tau").json()
    assert heat["z"] == [list(row) for row in zip(*told.column("tau"), strict=True)]
    assert (heat["x"], heat["y"]) == ([1, 2, 3, 4, 5, 6], [0, 1, 2, 3])
    steps, _ = ask(shelf, "/api/curves?run=plain&name=tau_k&x=steps").json()["runs"]["plain"]["curves"]["tau_k"]
    assert steps == list(np.cumsum([sum(tau) for tau in told.column("tau")]))


def test_a_window_asks_for_a_part_of_the_axis(shelf: Path) -> None:
    path = "run=plain&name=test_loss&from=3&to=4"
    x, _ = ask(shelf, f"/api/curves?{path}").json()["runs"]["plain"]["curves"]["test_loss"]
    assert x == [2, 3, 4, 5]  # and one more on either side
    assert ask(shelf, "/api/heat?run=plain&name=tau&from=3&to=4").json()["x"] == [3, 4]


def test_what_was_read_is_not_read_again(tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [line(k, [k, 2 * k]) for k in range(3)], clients=2)
    follow = RunTail(folder / "rounds.jsonl", 2, 100)
    follow.read()
    size = (folder / "rounds.jsonl").stat().st_size
    with open(folder / "rounds.jsonl", "r+") as rounds:
        rounds.write("#" * (size - 1) + "\n" + json.dumps(line(3, [9, 9])) + '\n{"round": 4, "ta')
    follow.read()
    assert list(follow.columns["round"].values) == [0, 1, 2, 3]
    assert follow.damaged == 0
    with open(folder / "rounds.jsonl", "a") as rounds:
        rounds.write('u": [1, 1], "ids": [0, 1]}\n')
    follow.read()
    assert follow.heat("tau", 0, 9, 9, 9)["z"] == [[0, 1, 2, 9, 1], [0, 2, 4, 9, 1]]


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
        (2, "3", "left out: it gave a number that is not finite"),
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


def test_a_thinned_curve_keeps_its_peaks_and_ends() -> None:
    x, y = np.arange(10_000.0), np.random.default_rng(0).normal(size=10_000)
    y[4321], y[77], y[5] = 50, -50, np.nan
    at, kept = thin.curve(x, y, 300)
    assert len(at) <= 300
    assert (kept.max(), kept.min(), at[0], at[-1]) == (50, -50, 0, 9999)
    assert (np.diff(at) > 0).all()


def test_blocks_are_means_of_what_is_there() -> None:
    matrix = np.arange(35.0).reshape(5, 7)
    matrix[0, 0] = np.nan
    matrix[4] = np.nan
    down, across = np.indices(matrix.shape)
    pieces = [(down[:2].ravel(), across[:2].ravel(), matrix[:2].ravel())]
    pieces.append((down[2:].ravel(), across[2:].ravel(), matrix[2:].ravel()))
    means, tall, wide = thin.blocks(pieces, (5, 7), 3, 4)
    assert (tall, wide, means.shape) == (2, 2, (3, 4))
    assert means[0, 0] == pytest.approx(np.nanmean(matrix[:2, :2]))
    assert means[1, 3] == pytest.approx(matrix[2:4, 6].mean())
    assert np.isnan(means[2]).all()


def test_more_clients_than_memory_allows_are_averaged_as_they_come(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("fedveca.views.board.tail.CELLS", 20)
    folder = written(tmp_path / "a", [line(0, [1, 3, 5, 7, 9]), line(1, [2, 4]) | {"ids": [3, 4]}], clients=5)
    follow = RunTail(folder / "rounds.jsonl", 5, 8)
    follow.read()
    assert follow.heat("tau", 0, 9, 99, 99)["z"] == [[2, None], [6, 2], [9, 4]]


# who may ask, and for what


@pytest.mark.parametrize("name", ["..", "../plain", "/etc", "plain/..", "a/../plain", "", "plain\x00", "no", "link"])
@pytest.mark.parametrize("what", ["run", "curves", "heat", "log"])
def test_nothing_outside_the_folder_is_read(shelf: Path, name: str, what: str, tmp_path: Path) -> None:
    root = tmp_path / "board"
    root.mkdir()
    written(root / "plain", [line(0, [1])])
    (root / "link").symlink_to(shelf / "plain")
    answer = Client(root).get(f"/api/{what}", params={"run": name, "name": "tau"})
    assert answer.status_code == 404
    assert answer.json() == {"error": f"{name!r} is not a run of this board"}
    assert [row["id"] for row in ask(root, "/api/runs").json()["runs"]] == ["plain"]


def test_links_and_pipes_in_a_run_folder_are_not_opened(shelf: Path, tmp_path: Path) -> None:
    folder = written(tmp_path / "a", [])
    (folder / "rounds.jsonl").unlink()
    (folder / "rounds.jsonl").symlink_to(shelf / "plain/rounds.jsonl")
    os.mkfifo(folder / "summary.json")
    (folder / "environment.json").symlink_to(shelf / "plain/environment.json")
    assert ask(tmp_path, "/api/curves?run=a&name=test_loss").json()["runs"]["a"]["rounds"] == 0
    told = ask(tmp_path, "/api/run?run=a").json()
    assert (told["environment"], told["summary"]) == ({}, {})
    assert ask(tmp_path, "/api/runs").json()["runs"][0]["rounds"] == 0


@pytest.mark.parametrize("path", ["/board.js", "/words.js", "/board.css", "/plotly.js", "/", "/icon.svg"])
def test_the_page_is_whole(shelf: Path, path: str) -> None:
    answer = ask(shelf, path)
    assert answer.status_code == 200
    assert len(answer.content) > 100
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize("path", ["/app.py", "/../app.py", "/%2e%2e/app.py", "/page/board.js", "/api/", "/api/shelf"])
def test_nothing_else_is_served(shelf: Path, path: str) -> None:
    assert ask(shelf, path).status_code == 404


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("curves?run=plain&width=0", "width=0 is out of range; allowed: 10 to 4000"),
        ("curves?run=plain&x=days", "x=days is not known; allowed: round | steps | bytes | seconds"),
        ("curves?run=plain&from=nan", "from=nan is not a number"),
        ("heat?name=tau", "run is missing"),
        ("log?run=plain&count=1.5", "count=1.5 is out of range; allowed: 1 to 500"),
        ("curves?" + "&".join(f"run={i}" for i in range(25)), "25 times run is too many; at most 24"),
    ],
)
def test_a_bad_question_is_answered_with_a_sentence(shelf: Path, path: str, said: str) -> None:
    answer = ask(shelf, f"/api/{path}")
    assert (answer.status_code, answer.json()) == (400, {"error": said})


@pytest.mark.parametrize("path", ["/", "/api/runs", "/plotly.js", "/api/curves?run=plain"])
def test_a_token_guards_everything(shelf: Path, path: str) -> None:
    client = Client(shelf, host="0.0.0.0", token="secret")
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
def test_a_page_of_another_name_is_refused(bound: str, host: str, passes: bool) -> None:
    async def nothing(scope: Any, receive: Any, send: Any) -> None: ...

    assert Guard(nothing, bound, "", ("lab.example",)).known(host) is passes


def test_another_name_or_method_gets_nothing(shelf: Path) -> None:
    client = Client(shelf)
    assert client.get("/api/runs", headers={"host": "evil.example"}).status_code == 421
    assert client.get("/api/runs", "POST").status_code == 405


# the command


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["missing"], "missing is not a folder; name the one that holds runs"),
        ([".", "--port", "70000"], "--port 70000 is out of range; allowed: 0 to 65535"),
    ],
)
def test_the_command_refuses_in_a_sentence(words: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["board", *words]) == 2
    assert capsys.readouterr().err.startswith(f"fedveca: {said}")


def test_a_port_that_is_taken(tmp_path: Path, capsys: Any) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        assert main(["board", str(tmp_path), "--port", str(port)]) == 2
    assert "cannot be used: Address already in use; --port 0 takes a free one" in capsys.readouterr().err


def test_without_the_extra_it_says_what_to_install(tmp_path: Path, capsys: Any, monkeypatch: Any) -> None:
    monkeypatch.setitem(sys.modules, "starlette.applications", None)
    assert main(["board", str(tmp_path)]) == 2
    assert capsys.readouterr().err.strip().endswith("needs the extra fedveca[board]: pip install 'fedveca[board]'")
