"""The forms of `wire` on a CUDA device: the same bits as on the CPU, and runs like the debug engine's."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedveca
from fedveca import Experiment
from fedveca.cohorts.transfer import RESIDUAL, VectorTransfer

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
WIRES = ["float16", "bfloat16", "int8", "topk"]


@pytest.mark.parametrize("wire", WIRES)
def test_the_device_does_not_change_a_bit(wire: str) -> None:
    v = torch.randn(4, 1000, generator=torch.Generator().manual_seed(1))
    v[2, ::2] = 0.25  # many of equal size
    found = []
    for device in ("cpu", "cuda"):
        memory = {RESIDUAL + "G": torch.zeros(4, 1000, device=device)}
        ids = torch.arange(4, device=device)
        arrived, residuals = VectorTransfer(wire, 0.3, 7).send(2, ids, {"G": v.to(device)}, memory)
        found.append([x.cpu() for x in (*arrived.values(), *residuals.values())])
    assert all(torch.equal(mine, other) for mine, other in zip(*found, strict=True))


@pytest.mark.parametrize("wire", WIRES)
def test_a_run_is_the_debug_engines(wire: Any) -> None:
    e = Experiment(method="scaffold", model="svm", rounds=3, tau_0=3, batch=8, wire=wire, keep="last")
    fast, plain = fedveca.run(e, device="cuda"), fedveca.run(e.replace(engine="debug"), device="cuda")
    assert [record["bytes_up"] for record in fast.rounds] == [record["bytes_up"] for record in plain.rounds]
    for name, v in plain.model.items():
        torch.testing.assert_close(fast.model[name], v, rtol=1e-3, atol=1e-4)
