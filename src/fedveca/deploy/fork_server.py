"""Flower's process for a message, forked from a process that has Flower loaded already.

A SuperNode's SuperExec starts the program `flwr-clientapp` for every message, and most of that program's life is the
import of Flower. `write_forwarder` puts a program of that name into the node's folder of programs, which is first in
PATH. It sends its arguments to the fork server, which forks and runs the entry point that Flower's own program runs.
Where there is no fork server yet, it starts one and runs the program itself this once (deploy/private_api.py).
"""

from __future__ import annotations

import gc
import json
import os
import shlex
import socket
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NoReturn

PROGRAM = "flwr-clientapp"
FORWARDER = """import json, os, socket, subprocess, sys

folder, python = {where}
here = os.getcwd()
try:
    with socket.socket(socket.AF_UNIX) as server:
        os.chdir(folder)
        server.connect("fork_server.sock")
        server.sendall(json.dumps([here, *sys.argv[1:]]).encode())
        server.shutdown(socket.SHUT_WR)
        accepted = server.recv(2) == b"ok"
except OSError:
    accepted = False
os.chdir(here)
if not accepted:
    command = [python, "-m", "fedveca.deploy.fork_server", folder, str(os.getppid())]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    os.execv(python, [python, "-m", "fedveca.deploy.private_api", "flwr-clientapp", *sys.argv[1:]])
"""


def write_forwarder(folder: Path) -> None:
    """Replaces `flwr-clientapp` among the node's programs."""
    place = folder.absolute() / "bin"
    (place / "forward.py").write_text(FORWARDER.format(where=repr((str(folder.absolute()), sys.executable))))
    run = shlex.join([sys.executable, "-IS", str(place / "forward.py")])
    (place / PROGRAM).write_text(f'#!/bin/sh\nexec {run} "$@"\n')
    (place / PROGRAM).chmod(0o755)


def run_fork_server(folder: Path, parent: int) -> None:
    """Forks a child for every message until the SuperNode is gone; a second one, started meanwhile, ends at once."""
    from fedveca.runs.lock import InUse, lock_folder

    with suppress(InUse), lock_folder(folder):
        _serve(folder, parent)


def _serve(folder: Path, parent: int) -> None:
    import flwr.clientapp  # what a message needs, loaded once
    import flwr.serverapp  # noqa: F401

    import fedveca.cohorts.flower.messages
    import fedveca.deploy.exchange  # noqa: F401
    from fedveca.deploy.pin import enforce_pin
    from fedveca.deploy.private_api import load_program, use_socket
    from fedveca.deploy.processes import is_alive
    from fedveca.monitor.logs import configure_logs
    from fedveca.monitor.settings import find_log_form

    form = find_log_form(folder)
    configure_logs(form)
    use_socket(folder, plain=form == "text")
    enforce_pin(folder)
    run = load_program(PROGRAM)
    gc.freeze()  # children share what is loaded
    home = os.getcwd()
    os.chdir(folder)  # a socket's path must be short
    os.umask(0o077)
    Path("fork_server.sock").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("fork_server.sock")
    listener.listen()
    Path("fork_server.json").write_text(json.dumps({"pid": os.getpid()}))
    os.chdir(home)
    listener.settimeout(0.5)
    while is_alive(parent):
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            _reap_children()
            continue
        with connection:
            connection.settimeout(10)
            with connection.makefile("rb") as request:
                folder_and_words = json.load(request)
            if os.fork() == 0:
                listener.close()
                connection.close()
                _run_child(run, *folder_and_words)
            connection.sendall(b"ok")


def _run_child(run: Callable[[], object], folder: str, *words: str) -> NoReturn:
    """All that a child does: Flower's program with these words, in this working folder."""
    code = 1
    try:
        os.chdir(folder)
        sys.argv = [PROGRAM, *words]
        run()
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _reap_children() -> None:
    """Lets the system forget children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    run_fork_server(Path(sys.argv[1]), int(sys.argv[2]))
