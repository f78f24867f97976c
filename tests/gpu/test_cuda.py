"""On a CUDA device: captured steps and fused kernels give what the CPU gives."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import numpy as np
import pytest
import torch

from fedveca.algorithms import (
    Algorithm,
    Corrected,
    FedACG,
    FedAvg,
    FedDyn,
    FedExP,
    FedLC,
    FedNova,
    FedProx,
    FedVeca,
    FedVecaM,
    MimeLite,
    Moon,
    Scaffnew,
    Scaffold,
)
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.random import shuffle_rows
from fedveca.runs.experiment import Experiment
from fedveca.runs.federate import federate
from fedveca.runs.run import run
from fedveca.tasks.datasets.lazy import LazyRows, open_array_file
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
RIVALS = [FedACG(0.002), FedDyn(0.002), FedExP(0.002), MimeLite(0.002), Scaffnew(0.002), FedLC(0.002), Moon(0.002)]
METHODS = [FedAvg(0.002), FedProx(0.002), FedNova(0.002), Scaffold(0.002), FedVeca(0.002), Corrected(0.002)]
METHODS += [FedVecaM(0.002)]


@pytest.mark.parametrize("pixels", ["unit", "standardised", "channels:0.5,0.4,0.3:0.2,0.25,0.3"])
@pytest.mark.parametrize("name", ["svm", "mlp", "cnn"])
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
def test_cuda_is_the_cpu(algorithm: Algorithm, name: str, pixels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    check_same(algorithm, name, pixels, monkeypatch)


@pytest.mark.parametrize("name", ["mlp", "cnn"])
@pytest.mark.parametrize("algorithm", RIVALS, ids=lambda a: type(a).__name__)
def test_cuda_is_the_cpu_for_rivals(algorithm: Algorithm, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those with a loss of their own, whose other models and counts are inputs of the captured step."""
    check_same(algorithm, name, "unit", monkeypatch)


def check_same(algorithm: Algorithm, name: str, pixels: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    monkeypatch.setattr(
        "fedveca.cohorts.local.cohort.use_tensor_cores", lambda device: nullcontext()
    )  # float32 to the last bit
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (600, 3, 16, 16), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (600,), generator=generator)
    shares, tau = partition("case3", y, 10, 5), torch.tensor([4, 3, 2, 2, 5])
    problem = model(name, (3, 16, 16), 10)
    seen = {}
    for device in ("cpu", "cuda"):
        cohort = LocalCohort(algorithm, problem, x, y, shares, batch=20, pixels=pixels, device=device, probe=100)
        states = list(federate(algorithm, cohort, algorithm.init(problem.init().to(device), tau), 3))
        seen[device] = states[-1][0].w.cpu(), [record["tau"] for _, record in states]
    assert seen["cpu"][1] == seen["cuda"][1]
    assert float((seen["cpu"][0] - seen["cuda"][0]).abs().max()) < 1e-4


@pytest.mark.parametrize("pixels", ["unit", "standardised"])
@pytest.mark.parametrize("name", ["svm", "mlp", "cnn"])
@pytest.mark.parametrize("algorithm", [FedAvg(0.002), FedVeca(0.002)], ids=lambda a: type(a).__name__)
def test_lazy_rows_give_captured_steps_what_rows_on_the_device_give(
    algorithm: Algorithm, name: str, pixels: str, tmp_path: Path
) -> None:
    """Each client has another number of steps, and a lane several clients: no step sees the rows of another one."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(0, 256, (600, 3, 16, 16), dtype=torch.uint8, generator=generator)
    y = torch.randint(0, 10, (600,), generator=generator)
    np.save(tmp_path / "x.npy", x.numpy())
    lazy = LazyRows(open_array_file(tmp_path / "x.npy", "x"), torch.uint8, "x")
    shares, tau = partition("iid", y, 10, 7), torch.tensor([4, 3, 2, 2, 5, 1, 90])
    problem = model(name, (3, 16, 16), 10)
    seen = []
    for rows in (x, lazy):
        cohort = LocalCohort(
            algorithm, problem, rows, y, shares, batch=20, pixels=pixels, device="cuda", probe=70, threads=2
        )
        states = list(federate(algorithm, cohort, algorithm.init(problem.init().cuda(), tau), 3))
        seen.append((states[-1][0].w.cpu(), [record["tau"] for _, record in states]))
    assert seen[0][1] == seen[1][1]
    # the kernels of convolutions add in any order
    assert float((seen[0][0] - seen[1][0]).abs().max()) < (1e-3 if name == "cnn" else 1e-5)


def test_a_run_on_cuda() -> None:
    done = run(Experiment(model="cnn", rounds=3, batch=16), device="cuda")
    assert done.summary["rounds"] == 3


def test_shuffled_epochs_are_those_of_the_cpu() -> None:
    ids, sizes = torch.tensor([4, 9, 2]), torch.tensor([50, 7, 1000])
    there = shuffle_rows(1, 2, ids.cuda(), sizes.cuda(), 40, 10, 3)
    assert torch.equal(there.cpu(), shuffle_rows(1, 2, ids, sizes, 40, 10, 3))
