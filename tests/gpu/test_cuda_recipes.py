"""Recipes on a CUDA device: captured steps with momentum, Adam and a rate that changes give what the CPU gives."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from fedveca.algorithms import Algorithm, Corrected, FedAvg, FedNova, FedVeca, Scaffold
from fedveca.algorithms.optimizers import LocalOptimizer, Schedule, ServerOptimizer
from fedveca.algorithms.recipe import Recipe
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import load
from fedveca.tasks.models import model
from fedveca.tasks.partition import partition

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
METHODS: list[Algorithm] = [FedAvg(0.002), FedNova(0.002), Scaffold(0.002), FedVeca(0.002), Corrected(0.002)]
OPTIMISERS = {
    "momentum": LocalOptimizer(momentum=0.9, nesterov=True, weight_decay=1e-3),
    "adamw": LocalOptimizer("adamw", weight_decay=1e-2),
    "kept": LocalOptimizer(momentum=0.5, keep=True),
    "clipped": LocalOptimizer(clip_norm=0.5, proximal=0.1),
}


def train(algorithm: Algorithm, device: str) -> tuple[Tensor, list[list[int]]]:
    data, problem = load("digits"), model("cnn", (1, 8, 8), 10)
    shares = partition("dirichlet", data.y, 10, 4, seed=1)
    cohort = LocalCohort(algorithm, problem, data.x, data.y, shares, batch=8, seed=5, device=device)
    tau = torch.tensor([5, 2, 3, 7])
    seen = list(federate(algorithm, cohort, algorithm.init(problem.init().to(device), tau), 3))
    return seen[-1][0].w.cpu(), [record["tau"] for _, record in seen]


@pytest.mark.parametrize("kind", OPTIMISERS)
@pytest.mark.parametrize("algorithm", METHODS, ids=lambda a: type(a).__name__)
def test_captured_steps_are_those_of_the_cpu(algorithm: Algorithm, kind: str) -> None:
    recipe = Recipe(algorithm, OPTIMISERS[kind], ServerOptimizer("momentum", 0.5), Schedule("cosine", 3, warmup=1))
    here, there = train(recipe, "cpu"), train(recipe, "cuda")
    assert here[1] == there[1]
    start = model("cnn", (1, 8, 8), 10).init()
    assert float((here[0] - there[0]).norm() / (here[0] - start).norm()) < (0.05 if kind == "adamw" else 0.01)
