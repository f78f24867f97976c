"""A federation as `deploy init` and `deploy local` set it up, and people who do not belong to it.

The kit's server has an address that is not loopback: it exists in a network namespace made for this test alone.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from deployment_processes import listening, processes_of

from fedveca.cli import main
from fedveca.deploy.launch import free_port
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root can become another user"),
]
PUBLIC = "10.77.0.1"
E = Experiment(model="svm", clients=2, rounds=2, batch=16, round_timeout=240.0)
SETTINGS = ["model=svm", "rounds=2", "batch=16", "round_timeout=240"]
RAISE_LINK = f"""
import fcntl, socket, struct, sys
with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
    name = lambda n: n.encode().ljust(16, b"\\0")
    address = struct.pack("HH4s8x", socket.AF_INET, 0, socket.inet_aton("{PUBLIC}"))
    fcntl.ioctl(s, 0x8914, name("lo") + struct.pack("h14x", 0x49))  # SIOCSIFFLAGS: up, running
    fcntl.ioctl(s, 0x8916, name("lo:1") + address)  # SIOCSIFADDR
"""


@pytest.fixture(scope="module")
def place() -> Iterator[tuple[list[str], str]]:
    """A command prefix and an address: of a network namespace of our own, or loopback where none can be made."""
    holder = subprocess.Popen(["unshare", "-n", "sleep", "3000"])
    prefix = ["nsenter", "-t", str(holder.pid), "-n"]
    try:
        time.sleep(0.5)
        if subprocess.run([*prefix, sys.executable, "-c", RAISE_LINK], check=False).returncode:
            yield [], "127.0.0.1"
        else:
            yield prefix, PUBLIC
    finally:
        holder.kill()
        holder.wait(60)


class Kit:
    """What `deploy init` wrote, with its server and two devices running."""

    def __init__(self, folder: Path, prefix: list[str], host: str) -> None:
        self.folder, self.prefix, self.host, self.port = folder, prefix, host, free_port()
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        words = ["--nodes", "2", "--host", host, "--port", str(self.port)]
        assert main(["deploy", "init", str(folder / "kit"), "digits-case3", *SETTINGS, *words]) == 0
        self.kit = folder / "kit"

    def start(self, name: str, *words: str) -> subprocess.Popen[bytes]:
        return self.launch(name, [str(self.kit / name / "start.sh"), *words])

    def launch(self, name: str, command: list[str]) -> subprocess.Popen[bytes]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [*self.prefix, *command],
                env=environment | {"PATH": path},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        return self.processes[name]

    def end(self, name: str) -> None:
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(60)

    def log(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def train(self, name: str) -> Path:
        """Starts an experiment; its run folder."""
        out = self.folder / name
        self.launch(f"run-{name}", [str(self.kit / "server" / "run.sh"), "--run-config", f'out="{out}"'])
        return out

    def finish(self, out: Path) -> Run:
        until((out / "summary.json").exists, self.superlink)
        return Run.open(out)

    def superlink(self) -> str:
        return (self.kit / "server" / "superlink.log").read_text(errors="replace")[-3000:]


@pytest.fixture(scope="module")
def kit(place: tuple[list[str], str]) -> Iterator[Kit]:
    folder = Path(tempfile.mkdtemp(prefix="fedveca-kit-"))
    folder.chmod(0o755)  # others may look, so that what is private is so by its own doing
    made = Kit(folder, *place)
    try:
        made.start("server")
        until(lambda: "ready" in made.log("server"), lambda: made.log("server"))
        for i in range(2):
            made.start(f"node-{i}")
        until(lambda: all("SuperNode ID" in made.log(f"node-{i}") for i in range(2)), lambda: made.log("node-0"))
        yield made
    finally:
        for name in [*(n for n in made.processes if n != "server"), "server"]:
            made.end(name)
        shutil.rmtree(folder, ignore_errors=True)


def until(what: Callable[[], bool], said: Callable[[], str] = str, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not what():
        assert time.monotonic() < deadline, said()
        time.sleep(0.1)


def api_paths() -> dict[str, list[str]]:
    """Every path that Flower itself serves, by API."""
    from flwr.superlink.main import create_app

    paths = sorted(create_app().openapi()["paths"])
    return {name: [p for p in paths if p.startswith(f"/v1/{name}/")] for name in ("control", "runtime", "fleet")}


def ask_as_stranger(
    prefix: list[str], address: tuple[str, int], paths: list[str], folder: Path
) -> dict[str, dict[str, Any]]:
    """What another user gets: from these paths, from every socket below the folder, from every secret."""
    sockets = [str(p) for p in folder.rglob("*") if p.is_socket()]
    secrets = [str(p) for p in folder.rglob("*") if p.name in ("key", "server.key", "state.db", "node_process.json")]
    assert sockets
    assert secrets
    request = json.dumps({"address": address, "paths": paths, "sockets": sockets, "files": secrets})
    command = [*prefix, sys.executable, str(Path(__file__).parents[1] / "helpers" / "stranger.py")]
    done = subprocess.run(command, input=request, text=True, capture_output=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    answer: dict[str, dict[str, Any]] = json.loads(done.stdout)
    return answer


def check_stranger(prefix: list[str], address: tuple[str, int], folder: Path) -> None:
    """No path but the Fleet API exists, that one wants a key, and no socket or secret can be opened."""
    paths = api_paths()
    assert {name: len(found) > 10 for name, found in paths.items()} == dict.fromkeys(paths, True)
    others = ["/docs", "/openapi.json", "/health", "/v1/fleet/../control/list-nodes", "//v1/control/list-nodes"]
    said = ask_as_stranger(prefix, address, [*others, *(p for found in paths.values() for p in found)], folder)
    for name in ("control", "runtime"):
        assert {path: said["paths"][path] for path in paths[name]} == dict.fromkeys(paths[name], 404)
    assert {path: said["paths"][path] for path in others} == dict.fromkeys(others, 404)
    assert {path: said["paths"][path] for path in paths["fleet"]} == dict.fromkeys(paths["fleet"], 400)
    for kind in ("sockets", "files"):
        assert set(said[kind].values()) == {"PermissionError"}, said[kind]


def test_a_stranger_finds_one_port_and_no_way_in_while_nodes_train(kit: Kit) -> None:
    out = kit.train("first")
    check_stranger(kit.prefix, (kit.host, kit.port), kit.folder)
    done = kit.finish(out)
    assert [port for _, port in listening(processes_of(kit.kit))] == [kit.port]
    check_stranger(kit.prefix, (kit.host, kit.port), kit.folder)
    expected = run(done.experiment, device="cpu")
    assert [line["tau"] for line in done.rounds] == [line["tau"] for line in expected.rounds]
    assert [line["ids"] for line in done.rounds] == [[0, 1]] * 2


def test_pinned_nodes_reject_another_app_say_so_and_stay(kit: Kit) -> None:
    """The server was taken over: its app now writes a file on every machine that runs it."""
    app, mark = kit.kit / "app" / "app.py", kit.folder / "taken"
    mark.mkdir(mode=0o777)
    honest = app.read_text()
    app.write_text(
        honest + f"\nimport os\nopen({str(mark)!r} + '/' + os.environ.get('FEDVECA_NODE_DIR', 'server')"
        ".replace('/', '-'), 'w').close()\n"
    )
    try:
        kit.train("taken-over")
        until(lambda: kit.log("run-taken-over").count("another app than the one this node is pinned to: 'app.py'") == 2)
    finally:
        app.write_text(honest)
    assert [path.name for path in mark.iterdir()] == ["server"]  # it ran there, and on no node
    subprocess.run([*kit.prefix, str(kit.kit / "server" / "flwr.sh"), "stop", run_id(kit), "fedveca"], check=True)
    assert all(kit.processes[f"node-{i}"].poll() is None for i in range(2))  # the tests below train on node 0


def run_id(kit: Kit) -> str:
    words = [str(kit.kit / "server" / "flwr.sh"), "list", "fedveca", "--format", "json"]
    said = subprocess.run([*kit.prefix, *words], capture_output=True, text=True, check=True).stdout
    runs = json.loads(said[said.index("{") :])["runs"]
    return str(next(each["run-id"] for each in runs if each["status"].startswith("running")))


def test_a_pinned_node_runs_no_other_code_by_a_models_name(kit: Kit) -> None:
    """The app is the same; the run's settings name a model whose code the node was not pinned to."""
    out = kit.folder / "named"
    words = ["--run-config", f'out="{out}"', "--run-config", 'model="fedveca.models:Vgg11"']
    kit.launch("run-named", [str(kit.kit / "server" / "run.sh"), *words])
    until(lambda: "model=fedveca.models:Vgg11; this node is pinned to svm" in kit.log("run-named"))
    assert not (out / "summary.json").exists()


