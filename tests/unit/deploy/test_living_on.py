"""A run that lives on: nodes away while it is resumed, keys that are revoked, versions, and who starts it again."""

from __future__ import annotations

import json
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("flwr")
from flower_grid import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedveca.cohorts.flower import roster
from fedveca.cohorts.flower.answers import NodeRows
from fedveca.cohorts.flower.cohort import FlowerCohort
from fedveca.deploy import runner
from fedveca.deploy.certificates import write_certificates
from fedveca.deploy.client_rows import CLIENT_ROWS, ClientRowsObserver, read_client_rows
from fedveca.deploy.logs import LogLimit
from fedveca.deploy.runner import ExperimentRunner, count_rounds
from fedveca.deploy.server import make_cohort
from fedveca.deploy.superlink import ServerCare
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment
from fedveca.runs.lock import lock_folder
from fedveca.runs.task_data import load_data

E = Experiment(model="svm", clients=3, rounds=3, batch=16, lr=0.05, round_timeout=5.0)


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(roster, "POLL_SECONDS", 0.001)


def joined(grid: Any, said: list[str], **more: Any) -> FlowerCohort:
    return make_cohort(grid, E, load_data(E)[0], said.append, **more)


def test_a_run_is_resumed_without_a_client_that_joins_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = joined(Grid(E, tmp_path, {}), [])
    ClientRowsObserver(whole).start(E, tmp_path)
    known = read_client_rows(tmp_path, 3)
    assert known == {i: NodeRows(int(whole.sizes[i])) for i in range(3)}
    monkeypatch.setattr(roster, "_REJOIN_SECONDS", 0.05)
    grid, said = Grid(E, tmp_path, {}, nodes=2), list[str]()
    cohort = joined(grid, said, known=known)
    assert cohort.sizes.tolist() == whole.sizes.tolist()
    assert cohort.roster.nodes == {0: 100, 1: 101}
    assert said[-1] == "the run is resumed without clients 2, which may join later"
    grid.nodes = 3
    cohort._check_arrivals()
    assert cohort.roster.nodes == {0: 100, 1: 101, 2: 102}


