"""A complete Flower federation on this machine: keys, certificates, server and nodes, from start to end."""

from __future__ import annotations

import json
import shutil
import signal
import socket
import subprocess
import threading
from contextlib import ExitStack
from pathlib import Path
from typing import cast

from fedveca.deploy.certificates import write_certificates
from fedveca.deploy.pace import DEFAULT_POLL
from fedveca.deploy.peers import PEERS_FILE, write_peers
from fedveca.deploy.pin import pin
from fedveca.deploy.processes import kill_marked
from fedveca.deploy.provision import write_key
from fedveca.deploy.server import STATE, ServerStatus
from fedveca.deploy.superlink import SuperLink
from fedveca.deploy.supernode import prepare_node
from fedveca.monitor.settings import NOTHING_WATCHED, MonitorSettings, write_monitor
from fedveca.runs.lock import lock_folder

HOST = "127.0.0.1"


class Federation(SuperLink):
    """A SuperLink and its SuperNodes below one folder, which is locked meanwhile; all that it started ends with it.

    Args:
        folder: the folder of all its files; created if it does not exist.
        nodes: the number of SuperNodes.
        environment: variables for all processes.
        forks: whether a message's process is forked, or started as Flower does it.
        poll: the shortest time between two looks for something new; 0 leaves Flower's intervals (see deploy/pace.py).
        monitor: where the server's figures are served, and the log's form; node i serves its own 1 + i ports above.
    """

    def __init__(
        self,
        folder: Path,
        nodes: int,
        environment: dict[str, str] | None = None,
        forks: bool = True,
        poll: float = DEFAULT_POLL,
        monitor: MonitorSettings = NOTHING_WATCHED,
    ) -> None:
        self.monitor = monitor.check()
        self.forks, self.count, self.state = forks, nodes, folder.absolute() / "server.json"
        super().__init__(folder, HOST, free_port(), {STATE: str(self.state)} | (environment or {}), poll=poll)
        self.lock = ExitStack()

    def __enter__(self) -> Federation:
        self.lock.enter_context(lock_folder(self.folder, make=True))
        try:
            self._kill_leftovers(0)  # of a former federation that was killed
            write_certificates(self.folder / "tls", [HOST, "localhost"])
            for i in range(self.count):
                write_key(self.folder / f"node-{i}" / "key", self.folder / "keys" / f"node-{i}.pub")
            write_monitor(self.folder, self.monitor)
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
        """The SuperNodes among the processes, by number."""
        return {int(name[5:]): process for name, process in self.processes.items() if name.startswith("node-")}

    def start_node(self, i: int, flags: list[str] | None = None, client: int = -1) -> subprocess.Popen[bytes]:
        """Starts node i, which says that it is client i, or `client` if one is named."""
        home = self.folder / f"node-{i}"
        home.mkdir(exist_ok=True, mode=0o700)
        shutil.copy(self.folder / "tls" / "ca.pem", home / "ca.pem")
        port = self.monitor.port + 1 + i if self.monitor.port else 0
        write_monitor(home, self.monitor._replace(port=port))
        who = i if client < 0 else client
        where = f"{HOST}:{self.port}"
        command, environment = prepare_node(home, where, who, self.count, flags=flags, forks=self.forks, poll=self.poll)
        return self._start(f"node-{i}", command, environment)

    def pin(self, app: Path) -> None:
        """Lets the nodes accept this app and no other from now on; call it before the first run."""
        pin(app, [self.folder / f"node-{i}" for i in range(self.count)])

    def introduce(self, least: int) -> None:
        """Gives every node the others' public keys, for sums of at least so many clients; 0 takes them away."""
        nodes = [self.folder / f"node-{i}" for i in range(self.count)]
        for node in nodes:
            (node / PEERS_FILE).unlink(missing_ok=True)
        if least:
            write_peers(nodes, self.folder / "keys", least)

    def submit(self, settings: list[str], app: Path | None = None) -> str:
        """Starts the app's run; returns its id."""
        self.state.unlink(missing_ok=True)
        return super().submit(settings, app)

    def read_status(self) -> ServerStatus | None:
        """What the app's server reports; None before it has started."""
        return cast(ServerStatus, json.loads(self.state.read_text())) if self.state.exists() else None

    def close(self) -> None:
        """Ends everything; a second Ctrl-C does not stop it."""
        main = threading.current_thread() is threading.main_thread()  # no other thread may change what Ctrl-C does
        former = signal.signal(signal.SIGINT, signal.SIG_IGN) if main else None
        self.stop()
        self._kill_leftovers(5)
        self.lock.close()
        if former is not None:
            signal.signal(signal.SIGINT, former)

    def _kill_leftovers(self, patience: float) -> None:
        """Kills what still runs, also of a command that was killed: Flower may hang while it ends."""
        kill_marked(STATE, str(self.state), patience)


def free_port() -> int:
    """A port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])
