"""fedveca itself: its local cohort under its round generator; FedAvg, FedAvg and a probe, or FedVeca."""

from __future__ import annotations

import torch
from torch import Tensor

from benchmarks.speed.jobs import LR, Job, Shards, Stopwatch, arguments, load
from fedveca.algorithms import Algorithm, FedAvg, FedVeca, Order, Report
from fedveca.cohorts.local.cohort import LocalCohort
from fedveca.runs.federate import federate
from fedveca.tasks.datasets.dataset import prepare
from fedveca.tasks.models import model
from fedveca.tasks.partition import Shares


class Probed(FedAvg):
    """FedAvg that pays for grad F_i(w_k) and does not use it: what FedVeca's estimates cost beyond their probe."""

    needs_gradient = True


class Fixed:
    """A cohort with the job's steps whatever the controller says."""

    def __init__(self, cohort: LocalCohort, steps: Tensor) -> None:
        self.cohort, self.steps = cohort, steps
        self.sizes, self.weights, self.memory, self.evaluate = (
            cohort.sizes,
            cohort.weights,
            cohort.memory,
            cohort.evaluate,
        )

    def __call__(self, k: int, order: Order, ids: Tensor, tau: Tensor) -> tuple[Tensor, Report]:
        return self.cohort(k, order, ids, self.steps[ids])


def build(job: Job, shards: Shards, method: str | None = None) -> tuple[Algorithm, LocalCohort]:
    """The method and the clients of a job; `shards` hold bytes, as fedveca does."""
    x, y = torch.from_numpy(shards.x), torch.from_numpy(shards.y).to(torch.int64)
    if job.model == "svm":
        x, y = x.view(-1, 1, 28, 28), (1 - y) // 2  # the SVM's own signs: even +1, odd -1
    methods: dict[str, Algorithm] = {"fedveca": FedVeca(LR), "probe": Probed(LR)}
    algorithm = methods.get(method or "", FedAvg(LR))
    problem = model(job.model, (1, 28, 28), 10, init="torch")
    shares = Shares(torch.arange(len(y)), torch.arange(job.clients + 1) * (len(y) // job.clients))
    return algorithm, LocalCohort(algorithm, problem, x, y, shares, batch=job.batch, pixels="unit", want_loss=False)


def main() -> None:
    """Time one job; FedVeca takes the job's steps too, so that both do the same work but for the estimates."""
    job, folder, given = arguments("--method")
    shards = load(job, folder, raw=True)
    algorithm, cohort = build(job, shards, given.method)
    problem, steps = cohort.problem, torch.full((job.clients,), job.steps)
    state = algorithm.init(problem.init(), steps)
    few = 5 / job.clients  # for libraries to load and to choose their kernels
    next(federate(algorithm, Fixed(cohort, steps.clamp(max=1)), state, 1, seed=1, participation=few))
    images, digits = (torch.from_numpy(part) for part in shards.probe())
    rows, labels = prepare(images, "unit"), digits.to(torch.int64)
    if job.model == "svm":
        labels = (1 - labels) // 2
    before = float(problem.losses(state.w, rows, labels)[0])
    watch = Stopwatch()
    watch.start()
    for after, _ in federate(algorithm, Fixed(cohort, steps), state, job.rounds):
        state = after
    watch.stop()
    watch.report(job, before, float(problem.losses(state.w, rows, labels)[0]))


if __name__ == "__main__":
    main()
