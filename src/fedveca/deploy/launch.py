"""A whole Flower federation on this machine: SuperLink, SuperNodes, TLS and keys, brought up and taken down."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from fedveca.deploy import warm
from fedveca.deploy.provision import write_certificates, write_key
from fedveca.deploy.serve import STATE
from fedveca.runs.lock import held

HOST = "127.0.0.1"
QUIET = {
    "FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}


class Failed(RuntimeError):
    """A federation that could not come up, or whose server ended early."""


class Federation:
    """One SuperLink and its SuperNodes below one folder, which no other has meanwhile; all it started ends with it."""

    def __init__(
        self, folder: Path, nodes: int, environment: dict[str, str] | None = None, forks: bool = True
    ) -> None:
        self.forks = forks  # whether a message's process is forked, or started as Flower does
        self.folder, self.count, self.state = folder.absolute(), nodes, folder.absolute() / "server.json"
        self.environment = {STATE: str(self.state)} | (environment or {})
        self.port = free_port()
        self.link: subprocess.Popen[bytes] | None = None
        self.nodes: dict[int, subprocess.Popen[bytes]] = {}
        self.lock = ExitStack()

    def __enter__(self) -> Federation:
        self.lock.enter_context(held(self.folder, made=True))
        try:
            self._end_rest(0)  # of a former one that was killed
            write_certificates(self.folder / "tls", [HOST, "localhost"])
            for i in range(self.count):
                write_key(self.folder / f"node-{i}" / "key", self.folder / "keys" / f"node-{i}.pub")
            self.start_link()
            self.register([self.folder / "keys" / f"node-{i}.pub" for i in range(self.count)])
            for i in range(self.count):
                self.start_node(i)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def start_link(self) -> None:
        tls, home = self.folder / "tls", self.folder / "flower"
        home.mkdir(parents=True, exist_ok=True)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "here"\n\n[superlink.here]\naddress = "{HOST}:{self.port}"\n'
            f"root-certificates = {json.dumps(str(tls / 'ca.pem'))}\n"
        )
        self.link = self._start("superlink", [
            "flower-superlink", "--host", HOST, "--port", str(self.port), "--ssl-ca-certfile", str(tls / "ca.pem"),
            "--ssl-certfile", str(tls / "server.pem"), "--ssl-keyfile", str(tls / "server.key"),
            "--enable-supernode-auth", "--disable-runtime-dependency-installation",
        ], {"FLWR_HOME": str(home)})
        until = time.monotonic() + 120
        while time.monotonic() < until:
            self.check()
            with socket.socket() as probe:
                if probe.connect_ex((HOST, self.port)) == 0:
                    return
            time.sleep(0.1)
        raise Failed(f"the SuperLink did not start; see {self.folder / 'superlink.log'}")

    def start_node(self, i: int, flags: list[str] | None = None, client: int = -1) -> subprocess.Popen[bytes]:
        """Node i, which is client i unless told otherwise."""
        home = self.folder / f"node-{i}"
        tls = ["--root-certificates", str(self.folder / "tls" / "ca.pem")]
        flags = flags or [*tls, "--auth-supernode-private-key", str(home / "key")]
        path = self._environment({})["PATH"]
        path = f"{warm.write(home)}{os.pathsep}{path}" if self.forks else path
        self.nodes[i] = self._start(f"node-{i}", [
            "flower-supernode", *flags, "--superlink", f"{HOST}:{self.port}", "--port", str(free_port()),
            "--node-config", f"partition-id={i if client < 0 else client} num-partitions={self.count}",
        ], {"FLWR_HOME": str(home / "flower"), "FEDVECA_NODE_DIR": str(home), "PATH": path})
        return self.nodes[i]

    def register(self, keys: list[Path]) -> None:
        """Tells the SuperLink whose keys to trust."""
        for done in [self._flwr(["supernode", "register", str(key), "here"]) for key in keys]:
            self._finish(done)

    def submit(self, settings: list[str], app: Path | None = None) -> str:
        """Starts the app's run; gives its id."""
        self.state.unlink(missing_ok=True)
        words = [word for setting in settings for word in ("--run-config", setting)]
        said = self._finish(self._flwr(["run", str(app or self.folder / "app"), "here", "--format", "json", *words]))
        told = json.loads(said[said.index("{") :])
        if not told.get("success"):
            raise Failed(f"flwr run failed: {' '.join(str(told.get('error-message')).split())}")
        return str(told["run-id"])

    def server(self) -> dict[str, Any]:
        """What the app's server says of itself; nothing before it has started."""
        told: dict[str, Any] = json.loads(self.state.read_text()) if self.state.exists() else {}
        return told

    def _end_rest(self, patience: float) -> None:
        """What is left, also of a command that was killed: Flower may hang on its way out, helpers notice late."""
        until = time.monotonic() + patience
        while (rest := started(self.state)) and time.monotonic() < until + 5:
            for pid in rest if time.monotonic() >= until else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)

    def check(self) -> None:
        if self.link and self.link.poll() is not None:
            raise Failed(f"the SuperLink has ended; see {self.folder / 'superlink.log'}")

    def close(self) -> None:
        """Nodes first; what does not end in time is killed. A second Ctrl-C does not stop it."""
        alone = threading.current_thread() is threading.main_thread()  # only it may say what Ctrl-C does
        former = signal.signal(signal.SIGINT, signal.SIG_IGN) if alone else None
        mine = [*self.nodes.values(), *([self.link] if self.link else [])]
        for process in mine:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        until = time.monotonic() + 10
        for process in mine:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._end_rest(5)
        self.lock.close()
        if former is not None:
            signal.signal(signal.SIGINT, former)

    def _start(self, name: str, command: list[str], more: dict[str, str]) -> subprocess.Popen[bytes]:
        with open(self.folder / f"{name}.log", "ab") as log:
            return subprocess.Popen(
                [program(command[0]), *command[1:]], env=self._environment(more), stdin=subprocess.DEVNULL, stdout=log,
                stderr=log, start_new_session=True, preexec_fn=_end_with_parent if sys.platform == "linux" else None,
            )

    def _flwr(self, words: list[str]) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [program("flwr"), *words], env=self._environment({"FLWR_HOME": str(self.folder / "flower")}),
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            start_new_session=True,
        )

    def _finish(self, process: subprocess.Popen[str]) -> str:
        said, _ = process.communicate(timeout=120)
        if process.returncode:
            words = [word for word in process.args if isinstance(word, str)] if isinstance(process.args, list) else []
            raise Failed(f"flwr {' '.join(words[1:3])} failed: {' '.join(said.split())[-500:]}")
        return said

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"
        return os.environ | {"PATH": path} | QUIET | self.environment | more


def started(state: Path) -> list[int]:
    """All processes of the federation with this state file: their environment names it, and is their children's too."""
    mark, found = f"{STATE}={state}".encode(), []
    for environment in Path("/proc").glob("[0-9]*/environ"):  # Linux has it
        with suppress(OSError):
            if mark in environment.read_bytes().split(b"\0"):
                found.append(int(environment.parent.name))
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def program(name: str) -> str:
    """Flower's programs lie beside Python."""
    beside = Path(sys.executable).parent / name
    return str(beside) if beside.exists() else name


def _end_with_parent() -> None:
    """Linux ends the program when who started it is gone, even by kill -9."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)