def test_a_key_is_one_clients_and_the_mistake_can_be_corrected(kit: Kit) -> None:
    """Node 1 says that it is client 0; started again as itself it takes part."""
    kit.end("node-1")
    start = (kit.kit / "node-1" / "start.sh").read_text()
    wrong = kit.kit / "node-1" / "wrong.sh"
    wrong.write_text(start.replace("--client 1", "--client 0"))
    wrong.chmod(0o755)
    kit.launch("node-1", [str(wrong)])
    out = kit.train("bound")
    until(lambda: "says it is client 0, but its key is not client 0's" in kit.log("run-bound"))
    kit.end("node-1")
    kit.start("node-1")
    done = kit.finish(out)
    assert [line["ids"] for line in done.rounds] == [[0, 1]] * 2
    assert "its key is not client 0's" in str(done.rounds[0]["faults"])


def test_a_killed_superexec_is_started_again(kit: Kit) -> None:
    """Without one, a node would take part in no round any more."""
    executors = [p for p in processes_of(kit.kit / "node-0") if any("flower-superexec" in w for w in p.cmdline())]
    (child,) = [process for process in executors if process.parent() in executors]
    child.kill()
    done = kit.finish(kit.train("executed"))
    assert [line["ids"] for line in done.rounds] == [[0, 1]] * 2
    assert "flower-superexec ended with -9; it is started again" in kit.log("node-0")


def test_a_stranger_gets_nowhere_in_deploy_local(tmp_path: Path) -> None:
    folder = Path(tempfile.mkdtemp(prefix="fedveca-local-"))
    folder.chmod(0o755)
    out = folder / "out"
    command = [sys.executable, "-m", "fedveca.cli", "deploy", "local", *SETTINGS, "rounds=500", "--nodes", "2"]
    process = subprocess.Popen([*command, "--out", str(out)], stderr=subprocess.PIPE, text=True)
    try:
        until(lambda: (out / "rounds.jsonl").exists() and (out / "rounds.jsonl").stat().st_size > 0)
        ((host, port),) = listening(processes_of(out))
        assert host == "0100007F"  # 127.0.0.1
        assert (out / "rounds.jsonl").stat().st_mode & 0o077 == 0
        check_stranger([], ("127.0.0.1", port), folder)
        before = (out / "rounds.jsonl").read_bytes().count(b"\n")
        until(lambda: (out / "rounds.jsonl").read_bytes().count(b"\n") > before)  # and it goes on as if nothing were
    finally:
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=240)
        shutil.rmtree(folder, ignore_errors=True)
