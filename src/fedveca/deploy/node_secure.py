"""A node's half of secure aggregation: its keys, its open sessions, and vectors that leave it only under masks."""

from __future__ import annotations

import base64
import binascii
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from fedveca.cohorts.secure.fixed_point import UNIT_BITS, FixedPointSum
from fedveca.deploy.exchange import Arrays, ConfigValue, NodeAnswer, NodeOrder
from fedveca.deploy.peers import PEERS_FILE, read_peers
from fedveca.errors import UserError

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric import ec

    from fedveca.cohorts.secure.client import SecureClient

KEY_FILE = "key"  # in a node's folder: its private key, in OpenSSH's form
_MOST_SHIFT = 64  # bits behind the point, or in front of it


class Masking:
    """One order's vectors, from their sum as integers to what leaves the node."""

    def __init__(self, secure: SecureClient, request: bytes, fraction: int) -> None:
        self.secure, self.request, self.sum = secure, request, FixedPointSum(fraction)

    def make_sum(self) -> FixedPointSum:
        """The aggregator of the one client; it rounds as that of a simulation does."""
        return self.sum

    def finish(self) -> Arrays:
        """The masked vectors; of a client that diverged, masked zeros."""
        vectors = {name: v.cpu().numpy() for name, v in self.sum.total.items()}
        return dict(self.secure.mask(self.request, vectors))


def prepare_masking(order: NodeOrder, client: int, folder: Path) -> Masking | None:
    """How the vectors of an order are masked; None where they need not be.

    Raises:
        UserError: If the server asks for vectors in the open at a node that was set up for secure aggregation, or for
            masked ones at a node that was not.
    """
    if not order["tau"]:
        return None  # a loss, and no vector
    if "secure" not in order:
        if read_peers(folder) is not None:
            raise UserError(f"the server asked for vectors in the open; {PEERS_FILE} of this node allows masked ones")
        return None
    fraction = order["fraction"]
    if type(fraction) is not int or not -_MOST_SHIFT <= fraction <= UNIT_BITS:
        raise UserError(f"fraction={fraction!r} is out of range; allowed: [{-_MOST_SHIFT}, {UNIT_BITS}]")
    return Masking(_find_client(folder, client), _read(order["secure"]), fraction)


def answer_stage(order: NodeOrder, client: int, folder: Path) -> NodeAnswer:
    """Answers a message of the protocol that is not an order."""
    secure, stage = _find_client(folder, client), order["stage"]
    fields: dict[str, ConfigValue] = {"client": client}
    if stage == "advertise":
        fields["secure"] = _write(secure.channel.pack())
    elif stage == "share":
        fields["secure"] = _write(secure.share(_read(order["secure"])))
    elif stage == "unmask":
        fields["secure"] = _write(secure.unmask(_read(order["secure"])))
        if "next" in order:
            fields["next"] = _write(secure.share(_read(order["next"])))
    else:
        raise UserError("the server asked for a stage of secure aggregation that is not known here")
    return {"fields": fields, "numbers": {}}


@lru_cache(maxsize=256)
def _find_client(folder: Path, client: int) -> SecureClient:
    """The node's state, made with its first message; it lives in memory only, and ends with the process."""
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key

    from fedveca.cohorts.secure.client import SecureClient

    known = read_peers(folder)
    if known is None:
        raise UserError(f"secure=on needs {PEERS_FILE} in the node's folder, as fedveca deploy init writes it")
    key = load_ssh_private_key((folder / KEY_FILE).read_bytes(), None)
    peers: dict[int, ec.EllipticCurvePublicKey] = {}
    for i, text in known.keys.items():
        public = load_ssh_public_key(text.encode())
        if not isinstance(public, ec.EllipticCurvePublicKey):
            raise UserError(f"{PEERS_FILE}: the key of client {i} is not one of an elliptic curve")
        peers[i] = public
    if not isinstance(key, ec.EllipticCurvePrivateKey) or peers.get(client) != key.public_key():
        raise UserError(f"{PEERS_FILE}: the key of client {client} is not this node's")
    return SecureClient(client, key, peers, known.least)


def _write(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _read(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except (binascii.Error, ValueError, TypeError) as error:
        raise UserError("a message of secure aggregation is not base64 text") from error
