"""Equal time: steps worked by hand, its algorithm transcribed, and clients that finish together."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
import torch

import fedveca
from fedveca import Experiment
from fedveca.algorithms import EqualTime, FedNova
from fedveca.algorithms.contract import Report, Timing
from fedveca.algorithms.contrib.equaltime import equalise_times

SMALL = {"model": "svm", "clients": 3, "batch": 10, "tau_0": 8, "rounds": 4, "keep": "last"}
# 0.1, 0.2 and 0.4 s per local step with 10 rows
DEVICES = "name,backward_ms\na,10\nb,20\nc,40\n"


@pytest.fixture
def devices(tmp_path: Path) -> str:
    file = tmp_path / "three.csv"
    file.write_text(DEVICES, "utf-8")
    return str(file)


def test_steps_by_hand() -> None:
    """Costs 0.1, 0.2 and 0.4 from 8 steps each: T = 1.6 s, hence 16, 8 and 4 steps; 12 at the most."""
    base, cost = torch.tensor([8, 8, 8]), torch.tensor([0.1, 0.2, 0.4], dtype=torch.float64)
    assert equalise_times(base, cost, 50).tolist() == [16, 8, 4]
    assert equalise_times(base, cost, 12).tolist() == [12, 8, 4]
    assert equalise_times(base, torch.full((3,), torch.nan), 50).tolist() == [8, 8, 8]
    assert equalise_times(base, torch.zeros(3), 50).tolist() == [8, 8, 8]
    slow = torch.tensor([0.1, 0.1, 9.0], dtype=torch.float64)
    assert equalise_times(base, slow, 50).tolist() == [8, 8, 1]


def test_update_is_fednovas_and_uses_the_seconds_of_those_who_answered() -> None:
    method, nova = EqualTime(0.5), FedNova(0.5)
    tau, ids, p = torch.tensor([4, 4, 4]), torch.tensor([0, 2]), torch.tensor([0.25, 0.75], dtype=torch.float64)
    each = {"tau": torch.tensor([4.0, 2.0], dtype=torch.float64)}
    report = Report({"G": torch.tensor([1.0, -2.0])}, each, 1.0)
    report = report._replace(timing=Timing(1.2, torch.tensor([0.4, 1.2], dtype=torch.float64), None))
    w = torch.zeros(2)
    after, _ = method.update(method.init(w, tau), ids, p, report)
    assert after.w.equal(nova.update(nova.init(w, tau), ids, p, report)[0].w)
    assert after.cost[ids].tolist() == pytest.approx([0.1, 0.6])
    assert torch.isnan(after.cost[1])
    assert after.tau.tolist() == [4, 4, 1]  # of two, the lower middle: 4 * 0.1; 0.4 s are less than one step of 0.6 s


def test_clients_finish_together(devices: str) -> None:
    r = fedveca.run(Experiment(**(SMALL | {"devices": devices, "method": "equaltime"})))  # type: ignore[arg-type]
    assert [record["tau"] for record in r.rounds] == [[8, 8, 8], *3 * [[16, 8, 4]]]
    assert r.rounds[0]["client_seconds"] == pytest.approx([0.8, 1.6, 3.2])
    for record in r.rounds[1:]:
        assert record["client_seconds"] == pytest.approx([1.6] * 3)
    assert r.summary["clock"] == pytest.approx(3.2 + 3 * 1.6)


def test_it_resumes(devices: str, tmp_path: Path) -> None:
    e = Experiment(**(SMALL | {"devices": "phones", "clients": 6, "method": "equaltime"}))  # type: ignore[arg-type]
    whole = fedveca.run(e)
    fedveca.run(e.replace(rounds=2), tmp_path / "run")
    resumed = fedveca.resume(tmp_path / "run", rounds=4)
    for name in ("tau", "clock", "test_loss"):
        assert whole.column(name) == resumed.column(name)


def test_without_seconds_it_is_fednova_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        r = fedveca.run(Experiment(**(SMALL | {"method": "equaltime"})))  # type: ignore[arg-type]
    assert "method=equaltime adapts to simulated seconds, and there are none without devices" in caplog.text
    nova = fedveca.run(Experiment(**(SMALL | {"method": "fednova"})))  # type: ignore[arg-type]
    assert r.column("test_loss") == nova.column("test_loss")