def test_a_run_that_is_resumed_waits_for_min_clients(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(roster, "_REJOIN_SECONDS", 0.0)
    monkeypatch.setattr(roster, "_JOIN_SECONDS", 0.05)
    from dataclasses import replace

    e, known = replace(E, min_clients=3, round_timeout=0.05), {i: NodeRows(400) for i in range(3)}
    grid: Any = Grid(e, tmp_path, {}, nodes=2)
    with pytest.raises(roster.TooFewClients):
        make_cohort(grid, e, load_data(e)[0], print, known)


@pytest.mark.parametrize(
    "content",
    ["", "[]", "{}", '{"train": [1, 2, 3]}', '{"train": [1, 2], "val": [0, 0], "test": [0, 0]}']
    + [f'{{"train": [1, 2, {wrong}], "val": [0, 0, 0], "test": [0, 0, 0]}}' for wrong in ("-1", "1.5", "true", "9e99")],
)
def test_a_file_of_rows_that_no_run_wrote_is_not_used(content: str, tmp_path: Path) -> None:
    (tmp_path / CLIENT_ROWS).write_text(content)
    assert read_client_rows(tmp_path, 3) is None
    assert read_client_rows(tmp_path / "none", 3) is None


def test_a_client_whose_key_was_revoked_gets_no_order_until_it_has_another(tmp_path: Path) -> None:
    from fedveca.deploy.nodes_file import NodeTable

    path, said = tmp_path / "nodes.json", list[str]()
    path.write_text(json.dumps({"0": 100, "1": 101, "2": 102}))
    cohort = joined(Grid(E, tmp_path, {}), said)
    cohort.roster.keys = NodeTable(path)
    (tmp_path / "new").write_text(json.dumps({"0": 100, "2": 102}))
    (tmp_path / "new").replace(path)
    cohort._check_arrivals()
    assert cohort.roster.nodes == {0: 100, 2: 102}
    assert cohort.faults[-1] == {"client": 1, "what": "has lost its key, which was revoked"}


def test_a_node_of_another_version_takes_part_and_is_named_once(tmp_path: Path) -> None:
    def age(records: dict[str, Any]) -> None:
        records["answer"]["version"] = "0.0.1"

    said = list[str]()
    cohort = joined(Grid(E, tmp_path, {(1, -1): age}), said)
    about = [line for line in said if "fedveca" in line]
    assert len(about) == 1
    assert about[0].startswith("client 1 runs fedveca 0.0.1, which is older than the server's ")
    assert [fault["client"] for fault in cohort.faults] == [1]
    assert len(cohort.roster.nodes) == 3
    cohort.roster._seen.clear()
    cohort._check_arrivals()
    assert len([line for line in said if "fedveca" in line]) == 1


class Link:
    """Stands for a SuperLink that was started: its folder, its logs, and how often keys were registered."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes, self.registered = folder, {"superlink": None}, 0
        self.broken = False

    def register(self) -> None:
        if self.broken:
            raise ValueError("not a\nkey")
        self.registered += 1


def test_a_server_sees_to_keys_logs_and_certificates(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "keys").mkdir()
    write_certificates(tmp_path / "tls", ["127.0.0.1"], days=7)
    link: Any = Link(tmp_path)
    care = ServerCare(link, LogLimit(10 / 2**20, 1))
    care.look()
    assert "the server's certificate expires in 6 days" in capsys.readouterr().err
    care.look()
    assert capsys.readouterr().err == ""
    care._warned -= 86400
    care.look()
    assert "expires in 6 days" in capsys.readouterr().err  # once per day
    assert link.registered == 0
    (tmp_path / "keys" / "node-0.pub").write_text("x")
    (tmp_path / "superlink.log").write_text("x" * 11)
    care.look()
    care.look()
    assert link.registered == 1
    assert (tmp_path / "superlink.log.1").exists()
    (tmp_path / "keys" / "node-0.pub").unlink()
    care.look()
    assert link.registered == 2
    capsys.readouterr()
    link.broken = True  # a file that is not a key does not end a server that runs
    (tmp_path / "keys" / "node-1.pub").write_text("x")
    for _ in range(3):
        care.look()
        care._again = 0.0
    assert capsys.readouterr().err.splitlines() == [
        "warning: the nodes' keys cannot be registered: not a\\nkey; it is tried again"
    ]
    link.broken = False
    care.look()
    assert link.registered == 3
    (tmp_path / "tls" / "ca.pem").write_text("x")
    care.warn_of_expiry()
    assert "ca.pem cannot be read" in capsys.readouterr().err


FLWR = """#!{python}
import json, pathlib, sys
here = pathlib.Path(__file__).parent
calls = here / "calls.json"
said = json.loads(calls.read_text()) if calls.exists() else []
words = [w for w in sys.argv[1:] if "=" in w]
calls.write_text(json.dumps([*said, words]))
out = pathlib.Path(next(w for w in words if w.startswith(("out=", "resume="))).partition("=")[2].strip('"'))
plan = json.loads((here / "plan.json").read_text())[len(said)]
if plan != "nothing":
    out.mkdir(parents=True, exist_ok=True)
    (out / "experiment.toml").touch()
    with open(out / "rounds.jsonl", "a") as rounds:
        rounds.write("{{}}\\n" * (plan == "round"))
if plan == "end":
    (out / "summary.json").write_text("{{}}")
"""


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A server's folder, with a socket that listens and a program in place of Flower's `flwr run`."""
    import sys

    home, app = tmp_path / "server", tmp_path / "app"
    (home / "bin").mkdir(parents=True)
    app.mkdir()
    (app / "pyproject.toml").write_text('[tool.flwr.app.config]\nout = ""\nmethod = "fedveca"\n')
    (home / "bin" / "flwr").write_text(FLWR.format(python=sys.executable))
    (home / "bin" / "flwr").chmod(0o755)
    monkeypatch.setattr(runner, "PAUSE_SECONDS", 0.0)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(home / "api.sock"))
        listener.listen(16)
        yield home


def follow(server: Path, plan: list[str], *settings: str, once: bool = False) -> tuple[int, list[list[str]]]:
    """What the runner returns when these things happen one after the other, and what it started."""
    (server / "bin" / "plan.json").write_text(json.dumps(plan))
    (server / "bin" / "calls.json").unlink(missing_ok=True)
    code = ExperimentRunner(server, server.parent / "app", list(settings), []).run(once)
    calls = server / "bin" / "calls.json"
    return code, json.loads(calls.read_text()) if calls.exists() else []


