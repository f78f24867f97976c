"""Shamir's secret sharing (1979): any t of n shares give the secret, fewer say nothing about it.

A secret of 32 bytes is the value at 0 of a polynomial of degree t - 1, whose other coefficients are drawn from the
operating system's random numbers, over the integers modulo the prime 2^521 - 1. A share is the value at 1, 2, ... n.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping

from fedveca.cohorts.secure.lengths import KEY_BYTES, SHARE_BYTES

PRIME = 2**521 - 1
Draw = Callable[[int], int]  # (bound) -> a number from 0 to bound - 1, all equally likely


def split_secret(secret: bytes, shares: int, threshold: int, draw: Draw = secrets.randbelow) -> list[bytes]:
    """Splits a secret.

    Args:
        secret: 32 bytes.
        shares: How many shares to make, n.
        threshold: How many of them give the secret, t.
        draw: Where random numbers come from.

    Returns:
        The values at 1 to n, 66 bytes each.
    """
    if not 1 <= threshold <= shares or len(secret) != KEY_BYTES:
        raise ValueError(f"{len(secret)} bytes cannot be split into {threshold} of {shares} shares")
    polynomial = [int.from_bytes(secret), *(draw(PRIME) for _ in range(threshold - 1))]
    return [_evaluate(polynomial, x).to_bytes(SHARE_BYTES) for x in range(1, shares + 1)]


def _evaluate(polynomial: list[int], x: int) -> int:
    value = 0
    for coefficient in reversed(polynomial):
        value = (value * x + coefficient) % PRIME
    return value


def is_share(share: bytes) -> bool:
    """Whether it can be one: a number below the prime."""
    return len(share) == SHARE_BYTES and int.from_bytes(share) < PRIME


def join_shares(shares: Mapping[int, bytes]) -> bytes:
    """The secret of shares by their x, by Lagrange's formula at 0; ValueError where they are not of one secret."""
    secret = 0
    for x, share in shares.items():
        above = below = 1
        for other in shares:
            if other != x:
                above, below = above * other % PRIME, below * (other - x) % PRIME
        secret += int.from_bytes(share) * above * pow(below, -1, PRIME)
    secret %= PRIME
    if secret >= 2 ** (8 * KEY_BYTES):
        raise ValueError("the shares are not of one secret")
    return secret.to_bytes(KEY_BYTES)
