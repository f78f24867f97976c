"""BlazeFL: its FedAvg on one GPU, one client after another, in threads or in processes, as its own benchmark runs it.

Its published figures are of threads in a build of Python without the global lock; with the lock, threads take turns.
"""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.multiprocessing as mp
from blazefl.contrib import (
    FedAvgBaseClientTrainer,
    FedAvgBaseServerHandler,
    FedAvgPartitionType,
    FedAvgProcessPoolClientTrainer,
    FedAvgThreadPoolClientTrainer,
)
from blazefl.core import FilteredDataset, IPCMode
from blazefl.reproducibility import setup_reproducibility
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from benchmarks.public.cases import CASES
from benchmarks.public.loops import wait
from benchmarks.public.networks import NETWORKS
from benchmarks.public.peers.answer import Asked, give, make_asked, read_arguments
from fedveca.runs.build import Built
from fedveca.runs.epoch_settings import parse_epochs
from fedveca.tasks.models.cnn import LeNet

SEED, PARALLEL = 42, 10  # of BlazeFL's benchmark
LABELS = {
    "single": "BlazeFL 2.0, one client after another",
    "threads": "BlazeFL 2.0, ten threads with Python's global lock",
    "processes": "BlazeFL 2.0, ten processes",
}


class Scale:
    """An image [H, W, C] of bytes as floats [C, H, W] around zero: torchvision's ToTensor and Normalize."""

    def __init__(self) -> None:
        self.steps: Any = None
        with contextlib.suppress(ImportError, RuntimeError):
            from torchvision import transforms

            half = (0.5, 0.5, 0.5)
            self.steps = transforms.Compose([transforms.ToTensor(), transforms.Normalize(half, half)])

    def __call__(self, image: NDArray[np.uint8]) -> Tensor:
        if self.steps:
            out: Tensor = self.steps(image)
            return out
        return torch.from_numpy(image).permute(2, 0, 1).contiguous().div(255).sub_(0.5).div_(0.5)


class SavedRows:
    """Each client's rows in a file, which is read when the client's turn comes, as in BlazeFL's benchmark."""

    def __init__(self, built: Built, folder: Path) -> None:
        self.folder = folder
        data, shares = built.data, built.shares
        x, y = data.x.permute(0, 2, 3, 1).contiguous().numpy(), data.y.tolist()
        for i, rows in enumerate(torch.split(shares.rows, shares.sizes.tolist())):
            torch.save(
                FilteredDataset(rows.tolist(), x, y, transform=Scale()), self._path(FedAvgPartitionType.TRAIN, i)
            )
        x, y = data.x_test.permute(0, 2, 3, 1).contiguous().numpy(), data.y_test.tolist()
        every = list(range(len(y)))
        torch.save(FilteredDataset(every, x, y, transform=Scale()), self._path(FedAvgPartitionType.TEST, None))

    def _path(self, type_: FedAvgPartitionType, cid: int | None) -> Path:
        return self.folder / f"{type_}-{cid}.pkl"

    def get_dataset(self, type_: FedAvgPartitionType, cid: int | None) -> Dataset[Any]:
        rows: Dataset[Any] = torch.load(self._path(type_, cid), weights_only=False)
        return rows

    def set_dataset(self, type_: FedAvgPartitionType, cid: int | None, dataset: Dataset[Any]) -> None:
        torch.save(dataset, self._path(type_, cid))

    def get_dataloader(
        self,
        type_: FedAvgPartitionType,
        cid: int | None,
        batch_size: int | None = None,
        generator: torch.Generator | None = None,
    ) -> DataLoader[Any]:
        return DataLoader(self.get_dataset(type_, cid), batch_size=batch_size, shuffle=True, generator=generator)


class Selector:
    """Makes the network of a case."""

    def select_model(self, model_name: str) -> nn.Module:
        torch.manual_seed(SEED)
        make = NETWORKS.get(CASES[model_name].get("network", ""), LeNet)
        return make((3, 32, 32), 10)


def make_trainer(asked: Asked, built: Built, rows: SavedRows, folder: Path) -> Any:
    e, epochs = built.experiment, parse_epochs(built.experiment.epochs)
    common: dict[str, Any] = {
        "model_selector": Selector(),
        "model_name": asked.case,
        "dataset": rows,
        "device": asked.device,
        "num_clients": e.clients,
        "epochs": int(epochs.low) if epochs else 1,
        "batch_size": e.batch,
        "lr": e.lr,
        "seed": SEED,
    }
    if asked.mode == "single":
        return FedAvgBaseClientTrainer(**common)
    if asked.mode == "threads":
        return FedAvgThreadPoolClientTrainer(**common, num_parallels=PARALLEL)
    needed = 8 * e.clients * sum(v.numel() for v in Selector().select_model(asked.case).state_dict().values())
    is_roomy = shutil.disk_usage("/dev/shm").free > needed
    return FedAvgProcessPoolClientTrainer(
        **common,
        share_dir=folder / "share",
        state_dir=folder / "state",
        num_parallels=PARALLEL,
        ipc_mode=IPCMode.SHARED_MEMORY if is_roomy else IPCMode.STORAGE,
    )


def run_round(handler: Any, trainer: Any, clients: list[int], device: str) -> tuple[float, float, float]:
    """Seconds of the training, seconds of what comes after it, and the accuracy."""
    began = time.perf_counter()
    trainer.local_process(handler.downlink_package(), clients)
    uploads = trainer.uplink_package()
    wait(device)
    trained = time.perf_counter()
    handler.num_clients_per_round = len(clients)
    for upload in uploads:
        handler.load(upload)
    accuracy = handler.get_summary()["server_acc"]
    wait(device)
    return trained - began, time.perf_counter() - trained, accuracy


def main() -> None:
    """Time the case: a few clients first, then as many as there is time for, at most all of the benchmark's rounds."""
    asked = read_arguments()
    setup_reproducibility(SEED)
    case = make_asked(asked)
    built = case.build("cpu")
    e = built.experiment
    with tempfile.TemporaryDirectory() as name:
        rows = SavedRows(built, Path(name))
        handler = FedAvgBaseServerHandler(
            model_selector=Selector(),
            model_name=asked.case,
            dataset=rows,
            global_round=e.rounds,
            num_clients=e.clients,
            sample_ratio=1.0,
            device=asked.device,
            batch_size=e.batch,
            seed=SEED,
        )
        trainer = make_trainer(asked, built, rows, Path(name))
        few, every = list(range(min(PARALLEL, e.clients))), list(range(e.clients))
        seconds, rounds, accuracy = 0.0, 0.0, 0.0
        if asked.mode != "processes":  # which start anew in each round
            run_round(handler, trainer, few[:1], asked.device)
            training, after, accuracy = run_round(handler, trainer, few, asked.device)
            seconds, rounds = training * e.clients / len(few) + after, len(few) / e.clients
        if seconds < asked.seconds:
            done, began = 0, time.perf_counter()
            while done < e.rounds and (not done or time.perf_counter() - began < asked.seconds):
                *_, accuracy = run_round(handler, trainer, every, asked.device)
                done += 1
            seconds, rounds = (time.perf_counter() - began) / done, float(done)
    reached = round(100 * accuracy, 2) if case.is_real and rounds == e.rounds else None
    give({"label": LABELS[asked.mode], "seconds": seconds * e.rounds, "rounds": rounds, "accuracy": reached})


if __name__ == "__main__":
    from benchmarks.public.peers import blazefl  # so that other processes find its classes by name

    mp.set_start_method("spawn")
    blazefl.main()
