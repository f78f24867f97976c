"""`deploy check`: what nodes report of their machines, none of it trusted, and what is said of it.

The nodes are in this process: their messages are Flower's own, written to bytes and read back, only not sent.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("flwr")
from flower_grid import Change, Grid
from flwr.app import Error
from flwr.supercore.task_identity import TaskIdentity

from fedveca.cli import main
from fedveca.deploy import check as module
from fedveca.deploy.certificates import write_certificates
from fedveca.deploy.check import NodeCheck, judge_report
from fedveca.deploy.inspection import list_versions
from fedveca.deploy.ready import _check_files, tabulate_check
from fedveca.deploy.server import NODES, _check
from fedveca.runs.experiment import Experiment
from fedveca.version import __version__
from fedveca.views.terminal.checks import show_checks
from fedveca.views.terminal.console import make_console

E = Experiment(model="svm", clients=3, rounds=3, batch=16, lr=0.05, round_timeout=5.0)
GOOD: dict[str, Any] = {
    "client": 1,
    **list_versions(),
    "device": "cpu",
    "rows": 40,
    "began": 1000.5,
    "time": 1002.5,
    "disk": 2.0**36,
    "memory": 2.0**33,
    "row_seconds": 1e-5,
    "expiry": 1e9,
}


@pytest.fixture(autouse=True)
def _flower(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"_task_id": 1, "_run_id": 1, "_node_id": 1}.items():
        monkeypatch.setattr(TaskIdentity, name, value)
    monkeypatch.setattr(module, "_POLL_SECONDS", 0.001)


def asked(e: Experiment, folder: Path, changes: dict[tuple[int, int], Change], nodes: int = 3) -> list[NodeCheck]:
    """What a check of these nodes writes down."""
    grid: Any = Grid(e, folder, changes, nodes)
    _check(grid, e, f"0.01 1 {folder / 'check.json'}", None)
    found: list[NodeCheck] = json.loads((folder / "check.json").read_text())["nodes"]
    return found


def judge(**changes: object) -> NodeCheck:
    return judge_report(GOOD | changes, 1, sent=1000.0, now=1003.0)


def test_nodes_that_are_ready_are_said_to_be(tmp_path: Path) -> None:
    found = asked(E, tmp_path, {})
    assert [node["client"] for node in found] == [0, 1, 2]
    assert [(node["problems"], node["warnings"]) for node in found] == [([], [])] * 3
    assert sum(node["rows"] for node in found) == 1438
    for node in found:
        assert {name: node[name] for name in list_versions()} == list_versions()  # type: ignore[literal-required]
        assert 0 < node["row_seconds"] < 1
        assert abs(node["skew"]) <= node["skew_error"] + 0.01
        assert node["disk"] > 0
        assert node["memory"] > 0
        assert node["device"] in ("cpu", "cuda")


def test_the_time_per_row_is_of_the_rows_of_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock that counts local steps: a step of 16 rows takes 16 s."""
    from fedveca.cohorts.local.cohort import LocalCohort
    from fedveca.deploy.inspection import measure_row
    from fedveca.deploy.node_process import make_node_cohort

    local, spent = make_node_cohort(E, 1, 10, "as-is"), [0.0]
    before, call = local.memory, LocalCohort.__call__

    def count(self: LocalCohort, k: int, order: Any, ids: Any, tau: Any) -> Any:
        spent[0] += 100.0 + 16.0 * float(tau.sum())
        return call(self, k, order, ids, tau)

    monkeypatch.setattr(LocalCohort, "__call__", count)
    monkeypatch.setattr("fedveca.deploy.inspection.time.perf_counter", lambda: spent[0])
    assert measure_row(local, 1) == 1.0
    assert local.memory is before


@pytest.mark.parametrize("method", ["scaffold", "fedveca", "fedprox"])
def test_every_kind_of_method_can_be_timed(method: str, tmp_path: Path) -> None:
    found = asked(replace(E, method=method), tmp_path, {})
    assert [(node["problems"], node["row_seconds"] > 0) for node in found] == [([], True)] * 3


