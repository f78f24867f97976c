"""What a node knows of the others, without the server: their public keys, and how many must be in a sum.

`deploy init` writes `peers.json` into each node's folder, before the folder is copied to its device. A node that has
the file masks its vectors, whatever the server asks for; one that has none cannot take part in secure aggregation.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from fedveca.errors import UserError
from fedveca.runs.files import write_atomic

PEERS_FILE = "peers.json"


class Peers(NamedTuple):
    """The clients of a federation, as a node was told of them when it was set up."""

    least: int  # the smallest threshold of a round
    keys: dict[int, str]  # public keys in OpenSSH's form, by client


def write_peers(nodes: list[Path], keys: Path, least: int) -> None:
    """Writes the public keys of all nodes into the folder of each.

    Args:
        nodes: The folders, in the order of the clients.
        keys: The folder with `node-I.pub` of each client I.
        least: The smallest threshold that a node accepts.
    """
    known = {i: (keys / f"node-{i}.pub").read_text("utf-8").strip() for i in range(len(nodes))}
    content = json.dumps({"least": least, "keys": known}, indent=1).encode()
    for node in nodes:
        write_atomic(node / PEERS_FILE, content)


def replace_peer(nodes: list[Path], client: int, key: str) -> bool:
    """Lets every node know a client's new key, where they mask their vectors.

    Args:
        nodes: The folders of all nodes, also that of the client, which may be new.
        client: Whose key it is.
        key: Its public key in OpenSSH's form.

    Returns:
        Whether they do, so that each `peers.json` has to be copied to its device.
    """
    known = next((peers for node in nodes if (peers := read_peers(node)) is not None), None)
    if known is None:
        return False
    content = json.dumps({"least": known.least, "keys": known.keys | {client: key}}, indent=1).encode()
    for node in nodes:
        write_atomic(node / PEERS_FILE, content)
    return True


def read_peers(folder: Path) -> Peers | None:
    """What the node knows of the others; None where it knows nothing.

    Raises:
        UserError: If the file is there and cannot be read: the node then answers no order for its vectors.
    """
    path = folder / PEERS_FILE
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_bytes())
        least, keys = found["least"], {int(i): key for i, key in found["keys"].items()}
        if type(least) is int and least >= 2 and all(type(key) is str for key in keys.values()):
            return Peers(least, keys)
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise UserError(f"{path} cannot be read ({type(error).__name__}); no vector is sent") from error
    raise UserError(f"{path} is invalid; no vector is sent")
