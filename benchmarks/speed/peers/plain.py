"""The loop that a researcher writes first, in plain PyTorch."""

import copy

import torch
from torch.utils.data import TensorDataset

from benchmarks.speed.jobs import LR, Job, Stopwatch, arguments, load
from benchmarks.speed.peers.models import Model, build, probe_loss, tensors, warm_up


def train_client(model: Model, data: TensorDataset, job: Job) -> dict[str, torch.Tensor]:
    """The job's local steps on one client's data, in place; returns the new weights."""
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    for _ in range(job.steps):
        x, y = data[torch.randint(len(data), (job.batch,))]
        optimizer.zero_grad()
        model.loss(x, y).backward()
        optimizer.step()
    return model.state_dict()


def average(states: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """The mean of the clients' weights; all clients hold as many rows."""
    return {name: torch.stack([state[name] for state in states]).mean(0) for name in states[0]}


def run(model: Model, clients: list[TensorDataset], job: Job) -> None:
    """All rounds, the global model in place."""
    for _ in range(job.rounds):
        states = [train_client(copy.deepcopy(model), data, job) for data in clients]
        model.load_state_dict(average(states))


def main() -> None:
    """Time one job."""
    job, folder, _ = arguments()
    shards = load(job, folder)
    warm_up(job, shards)
    clients = [TensorDataset(*tensors(shards.part(i))) for i in range(job.clients)]
    model = build(job)
    before = probe_loss(model, shards)
    watch = Stopwatch()
    watch.start()
    run(model, clients, job)
    watch.stop()
    watch.report(job, before, probe_loss(model, shards))


if __name__ == "__main__":
    main()