def test_rows_that_cannot_be_read_or_do_not_fit_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    for i, (shape, label) in enumerate([((64,), 9), ((63,), 9), ((64,), 10)]):
        np.savez(tmp_path / f"{i}.npz", x=rng.random((30, *shape), np.float32), y=np.arange(30) % (label + 1))
    monkeypatch.setenv("FEDVECA_NODE_DATA", str(tmp_path / "{client}.npz"))
    found = asked(replace(E, clients=4), tmp_path, {}, nodes=4)
    assert found[0]["problems"] == []
    (why,) = found[1]["problems"]
    assert why == "the model has 63 parameters here, 64 at the server"
    (why,) = found[2]["problems"]
    assert why == "client 2 has labels from 0 to 10; allowed: 0 to 9, whole"
    (why,) = found[3]["problems"]
    assert "3.npz cannot be read (FileNotFoundError" in why
    assert "row_seconds" not in found[3]


def test_without_data_at_the_server_most_nodes_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for i, width in enumerate([5, 5, 6]):
        np.savez(tmp_path / f"{i}.npz", x=np.ones((30, width), np.float32), y=np.arange(30) % 3)
    monkeypatch.setenv("FEDVECA_NODE_DATA", str(tmp_path / "{client}.npz"))
    found = asked(replace(E, test_by="client", model="mlp"), tmp_path, {})
    assert [len(node["problems"]) for node in found] == [0, 0, 1]
    assert "of shape [6]" in found[2]["problems"][0]
    assert "most clients have rows (pixels=as-is) of shape [5]" in found[2]["problems"][0]


def test_a_node_that_is_away_silent_or_mistaken_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def lie(records: dict[str, Any]) -> None:
        records["answer"]["client"] = 0

    (tmp_path / "nodes.json").write_text(json.dumps({"0": 100, "1": 101, "2": 102}))
    monkeypatch.setenv(NODES, str(tmp_path / "nodes.json"))
    found = asked(E, tmp_path, {(1, -1): lie, (2, -1): lambda _: Error(2, "no memory\nleft")}, nodes=3)
    assert found[0]["problems"] == []
    assert found[1]["problems"] == ["says it is client 0, but its key is not client 0's"]
    assert found[2]["problems"] == ["failed: no memory (Flower's error 2)"]
    found = asked(E, tmp_path, {}, nodes=2)
    assert [node["problems"] for node in found] == [[], [], ["is not connected"]]
    silent: Any = Grid(E, tmp_path, {})
    pull = silent.pull_messages
    silent.pull_messages = lambda ids: pull(["m0"]) if "m0" in ids else []
    _check(silent, E, f"0 0.05 {tmp_path / 'check.json'}", None)
    found = json.loads((tmp_path / "check.json").read_text())["nodes"]
    assert [node["problems"] for node in found] == [[], *[["did not answer within 0.05 s"]] * 2]


def test_a_node_that_nobody_knows_is_a_warning(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "nodes.json").write_text(json.dumps({"0": 100, "1": 101}))
    monkeypatch.setenv(NODES, str(tmp_path / "nodes.json"))
    found = asked(replace(E, clients=2), tmp_path, {(2, -1): lambda _: Error(2, "lost")}, nodes=3)
    assert found[0]["warnings"] == ["node 102 failed: lost (Flower's error 2)"]
    assert [node["problems"] for node in found] == [[], []]


def test_the_server_says_why_it_cannot_check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FEDVECA_TEST_DATA", "gone.npz")
    with pytest.raises(ValueError, match=r"gone\.npz"):
        asked(E, tmp_path, {})
    assert "the server cannot check its nodes" in json.loads((tmp_path / "check.json").read_text())["error"]
    with pytest.raises(ValueError, match="the server cannot check its nodes"):
        module.read_check(tmp_path / "check.json")


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"version": "0.0.1"}, "problems", f"runs fedveca 0.0.1, which is older than the server's {__version__}"),
        ({"version": "99.0"}, "problems", f"runs fedveca 99.0, which is newer than the server's {__version__}"),
        ({"torch": "1.0"}, "warnings", "has torch 1.0, the server "),
        ({"python": "3.99.0"}, "warnings", "has python 3.99.0, the server "),
        ({"flwr": "1.0"}, "warnings", "has flwr 1.0, the server "),
        ({"began": 1010.5, "time": 1012.5}, "warnings", "has a clock at least 10 s ahead of the server's"),
        ({"began": 980.5, "time": 982.5}, "warnings", "has a clock at least 20 s behind the server's"),
        ({"disk": 2.0**20}, "problems", "has 1 MB of disk left"),
        ({"disk": 2.0**29}, "warnings", "has 512 MB of disk left"),
        ({"memory": 2.0**28}, "warnings", "has 256 MB of memory left"),
        ({"expiry": 0.0}, "problems", "has a ca.pem that expired 1 days ago; copy the server's to it"),
        ({"expiry": 1003.0 + 86400 * 29.5}, "warnings", "has a ca.pem that expires in 29 days"),
        ({"problem": "no\x1b[2J rows"}, "problems", "no\\x1b[2J rows"),
        ({"problem": 7}, "problems", "7"),
        ({"rows": 0, "shape": "4"}, "problems", "has no rows"),
    ],
)
def test_what_is_wrong_is_one_sentence(changes: dict[str, Any], kind: str, said: str) -> None:
    found: Any = judge(**changes)
    (sentence,) = found[kind]
    assert sentence.startswith(said)
    assert not found[{"problems": "warnings", "warnings": "problems"}[kind]]


