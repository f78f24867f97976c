"""Flower's process for a message without its start: forked from one that has Flower loaded.

A SuperNode's SuperExec starts the program `flwr-clientapp` for every message, and most of that program's life is the
import of Flower. `write` puts a program of that name into the node's folder of programs, which is first in PATH. It
hands its words to a process that stays, which forks and runs the very entry point that Flower's own program runs. Where
there is none yet it starts one, and for once runs the program itself (deploy/private_api.py).
"""

from __future__ import annotations

import gc
import importlib
import json
import os
import shlex
import socket
import sys
from contextlib import suppress
from pathlib import Path

PROGRAM = "flwr-clientapp"
HAND = """import json, os, socket, subprocess, sys

folder, python = {where}
here = os.getcwd()
try:
    with socket.socket(socket.AF_UNIX) as warm:
        os.chdir(folder)
        warm.connect("warm.sock")
        warm.sendall(json.dumps([here, *sys.argv[1:]]).encode())
        warm.shutdown(socket.SHUT_WR)
        taken = warm.recv(2) == b"ok"
except OSError:
    taken = False
os.chdir(here)
if not taken:
    command = [python, "-m", "fedveca.deploy.fork_server", folder, str(os.getppid())]
    subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    os.execv(python, [python, "-m", "fedveca.deploy.private_api", "flwr-clientapp", *sys.argv[1:]])
"""


def write(folder: Path) -> None:
    """Replaces `flwr-clientapp` among the node's programs."""
    place = folder.absolute() / "bin"
    (place / "hand.py").write_text(HAND.format(where=repr((str(folder.absolute()), sys.executable))))
    run = shlex.join([sys.executable, "-IS", str(place / "hand.py")])
    (place / PROGRAM).write_text(f'#!/bin/sh\nexec {run} "$@"\n')
    (place / PROGRAM).chmod(0o755)


def stay(folder: Path, parent: int) -> None:
    """Forks a child for every message, until the SuperNode is gone; a second one, started meanwhile, leaves at once."""
    from fedveca.runs.lock import InUse, lock_folder

    with suppress(InUse), lock_folder(folder):
        _serve(folder, parent)


def _serve(folder: Path, parent: int) -> None:
    from fedveca.deploy.node import alive
    from fedveca.deploy.pin import enforce_pin
    from fedveca.deploy.private_api import install, load_program

    install(folder)
    enforce_pin(folder)
    run = load_program(PROGRAM)
    for name in ("fedveca.cohorts.flower.messages", "safetensors.numpy", "flwr.clientapp", "flwr.serverapp"):
        importlib.import_module(name)
    gc.freeze()  # children share what is loaded
    home = os.getcwd()
    os.chdir(folder)  # a socket's path must be short
    os.umask(0o077)
    Path("warm.sock").unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX)
    listener.bind("warm.sock")
    listener.listen()
    Path("warm.json").write_text(json.dumps({"pid": os.getpid()}))
    os.chdir(home)
    listener.settimeout(0.5)
    while alive(parent):
        try:
            connection, _ = listener.accept()
        except TimeoutError:
            _bury()
            continue
        with connection:
            connection.settimeout(10)
            with connection.makefile("rb") as said:
                words = json.load(said)
            if os.fork() == 0:
                listener.close()
                connection.close()
                _be(run, words)
            connection.sendall(b"ok")


def _be(run: object, words: list[str]) -> None:
    """The child's whole life."""
    code = 1
    try:
        os.chdir(words[0])
        sys.argv = [PROGRAM, *words[1:]]
        run()  # type: ignore[operator]
        code = 0
    except SystemExit as leave:
        code = leave.code if isinstance(leave.code, int) else int(leave.code is not None)
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def _bury() -> None:
    """Takes note of children that have ended."""
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        pass


if __name__ == "__main__":
    stay(Path(sys.argv[1]), int(sys.argv[2]))
