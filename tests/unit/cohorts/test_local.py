"""The local cohort: chunks, threads, draws, and clients that are not well."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedveca.algorithms import Algorithm, Corrected, FedAvg, FedNova, FedProx, FedVeca, Scaffold
from fedveca.cohorts import random as draws
from fedveca.cohorts.local import chunks
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load, prepare
from fedveca.tasks.live_bytes import LiveBytes
from fedveca.tasks.models import model
from fedveca.tasks.module_problem import FEW
from fedveca.tasks.partition import partition

METHODS = [FedAvg(0.05), FedProx(0.05), FedNova(0.05), Scaffold(0.05), FedVeca(0.05), Corrected(0.05)]
SLOW_MLP = pytest.param("mlp", marks=pytest.mark.slow)
UNEQUAL = torch.tensor([7, 2, 3, 1, 9, 2, 4, 2])


def trained(algorithm: Algorithm, name: str, **options: Any) -> tuple[Tensor, list[list[int]]]:
    """w after 3 rounds over 8 clients of unequal tau, and the tau of each round."""
    data = load("digits")
    problem = model(name, (1, 8, 8), 10)
    shares = partition("dirichlet", data.y, 10, 8, seed=1)
    cohort = LocalCohort(algorithm, problem, data.x, data.y, shares, batch=8, seed=5, **options)
    seen = list(federate(algorithm, cohort, algorithm.init(problem.init(), UNEQUAL), 3))
    return seen[-1][0].w, [trace["tau"] for _, trace in seen]


@pytest.mark.parametrize("name", ["svm", SLOW_MLP])
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
def test_chunks_and_threads_do_not_change_the_result(algorithm: Algorithm, name: str) -> None:
    """One client at a time is the plain path; every faster one agrees with it."""
    plain, tau = trained(algorithm, name, lanes=1, threads=1)
    for options in ({}, {"lanes": 3}, {"lanes": 8}, {"lanes": 1, "threads": 2}, {"lanes": 3, "threads": 3}):
        w, same = trained(algorithm, name, **options)
        assert same == tau
        assert float((w - plain).abs().max()) < 1e-5


@pytest.mark.parametrize("name", ["svm", SLOW_MLP])
@pytest.mark.parametrize("drawn", [1, 8 * 8 * 2, 8 * 8 * 5])  # rows of 8 clients: blocks of 1, 2 and 5 steps
def test_rows_drawn_in_blocks_are_the_same_rows(name: str, drawn: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for algorithm in (FedVeca(0.05), Scaffold(0.05)):
        whole, tau = trained(algorithm, name, lanes=8)
        with monkeypatch.context() as patch:
            patch.setattr(chunks, "_ROWS_PER_DRAW", drawn)
            w, same = trained(algorithm, name, lanes=8)
        assert same == tau
        assert torch.equal(w, whole)


@pytest.mark.slow
def test_chunks_and_threads_of_convolutions() -> None:
    for algorithm in (FedVeca(0.002), Scaffold(0.002)):
        plain, tau = trained(algorithm, "cnn", lanes=1, threads=1)
        w, same = trained(algorithm, "cnn", threads=2)
        assert same == tau
        assert float((w - plain).abs().max()) < 1e-5


@pytest.mark.parametrize("pixels", ["unit", "standardised", "channels:0.3:0.4"])
@pytest.mark.parametrize("name", ["svm", "mlp", pytest.param("cnn", marks=pytest.mark.slow)])
def test_bytes_made_ready_as_they_are_picked_train_the_same_model(name: str, pixels: str) -> None:
    data = load("digits")
    x = (data.x * 255).to(torch.uint8)
    problem, algorithm = model(name, (1, 8, 8), 10), FedVeca(0.002)
    shares = partition("dirichlet", data.y, 10, 8, seed=1)
    ended = []
    for rows, how in ((prepare(x, pixels), "as-is"), (x, pixels)):
        cohort = LocalCohort(algorithm, problem, rows, data.y, shares, batch=8, seed=5, probe=7, pixels=how)
        seen = list(federate(algorithm, cohort, algorithm.init(problem.init(), UNEQUAL), 3))
        ended.append((seen[-1][0].w, [trace["tau"] for _, trace in seen]))
    (plain, tau), (w, same) = ended
    assert same == tau
    assert float((w - plain).abs().max()) < 1e-5
    assert float((plain - problem.init()).abs().max()) > 5e-4


@pytest.mark.parametrize("name", ["svm", "mlp"])
@pytest.mark.parametrize("probe", [0, 7, 100])
def test_probe_is_the_mean_over_evenly_spaced_rows(name: str, probe: int) -> None:
    data = load("digits")
    problem = model(name, (1, 8, 8), 10, seed=2)
    shares = partition("quantity", data.y, 10, 6, seed=4)
    w = problem.init() + 0.1
    for lanes in (1, 6):
        cohort = LocalCohort(FedVeca(0.1), problem, data.x, data.y, shares, batch=4, probe=probe, lanes=lanes)
        _, report = cohort(0, FedVeca(0.1).order(FedVeca(0.1).init(w, UNEQUAL)), torch.arange(6), torch.full((6,), 2))
        want_g = torch.zeros_like(w)
        for i, size in enumerate(shares.sizes.tolist()):
            mine = shares.rows[shares.start[i] : shares.start[i + 1]]
            count = min(probe, size) if probe else size
            rows = mine[torch.arange(count) * size // count]
            loss, g = problem.gradients(w[None], data.x[rows][None], data.y[rows][None])
            assert float(report.each["loss"][i]) == pytest.approx(float(loss), rel=1e-5)
            want_g += size / len(data.y) * g[0]
        assert torch.allclose(report.mean["grad"], want_g, atol=1e-5)


@pytest.mark.parametrize("lanes", [1, 5])
@pytest.mark.parametrize("name", ["svm", "mlp"])
def test_a_client_that_is_not_finite_is_left_out(name: str, lanes: int) -> None:
    """The mean is over the others, its memory stays as it was, and it may come back."""
    data = load("digits")
    problem = model(name, (1, 8, 8), 10)
    shares = partition("case1", data.y, 10, 5)
    bad = data.x.clone()
    bad[shares.rows[shares.start[3] : shares.start[4]]] = torch.nan
    algorithm = Scaffold(0.05)
    tau = torch.tensor([2, 3, 4, 5, 2])
    broken = LocalCohort(algorithm, problem, bad, data.y, shares, batch=8, lanes=lanes)
    whole = LocalCohort(algorithm, problem, data.x, data.y, shares, batch=8, lanes=lanes)
    order = algorithm.order(algorithm.init(problem.init(), tau))
    who, report = broken(0, order, torch.arange(5), tau)
    others = torch.tensor([0, 1, 2, 4])
    want_who, want = whole(0, order, others, tau[others])
    assert who.tolist() == want_who.tolist() == [0, 1, 2, 4]
    assert report.mass == pytest.approx(want.mass)
    assert list(broken.memory) == [0, 1, 2, 4]
    for name_ in want.mean:
        assert torch.allclose(report.mean[name_], want.mean[name_], atol=1e-6)


def test_draws_are_a_pure_function_of_seed_round_and_client() -> None:
    ids, sizes = torch.tensor([4, 9, 2]), torch.tensor([50, 7, 1000])
    rows = draws.draw_rows(1, 2, ids, sizes, 6, 10)
    assert rows.shape == (3, 6, 10)
    assert torch.equal(rows[1], draws.draw_rows(1, 2, ids[1:2], sizes[1:2], 6, 10)[0])
    assert torch.equal(rows[:, :4], draws.draw_rows(1, 2, ids, sizes, 4, 10))  # more steps only add to it
    for other in (draws.draw_rows(2, 2, ids, sizes, 6, 10), draws.draw_rows(1, 3, ids, sizes, 6, 10)):
        assert not torch.equal(rows, other)
    assert all(bool((r >= 0).all() and (r < s).all()) for r, s in zip(rows, sizes, strict=True))


def test_draws_are_even_and_unrelated() -> None:
    rows = draws.draw_rows(0, 0, torch.arange(40), torch.full((40,), 10), 50, 50)
    counts = torch.bincount(rows.flatten(), minlength=10).double()
    expected = rows.numel() / 10
    assert float(((counts - expected) ** 2 / expected).sum()) < 30  # chi-squared, 9 degrees: 1 in 2,000
    a, b = rows[0].double().flatten(), rows[1].double().flatten()
    assert abs(float(torch.corrcoef(torch.stack([a, b]))[0, 1])) < 0.08
    later = draws.draw_rows(0, 1, torch.tensor([0]), torch.tensor([10]), 50, 50).double().flatten()
    assert abs(float(torch.corrcoef(torch.stack([a, later]))[0, 1])) < 0.08


def test_sample_draws_each_client_as_often() -> None:
    seen = torch.cat([draws.sample_clients(3, k, 50, 10) for k in range(400)])
    assert all(len(set(draws.sample_clients(3, k, 50, 10).tolist())) == 10 for k in range(20))
    counts = torch.bincount(seen, minlength=50).double()
    assert counts.min() > 50
    assert counts.max() < 115
    assert draws.sample_clients(3, 7, 5, 5).tolist() == [0, 1, 2, 3, 4]


def test_one_number_is_mixed_as_a_tensor_is() -> None:
    for x in (0, 1, -1, 2**40 + 7, -(2**63), 2**63 - 1):
        assert draws._to_signed(draws._mix_integer(x)) == int(draws._mix(torch.tensor(x)))


def test_what_a_transformer_holds_bounds_the_clients_and_the_rows_of_a_pass() -> None:
    """Its activations, not only its parameters: eight of these clients side by side would hold 400 MB per thread."""
    x, labels = torch.zeros(64, 128, dtype=torch.int64), torch.zeros(64, dtype=torch.int64)
    shares = partition("iid", labels, 10, 2)
    wide = model("gpt", (128,), 96, hidden=64, layers=2, sample=(x, x))
    assert wide.mapped
    cohort = LocalCohort(FedAvg(0.1), wide, x, x, shares, batch=32)
    assert (cohort.lanes, cohort.most_rows) == (1, 2**26 // wide.row_bytes)
    narrow = LocalCohort(FedAvg(0.1), model("mlp", (64,), 10), torch.zeros(64, 64), labels, shares, batch=32)
    assert narrow.lanes == 4 * 2**20 // (4 * 4810)


def make_gpt_cohort(probe: int, clients: int, layers: int = 2) -> LocalCohort:
    """FedVeca's clients with 30 rows of 32 tokens each; two layers are those of benchmarks/scale/probe_memory.py."""
    rows = 30 * clients
    x = torch.arange(rows * 32).view(rows, 32) % 145
    problem = model("gpt", (32,), 145, hidden=64, layers=layers, sample=(x[:8], x[:8]))
    shares = partition("iid", torch.zeros(rows, dtype=torch.int64), 10, clients)
    return LocalCohort(FedVeca(0.05), problem, x, x, shares, batch=16, probe=probe, threads=1)


