"""Differential privacy: clipping exact, noise of the right size, epsilon as the books say."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from recorded import require_number

from fedveca.cli import main
from fedveca.cohorts import random as draws
from fedveca.cohorts.client_memory import ClientMemory
from fedveca.cohorts.privacy import Account, Privacy, PrivateCohort
from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.run import run

SMALL: dict[str, Any] = {"model": "svm", "rounds": 4, "batch": 8, "clients": 10, "partition": "case1", "lr": 0.05}
IDS = torch.arange(4)


def account(**options: Any) -> Account:
    usual = {"releases": 1, "closing": 0, "clients": 100, "participation": 1.0, "seed": 0, "hidden": True}
    return Account(options.pop("noise", 2.0), 1e-5, **(usual | options))


def test_vectors_are_cut_jointly() -> None:
    rule = Privacy(clip=2.0, noise=1.0, bound=10.0, seed=0)
    G = torch.tensor([[3.0, 0.0], [0.1, 0.0], [torch.inf, 1.0], [0.0, 0.0]])
    grad = torch.tensor([[0.0, 4.0], [0.0, 0.2], [1.0, 1.0], [0.0, 0.0]])
    sent, _ = rule.send(0, IDS, {"G": G, "grad": grad}, {})
    assert torch.allclose(sent["G"], torch.tensor([[1.2, 0.0], [0.1, 0.0], [0.0, 0.0], [0.0, 0.0]]))
    assert torch.allclose(sent["grad"], torch.tensor([[0.0, 1.6], [0.0, 0.2], [0.0, 0.0], [0.0, 0.0]]))


def test_a_vector_of_another_unit_is_cut_and_noised_in_it() -> None:
    """SCAFFOLD's dc is of one step where G is of tau: in units of 1 / tau it neither drowns nor dominates."""
    rule = Privacy(clip=1.0, noise=1.0, bound=10.0, seed=0, unit={"dc": 0.1})
    sent, _ = rule.send(0, IDS[:1], {"G": torch.tensor([[3.0]]), "dc": torch.tensor([[0.4]])}, {})
    assert sent["G"].item() == pytest.approx(0.6)
    assert sent["dc"].item() == pytest.approx(0.08)
    out = rule.add_noise(0, {"G": torch.zeros(20_000), "dc": torch.zeros(20_000)}, 1)
    assert float(out["dc"].std() / out["G"].std()) == pytest.approx(0.1, rel=0.05)


def test_losses_go_into_the_sum_and_only_if_wanted() -> None:
    each = {"loss": torch.tensor([0.5, 50.0, -1.0, torch.nan])}
    sent, numbers = Privacy(1.0, 1.0, 10.0, 0, wanted=("loss",)).send(0, IDS, {}, each)
    assert sent["loss"].flatten().tolist() == [0.5, 10.0, 0.0, 10.0]
    assert numbers == {}
    assert Privacy(1.0, 1.0, 10.0, 0).send(0, IDS, {}, each) == ({}, {})


def test_noise_of_the_sum_has_the_right_size_and_is_normal() -> None:
    rule = Privacy(clip=3.0, noise=0.5, bound=10.0, seed=4)
    drawn = rule.add_noise(2, {"G": torch.zeros(50_000)}, 10)["G"].double()
    sd = 0.5 * 3.0 / 10
    assert float(drawn.std()) == pytest.approx(sd, rel=0.02)
    assert abs(float(drawn.mean())) < 4 * sd / math.sqrt(50_000)
    for within, share in ((1, 0.6827), (2, 0.9545), (3, 0.9973)):
        assert float((drawn.abs() < within * sd).double().mean()) == pytest.approx(share, abs=0.01)
    loss = torch.stack([rule.add_noise(k, {"loss": torch.zeros(1)}, 10)["loss"] for k in range(2000)])
    assert float(loss.std()) == pytest.approx(0.5 * 5 / 10, rel=0.06)  # in [0, 10] one client is 5 from the middle