def test_a_run_is_resumed_until_it_is_finished(server: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, calls = follow(server, ["round", "round", "end"], "rounds=50 lr=0.5")
    out = json.loads((server / "current.json").read_text())["out"]
    assert Path(out).parent == server / "runs"
    assert code == 0
    changed = ["rounds=50", "lr=0.5"]
    assert calls == [[*changed, f'out="{out}"'], [*changed, f'resume="{out}"'], [*changed, f'resume="{out}"']]
    assert count_rounds(Path(out)) == 2
    code, calls = follow(server, ["end"], once=True)
    assert (code, calls) == (0, [])
    assert "is finished" in capfd.readouterr().out
    code, calls = follow(server, ["end"])
    assert calls[0][0].startswith("out=")
    assert calls != [[f'out="{out}"']]  # another run


def test_what_was_not_finished_is_resumed_by_the_next_start(server: Path) -> None:
    out = server / "runs" / "mine"
    out.mkdir(parents=True)
    (out / "experiment.toml").touch()
    (server / "current.json").write_text(json.dumps({"out": str(out)}))
    for once in (True, False):
        assert follow(server, ["end"], once=once) == (0, [[f'resume="{out}"']])
        (out / "summary.json").unlink()
    assert follow(server, ["end"], 'out="runs/other"')[1] == [[f'out="{server / "runs/other"}"']]
    (out / "experiment.toml").write_text('method = "fedavg"\nrounds = 7\nlr = 0.5\n')  # the app has changed since
    (server.parent / "app" / "pyproject.toml").write_text(
        '[tool.flwr.app.config]\nout = ""\nmethod = "fedveca"\nrounds = 9\nlr = 0.5\n'
    )
    assert follow(server, ["end"], f'resume="{out}"')[1] == [['method="fedavg"', "rounds=7", f'resume="{out}"']]
    (out / "summary.json").write_text("{}")  # more rounds of a run that is finished
    assert follow(server, ["end"], f'resume="{out}"', "rounds=9")[1] == [
        ['method="fedavg"', "rounds=9", f'resume="{out}"']
    ]


def test_it_gives_up_where_nothing_moves(server: Path, capfd: pytest.CaptureFixture[str]) -> None:
    code, calls = follow(server, ["round", *["stuck"] * 9])
    assert (code, len(calls)) == (1, 1 + runner.ATTEMPTS)
    assert "no round was added in 5 attempts" in capfd.readouterr().err
    (server / "current.json").unlink()
    code, calls = follow(server, ["nothing", "nothing"])
    assert (code, len(calls)) == (1, 1)
    assert "the experiment did not start" in capfd.readouterr().err


def test_a_run_that_the_server_is_still_at_is_waited_for(server: Path) -> None:
    out = server / "runs" / "mine"
    out.mkdir(parents=True)
    (out / "experiment.toml").touch()
    (server / "current.json").write_text(json.dumps({"out": str(out)}))
    found: list[tuple[int, list[list[str]]]] = []
    with lock_folder(out):
        thread = threading.Thread(target=lambda: found.append(follow(server, ["end"])))
        thread.start()
        time.sleep(0.3)
        assert not found
        (out / "summary.json").write_text("{}")
    thread.join(20)
    assert found == [(0, [])]


def test_what_it_cannot_do_is_said(server: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a list of settings"):
        ExperimentRunner(server, tmp_path / "app", ["rounds=[", "lr=]"], [])
    (server / "current.json").write_text('{"out": "relative"}')
    with pytest.raises(UserError, match="does not name a run folder; remove it"):
        ExperimentRunner(server, tmp_path / "app", [], []).run()
    (server / "current.json").unlink()
    with pytest.raises(UserError, match="is not a Flower app"):
        ExperimentRunner(server, tmp_path / "nowhere", [], []).run()
    (server / "api.sock").unlink()
    with pytest.raises(UserError, match=r"the server is not running; start it with start\.sh"):
        ExperimentRunner(server, tmp_path / "app", [], []).run()
