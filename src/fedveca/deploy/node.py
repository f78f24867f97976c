"""A Flower node's answer to a message.

Flower starts a process for every message (or deploy/fork_server.py forks it). Here it stays small: the work is done
by another process of the node (deploy/node_process.py) that is started once, with PyTorch and the data loaded, and
ends with the SuperNode. In Flower's simulation the process stays, so the work is done in it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from multiprocessing.connection import Client, Connection
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedveca.deploy.exchange import (
    PROCESS,
    Arrays,
    ConfigValue,
    NodeAnswer,
    NodeOrder,
    NodeRequest,
    decode_answer,
    encode,
)
from fedveca.deploy.private_api import find_socket, make_private

if TYPE_CHECKING:
    from flwr.app import Context, Message

NODE_START_SECONDS = 300.0  # a small device takes its time to load PyTorch


def answer(message: Message, context: Context) -> Message:
    """Answers an order of `serve`: call it for the `train` and the `query` messages of your ClientApp.

    Args:
        message: Flower's message, with the server's order.
        context: Flower's context; its run-config holds the settings of the experiment, and `partition-id` in its
            node-config says which client this node is.

    Returns:
        The reply to the message.

    Raises:
        RuntimeError: if the node cannot do what the order asks; the text says why. Flower sends it to the server.
    """
    from fedveca.cohorts.flower.messages import make_reply, read_order

    received, start = time.time(), time.perf_counter()
    order, vectors = read_order(message)
    request: NodeRequest = {
        "settings": cast(dict[str, ConfigValue], dict(context.run_config)),
        "client": int(context.node_config["partition-id"]),
        "order": cast(NodeOrder, order),
    }
    content, result = _request_work(request, vectors)
    times = {**content.get("times", {}), "received": received, "work": time.perf_counter() - start}
    return make_reply(message, content["fields"], content["numbers"], result, times if "round" in order else None)


def _request_work(request: NodeRequest, vectors: Arrays) -> tuple[NodeAnswer, Arrays]:
    data, folder = encode(request, vectors), find_node_folder()
    if "ray" in sys.modules:
        from fedveca.deploy.node_process import work

        data = work(data, folder)
    else:
        with _connect_or_start(folder) as process:
            process.send_bytes(data)
            data = process.recv_bytes()
    content, result = decode_answer(data)
    if "error" in content:
        raise RuntimeError(content["error"])
    return content, result


def find_node_folder() -> Path:
    """The folder of this node: FEDVECA_NODE_DIR, else one below Flower's home."""
    flower = os.environ.get("FLWR_HOME") or Path.home() / ".flwr"
    folder = Path(os.environ.get("FEDVECA_NODE_DIR") or Path(flower) / "fedveca")
    make_private(folder)
    return folder


def _connect_or_start(folder: Path) -> Connection:
    """A connection to the node's process, which is started where there is none."""
    try:
        return connect_to_process(folder)
    except (OSError, ValueError, KeyError, EOFError):
        pass
    log_file = folder / f"{PROCESS}.log"
    with open(log_file, "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-m", "fedveca.deploy.node_process", str(folder), str(os.getppid())],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
    until = time.monotonic() + NODE_START_SECONDS
    while process.poll() is None and time.monotonic() < until:
        try:
            return connect_to_process(folder, process.pid)
        except (OSError, ValueError, KeyError, EOFError):
            time.sleep(0.02)
    raise RuntimeError(f"the node's process did not start; see {log_file}")


def connect_to_process(folder: Path, pid: int = 0) -> Connection:
    """A connection to the process of the node with this folder, with id `pid` if one is named."""
    found = int(json.loads((folder / f"{PROCESS}.json").read_text())["pid"])
    if pid and found != pid:
        raise ConnectionError(f"process {found} answers in {folder}, not {pid}")
    return Client(find_socket(folder, f"{PROCESS}-{found}.sock"), family="AF_UNIX")
