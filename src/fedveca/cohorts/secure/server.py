"""The server's half of the protocol: it forwards what clients seal for each other and learns the sum of their vectors.

The server cannot check a signature that matters: clients check each other's, with keys that do not come from it.
"""

from __future__ import annotations

from collections.abc import Mapping

from fedveca.cohorts.secure.identity import ProtocolError
from fedveca.cohorts.secure.lengths import KEY_BYTES
from fedveca.cohorts.secure.masks import Words, add_pair_masks, derive_key, expand, find_public
from fedveca.cohorts.secure.session import MaskRequest, Session, SharedSecrets, ShareRequest, SignedKey, UnmaskRequest
from fedveca.cohorts.secure.shamir import is_share, join_shares


class ServerSession:
    """One use of the protocol, from the members' channel keys to the sum."""

    def __init__(self, session: Session, channels: Mapping[int, SignedKey]) -> None:
        self.session, self.shares = session, dict[int, SharedSecrets]()
        self.request = ShareRequest(session, dict(channels)).pack()

    @property
    def active(self) -> list[int]:
        """The members that shared their secrets."""
        return sorted(self.shares)

    def add_shares(self, client: int, data: bytes) -> None:
        """A member's answer to `request`; ProtocolError where it is not one."""
        shares = SharedSecrets.read(data, self.session, client)
        try:
            derive_key(bytes(KEY_BYTES), shares.mask.key, b"")
        except ValueError as error:
            raise ProtocolError("the mask key is not one of X25519") from error
        self.shares[client] = shares

    def make_mask_request(self, client: int) -> bytes:
        """What one client needs to mask its vectors."""
        masks = {i: shares.mask for i, shares in self.shares.items()}
        sealed = {i: shares.sealed[client] for i, shares in self.shares.items() if i != client}
        return MaskRequest(self.session.name, masks, sealed).pack()

    def make_unmask_request(self, arrived: list[int]) -> bytes:
        return UnmaskRequest(self.session.name, tuple(sorted(arrived))).pack()

    def unmask(self, total: Words, arrived: list[int], revealed: Mapping[int, Mapping[int, bytes]]) -> None:
        """Takes all masks off the sum of the masked vectors, in place.

        Args:
            total: [P] the sum over those that arrived.
            arrived: The clients whose masked vectors are in it.
            revealed: By client, its share of one secret of each active member.

        Raises:
            ProtocolError: If too few shares are there, or they do not fit together.
        """
        secrets = {i: self._join(i, revealed) for i in self.active}  # all first, so that nothing is half done
        publics = {i: self.shares[i].mask.key for i in arrived}
        for i, secret in secrets.items():
            if i in publics:
                total -= expand(secret, len(total))
            elif find_public(secret) != self.shares[i].mask.key:
                raise ProtocolError(f"the shares of client {i}'s mask key do not give it")
        for i in secrets.keys() - publics.keys():
            add_pair_masks(total, i, secrets[i], publics, self.session.digest)  # what the others have, negated

    def _join(self, i: int, revealed: Mapping[int, Mapping[int, bytes]]) -> bytes:
        found = {self.session.place(j): shares[i] for j, shares in revealed.items() if is_share(shares[i])}
        need = self.session.threshold
        if len(found) < need:
            raise ProtocolError(f"{len(found)} shares of a secret of client {i} are there; the threshold is {need}")
        try:
            return join_shares(dict(sorted(found.items())[:need]))
        except ValueError as error:
            raise ProtocolError(f"client {i}: {error}") from error
