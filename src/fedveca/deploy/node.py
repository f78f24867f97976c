"""A Flower node's answer to a message.

Flower starts a process for every message (or deploy/fork_server.py forks it). Here it stays small: the work is done
by a process of the node's own (deploy/node_process.py) that is started once, with PyTorch and the data loaded, and ends
with the SuperNode. In Flower's simulation the process stays, so the work is done in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import Any

from fedveca.deploy.private_api import find_socket, make_private
from fedveca.errors import UserError

START_SECONDS = 300.0  # a small device takes its time to load PyTorch


def answer(message: Any, context: Any) -> Any:
    """The reply to an order of `serve`: call it for `train` and for `query` messages."""
    from fedveca.cohorts.flower.messages import make_reply, read_order

    words, vectors = read_order(message)
    client = int(context.node_config["partition-id"])
    request = {"settings": dict(context.run_config), "client": client, "order": words}
    said, numbers, out = _work(request, vectors)
    return make_reply(message, said, numbers, out)


def _work(request: dict[str, Any], vectors: dict[str, Any]) -> tuple[dict[str, Any], dict[str, float], dict[str, Any]]:
    from safetensors.numpy import load, save

    content = save(vectors, {"request": json.dumps(request)})
    if "ray" in sys.modules:
        from fedveca.deploy.node_process import work

        content = work(content, home())
    else:
        with _worker(home()) as worker:
            worker.send_bytes(content)
            content = worker.recv_bytes()
    size = int.from_bytes(content[:8], "little")
    words = json.loads(json.loads(content[8 : 8 + size])["__metadata__"]["answer"])
    if "error" in words:
        raise RuntimeError(words["error"])
    return words["said"], words["numbers"], load(content)


def home() -> Path:
    """The node's own folder: FEDVECA_NODE_DIR, else one below Flower's home."""
    flower = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    folder = Path(os.environ.get("FEDVECA_NODE_DIR") or Path(flower) / "fedveca")
    make_private(folder)
    return folder


def _worker(folder: Path) -> Connection:
    """A connection to the node's worker, which is started where there is none."""
    try:
        return _connect(folder)
    except (OSError, ValueError, KeyError, EOFError):
        pass
    with open(folder / "worker.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedveca.deploy.node_process", str(folder), str(os.getppid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            return _connect(folder, process.pid)
        except (OSError, ValueError, KeyError, EOFError):
            time.sleep(0.02)
    raise RuntimeError(f"the node's worker did not start; see {folder / 'worker.log'}")


def _connect(folder: Path, pid: int = 0) -> Connection:
    where = json.loads((folder / "worker.json").read_text())
    if pid and where["pid"] != pid:
        raise UserError("another worker's")
    return Client(find_socket(folder, f"worker-{int(where['pid'])}.sock"), family="AF_UNIX")


def alive(pid: int) -> bool:
    """Whether the process runs; one that is dead and not yet buried does not."""
    try:
        os.kill(pid, 0)
        stat = Path(f"/proc/{pid}/stat")
        return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] not in "ZX"
    except ProcessLookupError:
        return False
    except OSError:
        return True