@pytest.mark.slow
@pytest.mark.parametrize(("layers", "probe", "clients"), [(1, 0, 28), (1, 8, 14), (2, 0, 28)])
def test_a_round_of_a_transformer_holds_no_more_than_it_may(layers: int, probe: int, clients: int) -> None:
    """Measured operation by operation, of probes one by one and side by side, and of the steps of a chunk.

    What is allowed on top are the vectors of the chunk's clients, which do not grow with rows.
    """
    cohort = make_gpt_cohort(probe, clients, layers)
    assert cohort.problem.mapped
    w, tau = cohort.problem.init(), torch.ones(clients, dtype=torch.int64)
    order = cohort.algorithm.order(cohort.algorithm.init(w, tau))
    with LiveBytes() as live:
        cohort(0, order, torch.arange(clients), tau)
    vectors = 8 * 4 * cohort.lanes * cohort.problem.size
    assert live.peak < 2**26 + vectors
    if layers == 1:
        assert cohort.lanes > FEW  # as one batch
        assert live.peak > 2**25


def test_a_row_of_clients_side_by_side_is_measured_as_such() -> None:
    """Attention that vmap takes apart holds more than that of one client: at least what twice the rows really add."""
    cohort = make_gpt_cohort(0, 8)
    problem, n = cohort.problem, 7
    w, peaks = problem.init().repeat(n, 1), []
    for rows in (4, 8):
        x, y = cohort.rows.pick(torch.arange(n * rows).view(n, rows))
        with LiveBytes() as live:
            problem.gradients(w, x, y)
        peaks.append(live.peak)
    assert problem.row_bytes == pytest.approx((peaks[1] - peaks[0]) / (4 * n), rel=0.1)


def test_live_bytes_by_hand() -> None:
    with LiveBytes() as live:
        a = torch.zeros(256)  # 1 kB
        assert (live.now, live.peak) == (1024, 1024)
        b = a.view(16, 16) + 1  # a view takes nothing, the sum another 1 kB
        assert (live.now, live.peak) == (2048, 2048)
        b += 1  # in place
        assert live.now == 2048
        del b
        assert (live.now, live.peak) == (1024, 2048)
        c = a.double()
        assert (live.now, live.peak) == (3072, 3072)
        del a, c
    assert (live.now, live.peak) == (0, 3072)
