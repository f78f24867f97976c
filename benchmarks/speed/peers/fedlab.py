"""FedLab: its standalone pipeline with the serial trainer; only the batches are ours."""

from collections.abc import Iterator

from benchmarks.speed.peers import vision  # noqa: F401

# isort: split
import torch
from fedlab.contrib.algorithm.basic_client import SGDSerialClientTrainer
from fedlab.contrib.algorithm.basic_server import SyncServerHandler
from fedlab.core.standalone import StandalonePipeline

from benchmarks.speed.jobs import LR, Job, Shards, Stopwatch, arguments, load
from benchmarks.speed.peers.models import build, draw, objective, probe_loss, tensors, warm_up


class RandomBatches:
    """All clients' data; what FedLab takes for a client's loader is the job's steps."""

    def __init__(self, shards: Shards, job: Job) -> None:
        self.parts = [tensors(shards.part(i)) for i in range(job.clients)]
        self.job = job

    def get_dataloader(self, client: int, batch_size: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """FedLab passes the job's own batch size."""
        assert batch_size == self.job.batch
        return draw(self.parts[client], self.job)


class Pipeline(StandalonePipeline):
    """FedLab's loop without evaluation."""

    def evaluate(self) -> None:
        """Nothing."""


def main() -> None:
    """Time one job."""
    job, folder, _ = arguments()
    shards = load(job, folder)
    warm_up(job, shards)
    goal = objective(job)
    model = build(job)
    before = probe_loss(model, shards)
    trainer = SGDSerialClientTrainer(model, job.clients)
    trainer.setup_dataset(RandomBatches(shards, job))
    trainer.setup_optim(epochs=1, batch_size=job.batch, lr=LR)
    trainer.criterion = goal.criterion
    trainer.optimizer = torch.optim.SGD(trainer.model.parameters(), LR, weight_decay=goal.weight_decay)
    handler = SyncServerHandler(model, global_round=job.rounds, sample_ratio=1.0)
    pipeline = Pipeline(handler, trainer)
    watch = Stopwatch()
    watch.start()
    pipeline.main()
    watch.stop()
    watch.report(job, before, probe_loss(handler.model, shards))


if __name__ == "__main__":
    main()
