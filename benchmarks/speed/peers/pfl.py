"""pfl: its simulated backend, in one process."""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam.base import NNTrainHyperParams
from pfl.model.pytorch import PyTorchModel

from benchmarks.speed.jobs import LR, Job, Stopwatch, arguments, load
from benchmarks.speed.peers.models import build, draw, probe_loss, tensors, warm_up


class RandomBatches(Dataset):
    """A client whose batches are drawn anew each round; the stock one yields the same first rows."""

    def __init__(self, data: tuple[torch.Tensor, torch.Tensor], job: Job) -> None:
        super().__init__(data)
        self.job = job

    def iter(self, batch_size: int | None) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """The job's steps; pfl passes the job's own batch size."""
        assert batch_size == self.job.batch
        return draw(self.raw_data, self.job)


class TrainingOnly(FederatedAveraging):
    """Federated averaging without the evaluation that pfl always does in the first round."""

    def get_next_central_contexts(self, *args: Any, **kwargs: Any) -> tuple[Any, Any, Any]:
        """As pfl's, evaluation off."""
        contexts, model, metrics = super().get_next_central_contexts(*args, **kwargs)
        return contexts and tuple(replace(c, do_evaluation=False) for c in contexts), model, metrics


def main() -> None:
    """Time one job."""
    job, folder, _ = arguments()
    shards = load(job, folder)
    warm_up(job, shards)
    clients = [RandomBatches(tensors(shards.part(i)), job) for i in range(job.clients)]
    module = build(job)
    module.metrics = lambda *data: {}  # type: ignore[assignment]  # required by pfl, never called
    before = probe_loss(module, shards)
    model = PyTorchModel(module, torch.optim.SGD, torch.optim.SGD(module.parameters(), lr=1.0))
    population = FederatedDataset(clients.__getitem__, MinimizeReuseUserSampler(range(job.clients)))
    algorithm, backend = TrainingOnly(), SimulatedBackend(population, population)
    rounds = NNAlgorithmParams(
        central_num_iterations=job.rounds,
        evaluation_frequency=job.rounds,
        train_cohort_size=job.clients,
        val_cohort_size=0,
    )
    local = NNTrainHyperParams(
        local_batch_size=job.batch, local_num_epochs=None, local_learning_rate=LR, local_num_steps=job.steps
    )
    watch = Stopwatch()
    watch.start()
    algorithm.run(rounds, backend, model, local, send_metrics_to_platform=False)
    watch.stop()
    watch.report(job, before, probe_loss(module, shards))


if __name__ == "__main__":
    main()
