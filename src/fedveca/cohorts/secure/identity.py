"""Who a client is to the others: signatures by the nodes' keys, and texts that one client seals for another."""

from __future__ import annotations

from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature, encode_dss_signature
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

from fedveca.cohorts.secure.lengths import SIGNATURE_BYTES
from fedveca.errors import UserError

_DOMAIN = b"fedveca secure aggregation 1\0"  # so that no signature made elsewhere with the same key counts here
_HALF = SIGNATURE_BYTES // 2


class ProtocolError(UserError):
    """A message that the protocol does not allow: whoever gets it does not answer it."""


def sign(key: ec.EllipticCurvePrivateKey, text: bytes) -> bytes:
    """ECDSA with SHA-384, as r and s of 48 bytes each; for keys up to P-384."""
    r, s = decode_dss_signature(key.sign(_DOMAIN + text, ec.ECDSA(hashes.SHA384())))
    return r.to_bytes(_HALF) + s.to_bytes(_HALF)


def verify(key: ec.EllipticCurvePublicKey, signature: bytes, text: bytes, what: str) -> None:
    """Raises ProtocolError unless the key signed the text."""
    r, s = int.from_bytes(signature[:_HALF]), int.from_bytes(signature[_HALF:])
    try:
        key.verify(encode_dss_signature(r, s), _DOMAIN + text, ec.ECDSA(hashes.SHA384()))
    except InvalidSignature as error:
        raise ProtocolError(f"{what} is not signed by the key that this node knows") from error


def seal_text(key: bytes, text: bytes, about: bytes) -> bytes:
    """Encrypts and authenticates a text under a key that is used once; `about` must be the same when it is opened."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), text, about)


def open_sealed(key: bytes, sealed: bytes, about: bytes) -> bytes | None:
    """The text, or None where it was sealed with another key or changed on its way."""
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except InvalidTag:
        return None
