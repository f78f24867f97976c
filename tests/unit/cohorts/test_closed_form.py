"""What is computed in fewer operations has the bytes of the plain formula."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from fedveca.cohorts import random
from fedveca.cohorts.local.chunks import find_finite, find_norms
from fedveca.runs.folder import to_json
from fedveca.tasks.svm import SquaredSvm


def find_slope(w: Tensor, x: Tensor, s: Tensor, unit: float) -> Tensor:
    """The gradient of the squared SVM with new memory for each intermediate result."""
    slack = torch.rsub(torch.bmm(w[:, None], x.transpose(1, 2))[:, 0].mul_(s), 1, alpha=unit).clamp_(min=0)
    return torch.baddbmm(w[:, None], (slack * s)[:, None], x, beta=0.1, alpha=-unit / x.shape[1])[:, 0]


@pytest.mark.parametrize(("n", "batch", "size"), [(1, 1, 3), (5, 100, 784), (66, 20, 784), (7, 13, 30)])
def test_the_slope_on_memory_that_is_filled_anew(n: int, batch: int, size: int) -> None:
    torch.manual_seed(n)
    x, problem = torch.empty(n, batch, size), SquaredSvm(size)
    slope, w, past = problem.slope_on(x, 1 / 255), torch.randn(size).expand(n, -1), list[tuple[Tensor, Tensor]]()
    for _ in range(3):
        x.copy_(torch.randint(0, 256, x.shape))
        s = torch.randint(0, 2, (n, batch)) * 2.0 - 1
        found, wanted = slope(w, s), find_slope(w, x, s, 1 / 255)
        assert torch.equal(found, wanted)
        assert torch.equal(problem.slope(w, x, s, 1 / 255), wanted)
        past.append((found, wanted))
        w = w - 0.1 * found
    assert all(torch.equal(*pair) for pair in past)  # a method may hold on to a gradient


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("seed", [0, 5, 2**40])
def test_rows_drawn_in_numpy_are_those_of_every_device(seed: int, first: int) -> None:
    ids, sizes = torch.tensor([0, 3, 999_999]), torch.tensor([1, 600, 2**31])
    count = torch.arange(first * 6 + 1, (first + 4) * 6 + 1)
    bits = random._mix(random._stream(seed, 7, ids)[:, None] + count * random._STEP)
    wanted = ((random._shift(bits, 32) * sizes[:, None]) >> 32).view(3, 4, 6)
    assert torch.equal(random.draw_rows(seed, 7, ids, sizes, 4, 6, first), wanted)


@pytest.mark.parametrize("bad", [None, math.nan, math.inf, -math.inf, 3e38])
@pytest.mark.parametrize("largest", [math.inf, 10.0])
def test_which_clients_are_finite(bad: float | None, largest: float) -> None:
    numbers = torch.ones(3, 4)
    numbers[1, 2] = 1.0 if bad is None else bad
    numbers[2, 1] = 3e38  # with another such number the sum is infinite, though both are finite
    finite, all_count = find_finite(numbers, numbers[:2], largest)
    wanted = torch.isfinite(numbers).all(0) & (numbers[:2] <= largest).all(0)
    assert torch.equal(finite, wanted)
    assert all_count == bool(wanted.all())


def test_norms_are_those_of_the_tensor() -> None:
    v = torch.randn(5, 784)
    assert torch.equal(find_norms(v), v.norm(dim=-1))


@pytest.mark.parametrize(
    "value", [[1, 2], [1.5, 2.0], [1.5, math.nan], [math.inf], [True], [], [[1.0, math.nan], [2.0, 3.0]]]
)
def test_lists_of_a_record(value: list[object]) -> None:
    """A tensor becomes what its list becomes, number by number."""
    assert to_json(torch.tensor(value)) == to_json(torch.tensor(value).tolist())
    assert "nan" not in str(to_json(torch.tensor(value)))
