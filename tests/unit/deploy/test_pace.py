"""How often Flower's parts look for something new: the setting that is named is the one in force, in Flower itself."""

from __future__ import annotations

import inspect
import logging
import socket
import time
from importlib import import_module
from pathlib import Path
from types import ModuleType

import pytest

from fedveca.cli import main
from fedveca.deploy import pace
from fedveca.deploy.launch import Federation
from fedveca.deploy.long_poll import HOLD_SECONDS
from fedveca.deploy.pace import (
    EXEC_MODULE,
    EXEC_SECONDS,
    GRID_MODULE,
    NODE_FOLDER,
    NODE_MODULE,
    POLL,
    ExecPace,
    NodePace,
    announce_task,
    check_poll,
    describe_pace,
    find_wait,
    set_pace,
)
from fedveca.deploy.superlink import SuperLink
from fedveca.deploy.supernode import prepare_node
from fedveca.deploy.templates import write_deployment
from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment

PROGRAMS = {"flower-supernode": NODE_MODULE, "flower-superexec": EXEC_MODULE, "flwr-serverapp": GRID_MODULE}


class FakeTime:
    """A clock that passes only by sleeping."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, list[float]()

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        self.slept.append(seconds)

    def read(self) -> float:
        return self.now


@pytest.fixture
def flower(monkeypatch: pytest.MonkeyPatch) -> dict[str, ModuleType]:
    """Flower's modules, put back afterwards."""
    found = {program: import_module(name) for program, name in PROGRAMS.items()}
    monkeypatch.setattr(pace, "_sentence", "")
    for module in found.values():
        for name in ("time", "_push_messages", "pull_objects"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, getattr(module, name))
    return found


@pytest.mark.parametrize("seconds", [0, 0.01, 0.05, 0.5])
def test_a_poll_in_range(seconds: float) -> None:
    assert check_poll(seconds) == seconds


