"""A device's SuperNode: `python -m fedveca.deploy.supernode FOLDER --superlink HOST:PORT --client I --clients N`.

The folder holds the device's `key` and the federation's `ca.pem`; Flower's Runtime API is a socket in it (see
deploy/private_api.py), so no port of the device is open.
"""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from fedveca.deploy import private_api
from fedveca.deploy.fork_server import write_forwarder
from fedveca.deploy.logs import LOG_LIMIT, LogLimit, add_log_options
from fedveca.deploy.pace import DEFAULT_POLL, POLL, check_poll
from fedveca.deploy.superlink import FLOWER_ENVIRONMENT, search_path
from fedveca.monitor.settings import read_monitor


def prepare_node(
    folder: Path,
    superlink: str,
    client: int,
    clients: int,
    *,
    flags: list[str] | None = None,
    forks: bool = True,
    poll: float = DEFAULT_POLL,
) -> tuple[list[str], dict[str, str]]:
    """Writes the node's programs.

    Args:
        folder: the node's own folder; only its owner can enter it from then on.
        superlink: HOST:PORT of the federation's gateway.
        client: which client the node is.
        clients: how many there are.
        flags: options of `flower-supernode` instead of the folder's certificate and key.
        forks: whether a message's process is forked from one that has Flower loaded, or started as Flower does it.
        poll: the shortest time between two looks for something new; 0 leaves Flower's intervals (see deploy/pace.py).

    Returns:
        The command and the variables to run it with.
    """
    folder = folder.absolute()
    private_api.make_private(folder)
    programs = private_api.write_programs(folder, private_api.NODE_PROGRAMS)
    if forks:
        write_forwarder(folder)
    if flags is None:
        flags = ["--root-certificates", str(folder / "ca.pem"), "--auth-supernode-private-key", str(folder / "key")]
    host, port = private_api.ADDRESS.split(":")
    command = [str(programs / "flower-supernode"), *flags, "--superlink", superlink, "--host", host, "--port", port]
    command += ["--node-config", f"partition-id={client} num-partitions={clients}"]
    return command, FLOWER_ENVIRONMENT | {
        POLL: str(check_poll(poll)),
        "FLWR_HOME": str(folder / "flower"),
        "FEDVECA_NODE_DIR": str(folder),
        private_api.API_FOLDER: str(folder),
        "PATH": search_path(programs),
    }


def _main() -> None:
    parser = argparse.ArgumentParser(prog="python -m fedveca.deploy.supernode")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--superlink", required=True, metavar="HOST:PORT")
    parser.add_argument("--client", type=int, required=True, metavar="I")
    parser.add_argument("--clients", type=int, required=True, metavar="N")
    parser.add_argument("--poll", type=float, default=DEFAULT_POLL, metavar="SECONDS")
    add_log_options(parser)
    args, more = parser.parse_known_args()
    os.umask(0o077)
    try:
        read_monitor(args.folder)  # rejects what is invalid, before anything starts
        command, environment = prepare_node(args.folder, args.superlink, args.client, args.clients, poll=args.poll)
        environment[LOG_LIMIT] = LogLimit(args.log_mb, args.log_files).check().encode()
        os.execve(command[0], [*command, *more], os.environ | environment)
    except (ValueError, OSError) as error:
        sys.exit(f"fedveca: {error}")


if __name__ == "__main__":
    _main()
