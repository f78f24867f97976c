"""Runs of the CNN with the convolutions in C: as with PyTorch's up to rounding, and the same in both engines."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedveca.runs.build import Built, build
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.tasks.native import convolution
from fedveca.tasks.native.library import load_kernels

pytestmark = pytest.mark.skipif(load_kernels("convolution") is None, reason="nothing was compiled here")

SMALL: dict[str, Any] = {"data": "digits", "model": "cnn", "rounds": 3, "batch": 8, "clients": 4, "lr": 0.05}
Rounds = list[tuple[torch.Tensor, dict[str, Any]]]


def run_rounds(**settings: Any) -> Rounds:
    """The model and the record after each round."""
    return run_built(build(Experiment(**(SMALL | settings))))


def run_built(built: Built) -> Rounds:
    rounds = federate(built.algorithm, built.cohort, built.state, 3, seed=built.experiment.seed)
    return [(state.w, dict(record)) for state, record in rounds]


def check_close(found: Rounds, wanted: Rounds) -> None:
    for (w, record), (want, line) in zip(found, wanted, strict=True):
        assert float((w - want).abs().max()) < 1e-4
        assert record["tau"] == line["tau"]
        assert record.get("train_loss", 0.0) == pytest.approx(line.get("train_loss", 0.0), rel=1e-4)


@pytest.mark.parametrize("method", ["fedavg", "fedveca"])
def test_a_run_is_that_of_pytorch(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = run_rounds(method=method)
    monkeypatch.setattr(convolution, "_load", lambda: None)
    plain = run_rounds(method=method)
    check_close(ours, plain)
    assert not torch.equal(ours[-1][0], plain[-1][0])  # the kernels were used


@pytest.mark.parametrize("method", ["scaffold", "fedveca"])
def test_a_run_is_that_of_the_debug_engine(method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, debug = run_rounds(method=method), build(Experiment(**(SMALL | {"method": method, "engine": "debug"})))
    monkeypatch.setattr(convolution, "_find_output", None)  # the debug engine has PyTorch's operations alone
    check_close(ours, run_built(debug))


def test_the_same_bytes_on_any_number_of_threads() -> None:
    before, models = torch.get_num_threads(), []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            models.append(run_rounds(method="fedveca")[-1][0])
    finally:
        torch.set_num_threads(before)
    assert torch.equal(*models)