@pytest.mark.parametrize("seconds", [-0.05, 0.009, 0.51, 3, float("nan"), float("inf")])
def test_a_poll_out_of_range_is_rejected_everywhere(
    seconds: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(UserError, match=r"poll=.* is out of range; allowed: \[0.01, 0.5\] seconds, or 0 for Flower's"):
        check_poll(seconds)
    with pytest.raises(UserError, match="out of range"):
        prepare_node(tmp_path / "node", "127.0.0.1:1", 0, 1, poll=seconds)
    with pytest.raises(UserError, match="out of range"):
        SuperLink(tmp_path / "server", "127.0.0.1", 1, poll=seconds)
    for words in (["local", "--out"], ["init"]):
        assert main(["deploy", *words, str(tmp_path / "out"), f"--poll={seconds}"]) == 2
        assert capsys.readouterr().err.count("\n") == 1
        assert not (tmp_path / "out").exists()


def test_a_wait_grows_with_what_was_waited_and_is_never_longer_than_flowers() -> None:
    assert [find_wait(0.05, waited, 0.5) for waited in (0, 0.4, 2, 60)] == [0.05, 0.05, 0.2, 0.5]


def test_a_node_waits_for_its_answer_in_growing_steps() -> None:
    fake = FakeTime()
    node = NodePace(0.05, fake.sleep, fake.read)
    fake.now += 1000
    node.begin_wait()
    while fake.now < 1110:
        node.sleep(0.5)
    assert fake.slept[0] == 0.05
    assert fake.slept == sorted(fake.slept)
    assert max(fake.slept) == 0.5
    node.begin_wait()
    node.sleep(0.5)
    assert fake.slept[-1] == 0.05


def test_a_node_sleeps_flowers_three_seconds_unless_the_gateway_has_held_its_question() -> None:
    fake = FakeTime()
    node = NodePace(0.05, fake.sleep, fake.read)
    fake.now += 0.2  # a question that was answered at once
    node.sleep(3)
    fake.now += HOLD_SECONDS
    node.sleep(3)
    fake.now += 0.2
    node.sleep(3)
    assert fake.slept == [3, 0.05, 3]


def test_the_stand_ins_are_the_module_time_otherwise(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        for stand_in in (NodePace(0.05), ExecPace(bell)):
            assert stand_in.monotonic is time.monotonic
            assert stand_in.time is time.time


def test_an_announced_task_ends_the_sleep_and_without_one_it_is_flowers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert EXEC_SECONDS == 1.0
    monkeypatch.chdir(tmp_path)  # a socket's path must be short
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as bell:
        bell.bind("task.sock")
        monkeypatch.setattr(pace, "EXEC_SECONDS", 600.0)
        waiting = ExecPace(bell)
        announce_task("task.sock")
        waiting.sleep(0.2)  # returns at once, or never
        monkeypatch.setattr(pace, "EXEC_SECONDS", 0.2)
        before = time.monotonic()
        ExecPace(bell).sleep(0.01)
        assert time.monotonic() - before >= 0.15
    announce_task("nobody.sock")


def test_the_setting_is_in_force_in_flowers_own_modules(
    flower: dict[str, ModuleType],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(POLL, "0.07")
    monkeypatch.setenv(NODE_FOLDER, str(tmp_path))
    monkeypatch.chdir(tmp_path)
    caplog.set_level(logging.INFO)
    pushed = []
    monkeypatch.setattr(flower["flower-supernode"], "_push_messages", lambda **options: pushed.append(options))
    assert all(set_pace(program, "task.sock") for program in PROGRAMS)
    node, exec_, grid = (module.__dict__ for module in flower.values())
    assert isinstance(node["time"], NodePace)
    assert isinstance(exec_["time"], ExecPace)
    slept: list[float] = []
    monkeypatch.setattr(node["time"], "_sleep", slept.append)
    node["time"].sleep(3)
    node["_push_messages"](state=1)  # announces its task and begins a wait
    node["time"].sleep(0.5)
    assert slept == [3, 0.07]
    assert pushed == [{"state": 1}]
    exec_["time"]._bell.setblocking(False)
    assert exec_["time"]._bell.recv(16) == b"task"
    assert grid["pull_objects"].keywords == {
        "initial_backoff": 0.07,
        "backoff_cap": 1.0,
        "max_tries_per_object": None,
    }
    assert caplog.text.count("looks for something new from every 0.07 s on") == len(PROGRAMS)
    assert describe_pace() == "flwr-serverapp looks for something new from every 0.07 s on"
    exec_["time"]._bell.close()


@pytest.mark.parametrize("program", PROGRAMS)
def test_poll_0_and_other_programs_leave_flower_as_it_is(
    program: str, flower: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    before = dict(flower[program].__dict__)
    for value, name in (("0.0", program), ("", program), ("0.05", "flower-superlink")):
        monkeypatch.setenv(POLL, value)
        assert not set_pace(name, "task.sock")
    assert flower[program].__dict__ == before
    assert not caplog.text


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("change", ["version", "text"])
def test_another_flower_keeps_its_own_intervals_and_the_log_says_so(
    program: str,
    change: str,
    flower: dict[str, ModuleType],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setenv(POLL, "0.05")
    monkeypatch.setenv(NODE_FOLDER, "here")
    if change == "version":
        monkeypatch.setattr(pace, "version", lambda name: "1.42.0")
    else:  # as if it waited in another way
        monkeypatch.setattr(inspect, "getsource", lambda module: "event.wait(3)")
        if program == "flwr-serverapp":
            monkeypatch.setattr(flower[program], "pull_objects", lambda ids, pull: None)
    before = dict(flower[program].__dict__)
    assert not set_pace(program, "task.sock")
    assert flower[program].__dict__ == before
    assert describe_pace().startswith(f"{program} keeps Flower's own intervals: ")
    assert caplog.text.count(f"{program} keeps Flower's own intervals: ") == 1


def test_the_servers_superexec_is_not_changed(flower: dict[str, ModuleType], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(POLL, "0.05")
    monkeypatch.delenv(NODE_FOLDER, raising=False)
    assert not set_pace("flower-superexec", "task.sock")
    assert flower["flower-superexec"].__dict__["time"] is time


@pytest.mark.parametrize(("poll", "hold"), [(0.07, HOLD_SECONDS), (0.0, 0.0)])
def test_every_process_of_a_federation_gets_the_setting(
    poll: float, hold: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: dict[str, tuple[list[str], dict[str, str]]] = {}

    def start(self: SuperLink, name: str, command: list[str], more: dict[str, str] | None = None) -> None:
        started[name] = command, self._environment(more or {})

    monkeypatch.setattr(SuperLink, "_start", start)
    monkeypatch.setattr(SuperLink, "_wait", lambda *args: None)
    monkeypatch.setattr(SuperLink, "register", lambda self: None)
    with Federation(tmp_path / "federation", 2, poll=poll):
        pass
    assert started.keys() == {"superlink", "gateway", "node-0", "node-1"}
    assert {environment[POLL] for _, environment in started.values()} == {str(poll)}
    gateway = started["gateway"][0]
    assert gateway[gateway.index("--hold") + 1] == str(hold)


def test_the_scripts_of_a_deployment_name_the_setting(tmp_path: Path) -> None:
    write_deployment(tmp_path / "fleet", Experiment(clients=1), "127.0.0.1", 8000, poll=0.25)
    for script in ("server", "node-0"):
        assert "--poll 0.25" in (tmp_path / "fleet" / script / "start.sh").read_text()
