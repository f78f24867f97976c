"""The study of the probe, small: its variants differ in what they say they do, and its runs become rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from shrunken_studies import Shrink, shrink  # noqa: F401 (a fixture)

from fedveca.algorithms import FedVeca
from fedveca.cohorts.random import draw_rows
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition
from fedveca.testing import check_algorithm
from studies.probe.run import VARIANTS, Content, main, make_table
from studies.probe.variants import FRESH, DrawnProbe, ProbeFirst


def test_the_first_step_goes_along_the_probes_gradient() -> None:
    method = ProbeFirst(0.5)
    check_algorithm(ProbeFirst(0.05))
    w, g0, g = torch.zeros(1), torch.tensor([2.0]), torch.tensor([4.0])
    order = method.order(method.init(w, torch.tensor([2])))
    w, carry = method.step(order, method.start(order, {}, g0), w, g)
    assert w.item() == -1  # 0.5 times the probe's 2
    w, _ = method.step(order, carry, w, g)
    assert w.item() == -3


@pytest.mark.parametrize(("rows", "k"), [("first", 0), ("first", 3), ("fresh", 0), ("fresh", 3)])
def test_a_drawn_probe_is_the_gradient_of_its_rows(rows: Any, k: int) -> None:
    data, problem = load("digits"), model("svm", (1, 8, 8), 10)
    shares = partition("case3", data.y, 10, 3)
    cohort = DrawnProbe(FedVeca(0.1), problem, data.x, data.y, shares, batch=4, probe=8, seed=5, rows=rows)
    method = FedVeca(0.1)
    order = method.order(method.init(torch.ones(problem.size), torch.tensor([2, 2, 2])))
    ids = torch.arange(3)
    _, report = cohort(k, order, ids, torch.tensor([2, 2, 2]))
    index = draw_rows(5 + (FRESH if rows == "fresh" else 0), k, ids, shares.sizes, 2, 4).flatten(1)
    want = torch.zeros(problem.size)
    for i, p in enumerate(shares.sizes / shares.sizes.sum()):
        mine = shares.rows[shares.start[i] + index[i]]
        x, y = data.x[mine].float()[None], problem.targets(data.y[mine])[None]
        want += p * problem.gradients(order.w[None], x, y)[1][0]
    assert torch.allclose(report.mean["grad"], want, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_runs_become_rows(shrink: Shrink, tmp_path: Path) -> None:
    shrink(rounds=3, test_every=3)
    main(["digits", "--out", "probe.json", "--seeds", "1"])
    main(["digits", "--out", "probe.json", "--seeds", "1", "--confirm"])
    content: Content = json.loads((tmp_path / "probe.json").read_text())
    found = content["results"]["digits"]
    assert set(found) == set(VARIANTS)
    assert set(found["1024"]) == {"401", "411"}
    assert found["all"]["401"]["probe_rows"] == found["1024"]["401"]["probe_rows"]  # a client has fewer rows
    assert found["fedavg"]["401"]["probe_rows"] == 0
    table = make_table(content)
    assert table.count("| auto |") == 2
    assert "confirmed on seed 411" in table
