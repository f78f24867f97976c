"""A day in the life of a federation, with the commands and the units that its operators have: at most four minutes.

The units' own lines start the server and the experiment, and start them again when they were killed, as systemd would.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from deployment_processes import listening, processes_of

pytest.importorskip("prometheus_client")
from prometheus_client.parser import text_string_to_metric_families

from fedveca.cli import main
from fedveca.deploy.launch import free_port
from fedveca.deploy.processes import kill_marked
from fedveca.deploy.server import NODES
from fedveca.runs.folder import Run
from fedveca.version import __version__

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="it reads /proc")]
SETTINGS = ["model=svm", "rounds=500", "batch=16", "round_timeout=60"]
LOG_BYTES, LOG_FILES = 8 * 1024, 2
MOST_SECONDS = 600.0  # four times what it takes while other tests run
OLDER = "0.0.9"


class Day:
    """A deployment and the processes that were started of it."""

    def __init__(self, folder: Path) -> None:
        self.kit, self.logs, self.until = folder / "kit", folder, time.monotonic() + MOST_SECONDS
        self.port, self.metrics = free_port(), free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def launch(self, name: str, command: list[str], place: Path, **variables: str) -> None:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        with open(self.logs / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                command,
                cwd=place,
                env=os.environ | {"PATH": path, "OMP_NUM_THREADS": "1"} | variables,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def start_unit(self, unit: str) -> None:
        """Runs what the unit's ExecStart says, where it says."""
        text = (self.kit / "server" / unit).read_text()
        lines = dict(
            line.split("=", 1) for line in text.splitlines() if re.match(r"(ExecStart|WorkingDirectory)=", line)
        )
        self.launch(unit, shlex.split(lines["ExecStart"]), Path(lines["WorkingDirectory"]))

    def start_node(self, i: int, name: str = "", **variables: str) -> None:
        self.launch(name or f"node-{i}", ["/bin/sh", "start.sh"], self.kit / f"node-{i}", **variables)

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(30)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait(30)

    def log(self, name: str) -> str:
        path = self.logs / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def wait(self, what: Callable[[], bool], why: str) -> None:
        while not what():
            ends = {name: self.log(name)[-1500:] for name in ("fedveca-server.service", "fedveca-run.service")}
            assert time.monotonic() < self.until, (why, ends)
            time.sleep(0.1)

    @property
    def out(self) -> Path:
        return Path(json.loads((self.kit / "server" / "current.json").read_text())["out"])

    def rounds(self) -> list[dict]:
        path = self.out / "rounds.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_rounds(self, more: int) -> list[dict]:
        """So many rounds from now on."""
        before = len(self.rounds())
        self.wait(lambda: len(self.rounds()) >= before + more, f"{more} more rounds after {before}")
        return self.rounds()[before:]

    def scrape_metrics(self) -> dict[tuple[str, ...], float]:
        """What Prometheus would read at the server, by name and labels."""
        text = httpx.get(f"http://127.0.0.1:{self.metrics}/metrics", timeout=30).text
        samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
        return {(sample.name, *sample.labels.values()): sample.value for sample in samples}


@pytest.fixture
def day(tmp_path: Path) -> Iterator[Day]:
    made = Day(tmp_path)
    try:
        yield made
    finally:
        for name in list(made.processes):
            made.end(name)
        kill_marked(NODES, str(made.kit / "server" / "nodes.json"), 0)


def make_older_package(folder: Path) -> str:
    """This package as an older version of itself: the PYTHONPATH that leads to it."""
    import fedveca

    home = Path(fedveca.__file__).parent
    shutil.copytree(home, folder / "fedveca", ignore=shutil.ignore_patterns("__pycache__"))
    version = folder / "fedveca" / "version.py"
    version.write_text(version.read_text().replace(__version__, OLDER))
    return str(folder)


def check_secrets(day: Day) -> None:
    """No private key in a command line, an environment or a log; every file of one is its owner's alone."""
    files = [p for p in day.kit.rglob("*") if p.is_file() and b"PRIVATE KEY" in p.read_bytes()]
    assert {p.name for p in files} == {"key", "server.key", "ca.key"}
    assert {oct(p.stat().st_mode & 0o777) for p in files} == {"0o600"}
    lines = [line for p in files for line in p.read_text().splitlines() if "-----" not in line]
    assert len(lines) > 2 * len(files)
    processes = processes_of(day.kit)
    assert len(processes) > 8
    shown = []
    for process in processes:
        for name in ("cmdline", "environ"):
            try:
                shown.append(
                    (f"{name} of {process.pid}", Path(f"/proc/{process.pid}/{name}").read_text(errors="replace"))
                )
            except OSError:
                continue  # it has ended
    logs = [*day.logs.glob("*.log*"), *day.kit.rglob("*.log*")]
    assert len(logs) > 5
    for where, text in [*shown, *((str(p), p.read_text(errors="replace")) for p in logs)]:
        assert "PRIVATE KEY" not in text, where
        assert not [line for line in lines if line in text], where


