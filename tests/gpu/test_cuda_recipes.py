"""Recipes on a CUDA device: captured steps with momentum, Adam and a changing rate are those of the debug engine."""

from __future__ import annotations

import pytest
import torch
from half_way import HalfWay
from torch import Tensor

from fedveca.algorithms import Algorithm, Corrected, FedAvg, FedNova, FedVeca, Scaffold
from fedveca.algorithms.optimizers import LocalOptimizer, Schedule, ServerOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.cohorts.debug import DebugCohort
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.cohorts.local.cuda_graphs import use_tensor_cores
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


METHODS: list[Algorithm] = [
    HalfWay(0.002),
    FedAvg(0.002),
    FedNova(0.002),
    Scaffold(0.002),
    FedVeca(0.002),
    Corrected(0.002),
]
OPTIMISERS = {
    "momentum": LocalOptimizer(momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": LocalOptimizer("adamw", weight_decay=1e-2),
    "kept": LocalOptimizer(momentum=0.5, keep=True),
    "clipped": LocalOptimizer(clip_norm=0.5, proximal=0.1),
}


def train(algorithm: Algorithm, kind: type[LocalCohort | DebugCohort]) -> tuple[Tensor, list[list[int]]]:
    data, problem = load("digits"), model("cnn", (1, 8, 8), 10)
    shares = partition("dirichlet", data.y, 10, 4, seed=1)
    cohort = kind(algorithm, problem, data.x, data.y, shares, batch=8, seed=5, device="cuda")
    tau = torch.tensor([5, 2, 3, 7])
    with use_tensor_cores(torch.device("cuda")):
        seen = list(federate(algorithm, cohort, algorithm.init(problem.init().to("cuda"), tau), 3))
    return seen[-1][0].w.cpu(), [record["tau"] for _, record in seen]


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
def test_captured_steps_are_those_of_the_debug_engine(algorithm: Algorithm, kind: str) -> None:
    recipe = Recipe(algorithm, OPTIMISERS[kind], ServerOptimizer("momentum", 0.5), Schedule("cosine", 3, warmup=1))
    captured, plain = train(recipe, LocalCohort), train(recipe, DebugCohort)
    assert captured[1][:2] == plain[1][:2]
    start = model("cnn", (1, 8, 8), 10).init()
    assert float((captured[0] - plain[0]).norm() / (plain[0] - start).norm()) < (0.05 if kind == "adamw" else 0.01)
