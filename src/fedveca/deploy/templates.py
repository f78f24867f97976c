"""The folder that `fedveca deploy init` writes: an app, the server's part, and one part for each device."""

from __future__ import annotations

import ipaddress
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from fedveca.deploy.certificates import write_certificates
from fedveca.deploy.logs import LogLimit
from fedveca.deploy.members import write_deployment_file
from fedveca.deploy.pace import DEFAULT_POLL, check_poll
from fedveca.deploy.packages import (
    SERVER_IN_COMPOSE,
    Deployment,
    write_compose,
    write_node_package,
    write_script,
    write_server_package,
)
from fedveca.deploy.peers import write_peers
from fedveca.deploy.pin import pin
from fedveca.deploy.private_api import make_private
from fedveca.deploy.provision import write_app, write_key
from fedveca.deploy.server import check_deployable
from fedveca.errors import UserError, printable
from fedveca.monitor.dashboard import write_dashboard
from fedveca.monitor.settings import NOTHING_WATCHED, MonitorSettings, write_monitor
from fedveca.runs.experiment import Experiment

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_SERVER = """#!/bin/sh
# Starts the SuperLink on a private socket, and in front of it the gateway: the only open port, which accepts nothing
# but requests that the nodes have signed. Ctrl-C ends both; after a restart they still know their nodes and runs.
cd "$(dirname "$0")" || exit 1
exec python3 -m fedveca.deploy.superlink . --host {bind} --port {port} --poll {poll:g} \\
  --log-mb {log_mb:g} --log-files {log_files} "$@"
"""
_RUN = """#!/bin/sh
# Resumes the last experiment if it is not finished, else starts a new one, over the connected nodes, and follows it to
# its end, also when the server is started again meanwhile. An option such as -c 'rounds=50' changes a setting.
# With --once nothing is started after an experiment that is finished.
cd "$(dirname "$0")" || exit 1
exec python3 -m fedveca.deploy.runner . ../app "$@"
"""
_FLWR = """#!/bin/sh
# Flower's command line for this federation, for example ./flwr.sh log RUN-ID fedveca or ./flwr.sh stop RUN-ID fedveca.
here="$(cd "$(dirname "$0")" && pwd)" || exit 1
export FLWR_HOME="$here/flower" FEDVECA_API_DIR="$here"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
[ -S "$here/api.sock" ] || {{ echo "the server is not running; start it with start.sh" >&2; exit 1; }}
exec "$here/bin/flwr" "$@"
"""
_README = """# A federation of {clients} devices

This folder runs `{method}` on `{data}` with the model `{model}` over Flower, with TLS and a key for each device. Every
machine needs Python 3.11 or newer and `pip install 'fedveca[flower]'`.

1. **Server** ({host}). Keep `app/` and `server/` on this machine and run `server/start.sh`. It opens port {port} to the
   devices, whose public keys it knows, and to nobody else.
2. **Each device.** Copy the folder `node-I/` to device I and to no other: it contains that device's private key. There,
   run

       FEDVECA_NODE_DATA=/path/to/own.npz ./start.sh

   An npz file contains `x` (rows) and `y` (labels, or numbers to predict); a folder contains `x.npy` and `y.npy`;
   `package.module:load` names a function that returns both. Without this variable a device takes its share of `{data}`.
   Raw data never leave the device.
3. **Check.** `fedveca deploy check .` asks every connected device for its versions, clock, data, disk, memory, speed
   and certificates, and prints one table.
4. **Run.** When the devices are connected, run `server/run.sh`. The run folder is the one that `out` in
   `app/pyproject.toml` names, else a new one below `server/runs/`; `fedveca` reads it like that of any other run.

{tested} If the
server crashes, start it again: `server/run.sh` resumes the experiment by itself. All settings are in
`app/pyproject.toml`; `fedveca list` explains them. `server/flwr.sh` is Flower's own command line for this federation.

**For months.** `server/fedveca-server.service` and `server/fedveca-run.service` are systemd units for the server,
`node-I/fedveca-node-I.service` is one for device I. `compose.yaml` and `Dockerfile` start the same parts as containers.
`requirements.txt` in each folder pins what was installed where this folder was made.

**Who is trusted with what.** The devices run the app in `app/` and no other: `node-I/pinned.json` contains its hashes.
If you change `app/app.py` or the name of the model's code, pin the devices again
(`fedveca deploy pin app node-0 node-1`) and copy each `pinned.json` to its device. Without `pinned.json` a device runs
whatever the server sends. `server/tls/server.key`, `authority/ca.key` and every `node-I/key` are secrets.
`server/keys/node-I.pub` lets device I in; `fedveca deploy revoke . node-I` locks it out at once, and
`fedveca deploy add . node-I` makes a new folder for a device. With `secure=on` each node also has `peers.json`, the
public keys of all devices: it sends its vectors only under masks that cancel in the sum of all. The server's
certificate is valid for a year; the server warns from 30 days before it expires, and `fedveca deploy renew .` makes a
new one with `authority/ca.key`, which nothing else needs: keep it somewhere else.

To run the app in Flower's own simulation, without any device:

    server/flwr.sh run app simulation --federation-config 'num-supernodes={clients}' --stream
"""


