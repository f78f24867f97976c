"""NVFlare: its FedAvg recipe in the simulator, a process for each client (see nvflare_client.py)."""

import os
import sys
import tempfile
from pathlib import Path

from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from benchmarks.speed.jobs import arguments
from benchmarks.speed.peers.models import build


def main() -> None:
    """Run one job, and one idle round before and one after it; the first client keeps the time."""
    job, folder, _ = arguments()
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[3])  # the repository
    with tempfile.TemporaryDirectory() as workspace:
        line = Path(workspace, "line.json")
        recipe = FedAvgRecipe(
            name=job.name,
            model=build(job),
            min_clients=job.clients,
            num_rounds=job.rounds + 2,
            train_script=str(Path(__file__).with_name("nvflare_client.py")),
            train_args=f"{job.name} --data {folder} --root {os.getpid()} --line {line}",
        )
        sys.argv = sys.argv[:1]  # the recipe reads options of its own from there
        recipe.execute(SimEnv(num_clients=job.clients, workspace_root=workspace))
        print(line.read_text(), flush=True)


if __name__ == "__main__":
    main()
