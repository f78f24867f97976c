"""How long the protocol's messages are; they travel as text, in base64. Loads neither PyTorch nor cryptography."""

from __future__ import annotations

KEY_BYTES = 32  # of X25519, of ChaCha20, and of a seed
SIGNATURE_BYTES = 96
TAG_BYTES = 16
SHARE_BYTES = 66
SESSION_BYTES = 16
NUMBER_BYTES = 4
SIGNED_BYTES = KEY_BYTES + SIGNATURE_BYTES
SEALED_BYTES = 2 * SHARE_BYTES + TAG_BYTES
WORD_BYTES = 8  # of a masked number
_SETTING_BYTES = 8  # of the number of bits behind the point


def count_text(size: int) -> int:
    """Characters of so many bytes in base64."""
    return 4 * -(-size // 3)


def count_bytes(members: int, arrived: int) -> tuple[int, int]:
    """Bytes down and up of a session in which all members shared their secrets and so many sent masked vectors.

    The vectors themselves are not counted here.
    """
    share = SESSION_BYTES + NUMBER_BYTES * (1 + members) + SIGNED_BYTES * members
    mask = SESSION_BYTES + (NUMBER_BYTES + SIGNED_BYTES + SEALED_BYTES) * members
    unmask = SESSION_BYTES + NUMBER_BYTES * arrived
    shares = 2 * SIGNED_BYTES + SEALED_BYTES * (members - 1)
    down = members * (count_text(share) + count_text(mask) + _SETTING_BYTES) + arrived * count_text(unmask)
    return down, members * count_text(shares) + arrived * count_text(SHARE_BYTES * members)
