"""fluke: its own FedAVG, clients and server; only the loader is ours."""

from collections.abc import Iterator

from benchmarks.speed.peers import vision  # noqa: F401

# isort: split
import torch
from fluke.algorithms.fedavg import FedAVG
from fluke.client import Client
from fluke.config import OptimizerConfigurator
from fluke.data import FastDataLoader
from fluke.server import Server
from fluke.utils import FederationObserver

from benchmarks.speed.jobs import CLASSES, LR, Job, Stopwatch, arguments, load
from benchmarks.speed.peers.models import build, draw, objective, probe_loss, tensors, warm_up


class RandomBatches(FastDataLoader):
    """An epoch is the job's steps; the stock loader copies all of a client's rows in each epoch."""

    def __init__(self, data: tuple[torch.Tensor, torch.Tensor], job: Job) -> None:
        super().__init__(*data, num_labels=CLASSES, batch_size=job.batch)
        self.job = job

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        return draw(self.tensors, self.job)

    def __len__(self) -> int:
        return self.job.steps


class Finish(FederationObserver):
    """Stops the clock after the last round, before fluke's closing work."""

    def __init__(self, watch: Stopwatch, rounds: int) -> None:
        self.watch, self.rounds = watch, rounds

    def end_round(self, round: int) -> None:
        """Called by fluke after each round, counted from one."""
        if round == self.rounds:
            self.watch.stop()


def main() -> None:
    """Time one job."""
    job, folder, _ = arguments()
    shards = load(job, folder)
    warm_up(job, shards)
    goal = objective(job)
    optimizer = OptimizerConfigurator({"name": "SGD", "lr": LR, "weight_decay": goal.weight_decay})
    loaders = [RandomBatches(tensors(shards.part(i)), job) for i in range(job.clients)]
    common = (None, optimizer, goal.criterion, 1)  # no test set, one epoch
    clients = [Client(i, loader, *common) for i, loader in enumerate(loaders)]
    model = build(job)
    before = probe_loss(model, shards)
    federation = FedAVG(job.clients, None, {}, clients=clients, server=Server(model, None, clients))
    watch = Stopwatch()
    federation.set_callbacks(Finish(watch, job.rounds))
    watch.start()
    federation.run(job.rounds, eligible_perc=1)
    watch.report(job, before, probe_loss(federation.server.model, shards))


if __name__ == "__main__":
    main()