def test_numbers_are_cut_and_noised_at_each_client() -> None:
    rule, many = Privacy(clip=1.0, noise=0.1, bound=10.0, seed=1), torch.arange(20_000)
    each = {"beta": torch.full((20_000,), 2.0), "spread": torch.full((20_000,), 1e9)}
    _, numbers = rule.send(0, many, {}, each)
    sd = 0.1 * math.log(10) * math.sqrt(2)  # two numbers share the budget
    for name, centre in (("beta", 2.0), ("spread", 10.0)):
        logs = numbers[name].log()
        assert float(logs.mean()) == pytest.approx(math.log(centre), abs=0.01)
        assert float(logs.std()) == pytest.approx(sd, rel=0.03)
    assert abs(float(torch.corrcoef(torch.stack([numbers["beta"].log(), numbers["spread"].log()]))[0, 1])) < 0.03
    odd = {"beta": torch.tensor([torch.nan, torch.inf, 0.0, -1.0])}
    assert bool(torch.isfinite(rule.send(0, IDS, {}, odd)[1]["beta"]).all())


def test_noise_is_a_pure_function_of_seed_and_round_unless_secret() -> None:
    def noise(seed: int, k: int) -> torch.Tensor:
        return Privacy(1.0, 1.0, 10.0, seed).add_noise(k, {"G": torch.zeros(100)}, 1)["G"]

    assert torch.equal(noise(3, 1), noise(3, 1))
    assert not torch.equal(noise(3, 1), noise(3, 2))
    assert not torch.equal(noise(3, 1), noise(4, 1))
    assert not torch.equal(noise(-1, 1), noise(-1, 1))
    secret = draws.draw_normal(0, -1, 0, torch.zeros(1, dtype=torch.int64), 20_000)
    assert float(secret.std()) == pytest.approx(1, rel=0.05)


def test_epsilon_of_the_gaussian_mechanism_in_closed_form() -> None:
    """Full participation: K Gaussians of sd z C against a move of 2 C are one of multiplier z / (2 sqrt K)."""
    import dp_accounting

    for rounds, z in ((1, 2.0), (10, 8.0), (100, 40.0)):
        spent = account(noise=z).spent(rounds)
        multiplier = z / 2 / math.sqrt(rounds)
        exact = dp_accounting.get_epsilon_gaussian(multiplier, 1e-5)
        rho = 1 / (2 * multiplier**2)  # zero-concentrated: Bun and Steinke, Proposition 1.3
        assert exact <= spent <= rho + 2 * math.sqrt(rho * math.log(1e5))
        assert spent < 1.15 * exact
        assert account(noise=z, hidden=False).spent(rounds) == pytest.approx(spent)


@pytest.mark.slow
def test_drawing_clients_is_counted_where_it_is_hidden() -> None:
    """Against the library, event by event; and less than without the drawing."""
    import dp_accounting
    from dp_accounting import rdp

    accountant = rdp.RdpAccountant(neighboring_relation=dp_accounting.NeighboringRelation.REPLACE_ONE)
    for _ in range(3):
        event = dp_accounting.ComposedDpEvent([dp_accounting.GaussianDpEvent(2.0)] * 2)
        accountant.compose(dp_accounting.SampledWithoutReplacementDpEvent(100, 10, event))
    mine = account(noise=4.0, participation=0.1, releases=2)
    assert mine.spent(3) == pytest.approx(accountant.get_epsilon(1e-5))
    assert mine.spent(3) < account(noise=4.0, releases=2, hidden=False).spent(3)


def test_the_most_asked_client_decides_where_the_drawing_shows() -> None:
    shown = account(participation=0.1, hidden=False, seed=5)
    times = torch.bincount(torch.cat([draws.sample_clients(5, k, 100, 10) for k in range(30)]), minlength=100)
    assert shown.spent(30) == pytest.approx(account().spent(int(times.max())))
    assert shown.spent(0) == 0.0