def test_the_clock_is_judged_by_four_times() -> None:
    """Asked at 1000, begun at 1000.5, ended at 1002.5, answered at 1003: 1 s of 3 was the way there and back."""
    found = judge()
    assert (found["skew"], found["skew_error"]) == (0.0, 0.5)
    found = judge(began=1004.5, time=1006.5)
    assert (found["skew"], found["skew_error"]) == (4.0, 0.5)
    assert not found["warnings"]  # up to 5 s Flower accepts it
    assert judge(began=1006.1, time=1008.1)["warnings"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rows": -1},
        {"rows": 2**50},
        {"rows": True},
        {"rows": "40"},
        {"disk": -1.0},
        {"disk": float("nan")},
        {"memory": float("inf")},
        {"memory": 3},
        {"row_seconds": 1e9},
        {"expiry": 1e300},
        {"torch": "2" * 41},
        {"python": "3.11\n"},
        {"flwr": b"1.41"},
        {"device": "cpu\x1b[2J"},
        {"began": 1e300, "time": 1e300},
        {"began": 5.0, "time": 4.0},
        {"began": float("nan")},
        {"time": None},
    ],
)
def test_a_value_that_cannot_be_is_not_there(changes: dict[str, object]) -> None:
    found: Any = judge(**changes)
    lost = {"began": "skew", "time": "skew"}.get(next(iter(changes)), next(iter(changes)))
    assert lost not in found
    assert "\n" not in str(found)
    assert not found["problems"]


def test_a_long_problem_is_cut() -> None:
    assert len(judge(problem="x" * 10**6)["problems"][0]) < 500


def test_the_table_and_the_files_of_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = judge(), judge(version=None, rows=None)
    rows = tabulate_check(
        {"error": "", "server": {}, "nodes": [good, {"client": 2, "problems": ["x"], "warnings": []}]}
    )
    assert rows[0]["state"] == "ready"
    assert rows[1]["state"] == "problem"
    assert {value for name, value in rows[1].items() if name not in ("node", "state")} == {"-"}
    assert (rows[0]["per row"], rows[0]["disk"], rows[0]["clock"]) == ("10.0 µs", "64.0 GB", "+0.0±0.5 s")
    assert tabulate_check({"error": "", "server": {}, "nodes": [bad]})[0]["rows"] == "-"
    show_checks(make_console(), rows, ["client 2 x"], ["client 1 y"])
    out = capsys.readouterr().out
    assert "problem: client 2 x\n" in out
    assert max(map(len, out.splitlines())) <= 80
    tmp_path.chmod(0o700)
    write_certificates(tmp_path / "tls", ["127.0.0.1"], days=10)
    problems, warnings = _check_files(tmp_path)
    assert (problems, len(warnings)) == ([], 1)
    (tmp_path / "tls" / "server.key").chmod(0o644)
    write_certificates(tmp_path / "old" / "tls", ["127.0.0.1"], days=-1)
    assert "can be read by others: its mode is 644, not 600" in _check_files(tmp_path)[0][0]
    assert any("expired" in sentence for sentence in _check_files(tmp_path / "old")[0])


def test_misuse(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["deploy", "init", str(tmp_path / "kit"), "--nodes", "1"]) == 0
    began = time.monotonic()
    for words, said in (
        ([str(tmp_path)], "is not the folder of a deployment"),
        ([str(tmp_path / "kit")], "the server is not running; start it with"),
        ([str(tmp_path / "kit"), "--wait", "-1"], "--wait -1 is out of range; allowed: 0 to 86400"),
        ([str(tmp_path / "kit"), "--timeout", "nan"], "--timeout nan is out of range"),
    ):
        capsys.readouterr()
        assert main(["deploy", "check", *words]) == 2
        error = capsys.readouterr().err
        assert said in error
        assert error.count("\n") == 1
    assert time.monotonic() - began < 60
