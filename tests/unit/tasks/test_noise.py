"""Feature noise: variance sigma i / N at the i-th client, drawn from the seed alone, the same wherever it runs."""

from __future__ import annotations

import dataclasses
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from fedveca.cohorts.local.rows import ClientRows
from fedveca.errors import UserError
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.runs.task_data import load_data
from fedveca.tasks.custom import from_arrays
from fedveca.tasks.datasets.dataset import Input
from fedveca.tasks.noise import add_noise
from fedveca.tasks.partition import Shares, partition

E = Experiment(clients=4, partition="dirichlet", rounds=2, batch=8, tau_0=3, feature_noise=0.4)
SHARES = partition("iid", torch.zeros(400, dtype=torch.int64), 1, 4)


def noise(x: Tensor, shares: Shares = SHARES, sigma: float = 0.4, seed: int = 0, pixels: str = "as-is") -> Tensor:
    found = add_noise(x, shares, 4, sigma, seed, pixels=pixels)
    assert isinstance(found, Tensor)
    return found


def test_the_variance_grows_with_the_clients_number() -> None:
    drawn = noise(torch.zeros(400, 300)).view(4, 100 * 300)
    for i in range(4):
        assert float(drawn[i].var()) == pytest.approx(0.4 * (i + 1) / 4, rel=0.03)
        assert float(drawn[i].mean()) == pytest.approx(0, abs=4 * math.sqrt(0.4 / 30_000))
    assert float(torch.corrcoef(drawn).fill_diagonal_(0).abs().max()) < 0.03


def test_noise_is_added_to_the_owners_row() -> None:
    x = torch.randn(400, 5, generator=torch.Generator().manual_seed(0))
    plain = noise(torch.zeros(400, 5))
    assert torch.equal(noise(x), x[SHARES.rows] + plain)


@pytest.mark.parametrize("pixels", ["unit", "standardised"])
def test_noise_on_pixels_is_on_the_scale_from_0_to_1(pixels: str) -> None:
    x = torch.full((400, 1, 4, 4), 100, dtype=torch.uint8)
    assert torch.allclose((noise(x, pixels=pixels) - 100) / 255, noise(torch.zeros(400, 1, 4, 4)), atol=1e-5)
    assert torch.equal(noise(x, pixels="as-is"), 100 + noise(torch.zeros(400, 1, 4, 4)))


def test_noise_is_the_seeds_alone() -> None:
    x = torch.zeros(400, 7)
    torch.manual_seed(1)
    np.random.seed(1)
    one = noise(x)
    torch.manual_seed(2)
    assert torch.equal(one, noise(x))
    assert not torch.equal(one, noise(x, seed=1))


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(0, 3))
def test_a_client_alone_has_the_noise_that_it_has_among_others(owner: list[int], client: int) -> None:
    """A node knows its own rows and its number: that must do."""
    sizes = torch.bincount(torch.tensor(owner), minlength=4)
    start = torch.cat([torch.zeros(1, dtype=torch.int64), sizes.cumsum(0)])
    x = torch.arange(float(len(owner)))[:, None].repeat(1, 3)
    together = noise(x, Shares(torch.argsort(torch.tensor(owner), stable=True), start))
    mine = (torch.tensor(owner) == client).nonzero()[:, 0]
    alone = Shares(torch.arange(len(mine)), torch.tensor([0] * (client + 1) + [len(mine)]))
    assert torch.equal(noise(x[mine], alone), together[start[client] : start[client + 1]])


def test_test_rows_and_targets_have_no_noise() -> None:
    plain, dealt = load_data(dataclasses.replace(E, feature_noise=0.0))
    noisy, shares = load_data(E)
    assert torch.equal(plain.x_test, noisy.x_test)
    assert torch.equal(plain.y[dealt.rows], noisy.y)
    assert torch.equal(dealt.sizes, shares.sizes)
    assert noisy.pixels == plain.pixels


def test_without_noise_nothing_changes() -> None:
    data = from_arrays(torch.randn(50, 3), torch.arange(50) % 2)
    found, _ = load_data(dataclasses.replace(E, feature_noise=0.0, data=data.name, partition="iid"), data)
    assert found.x is data.x


def test_a_row_of_two_clients_has_the_noise_of_each() -> None:
    data = from_arrays(torch.zeros(50, 3), torch.arange(50) % 2)
    e = dataclasses.replace(E, data=data.name)
    noisy, shares = load_data(e, data, [[0, 1, 2], [2, 3]])
    assert shares.sizes.tolist() == [3, 2]
    assert not torch.equal(noisy.x[2], noisy.x[3])  # row 2 of both
    assert len(noisy.y) == 5


def test_pooled_rows_have_the_noise_of_their_owners() -> None:
    one, all_of_them = load_data(dataclasses.replace(E, method="centralised")), load_data(E)
    assert one[1].sizes.tolist() == [len(all_of_them[0].y)]
    assert torch.equal(one[0].x, all_of_them[0].x)


@pytest.mark.parametrize("method", ["fedveca", "scaffold"])
def test_the_debug_engine_sees_the_same_rows(method: str) -> None:
    models = []
    for engine in ("local", "debug"):
        built = build(dataclasses.replace(E, engine=engine, method=method))
        models.append([state.w for state, _ in federate(built.algorithm, built.cohort, built.state, 2)][-1])
    assert float((models[0] - models[1]).abs().max()) < 1e-6


def test_a_node_has_the_simulators_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    from fedveca.deploy.node_process import make_node_cohort

    monkeypatch.delenv("FEDVECA_NODE_DATA", raising=False)
    data, shares = load_data(E)
    for client in (0, 3):
        make_node_cohort.cache_clear()
        node = make_node_cohort(E, client, 10, data.pixels)
        assert isinstance(node.rows, ClientRows)
        assert torch.equal(node.rows.x, data.x[shares.start[client] : shares.start[client + 1]])
    make_node_cohort.cache_clear()


def test_rejected() -> None:
    with pytest.raises(UserError, match=r"feature_noise=-1.* is out of range; allowed: >= 0"):
        Experiment(feature_noise=-1.0)
    for x, inputs in (
        (torch.zeros(400, 3, dtype=torch.int64), ()),
        (torch.zeros(400, 3), (Input("a", (3,), whole=True),)),
    ):
        with pytest.raises(UserError, match=r"feature_noise=0\.4 is for numbers and pixels; these rows hold tokens"):
            add_noise(x, SHARES, 4, 0.4, 0, pixels="as-is", inputs=inputs)
