"""The server's machine: a SuperLink on a private socket, the gateway in front of it, and the nodes that it knows.

`python -m fedveca.deploy.superlink FOLDER --host ADDRESS --port N` starts both and registers the keys in `FOLDER/keys`:
`node-I.pub` is the key of client I, and of no other client.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import ssl
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fedveca.deploy import private_api
from fedveca.deploy.certificates import list_expiry_warnings
from fedveca.deploy.logs import LogLimit, add_log_options, rotate_log
from fedveca.deploy.long_poll import HOLD_SECONDS
from fedveca.deploy.monitoring import serve_server_figures
from fedveca.deploy.pace import DEFAULT_POLL, POLL, check_poll
from fedveca.deploy.processes import end_with_parent, kill_marked
from fedveca.deploy.server import NODES
from fedveca.errors import printable
from fedveca.monitor.logs import configure_logs
from fedveca.monitor.settings import read_monitor
from fedveca.runs.files import write_atomic
from fedveca.runs.lock import lock_folder

if TYPE_CHECKING:
    from fedveca.monitor.endpoint import MetricsEndpoint

FLOWER_ENVIRONMENT = {
    "FLWR_TELEMETRY_ENABLED": "0",
    "FLWR_DISABLE_UPDATE_CHECK": "1",
    "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
    "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
}
LINK_START_SECONDS = 120.0
LINK_STOP_SECONDS = 10.0
REGISTER_SECONDS = 10.0  # until keys that could not be registered are tried again


class FederationFailed(RuntimeError):
    """A federation that could not start, or whose server ended early."""


class SuperLink:
    """A SuperLink that only its owner can reach, and a gateway that forwards signed requests to its Fleet API.

    Args:
        folder: the folder with `tls/` (see write_certificates) and `keys/`. Logs, Flower's own files and the socket
            are written here too. Only its owner can enter it from then on.
        host: the address that the gateway listens on.
        port: the gateway's port.
        environment: variables for all processes.
        database: the file in which the SuperLink stores its state; in memory if empty.
        poll: the shortest time between two looks for something new; 0 leaves Flower's intervals (see deploy/pace.py).
    """

    def __init__(
        self,
        folder: Path,
        host: str,
        port: int,
        environment: dict[str, str] | None = None,
        database: str = "",
        poll: float = DEFAULT_POLL,
    ) -> None:
        self.folder, self.host, self.port, self.database = folder.absolute(), host, port, database
        self.poll = check_poll(poll)
        self.environment = {NODES: str(self.folder / "nodes.json"), POLL: str(poll)} | (environment or {})
        self.metrics: MetricsEndpoint | None = None
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self) -> None:
        """Returns when the SuperLink answers, knows its nodes, and the gateway listens."""
        tls, home = self.folder / "tls", self.folder / "flower"
        private_api.make_private(self.folder)
        private_api.make_private(home)
        private_api.write_programs(self.folder, private_api.SERVER_PROGRAMS)
        (home / "config.toml").write_text(
            f'[superlink]\ndefault = "fedveca"\n\n[superlink.fedveca]\naddress = "{private_api.ADDRESS}"\n'
            f"root-certificates = {json.dumps(str(tls / 'ca.pem'))}\n\n"
            '[superlink.simulation]\naddress = ":local:"\n'
        )
        host, port = private_api.ADDRESS.split(":")
        command = ["flower-superlink", "--host", host, "--port", port, "--ssl-ca-certfile", str(tls / "ca.pem")]
        command += ["--ssl-certfile", str(tls / "server.pem"), "--ssl-keyfile", str(tls / "server.key")]
        command += ["--enable-supernode-auth", "--disable-runtime-dependency-installation"]
        self._start("superlink", command + (["--database", self.database] if self.database else []))
        self._wait(lambda: private_api.is_listening(self.folder), "superlink", "the SuperLink did not start")
        self.register()
        keys = self.folder / "keys"
        self._logged = (self.folder / "gateway.log").stat().st_size if (self.folder / "gateway.log").exists() else 0
        gateway = [sys.executable, "-m", "fedveca.deploy.gateway", "--host", self.host, "--port", str(self.port)]
        gateway += ["--hold", str(HOLD_SECONDS if self.poll else 0.0)]
        self._start("gateway", [*gateway, "--keys", str(keys), "--api", str(self.folder), "--tls", str(tls)])
        self._wait(self._gateway_listens, "gateway", "the gateway did not start")
        pids = {name: process.pid for name, process in self.processes.items()}
        self.metrics = serve_server_figures(self.folder, pids)

    def register(self) -> None:
        """Registers every key in `keys/` with the SuperLink, and writes down which node is which client.

        A node whose key is gone is removed: from then on it gets no order, and its answers do not count.
        """
        from cryptography.hazmat.primitives import serialization
        from flwr.proto import control_pb2 as control

        form = (serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
        known = self._control("list-nodes", control.ListNodesRequest(), control.ListNodesResponse())
        nodes = {node.public_key: int(node.node_id) for node in known.nodes_info if node.status != "unregistered"}
        clients, keys = {}, set()
        for path in sorted((self.folder / "keys").glob("*.pub")):
            key = serialization.load_ssh_public_key(path.read_bytes()).public_bytes(*form)
            keys.add(key)
            if key not in nodes:
                request = control.RegisterNodeRequest(public_key=key)
                nodes[key] = int(self._control("register-node", request, control.RegisterNodeResponse()).node_id)
            if name := re.fullmatch(r"node-([0-9]+)\.pub", path.name):
                clients[int(name[1])] = nodes[key]
        write_atomic(self.folder / "nodes.json", json.dumps(clients).encode())
        for key in nodes.keys() - keys:
            request = control.UnregisterNodeRequest(node_id=nodes[key])
            self._control("unregister-node", request, control.UnregisterNodeResponse())

    def submit(self, settings: list[str], app: Path | None = None) -> str:
        """Starts the app's run; returns its id."""
        words = [word for setting in settings for word in ("--run-config", setting)]
        command = ["flwr", "run", str(app or self.folder / "app"), "fedveca", "--format", "json", *words]
        process = subprocess.run(
            [str(self.folder / "bin" / "flwr"), *command[1:]],
            env=self._environment({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
            timeout=120,
            check=False,
        )
        output = process.stdout
        answer = json.loads(output[output.index("{") :]) if "{" in output else {}
        if process.returncode or not answer.get("success"):
            why = " ".join(str(answer.get("error-message") or output).split())
            raise FederationFailed(f"flwr run failed: {why[-500:]}")
        return str(answer["run-id"])

    def check(self) -> None:
        """Raises FederationFailed if the SuperLink or the gateway has ended."""
        for name, what in (("superlink", "the SuperLink"), ("gateway", "the gateway")):
            if name in self.processes and self.processes[name].poll() is not None:
                raise FederationFailed(f"{what} has ended; see {self.folder / f'{name}.log'}")

    def stop(self) -> None:
        """Ends all processes, the last first; one that does not end in time is killed."""
        if self.metrics:
            self.metrics.close()
            self.metrics = None
        processes = list(reversed(self.processes.values()))
        for process in processes:
            if process.poll() is None:
                process.send_signal(signal.SIGCONT)
                process.terminate()
        until = time.monotonic() + LINK_STOP_SECONDS
        for process in processes:
            try:
                process.wait(max(0.1, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        (self.folder / "api.sock").unlink(missing_ok=True)

    def _control(self, name: str, request: Any, response: Any) -> Any:
        """One call of the SuperLink's Control API, through its socket."""
        import httpx

        context = ssl.create_default_context(cafile=str(self.folder / "tls" / "ca.pem"))
        path = private_api.find_socket(self.folder, "api.sock")
        kind = {"content-type": "application/protobuf", "accept": "application/protobuf"}
        with httpx.Client(transport=httpx.HTTPTransport(uds=path, verify=context), timeout=60) as client:
            url = f"https://{private_api.ADDRESS}/v1/control/{name}"
            answer = client.post(url, content=request.SerializeToString(), headers=kind)
        if answer.status_code != 200:
            raise FederationFailed(f"the SuperLink rejected {name}: {answer.status_code} {answer.text[:200]}")
        response.ParseFromString(answer.content)
        return response

    def _gateway_listens(self) -> bool:
        return b"listens on" in (self.folder / "gateway.log").read_bytes()[self._logged :]

    def _wait(self, ready: Callable[[], bool], log: str, what: str) -> None:
        until = time.monotonic() + LINK_START_SECONDS
        while not ready():
            self.check()
            if time.monotonic() > until:
                raise FederationFailed(f"{what}; see {self.folder / f'{log}.log'}")
            time.sleep(0.05)

    def _start(self, name: str, command: list[str], more: dict[str, str] | None = None) -> subprocess.Popen[bytes]:
        program = command[0] if os.sep in command[0] else str(self.folder / "bin" / command[0])
        with open(self.folder / f"{name}.log", "ab") as log:
            self.processes[name] = subprocess.Popen(
                [program, *command[1:]],
                env=self._environment(more or {}),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                umask=0o077,
                preexec_fn=end_with_parent if sys.platform == "linux" else None,
            )
        return self.processes[name]

    def _environment(self, more: dict[str, str]) -> dict[str, str]:
        here = {"PATH": search_path(self.folder / "bin"), private_api.API_FOLDER: str(self.folder)}
        here["FLWR_HOME"] = str(self.folder / "flower")
        return os.environ | FLOWER_ENVIRONMENT | here | self.environment | more


class ServerCare:
    """What a server needs over months: keys that come and go, bounded logs, warnings before a certificate expires.

    Args:
        link: the server.
        limit: how much of each log is stored.
    """

    def __init__(self, link: SuperLink, limit: LogLimit) -> None:
        self.link, self.limit = link, limit
        self._keys, self._warned, self._again, self._said = self._stamp_keys(), 0.0, 0.0, ""

    def look(self) -> None:
        """Does what is due; called every half second."""
        if (stamp := self._stamp_keys()) != self._keys and time.monotonic() >= self._again:
            self._register(stamp)
        for name in self.link.processes:
            rotate_log(self.link.folder / f"{name}.log", self.limit)
        if time.time() - self._warned >= 86400:
            self.warn_of_expiry()

    def warn_of_expiry(self) -> None:
        """Warns of certificates that expire soon, or that cannot be read."""
        self._warned = time.time()
        try:
            sentences = list(list_expiry_warnings(self.link.folder / "tls", self._warned))
        except ValueError as error:
            sentences = [str(error)]
        for sentence in sentences:
            print(f"warning: {sentence}", file=sys.stderr, flush=True)

    def _register(self, stamp: list[tuple[str, int]]) -> None:
        """Registers the keys; what is wrong with one is said once, and tried again: a running server does not end."""
        try:
            self.link.register()
        except Exception as error:  # a file that is not a key, or a SuperLink that is busy
            said = f"warning: the nodes' keys cannot be registered: {printable(str(error), 300)}; it is tried again"
            self._again = time.monotonic() + REGISTER_SECONDS
            if said != self._said:
                print(said, file=sys.stderr, flush=True)
            self._said = said
        else:
            self._keys, self._said = stamp, ""
            print("the nodes' keys have changed; they are registered", flush=True)

    def _stamp_keys(self) -> list[tuple[str, int]]:
        """The folder's own time may be too coarse for two changes in a row."""
        found = []
        for path in (self.link.folder / "keys").glob("*.pub"):
            with suppress(OSError):  # it was removed just now
                found.append((path.name, path.stat().st_mtime_ns))
        return sorted(found)


def search_path(programs: Path) -> str:
    """PATH with these programs first, then those next to Python."""
    return os.pathsep.join([str(programs), str(Path(sys.executable).parent), os.environ.get("PATH", "")])


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedveca.deploy.superlink")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--host", required=True)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--poll", type=float, default=DEFAULT_POLL, metavar="SECONDS")
    add_log_options(parser)
    args = parser.parse_args()
    ended = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: ended.set())
    os.umask(0o077)
    folder = args.folder.absolute()
    try:
        database = str(folder / "flower" / "state.db")
        link = SuperLink(folder, args.host, args.port, database=database, poll=args.poll)
    except ValueError as error:
        sys.exit(f"fedveca: {error}")
    try:
        configure_logs(read_monitor(folder).log)
        with lock_folder(folder):
            kill_marked(NODES, str(folder / "nodes.json"), 0)  # of a former server that was killed
            care = ServerCare(link, LogLimit(args.log_mb, args.log_files).check())
            care.warn_of_expiry()
            link.start()
            print("ready: start the nodes, then ./run.sh", flush=True)
            while not ended.wait(0.5):
                link.check()
                care.look()
    except (FederationFailed, ValueError, OSError) as error:
        sys.exit(f"fedveca: {error}")
    finally:
        with suppress(KeyboardInterrupt):
            link.stop()


if __name__ == "__main__":
    _main()
