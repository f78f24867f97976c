"""Flower's programs with their APIs on a Unix socket instead of a TCP port.

Flower 1.41 serves its Runtime API (and, on the server, its Control API) without asking who calls: whoever can connect
can start runs and take tasks. So no port is opened at all. `python -m fedveca.deploy.private_api PROGRAM ...` runs one
of Flower's programs with two changes in public interfaces of the libraries that Flower uses: uvicorn listens on
the socket `api.sock` in the folder that FEDVECA_API_DIR names, and httpx reaches the address ADDRESS through that
socket. The folder has mode 0700, so the kernel lets its owner in and nobody else. Programs that Flower starts by name
are found in a folder `bin`, first in PATH, and pass through here as well. A third change, of how long Flower's parts
wait, is in deploy/pace.py.
"""

from __future__ import annotations

import os
import shlex
import signal
import socket
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from functools import cache
from importlib.metadata import entry_points
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from fedveca.deploy.monitoring import serve_node_figures
from fedveca.deploy.pace import TASK_SOCKET, set_pace
from fedveca.errors import UserError
from fedveca.monitor.logs import configure_logs
from fedveca.monitor.settings import find_log_form

ADDRESS = "127.0.0.1:1"  # stands for the socket; only root could listen on that port, and nothing does
API_FOLDER = "FEDVECA_API_DIR"
SERVER_PROGRAMS = ("flower-superlink", "flower-superexec", "flwr-serverapp", "flwr")
NODE_PROGRAMS = ("flower-supernode", "flower-superexec", "flwr-clientapp")
TASK_PROGRAMS = ("flwr-agentapp", "flwr-clientapp", "flwr-connector", "flwr-model", "flwr-serverapp", "flwr-simulation")
LONGEST_SOCKET = 100  # bytes of a socket's path; systems allow 104 to 108


def write_programs(folder: Path, names: tuple[str, ...]) -> Path:
    """Writes `folder/bin` with programs of these names, and with rejecting ones for all other tasks of Flower."""
    place = folder.absolute() / "bin"
    place.mkdir(parents=True, exist_ok=True)
    for name in sorted({*names, *TASK_PROGRAMS}):
        if name in names:
            run = shlex.join([sys.executable, "-m", "fedveca.deploy.private_api", name])
            text = f'#!/bin/sh\nexec {run} "$@"\n'
        else:
            text = f"#!/bin/sh\necho '{name} is rejected: no part of this deployment needs it' >&2\nexit 1\n"
        (place / name).write_text(text)
        (place / name).chmod(0o755)
    return place


@cache  # what it opens stays open
def find_socket(folder: Path, name: str) -> str:
    """Returns a path of the socket `name` in `folder` that is short enough for the system's limit, on Linux always."""
    path = str(folder.absolute() / name)
    if len(os.fsencode(path)) <= LONGEST_SOCKET or not Path("/proc/self/fd").exists():
        return path
    return f"/proc/self/fd/{os.open(folder, os.O_RDONLY | os.O_DIRECTORY)}/{name}"


def make_private(folder: Path) -> None:
    """Makes sure that a folder for sockets or secrets exists, and that only its owner can enter it."""
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    status = folder.lstat()
    if folder.is_symlink() or status.st_uid != os.geteuid():
        raise UserError(f"{folder} belongs to another user or is a link; choose another folder")
    folder.chmod(0o700)


def is_listening(folder: Path) -> bool:
    """Whether something listens on the folder's socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(5)
        return probe.connect_ex(find_socket(folder, "api.sock")) == 0


def use_socket(folder: Path, plain: bool = True) -> None:
    """Lets this process serve on the folder's socket and reach ADDRESS through it.

    Args:
        folder: the folder of `api.sock`; made, and made private, if need be.
        plain: whether uvicorn writes its log in its own way.
    """
    import httpx
    import uvicorn

    make_private(folder)
    path = find_socket(folder, "api.sock")
    configure, connect = uvicorn.Config.__init__, httpx.Client.__init__

    def configure_on_socket(self: uvicorn.Config, *args: Any, **options: Any) -> None:
        configure(self, *args, **options | {"uds": path, "fd": None} | ({} if plain else {"log_config": None}))

    def connect_through_socket(self: httpx.Client, *args: Any, **options: Any) -> None:
        transport = httpx.HTTPTransport(uds=path, verify=options.get("verify", True))
        connect(self, *args, **options | {"mounts": {**(options.get("mounts") or {}), f"all://{ADDRESS}": transport}})

    uvicorn.Config.__init__ = configure_on_socket  # type: ignore[method-assign]
    httpx.Client.__init__ = connect_through_socket  # type: ignore[method-assign]


def load_program(name: str) -> Callable[[], int | str | None]:
    """The function that Flower's own program of this name calls."""
    (entry,) = entry_points(group="console_scripts", name=name)
    program: Callable[[], int | str | None] = entry.load()
    return program


def keep_running(parent: int) -> None:
    """Returns in a child process, which is started again whenever it ends while `parent` lives.

    Flower starts its SuperExec once: after a crash of it no task would ever be run again.
    """
    while True:
        child = os.fork()
        if child == 0:
            return

        def forward(number: int, _: object, child: int = child) -> None:
            with suppress(ProcessLookupError):
                os.kill(child, number)

        signal.signal(signal.SIGTERM, forward)
        signal.signal(signal.SIGINT, forward)
        code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if os.getppid() != parent or code in (0, -signal.SIGTERM, -signal.SIGINT):
            os._exit(max(code, 0))
        print(f"flower-superexec ended with {code}; it is started again", file=sys.stderr, flush=True)
        time.sleep(1)


def _main() -> None:
    name = sys.argv[1]
    sys.argv = sys.argv[1:]
    if name == "flower-superexec":
        keep_running(os.getppid())
    os.umask(0o077)
    folder = Path(os.environ[API_FOLDER])
    program = load_program(name)
    form = find_log_form(folder)
    if name != "flwr":  # a command, whose output is its result
        configure_logs(form)
    use_socket(folder, plain=form == "text")
    if name == "flower-supernode":
        serve_node_figures(folder, os.getpid())
    set_pace(name, find_socket(folder, TASK_SOCKET))
    if name == "flwr-clientapp":
        from fedveca.deploy.pin import enforce_pin

        enforce_pin(folder)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(line_buffering=True)  # a log file can be followed, line by line
    sys.exit(program())


if __name__ == "__main__":
    _main()
