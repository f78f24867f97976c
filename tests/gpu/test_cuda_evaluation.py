"""On a CUDA device: clients evaluate rows that they hold back, also after captured local steps, as on the CPU."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from typing import Any

import pytest
import torch

from fedveca.runs.build import build
from fedveca.runs.experiment import Experiment
from fedveca.runs.run import run

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
E = Experiment(
    partition="dirichlet", clients=6, rounds=2, batch=8, lr=0.02, tau_0=4, test_by="both", val=0.15,
    finetune_steps=3, metric="accuracy,f1",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _exact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr("fedveca.cohorts.local.cohort.use_tensor_cores", lambda device: nullcontext())


@pytest.mark.parametrize(
    "words",
    [
        {"model": "mlp"},
        {"model": "svm", "method": "scaffold", "metric": "accuracy"},
        {"model": "cnn", "method": "moon"},
        {"model": "real_models:normed", "norm_stats": "local", "metric": "accuracy"},
        {"model": "mlp", "method": "centralised", "finetune_steps": 0},
    ],
    ids=["mlp", "scaffold", "moon", "statistics", "pooled"],
)
def test_clients_evaluate_as_on_the_cpu(words: dict[str, Any]) -> None:
    ours, theirs = (build(replace(E, **words), device) for device in ("cuda", "cpu"))
    for part, steps in (("val", 0), ("test", 0), ("test", E.finetune_steps if "fine" not in str(words) else 0)):
        found = []
        for built in (ours, theirs):
            order = built.algorithm.order(built.state)
            if len(built.statistics):
                order = order._replace(aux=order.aux | {"statistics": built.statistics})
            found.append(built.cohort.evaluate(1, order, part, steps))  # type: ignore[arg-type]
        assert torch.equal(found[0].ids, found[1].ids)
        for name, v in found[1].values.items():
            assert found[0].values[name].tolist() == pytest.approx(v.tolist(), rel=1e-3, abs=0.03), name
        assert found[0].values["loss"].tolist() == pytest.approx(found[1].values["loss"].tolist(), rel=1e-3)


def test_a_run_on_cuda_records_what_the_cpu_records() -> None:
    e = replace(E, model="mlp", participation=0.5)
    ours, theirs = (run(e, device=device) for device in ("cuda", "cpu"))
    for a, b in zip(ours.rounds, theirs.rounds, strict=True):
        assert a.keys() == b.keys()
        assert a["tested"] == b["tested"]
