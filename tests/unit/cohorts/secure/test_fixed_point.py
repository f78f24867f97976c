"""Vectors as integers: the error is bounded as stated, and the sum does not depend on any order."""

from __future__ import annotations

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedveca.cohorts.secure.fixed_point import (
    LARGEST_NORM,
    UNIT_BITS,
    FixedPointSum,
    bound_error,
    choose_fraction,
    decode,
    quantise,
)


def test_two_clients_by_hand() -> None:
    """3 * 0.5 + 1 * (-0.25) = 1.25; with 4 bits behind the point it is 24 - 4 = 20 units of 1/16."""
    total = quantise(torch.tensor([3.0, 1.0]), torch.tensor([[0.5], [-0.25]]), 4)
    assert total.tolist() == [20]
    assert decode(total, 4, 4.0).tolist() == [1.25 / 4]


def test_a_number_between_two_units_is_rounded_to_the_even_one() -> None:
    v = torch.tensor([[0.5, 1.5, 2.5, -0.5, -1.5]])
    assert quantise(torch.ones(1), v, 0).tolist() == [0, 2, 2, 0, -2]


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 8), st.data())
def test_the_mean_is_within_the_stated_error(clients: int, data: st.DataObject) -> None:
    values = st.floats(-1000, 1000, width=32)
    v = torch.from_numpy(data.draw(arrays(np.float32, (clients, 5), elements=values)))
    rows = torch.tensor(data.draw(st.lists(st.integers(1, 10**6), min_size=clients, max_size=clients)))
    absent = data.draw(st.integers(0, 10**7))  # rows of clients that do not answer
    total, mass = int(rows.sum()) + absent, float(rows.sum())
    fraction = choose_fraction(total)
    mean = decode(quantise(rows.double(), v, fraction), fraction, mass)
    exact = (rows.double() @ v.double()) / mass
    rounding = 1e-12 * v.double().abs().max()  # of float64, in which the exact mean is computed here
    assert float((mean - exact).abs().max()) <= bound_error(clients, mass / total) + rounding


@given(st.integers(1, 2**50))
def test_all_weights_together_fill_the_units(total: int) -> None:
    units = total * 2.0 ** choose_fraction(total)
    assert 2.0 ** (UNIT_BITS - 1) < units <= 2.0**UNIT_BITS
    assert units * LARGEST_NORM < 2.0**63  # so a sum of the largest vectors can be read as a signed number


def test_the_sum_does_not_depend_on_how_clients_are_put_together() -> None:
    v, rows = torch.randn(12, 50, generator=torch.Generator().manual_seed(1)), torch.arange(1.0, 13)
    whole = FixedPointSum(30)
    whole.add(whole.reduce(rows, {"G": v}))
    parts = FixedPointSum(30)
    for some in torch.tensor([11, 3, 7, 0, 1, 2, 4, 5, 6, 8, 9, 10]).split(5):
        parts.add(parts.reduce(rows[some], {"G": v[some]}))
    assert torch.equal(whole.close(1.0)["G"], parts.close(1.0)["G"])


def test_large_vectors_are_converted_in_blocks_with_the_same_sum() -> None:
    v, rows = torch.randn(5, 2_000_000, generator=torch.Generator().manual_seed(1)), torch.arange(1.0, 6)
    total = quantise(rows, v, 20)
    by_hand = sum(torch.round(v[i, :100].double() * (i + 1) * 2**20).long() for i in range(5))
    assert torch.equal(total[:100], by_hand)  # type: ignore[arg-type]
