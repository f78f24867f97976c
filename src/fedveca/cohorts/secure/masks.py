"""Masks: numbers modulo 2^64 that look random to whoever lacks their key, and cancel between two clients.

A pair's key comes from X25519 and HKDF-SHA256, the numbers from ChaCha20, all of the package `cryptography`.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from numpy.typing import NDArray

from fedveca.cohorts.secure.lengths import KEY_BYTES

Words = NDArray[np.uint64]


def derive_key(private: bytes, public: bytes, purpose: bytes) -> bytes:
    """The key that two clients share for a purpose; ValueError where the public key is not one."""
    shared = X25519PrivateKey.from_private_bytes(private).exchange(X25519PublicKey.from_public_bytes(public))
    return HKDF(hashes.SHA256(), KEY_BYTES, salt=None, info=purpose).derive(shared)


def find_public(private: bytes) -> bytes:
    """The public half of an X25519 key."""
    return X25519PrivateKey.from_private_bytes(private).public_key().public_bytes_raw()


def expand(key: bytes, count: int) -> Words:
    """So many numbers of a key: ChaCha20's stream from its start. A key is used for one vector only."""
    stream = Cipher(algorithms.ChaCha20(key, bytes(16)), mode=None).encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, "<u8")


def add_pair_masks(total: Words, client: int, private: bytes, publics: Mapping[int, bytes], purpose: bytes) -> None:
    """Adds the masks of one client with others, in place: of each pair the lower number adds, the higher subtracts.

    Args:
        total: [P] changes.
        client: The client's number.
        private: Its X25519 key.
        publics: The others' public keys, by client.
        purpose: Of the keys; the same for all clients of a session.
    """
    for other, public in publics.items():
        low, high = sorted((client, other))
        key = derive_key(private, public, purpose + low.to_bytes(4) + high.to_bytes(4))
        if client < other:
            total += expand(key, len(total))
        else:
            total -= expand(key, len(total))


def join_vectors(vectors: Mapping[str, NDArray[np.int64]]) -> Words:
    """All vectors of a client as one, by the order of their names; a copy."""
    return np.concatenate([vectors[name] for name in sorted(vectors)]).astype("<i8").view("<u8")


def split_vector(flat: Words, lengths: Mapping[str, int]) -> dict[str, Words]:
    """The opposite."""
    names = sorted(lengths)
    ends = np.cumsum([lengths[name] for name in names])[:-1]
    return dict(zip(names, np.split(flat, ends), strict=True))