_TESTED_AT_SERVER = (
    "The server tests on the data set `{data}`, or on what `FEDVECA_TEST_DATA` names (the same three forms)."
)
_TESTED_AT_DEVICES = "The devices test, on rows that they hold back (`test_by`); the server needs no data."


class Host(NamedTuple):
    """The server's name or address: as in HOST:PORT, as in certificates, and the address to listen on."""

    written: str
    name: str
    bind: str


def parse_host(text: str) -> Host:
    """The server's name or address as the devices know it.

    Raises:
        UserError: if it is neither an IP address nor a host name.
    """
    try:
        address = ipaddress.ip_address(text[1:-1] if text.startswith("[") and text.endswith("]") else text)
    except ValueError:
        if len(text) > 253 or not re.fullmatch(rf"{_LABEL}(\.{_LABEL})*", text) or re.fullmatch(r"[0-9.]+", text):
            allowed = "allowed: a host name of letters, digits, '-' and '.', or an IP address"
            raise UserError(f"host={printable(ascii(text))} is invalid; {allowed}") from None
        local = text.lower() == "localhost" or text.lower().endswith(".localhost")
        return Host(text, text, "127.0.0.1" if local else "0.0.0.0")
    if "%" in text or address.is_unspecified or address.is_multicast:
        raise UserError(f"host={text} is not an address that devices can connect to")
    everywhere = "0.0.0.0" if address.version == 4 else "::"
    written = str(address) if address.version == 4 else f"[{address}]"
    return Host(written, str(address), str(address) if address.is_loopback else everywhere)


def write_deployment(
    folder: Path,
    e: Experiment,
    host: str,
    port: int,
    poll: float = DEFAULT_POLL,
    logs: LogLimit | None = None,
    monitor: MonitorSettings = NOTHING_WATCHED,
) -> None:
    """Writes the folder completely or not at all; one that is not empty is left as it is.

    Args:
        folder: the folder to write.
        e: the experiment; it has one node per client.
        host: the server's name or address as the devices know it.
        port: the server's port.
        poll: the shortest time between two looks for something new; 0 leaves Flower's intervals.
        logs: how much of each log is stored.
        monitor: where figures are served, and how logs are written.

    Raises:
        UserError: if the experiment cannot be deployed, or if the folder, the host or the port cannot be used.
    """
    check_deployable(e)
    check_poll(poll)
    monitor.check()
    where, limit = parse_host(host), (logs or LogLimit()).check()
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists and is not empty; name another folder")
    if not 1 <= port <= 65535:
        raise UserError(f"port={port} is out of range; allowed: [1, 65535]")
    try:
        _write(folder, e, where, Deployment(where.written, where.bind, port, e.clients, *limit, poll), monitor)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(folder: Path, e: Experiment, host: Host, deployment: Deployment, monitor: MonitorSettings) -> None:
    server, words = folder / "server", {"method": e.method, "data": e.data, "model": e.model, "clients": e.clients}
    write_app(folder / "app", e)
    for private in (server, server / "runs", folder / "authority"):
        make_private(private)
    names = dict.fromkeys([host.name, "127.0.0.1", "localhost", SERVER_IN_COMPOSE])
    write_certificates(server / "tls", list(names), authority=folder / "authority")
    tested = _TESTED_AT_DEVICES if e.test_by == "client" else _TESTED_AT_SERVER.format(data=e.data)
    text = _README.format(host=host.written, port=deployment.port, tested=tested, **words)
    (folder / "README.md").write_text(text, encoding="utf-8")
    # Scripts contain checked names and numbers only: settings may come from a stranger's preset.
    write_script(server / "start.sh", _SERVER.format(**deployment._asdict()))
    write_script(server / "run.sh", _RUN)
    write_script(server / "flwr.sh", _FLWR.format())
    write_server_package(server)
    write_compose(folder, deployment)
    write_deployment_file(server, deployment)
    write_dashboard(server / "grafana.json")
    nodes = [folder / f"node-{i}" for i in range(e.clients)]
    for home in (server, *nodes):
        write_monitor(home, monitor)
    for i, home in enumerate(nodes):
        write_key(home / "key", server / "keys" / f"node-{i}.pub")
        shutil.copy(server / "tls" / "ca.pem", home / "ca.pem")
        write_node_package(home, i, deployment)
    pin(folder / "app", nodes)
    if e.secure == "on":
        from fedveca.runs.secure import find_quorum  # loads PyTorch

        write_peers(nodes, server / "keys", find_quorum(e, e.clients)[1])
