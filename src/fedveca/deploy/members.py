"""Who belongs to a federation over time: a node is added, its key is revoked, and the server knows at once.

`server/keys/node-I.pub` is the key of client I. The gateway reads that folder again whenever it changes; the server's
process (deploy/superlink.py) then registers new keys with the SuperLink, removes nodes whose key is gone, and writes
`nodes.json`, which a run under way reads again.
"""

from __future__ import annotations

import itertools
import json
import re
import shutil
from pathlib import Path

from fedveca.deploy.certificates import renew_certificate
from fedveca.deploy.packages import MOST_NODES, Deployment, write_compose, write_node_package
from fedveca.deploy.peers import replace_peer
from fedveca.deploy.pin import pin
from fedveca.deploy.provision import write_key
from fedveca.errors import UserError, printable
from fedveca.monitor.settings import read_monitor, write_monitor
from fedveca.runs.files import read_object, write_atomic

DEPLOYMENT_FILE = "deployment.json"  # in the server's folder: what `deploy init` was asked for


def write_deployment_file(server: Path, deployment: Deployment) -> None:
    write_atomic(server / DEPLOYMENT_FILE, json.dumps(deployment._asdict()).encode())


def read_deployment(folder: Path) -> Deployment:
    """What `deploy init` wrote down; UserError where the folder is not one of its.

    Args:
        folder: the folder that `deploy init` wrote.
    """
    try:
        found = read_object(folder / "server", DEPLOYMENT_FILE)
    except (OSError, ValueError) as error:
        raise UserError(f"{folder} is not the folder of a deployment: {error}; `deploy init` writes one") from error
    try:
        deployment = Deployment(**found)  # type: ignore[arg-type]
        deployment.check()
    except (TypeError, ValueError) as error:
        raise UserError(f"{folder / 'server' / DEPLOYMENT_FILE} is invalid: {error}") from error
    return deployment


def parse_node(text: str) -> int:
    """The number of a node that is named `node-3` or `3`.

    Raises:
        UserError: if it is not a node's name.
    """
    match = re.fullmatch(r"(?:node-)?([0-9]{1,5})", text, re.ASCII)
    if match is None or int(match[1]) >= MOST_NODES:
        raise UserError(f"{printable(ascii(text))} is not a node; allowed: node-0 to node-{MOST_NODES - 1}")
    return int(match[1])


def add_node(folder: Path, client: int) -> Path:
    """Makes the folder of a node with a key of its own, which counts from then on, also while the server runs.

    Args:
        folder: the folder that `deploy init` wrote.
        client: which client it is: one without a key, or the next number.

    Returns:
        The node's folder, to be copied to its device.

    Raises:
        UserError: if that client has a node, or is not the next one.
    """
    deployment, server = read_deployment(folder), folder / "server"
    public, home = server / "keys" / f"node-{client}.pub", folder / f"node-{client}"
    if public.exists():
        raise UserError(f"client {client} has a node, whose key is {public}; revoke it first: deploy revoke")
    if client > deployment.clients:
        last = deployment.clients
        raise UserError(f"node-{client} is not the next one; allowed: node-0 to node-{last}, without a key")
    if client == MOST_NODES:
        raise UserError(f"there are {MOST_NODES} nodes; that is the most")
    if home.exists():  # of a node whose key was revoked
        former = (home.with_name(f"{home.name}.former-{n}") for n in itertools.count(1))
        home.rename(next(path for path in former if not path.exists()))
    deployment = deployment._replace(clients=max(deployment.clients, client + 1))
    home.mkdir(mode=0o700)
    shutil.copy(server / "tls" / "ca.pem", home / "ca.pem")
    write_node_package(home, client, deployment)
    pin(folder / "app", [home])
    write_compose(folder, deployment)
    _set_clients(folder / "app" / "pyproject.toml", deployment.clients)
    write_deployment_file(server, deployment)
    write_monitor(home, read_monitor(server))
    write_key(home / "key", public)  # now it counts
    replace_peer(list_nodes(folder), client, public.read_text("utf-8").strip())
    return home


def list_nodes(folder: Path) -> list[Path]:
    """The folders of a deployment's nodes that are here, by number."""
    found = [path for path in folder.glob("node-*") if re.fullmatch(r"node-\d+", path.name)]
    return sorted(found, key=lambda path: int(path.name.removeprefix("node-")))


def revoke_node(folder: Path, client: int) -> None:
    """Locks a node out, at once where the server runs: its key is no longer one of the federation's.

    Args:
        folder: the folder that `deploy init` wrote.
        client: which client the node is.

    Raises:
        UserError: if that client has no key.
    """
    read_deployment(folder)
    public = folder / "server" / "keys" / f"node-{client}.pub"
    if not public.exists():
        raise UserError(f"client {client} has no key that could be revoked: {public} is missing")
    public.unlink()


def renew_deployment(folder: Path, new_authority: bool) -> list[Path]:
    """Gives the server a new certificate, from the same authority or from a new one.

    Args:
        folder: the folder that `deploy init` wrote.
        new_authority: whether to replace the authority.

    Returns:
        With a new authority, the ca.pem of each node, which has to be copied to its device; else nothing.

    Raises:
        UserError: if the folder is not a deployment's, or its authority's key is missing.
    """
    read_deployment(folder)
    tls = folder / "server" / "tls"
    if not renew_certificate(tls, folder / "authority", new_authority):
        return []
    homes = list_nodes(folder)
    for home in homes:
        write_atomic(home / "ca.pem", (tls / "ca.pem").read_bytes())
    return [home / "ca.pem" for home in homes]


def _set_clients(path: Path, clients: int) -> None:
    """The number of clients in an app's settings; its code, which nodes are pinned to, stays the same."""
    text = path.read_text(encoding="utf-8")
    text = re.sub(r"(?m)^clients = \d+$", f"clients = {clients}", text, count=1)
    write_atomic(path, text.encode())
