"""A client's half of the protocol. It trusts the keys of the other clients that it was given, and not the server."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from fedveca.cohorts.secure.identity import ProtocolError, open_sealed, seal_text, sign, verify
from fedveca.cohorts.secure.lengths import KEY_BYTES, SHARE_BYTES
from fedveca.cohorts.secure.masks import (
    Words,
    add_pair_masks,
    derive_key,
    expand,
    find_public,
    join_vectors,
    split_vector,
)
from fedveca.cohorts.secure.session import (
    MISSING,
    MaskRequest,
    Session,
    SharedSecrets,
    ShareRequest,
    SignedKey,
    UnmaskRequest,
    pack_numbers,
    pack_revealed,
)
from fedveca.cohorts.secure.shamir import split_secret

_MOST_SESSIONS = 4  # that are open at once: this round's, the next one's, and what a void round left behind


@dataclass
class _OpenSession:
    """What a client remembers of a session until it has unmasked it; never written to disk."""

    session: Session
    channels: dict[int, SignedKey]
    mask: bytes  # private key of the pairwise masks
    seed: bytes  # of the self mask
    shares: dict[int, tuple[bytes, bytes]]  # of each member's mask key and seed; at first only the client's own
    active: tuple[int, ...] = field(default=())  # the members that shared their secrets; empty until vectors are sent


class SecureClient:
    """One client: its keys, and the sessions that are not over yet."""

    def __init__(
        self, client: int, key: ec.EllipticCurvePrivateKey, peers: Mapping[int, ec.EllipticCurvePublicKey], least: int
    ) -> None:
        """Draws the channel key.

        Args:
            client: The client's number.
            key: The node's key, with which it signs.
            peers: The public keys of all clients, this one too, from a source that is not the server.
            least: The smallest threshold of a session that it takes part in.
        """
        self.client, self.key, self.peers, self.least = client, key, peers, least
        self._channel = secrets.token_bytes(KEY_BYTES)
        public = find_public(self._channel)
        self.channel = SignedKey(public, sign(key, _channel_text(client, public)))
        self._open: dict[bytes, _OpenSession] = {}

    def share(self, data: bytes) -> bytes:
        """Answers a `ShareRequest`; with the channel key alone where the server knows one of a former process."""
        session, channels = ShareRequest.read(data)
        self._check_session(session, channels)
        if channels[self.client] != self.channel:
            return self.channel.pack()
        for i, channel in channels.items():
            verify(self.peers[i], channel.signature, _channel_text(i, channel.key), f"the channel key of client {i}")
        mask, seed = secrets.token_bytes(KEY_BYTES), secrets.token_bytes(KEY_BYTES)
        public, size = find_public(mask), len(session.members)
        halves = (split_secret(secret, size, session.threshold) for secret in (mask, seed))
        pairs = dict(zip(session.members, zip(*halves, strict=True), strict=True))
        self._open[session.name] = _OpenSession(session, channels, mask, seed, {self.client: pairs.pop(self.client)})
        while len(self._open) > _MOST_SESSIONS:
            del self._open[next(iter(self._open))]
        sealed = {i: self._seal(session, channels[i].key, i, public, pair) for i, pair in pairs.items()}
        signed = SignedKey(public, sign(self.key, _mask_text(session, self.client, public)))
        return SharedSecrets(self.channel, signed, sealed).pack()

    def mask(self, data: bytes, vectors: Mapping[str, NDArray[np.int64]]) -> dict[str, Words]:
        """Masks the client's vectors, as a `MaskRequest` asks; a session masks one set of vectors and no other."""
        name, masks, sealed = MaskRequest.read(data)
        mine = self._find(name)
        session = mine.session
        if mine.active:
            raise ProtocolError("the session has masked other vectors already")
        if self.client not in masks or not masks.keys() <= set(session.members):
            raise ProtocolError("the server named clients that are not members of the session")
        if len(masks) < session.threshold:
            raise ProtocolError(f"{len(masks)} members shared their secrets; the threshold is {session.threshold}")
        for i, key in masks.items():
            verify(self.peers[i], key.signature, _mask_text(session, i, key.key), f"the mask key of client {i}")
        for i in masks.keys() - {self.client}:
            text = self._open_sealed(session, mine.channels[i].key, i, masks[i].key, sealed[i])
            if text is not None:
                mine.shares[i] = text[:SHARE_BYTES], text[SHARE_BYTES:]
        mine.active = tuple(sorted(masks))
        total = join_vectors(vectors)
        total += expand(mine.seed, len(total))
        others = {i: key.key for i, key in masks.items() if i != self.client}
        add_pair_masks(total, self.client, mine.mask, others, session.digest)
        return split_vector(total, {name: len(v) for name, v in vectors.items()})

    def unmask(self, data: bytes) -> bytes:
        """Answers an `UnmaskRequest` with a share of one secret of each active member, and forgets the session."""
        name, arrived = UnmaskRequest.read(data)
        mine = self._find(name)
        if len(set(arrived)) < len(arrived) or not set(arrived) <= set(mine.active):
            raise ProtocolError("the server named clients that sent no masked vectors")
        if len(arrived) < mine.session.threshold:
            raise ProtocolError(f"{len(arrived)} masked vectors arrived; the threshold is {mine.session.threshold}")
        del self._open[name]
        unknown = (MISSING, MISSING)
        return pack_revealed({i: mine.shares.get(i, unknown)[i in arrived] for i in mine.active})

    def _check_session(self, session: Session, channels: Mapping[int, SignedKey]) -> None:
        size, threshold = len(session.members), session.threshold
        if self.client not in channels or not channels.keys() <= self.peers.keys():
            raise ProtocolError("the server named members that this node has no key of")
        if not max(self.least, size // 2 + 1) <= threshold <= size:
            raise ProtocolError(
                f"a session with threshold {threshold} of {size} members is not safe; this node needs {self.least} or "
                "more, and more than half"
            )
        if session.name in self._open:
            raise ProtocolError("the session is open already")

    def _find(self, name: bytes) -> _OpenSession:
        if name not in self._open:
            raise ProtocolError("the session is not known here, or is over")
        return self._open[name]

    def _seal(self, session: Session, channel: bytes, to: int, mask: bytes, pair: tuple[bytes, bytes]) -> bytes:
        about = _share_text(session, self.client, to, mask)
        return seal_text(derive_key(self._channel, channel, about), b"".join(pair), about)

    def _open_sealed(self, session: Session, channel: bytes, of: int, mask: bytes, sealed: bytes) -> bytes | None:
        about = _share_text(session, of, self.client, mask)
        return open_sealed(derive_key(self._channel, channel, about), sealed, about)


def _channel_text(client: int, key: bytes) -> bytes:
    return b"channel" + pack_numbers([client]) + key


def _mask_text(session: Session, client: int, key: bytes) -> bytes:
    """Binds a mask key to the members and the threshold that its owner saw: all must have seen the same."""
    return b"mask" + session.digest + pack_numbers([client]) + key


def _share_text(session: Session, of: int, to: int, mask: bytes) -> bytes:
    """With the sender's mask key, which is fresh: so no key seals two texts, whatever the server names a session."""
    return b"share" + session.digest + pack_numbers([of, to]) + mask
