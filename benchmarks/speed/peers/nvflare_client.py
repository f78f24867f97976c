"""What each NVFlare client runs: its local steps; the first client times the rounds between two idle ones."""

from pathlib import Path

import nvflare.client as flare
import torch
from torch.utils.data import TensorDataset

from benchmarks.speed.jobs import Stopwatch, arguments, load
from benchmarks.speed.peers.models import build, probe_loss, tensors, warm_up
from benchmarks.speed.peers.plain import train_client


def main() -> None:
    """Serve until NVFlare stops."""
    job, folder, given = arguments("--root", "--line")
    shards = load(job, folder)
    warm_up(job, shards)
    model = build(job)
    before = probe_loss(model, shards)
    watch = Stopwatch(int(given.root))
    flare.init()
    number = int(flare.get_site_name().removeprefix("site-")) - 1
    data = TensorDataset(*tensors(shards.part(number)))
    while flare.is_running():
        task = flare.receive()
        if task is None:
            break
        if task.current_round > 0:  # round 0 brings weights that NVFlare drew: answered with ours
            model.load_state_dict({name: torch.as_tensor(value) for name, value in task.params.items()})
        if number == 0 and task.current_round == 1:
            watch.start()
        if number == 0 and task.current_round == job.rounds + 1:
            watch.stop()
            Path(given.line).write_text(watch.line(job, before, probe_loss(model, shards)))
        if 1 <= task.current_round <= job.rounds:
            train_client(model, data, job)
        flare.send(flare.FLModel(params=model.state_dict(), meta={"NUM_STEPS_CURRENT_ROUND": job.steps}))


if __name__ == "__main__":
    main()