def test_a_day_in_the_life(day: Day, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--nodes", "3", "--port", str(day.port), "--log-mb", str(LOG_BYTES / 2**20), "--log-files", str(LOG_FILES)]
    assert main(["deploy", "init", str(day.kit), "digits-case3", *SETTINGS, *words]) == 0

    watched = {"port": day.metrics, "host": "127.0.0.1", "log": "text"}
    (day.kit / "server" / "monitor.json").write_text(json.dumps(watched))

    # The morning: three nodes, all ready.
    day.start_unit("fedveca-server.service")
    day.wait(lambda: "ready" in day.log("fedveca-server.service"), "the server is ready")
    for i in range(3):
        day.start_node(i)
    capsys.readouterr()
    code = main(["deploy", "check", str(day.kit), "--json"])
    found = json.loads(capsys.readouterr().out)
    assert code == 0, found
    assert [node["client"] for node in found["nodes"]] == [0, 1, 2]
    assert all(node["version"] == __version__ and node["row_seconds"] > 0 for node in found["nodes"])
    assert all(abs(node["skew"]) <= node["skew_error"] + 0.1 for node in found["nodes"])  # it is one clock
    assert sum(node["rows"] for node in found["nodes"]) == 1438

    # Three rounds.
    day.start_unit("fedveca-run.service")
    day.wait(lambda: (day.kit / "server" / "current.json").exists(), "the run has started")
    assert [line["ids"] for line in day.wait_for_rounds(3)] == [[0, 1, 2]] * 3
    assert listening(processes_of(day.kit)) == {("0100007F", day.port), ("0100007F", day.metrics)}
    check_secrets(day)
    figures, done = day.scrape_metrics(), len(day.rounds())
    assert 3 <= figures["fedveca_round",] <= done + 1
    assert figures["fedveca_clients", "answered"] == figures["fedveca_clients", "connected"] == 3
    assert 0 < figures["fedveca_train_loss",] < 1
    assert figures["fedveca_bytes_total", "up"] > figures["fedveca_bytes_total", "down"] > 0
    assert figures["fedveca_certificate_days", "server"] == pytest.approx(365, abs=1.5)
    assert figures.get(("fedveca_gateway_rejected_total", "400"), 0) == 0

    # A node is added for the next run; another is revoked, and its answers count no more.
    assert main(["deploy", "add", str(day.kit), "node-3"]) == 0
    assert main(["deploy", "revoke", str(day.kit), "node-1"]) == 0
    nodes = day.kit / "server" / "nodes.json"
    day.wait(lambda: sorted(json.loads(nodes.read_text())) == ["0", "2", "3"], "the keys are registered")
    gateway = day.kit / "server" / "gateway.log"
    day.wait(lambda: "400 the key is not registered" in gateway.read_text(), "the gateway rejects node 1")
    day.wait(lambda: "which was revoked" in str(day.rounds()[-1].get("faults")), "its client is left out")
    assert day.rounds()[-1]["ids"] == [0, 2]
    figures = day.scrape_metrics()
    assert figures["fedveca_faults_total", "rejected"] >= 1
    assert figures["fedveca_clients", "answered"] == 2
    assert "clients = 4\n" in (day.kit / "app" / "pyproject.toml").read_text()

    # Another device takes its place in the run, with a key of its own and an older version of this package.
    day.end("node-1")
    assert main(["deploy", "add", str(day.kit), "node-1"]) == 0
    day.start_node(1, "node-1 again", PYTHONPATH=make_older_package(tmp_path / "older"))
    day.wait(lambda: day.rounds()[-1]["ids"] == [0, 1, 2], "the new node 1 answers")
    said = f"client 1 runs fedveca {OLDER}, which is older than the server's {__version__}; update the node"
    day.wait(lambda: said in day.log("fedveca-run.service"), "the older node is named in the log")
    assert said.removeprefix("client 1 ") in str([line.get("faults") for line in day.rounds()])

    # The server is killed, and what started the run; systemd starts both units again, and nobody does anything.
    before = len(day.rounds())
    day.kill("fedveca-server.service")
    day.kill("fedveca-run.service")
    day.start_unit("fedveca-server.service")
    day.wait(lambda: day.log("fedveca-server.service").count("ready") == 2, "the server is ready again")
    day.start_unit("fedveca-run.service")
    day.wait(lambda: len(day.rounds()) >= before + 2, "the run is resumed")
    assert f"resuming {day.out}" in day.log("fedveca-run.service")
    assert [line["round"] for line in day.rounds()] == list(range(len(day.rounds())))
    assert day.rounds()[-1]["ids"] == [0, 1, 2]
    assert Run.open(day.out).rounds[-1]["round"] >= before

    # The evening: logs are bounded, and nothing of it is a secret.
    day.wait((day.kit / "server" / "superlink.log.1").exists, "a log is rotated")
    for log in (day.kit / "server").glob("*.log*"):
        assert log.stat().st_size < 64 * LOG_BYTES, log  # what was written within half a second comes on top
        assert re.search(rf"\.log(\.[1-{LOG_FILES}])?$", log.name), log
    check_secrets(day)
    os.kill(day.processes["fedveca-server.service"].pid, signal.SIGTERM)
    assert day.processes.pop("fedveca-server.service").wait(60) == 0