def test_every_setting_reaches_the_rule_and_the_account() -> None:
    settings = {"dp_noise": 3.0, "dp_clip": 0.7, "dp_bound": 6.0, "dp_delta": 1e-3, "dp_seed": 2, "seed": 5, "tau_0": 4}
    built = build(Experiment(**(SMALL | settings | {"method": "scaffold", "participation": 0.5, "keep": "rollback"})))
    assert isinstance(built.cohort, PrivateCohort)
    rule = Privacy(clip=0.7, noise=3.0, bound=6.0, seed=2 * 2**31 + 5, wanted=("after",), unit={"dc": 0.25})
    assert built.cohort.privacy == rule
    assert built.account
    same = Account(3.0, 1e-3, releases=2, closing=0, clients=10, participation=0.5, seed=5, hidden=True)
    assert [built.account.spent(n) for n in (1, 7)] == [same.spent(n) for n in (1, 7)]
    assert built.account.spent_in_all(7) == same.spent(7)
    secret = build(Experiment(**(SMALL | settings | {"dp_seed": -1}))).cohort
    assert isinstance(secret, PrivateCohort)
    assert secret.privacy.seed == -1


def test_what_shows_who_took_part_is_counted() -> None:
    """Numbers one by one, unequal steps and faults show who was sampled: then the sampling does not count."""

    def shown(seed: int, **settings: Any) -> bool:
        e = Experiment(**(SMALL | {"dp_noise": 3.0, "participation": 0.5, "keep": "best", "seed": seed} | settings))
        built = build(e)
        assert built.account
        if built.account.hidden:
            return False
        assert (built.account.seed, built.account.asked, built.account.closing) == (seed, 5, 1)
        return True

    assert not shown(3, method="fedavg")
    assert shown(3, method="fedveca")
    assert shown(4, method="fedavg", faults="drop:0.1")
    assert shown(3, method="fedavg", partition="quantity", tau_all=4000)


@pytest.mark.slow
def test_what_each_method_spends() -> None:
    """At the same noise: FedAvg's one release, the loss that keep=best asks for, and FedVeca's numbers."""

    def spent(**settings: Any) -> float:
        built = build(Experiment(**(SMALL | {"dp_noise": 4.0} | settings)))
        assert built.account
        return built.account.spent(10)

    def gaussians(n: int, rounds: int = 10) -> float:
        return account(noise=4.0, releases=n).spent(rounds)

    assert spent(method="fedavg", keep="last") == pytest.approx(gaussians(1))
    assert spent(method="scaffold", keep="last") == pytest.approx(gaussians(1))
    assert spent(method="fedavg") == pytest.approx(gaussians(2))
    assert spent(method="fedveca", keep="last") == pytest.approx(gaussians(2))
    assert spent(method="fedveca") == pytest.approx(gaussians(3))
    some = {"participation": 0.2, "keep": "last"}
    assert spent(method="fedavg", **some) < gaussians(1)
    for named in ({"method": "fedveca"}, {"method": "fednova", "tau_all": 999, "partition": "quantity"}):
        assert spent(**(some | named)) > spent(method="fedavg", **some)  # what is told by name shows who took part
    done = run(Experiment(**(SMALL | {"dp_noise": 4.0, "method": "fedavg"})), device="cpu")
    assert [line["epsilon"] for line in done.rounds] == pytest.approx([gaussians(2, k) for k in (1, 2, 3, 4)])
    assert require_number(done.rounds[-1], "epsilon") < done.summary["epsilon"] < gaussians(2, 5)  # the closing loss


