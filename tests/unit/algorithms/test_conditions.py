"""The conditions of the paper's theorems, from numbers that are easy to divide."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedveca.algorithms.conditions import measure_conditions

A = torch.tensor([9.0, 2.0], dtype=torch.float64)
L = torch.tensor(2.0, dtype=torch.float64)
TAU = torch.tensor([2.0, 6.0], dtype=torch.float64)
P = torch.tensor([0.25, 0.75], dtype=torch.float64)
D, GRAD = torch.tensor([3.0, 4.0]), torch.tensor([0.0, 2.0])


def measure(A: Tensor = A, L: Tensor = L, tau: Tensor = TAU) -> dict[str, float]:
    found = measure_conditions(A, L, tau, P, D, GRAD, alpha=0.9, lr=0.5)
    assert all(v.dtype == torch.float64 and v.shape == () for v in found.values())
    return {name: float(v) for name, v in found.items()}


def test_each_condition_by_hand() -> None:
    found = measure()
    assert found["condition_alpha"] == pytest.approx(0.9 * 2 / (2 * 2))  # below 1: alpha < 2 L / min A
    bracket = 0.25 * (2 * (4 + 9) - 9) + 0.75 * (6 * (4 + 2) - 2)
    assert found["condition_step"] == pytest.approx(0.5 / 4 * bracket - 1)
    assert found["condition_drift"] == pytest.approx(5 / 2)


def test_an_A_that_is_not_known_decides_nothing() -> None:
    """After one step, tau (2 L + A) - A is 2 L whatever A is."""
    one = torch.tensor([2.0, 1.0], dtype=torch.float64)
    found = measure(torch.tensor([9.0, math.nan], dtype=torch.float64), tau=one)
    assert found["condition_alpha"] == pytest.approx(0.9 * 9 / 4)
    assert found["condition_step"] == pytest.approx(0.5 / 4 * (0.25 * (2 * (4 + 9) - 9) + 0.75 * 4) - 1)
    nothing = measure(torch.full((2,), math.nan, dtype=torch.float64), tau=torch.ones(2))
    assert math.isnan(nothing["condition_alpha"])
    assert nothing["condition_step"] == pytest.approx(0.5 / 4 * 4 - 1)


def test_without_L_only_the_direction_is_known() -> None:
    found = measure(L=torch.tensor(0.0, dtype=torch.float64))
    assert math.isnan(found["condition_alpha"])
    assert math.isnan(found["condition_step"])
    assert found["condition_drift"] == pytest.approx(2.5)
