"""One use of the protocol, and its messages as bytes of fixed lengths.

The stages, as in the paper, with what each message holds:

1. advertise: a client's channel key, signed. It lives as long as the client's process; later stages repeat it.
2. share: the server names the members of the session and forwards their channel keys. Each client draws a fresh mask
   key and a fresh self mask, and answers with the mask key, signed, and shares of both secrets, sealed for each member.
3. mask: the server forwards the mask keys and shares of the members that answered; a client sends its masked vectors.
4. unmask: the server names those whose vectors arrived. A client gives its share of the self mask of each of them, and
   its share of the mask key of each of the others: never both of one client, and once per session.
"""

from __future__ import annotations

import hashlib
import itertools
import struct
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from fedveca.cohorts.secure.identity import ProtocolError
from fedveca.cohorts.secure.lengths import (
    KEY_BYTES,
    NUMBER_BYTES,
    SEALED_BYTES,
    SESSION_BYTES,
    SHARE_BYTES,
    SIGNED_BYTES,
)

MISSING = b"\xff" * SHARE_BYTES  # not below the prime, so not a share


class SignedKey(NamedTuple):
    """A public key of X25519 with its owner's signature."""

    key: bytes
    signature: bytes

    def pack(self) -> bytes:
        return self.key + self.signature


class Session(NamedTuple):
    """Who takes part in one use of the protocol, and how many of them are needed."""

    name: bytes  # random, 16 bytes
    threshold: int
    members: tuple[int, ...]  # rising

    def pack(self) -> bytes:
        return self.name + pack_numbers([self.threshold, *self.members])

    @property
    def digest(self) -> bytes:
        return hashlib.sha256(self.pack()).digest()

    def place(self, client: int) -> int:
        """The x of the client's shares."""
        return 1 + self.members.index(client)


class ShareRequest(NamedTuple):
    """Server -> client: draw your secrets for this session."""

    session: Session
    channels: dict[int, SignedKey]

    def pack(self) -> bytes:
        return self.session.pack() + b"".join(self.channels[i].pack() for i in self.session.members)

    @classmethod
    def read(cls, data: bytes) -> ShareRequest:
        each = NUMBER_BYTES + SIGNED_BYTES
        n, rest = divmod(len(data) - SESSION_BYTES - NUMBER_BYTES, each)
        if n < 1 or rest:
            raise ProtocolError(f"a request for shares of {len(data)} bytes is not one")
        at = SESSION_BYTES + NUMBER_BYTES * (1 + n)
        threshold, *members = read_numbers(data[SESSION_BYTES:at])
        if any(a >= b for a, b in itertools.pairwise(members)):
            raise ProtocolError("the members of a session are not in order")
        keys = [data[start : start + SIGNED_BYTES] for start in range(at, len(data), SIGNED_BYTES)]
        return cls(
            Session(data[:SESSION_BYTES], threshold, tuple(members)),
            {i: read_signed(key) for i, key in zip(members, keys, strict=True)},
        )


class SharedSecrets(NamedTuple):
    """Client -> server: its mask key, and what it sealed for each other member."""

    channel: SignedKey
    mask: SignedKey
    sealed: dict[int, bytes]

    def pack(self) -> bytes:
        return self.channel.pack() + self.mask.pack() + b"".join(self.sealed[i] for i in sorted(self.sealed))

    @classmethod
    def read(cls, data: bytes, session: Session, client: int) -> SharedSecrets:
        others = [i for i in session.members if i != client]
        if len(data) != 2 * SIGNED_BYTES + SEALED_BYTES * len(others):
            raise ProtocolError(f"shares of {len(data)} bytes are not those of {len(session.members)} members")
        starts = range(2 * SIGNED_BYTES, len(data), SEALED_BYTES)
        sealed = {i: data[start : start + SEALED_BYTES] for i, start in zip(others, starts, strict=True)}
        return cls(read_signed(data[:SIGNED_BYTES]), read_signed(data[SIGNED_BYTES : 2 * SIGNED_BYTES]), sealed)


class MaskRequest(NamedTuple):
    """Server -> client: the members that shared their secrets, with their mask keys and what they sealed for it."""

    name: bytes
    masks: dict[int, SignedKey]
    sealed: dict[int, bytes]  # nothing from the client itself

    def pack(self) -> bytes:
        blank = bytes(SEALED_BYTES)
        parts = (pack_numbers([i]) + key.pack() + self.sealed.get(i, blank) for i, key in sorted(self.masks.items()))
        return self.name + b"".join(parts)

    @classmethod
    def read(cls, data: bytes) -> MaskRequest:
        each = NUMBER_BYTES + SIGNED_BYTES + SEALED_BYTES
        if (len(data) - SESSION_BYTES) % each or len(data) < SESSION_BYTES + each:
            raise ProtocolError(f"a request for masked vectors of {len(data)} bytes is not one")
        masks, sealed = dict[int, SignedKey](), dict[int, bytes]()
        for start in range(SESSION_BYTES, len(data), each):
            (i,), at = read_numbers(data[start : start + NUMBER_BYTES]), start + NUMBER_BYTES
            masks[i], sealed[i] = read_signed(data[at : at + SIGNED_BYTES]), data[at + SIGNED_BYTES : start + each]
        return cls(data[:SESSION_BYTES], masks, sealed)


class UnmaskRequest(NamedTuple):
    """Server -> client: those whose masked vectors arrived."""

    name: bytes
    arrived: tuple[int, ...]

    def pack(self) -> bytes:
        return self.name + pack_numbers(self.arrived)

    @classmethod
    def read(cls, data: bytes) -> UnmaskRequest:
        if len(data) < SESSION_BYTES or len(data) % NUMBER_BYTES:
            raise ProtocolError(f"a request to unmask of {len(data)} bytes is not one")
        return cls(data[:SESSION_BYTES], tuple(read_numbers(data[SESSION_BYTES:])))


def pack_revealed(shares: Mapping[int, bytes]) -> bytes:
    """A client's answer to a request to unmask: one share of each member that shared its secrets, by number."""
    return b"".join(share for _, share in sorted(shares.items()))


def read_revealed(data: bytes, members: Iterable[int]) -> dict[int, bytes]:
    """The opposite; a share that the client lacks is MISSING."""
    ordered = sorted(members)
    if len(data) != SHARE_BYTES * len(ordered):
        raise ProtocolError(f"{len(data)} bytes are not shares of {len(ordered)} members")
    return {i: data[at * SHARE_BYTES : (at + 1) * SHARE_BYTES] for at, i in enumerate(ordered)}


def read_signed(data: bytes) -> SignedKey:
    if len(data) != SIGNED_BYTES:
        raise ProtocolError(f"a signed key of {len(data)} bytes is not one")
    return SignedKey(data[:KEY_BYTES], data[KEY_BYTES:])


def pack_numbers(numbers: Iterable[int]) -> bytes:
    return b"".join(struct.pack(">I", number) for number in numbers)


def read_numbers(data: bytes) -> list[int]:
    return [number for (number,) in struct.iter_unpack(">I", data)]