@pytest.mark.parametrize("method", ["fedveca", "fedavg", "fednova", "scaffold"])
def test_replacing_one_client_moves_the_sum_by_twice_the_bound_at_most(method: str) -> None:
    """The sensitivity itself, seen through the cohort: other data at one client, even not finite ones."""
    e = Experiment(**(SMALL | {"dp_noise": 1e-9, "dp_clip": 0.1, "method": method, "partition": "quantity"}))
    built, other = build(e), build(e)
    local = other.cohort.cohort  # type: ignore[attr-defined]
    for change in (lambda x: -9 * x, lambda x: x * torch.nan):
        rows = slice(int(local.start[4]), int(local.start[5]))
        local.rows.x[rows] = change(local.rows.x[rows])
        order, ids = built.algorithm.order(built.state), torch.arange(10)
        (who, a), (same, b) = (c(1, order, ids, built.state.tau) for c in (built.cohort, other.cohort))
        assert who.tolist() == same.tolist() == list(range(10))
        moved = [10 * (a.mean[n] - b.mean[n]).norm() / (0.1 if n == "dc" else 1.0) for n in a.mean]  # tau_0 = 10
        total = float(torch.stack(moved).norm())
        assert 0 < total <= 2 * 0.1 * (1 + 1e-4)
        assert abs(10 * float(a.each["loss"][0] - b.each["loss"][0])) <= 10 * (1 + 1e-6)


def test_every_client_counts_the_same() -> None:
    built = build(Experiment(**(SMALL | {"dp_noise": 1.0, "partition": "quantity", "faults": "drop:0.3"})))
    assert built.cohort.sizes.tolist() == [1] * 10
    who, report = built.cohort(0, built.algorithm.order(built.state), torch.arange(10), built.state.tau)
    assert report.mass == pytest.approx(len(who) / 10)
    assert len(set(report.each["loss"].tolist())) == 1  # no loss by name


def test_memory_that_is_not_finite_is_not_kept() -> None:
    built = build(Experiment(**(SMALL | {"dp_noise": 1.0, "method": "scaffold"})))
    local = built.cohort.cohort  # type: ignore[attr-defined]
    local.rows.x[: int(local.start[1])] = torch.nan
    built.cohort(0, built.algorithm.order(built.state), torch.arange(10), built.state.tau)
    memory = built.cohort.memory
    assert isinstance(memory, ClientMemory)
    assert bool(torch.isfinite(memory.recall(torch.tensor(list(memory)))["c"]).all())


def test_shown_on_the_screen_and_kept_in_the_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["model=svm", "rounds=3", "batch=8", "dp_noise=2", "dp_clip=0.5", "--device", "cpu"]
    assert main(["run", *words, "--out", str(tmp_path / "x")]) == 0
    shown, kept = capsys.readouterr(), Run.open(tmp_path / "x")
    assert f"epsilon {kept.rounds[-1]['epsilon']:.3g}" in shown.err
    assert f"epsilon {kept.summary['epsilon']:.4g} at delta 1e-05" in shown.out


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (
            {"dp_noise": 1.0, "aggregate": "median"},
            "aggregate=median cannot go with dp_noise: the noise is measured for ",
        ),
        ({"dp_noise": -1.0}, "dp_noise=-1.0 is out of range; allowed: >= 0"),
        ({"dp_clip": 0.0}, "dp_clip=0.0 is out of range; allowed: > 0"),
        ({"dp_delta": 1.0}, r"dp_delta=1.0 is out of range; allowed: \(0, 1\)"),
        ({"dp_bound": 1.0}, "dp_bound=1.0 is out of range; allowed: > 1"),
        ({"dp_seed": -2}, "dp_seed=-2 is out of range; allowed: >= -1"),
    ],
)
def test_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match=f"^{said}"):
        Experiment(**settings)


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setitem(sys.modules, "dp_accounting", None)
    assert main(["run", "dp_noise=1", "--out", str(tmp_path / "x")]) == 2
    said = "fedveca: dp_noise needs the extra fedveca[privacy]: pip install 'fedveca[privacy]'\n"
    assert capsys.readouterr().err == said
    assert not (tmp_path / "x").exists()
