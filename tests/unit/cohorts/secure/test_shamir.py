"""Shamir's shares: any t of them give the secret, fewer fit every secret."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedveca.cohorts.secure.lengths import KEY_BYTES, SHARE_BYTES
from fedveca.cohorts.secure.shamir import PRIME, is_share, join_shares, split_secret


def test_a_line_by_hand() -> None:
    """The secret 7 with the slope 3: the shares at 1, 2, 3 are 10, 13, 16."""
    shares = split_secret((7).to_bytes(KEY_BYTES), 3, 2, draw=lambda bound: 3)
    assert [int.from_bytes(share) for share in shares] == [10, 13, 16]
    assert int.from_bytes(join_shares({1: shares[0], 3: shares[2]})) == 7


def test_a_parabola_by_hand() -> None:
    """5 + 2 x + x^2 at 1, 2, 3 is 8, 13, 20."""
    coefficients = iter([2, 1])
    shares = split_secret((5).to_bytes(KEY_BYTES), 3, 3, draw=lambda bound: next(coefficients))
    assert [int.from_bytes(share) for share in shares] == [8, 13, 20]
    assert int.from_bytes(join_shares(dict(enumerate(shares, 1)))) == 5


@settings(max_examples=30, deadline=None)
@given(st.binary(min_size=KEY_BYTES, max_size=KEY_BYTES), st.integers(1, 7), st.data())
def test_any_t_shares_give_the_secret(secret: bytes, shares: int, data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, shares))
    made = dict(enumerate(split_secret(secret, shares, threshold), 1))
    assert all(is_share(share) for share in made.values())
    places = data.draw(st.permutations(sorted(made)))[:threshold]
    assert join_shares({x: made[x] for x in places}) == secret


def test_fewer_than_t_shares_fit_every_secret_equally() -> None:
    """For each secret there is one polynomial through the shares of t - 1 clients: they say nothing about it."""
    field = range(11)  # the argument in a small field, where all polynomials can be listed
    for share in field:
        fitting = [(a, b) for a, b in itertools.product(field, field) if (a + b) % 11 == share]  # at x = 1
        assert sorted(a for a, _ in fitting) == list(field)


def test_fewer_than_t_shares_do_not_give_the_secret() -> None:
    secret = bytes(range(KEY_BYTES))
    made = split_secret(secret, 5, 4)
    try:
        found = join_shares(dict(enumerate(made[:3], 1)))
    except ValueError:
        return
    assert found != secret


def test_two_splits_of_one_secret_share_nothing() -> None:
    secret = bytes(KEY_BYTES)
    assert not set(split_secret(secret, 5, 3)) & set(split_secret(secret, 5, 3))


@pytest.mark.parametrize(("secret", "shares", "threshold"), [(b"short", 3, 2), (bytes(32), 3, 4), (bytes(32), 3, 0)])
def test_what_cannot_be_split(secret: bytes, shares: int, threshold: int) -> None:
    with pytest.raises(ValueError, match="cannot be split"):
        split_secret(secret, shares, threshold)


def test_the_modulus_is_prime() -> None:
    """Lucas and Lehmer: 2^p - 1 is prime where s_(p-2) = 0, with s_0 = 4 and s_(n+1) = s_n^2 - 2."""
    s = 4
    for _ in range(521 - 2):
        s = (s * s - 2) % PRIME
    assert s == 0
    assert not is_share(b"\xff" * SHARE_BYTES)
