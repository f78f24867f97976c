"""Flower: its FedAvg strategy on the simulation runtime, one Ray actor per core."""

import functools
import time
from pathlib import Path

from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from torch.utils.data import TensorDataset

from benchmarks.speed.jobs import JOBS, Job, Stopwatch, arguments, load
from benchmarks.speed.peers.models import Model, build, probe_loss, tensors, warm_up
from benchmarks.speed.peers.plain import train_client

client = ClientApp()


@functools.cache
def resident(job: str, folder: str) -> tuple[Job, Model, list[TensorDataset]]:
    """What an actor keeps between messages: the data and one model."""
    shards = load(JOBS[job], Path(folder))
    warm_up(JOBS[job], shards)
    parts = [TensorDataset(*tensors(shards.part(i))) for i in range(shards.clients)]
    return JOBS[job], build(JOBS[job]), parts


def where(message: Message) -> tuple[str, str]:
    """The job's name and the folder of its data."""
    config = message.content.config_records["config"]
    return str(config["job"]), str(config["folder"])


@client.query()
def wake(message: Message, context: Context) -> Message:
    """Load the data; sent before the clock starts."""
    resident(*where(message))
    return Message(RecordDict(), reply_to=message)


@client.train()
def train(message: Message, context: Context) -> Message:
    """One client's local steps."""
    job, model, parts = resident(*where(message))
    data = parts[int(context.node_config["partition-id"])]
    model.load_state_dict(message.content.array_records["arrays"].to_torch_state_dict())
    arrays = ArrayRecord(train_client(model, data, job))
    metrics = MetricRecord({"num-examples": len(data)})
    return Message(RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)


def serve(grid: Grid, job: Job, folder: Path) -> None:
    """Wake the actors, then time the rounds."""
    shards, model = load(job, folder), build(job)
    before = probe_loss(model, shards)
    config = ConfigRecord({"job": job.name, "folder": str(folder)})
    while len(nodes := list(grid.get_node_ids())) < job.clients:
        time.sleep(0.1)
    some = [Message(RecordDict({"config": config}), dst_node_id=n, message_type="query") for n in nodes[:20]]
    assert not any(reply.has_error() for reply in grid.send_and_receive(some))
    strategy = FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=job.clients)
    watch = Stopwatch()
    watch.start()
    result = strategy.start(grid, ArrayRecord(model.state_dict()), num_rounds=job.rounds, train_config=config)
    watch.stop()
    model.load_state_dict(result.arrays.to_torch_state_dict())
    watch.report(job, before, probe_loss(model, shards))


def main() -> None:
    """Time one job."""
    job, folder, _ = arguments()
    server = ServerApp()

    @server.main()
    def run(grid: Grid, context: Context) -> None:
        serve(grid, job, folder)

    run_simulation(server, client, job.clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0.0}})


if __name__ == "__main__":
    from benchmarks.speed.peers import flower  # so that actors find the client by name and keep its cache

    flower.main()
