"""The folder that `fedveca deploy init` writes: an app, the server's part, and one part for each device."""

from __future__ import annotations

import ipaddress
import re
import shutil
from pathlib import Path
from typing import NamedTuple

from fedveca.deploy.peers import write_peers
from fedveca.deploy.pin import pin
from fedveca.deploy.private_api import make_private
from fedveca.deploy.provision import write_app, write_certificates, write_key
from fedveca.deploy.server import check_deployable
from fedveca.errors import UserError, printable
from fedveca.runs.experiment import Experiment

_LABEL = r"[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
_SERVER = """#!/bin/sh
# Starts the SuperLink on a private socket, and in front of it the gateway: the only open port, which accepts nothing
# but requests that the nodes have signed. Ctrl-C ends both; after a restart they still know their nodes and runs.
cd "$(dirname "$0")" || exit 1
exec python3 -m fedveca.deploy.superlink . --host {bind} --port {port}
"""
_RUN = """#!/bin/sh
# Starts the experiment over the connected nodes. An option such as -c 'rounds=50' changes a setting.
cd "$(dirname "$0")" || exit 1
exec ./flwr.sh run ../app fedveca --stream "$@"
"""
_FLWR = """#!/bin/sh
# Flower's command line for this federation, for example ./flwr.sh log RUN-ID fedveca or ./flwr.sh stop RUN-ID fedveca.
here="$(cd "$(dirname "$0")" && pwd)" || exit 1
export FLWR_HOME="$here/flower" FEDVECA_API_DIR="$here"
export FLWR_TELEMETRY_ENABLED=0 FLWR_DISABLE_UPDATE_CHECK=1
[ -S "$here/api.sock" ] || {{ echo "the server is not running; start it with start.sh" >&2; exit 1; }}
exec "$here/bin/flwr" "$@"
"""
_NODE = """#!/bin/sh
# Starts device {i}. FEDVECA_NODE_DATA names its data: an npz file with x and y, a folder with x.npy and y.npy, or
# package.module:load. Without it the device takes its share of the experiment's data set. It runs only the app that
# pinned.json describes.
exec python3 -m fedveca.deploy.supernode "$(dirname "$0")" --superlink {address} --client {i} --clients {clients} "$@"
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
3. **Run.** When the devices are connected, run `server/run.sh`. The run folder is the one that `out` in
   `app/pyproject.toml` names, else a new one below `server/runs/`; `fedveca` reads it like that of any other run.

{tested} If the
server crashes, start it again and resume the run: `server/run.sh -c 'resume="runs/..."'`. All settings are in
`app/pyproject.toml`; `fedveca list` explains them. `server/flwr.sh` is Flower's own command line for this federation.

**Who is trusted with what.** The devices run the app in `app/` and no other: `node-I/pinned.json` contains its hashes.
If you change `app/app.py` or the name of the model's code, pin the devices again
(`fedveca deploy pin app node-0 node-1`) and copy each `pinned.json` to its device. Without `pinned.json` a device runs
whatever the server sends. `server/tls/server.key` and every `node-I/key` are secrets. `server/keys/node-I.pub` lets
device I in; if you delete that file, the device is locked out at once. With `secure=on` each node also has
`peers.json`, the public keys of all devices: it sends its vectors only under masks that cancel in the sum of all. The
certificates are valid for a year; `fedveca deploy init` makes new ones.

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


def write_deployment(folder: Path, e: Experiment, host: str, port: int) -> None:
    """Writes the folder completely or not at all; one that is not empty is left as it is."""
    check_deployable(e)
    where = parse_host(host)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UserError(f"{folder} already exists and is not empty; name another folder")
    if not 1 <= port <= 65535:
        raise UserError(f"port={port} is out of range; allowed: [1, 65535]")
    try:
        _write(folder, e, where, port)
    except BaseException:
        shutil.rmtree(folder, ignore_errors=True)
        raise


def _write(folder: Path, e: Experiment, host: Host, port: int) -> None:
    address = f"{host.written}:{port}"
    server, words = folder / "server", {"method": e.method, "data": e.data, "model": e.model, "clients": e.clients}
    write_app(folder / "app", e)
    make_private(server)
    write_certificates(server / "tls", list(dict.fromkeys([host.name, "127.0.0.1", "localhost"])))
    tested = _TESTED_AT_DEVICES if e.test_by == "client" else _TESTED_AT_SERVER.format(data=e.data)
    text = _README.format(host=host.written, port=port, tested=tested, **words)
    (folder / "README.md").write_text(text, encoding="utf-8")
    # Scripts contain checked names and numbers only: settings may come from a stranger's preset.
    _write_script(server / "start.sh", _SERVER.format(bind=host.bind, port=port))
    _write_script(server / "run.sh", _RUN)
    _write_script(server / "flwr.sh", _FLWR.format())
    for i in range(e.clients):
        write_key(folder / f"node-{i}" / "key", server / "keys" / f"node-{i}.pub")
        shutil.copy(server / "tls" / "ca.pem", folder / f"node-{i}" / "ca.pem")
        _write_script(folder / f"node-{i}" / "start.sh", _NODE.format(i=i, address=address, clients=e.clients))
    nodes = [folder / f"node-{i}" for i in range(e.clients)]
    pin(folder / "app", nodes)
    if e.secure == "on":
        from fedveca.runs.secure import find_quorum  # loads PyTorch

        write_peers(nodes, server / "keys", find_quorum(e, e.clients)[1])


def _write_script(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o755)
