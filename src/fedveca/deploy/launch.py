"""A whole Flower federation on this machine, from keys and certificates to its end."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

from fedveca.deploy.pin import pin
from fedveca.deploy.provision import write_certificates, write_key
from fedveca.deploy.server import STATE
from fedveca.deploy.superlink import SuperLink
from fedveca.deploy.supernode import prepare
from fedveca.runs.lock import lock_folder

HOST = "127.0.0.1"


class Federation(SuperLink):
    """A SuperLink and its SuperNodes below one folder, which no other has meanwhile; all it started ends with it.

    Args:
        folder: where everything is; made if need be.
        nodes: how many SuperNodes.
        environment: variables for all processes.
        forks: whether a message's process is forked, or started as Flower does.
    """

    def __init__(self, folder: Path, nodes: int, environment: dict[str, str] | None = None, forks: bool = True) -> None:
        self.forks, self.count, self.state = forks, nodes, folder.absolute() / "server.json"
        super().__init__(folder, HOST, free_port(), {STATE: str(self.state)} | (environment or {}))
        self.lock = ExitStack()

    def __enter__(self) -> Federation:
        self.lock.enter_context(lock_folder(self.folder, make=True))
        try:
            self._end_rest(0)  # of a former one that was killed
            write_certificates(self.folder / "tls", [HOST, "localhost"])
            for i in range(self.count):
                write_key(self.folder / f"node-{i}" / "key", self.folder / "keys" / f"node-{i}.pub")
            self.start()
            for i in range(self.count):
                self.start_node(i)
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *error: object) -> None:
        try:
            self.close()
        except KeyboardInterrupt:  # a second one, before it was ignored
            self.close()
            raise

    @property
    def nodes(self) -> dict[int, subprocess.Popen[bytes]]:
        """The SuperNodes that were started and not taken out of `processes`."""
        return {int(name[5:]): process for name, process in self.processes.items() if name.startswith("node-")}

    def start_node(self, i: int, flags: list[str] | None = None, client: int = -1) -> subprocess.Popen[bytes]:
        """Starts node i, which says it is client i unless `client` says otherwise."""
        home = self.folder / f"node-{i}"
        home.mkdir(exist_ok=True, mode=0o700)
        shutil.copy(self.folder / "tls" / "ca.pem", home / "ca.pem")
        who = i if client < 0 else client
        where = f"{HOST}:{self.port}"
        command, environment = prepare(home, where, who, self.count, flags=flags, forks=self.forks)
        return self._start(f"node-{i}", command, environment)

    def pin(self, app: Path) -> None:
        """Lets the nodes accept this app and no other from now on; to be called before the first run."""
        pin(app, [self.folder / f"node-{i}" for i in range(self.count)])

    def submit(self, settings: list[str], app: Path | None = None) -> str:
        """Starts the app's run; gives its id."""
        self.state.unlink(missing_ok=True)
        return super().submit(settings, app)

    def server(self) -> dict[str, Any]:
        """What the app's server reports of itself; nothing before it has started."""
        state: dict[str, Any] = json.loads(self.state.read_text()) if self.state.exists() else {}
        return state

    def close(self) -> None:
        """Ends everything; a second Ctrl-C does not stop it."""
        alone = threading.current_thread() is threading.main_thread()  # only it may say what Ctrl-C does
        former = signal.signal(signal.SIGINT, signal.SIG_IGN) if alone else None
        self.stop()
        self._end_rest(5)
        self.lock.close()
        if former is not None:
            signal.signal(signal.SIGINT, former)

    def _end_rest(self, patience: float) -> None:
        """What is left, also of a command that was killed: Flower may hang on its way out, helpers notice late."""
        until = time.monotonic() + patience
        while (rest := started(self.state)) and time.monotonic() < until + 5:
            for pid in rest if time.monotonic() >= until else []:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.1)


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
