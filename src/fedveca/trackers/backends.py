"""The three trackers' own ways: the only file that imports TensorBoard, MLflow or wandb, each when it is asked for."""

from __future__ import annotations

import contextlib
import importlib
import logging
import netrc
import os
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import NamedTuple, Protocol
from urllib.parse import unquote, urlsplit

import numpy as np

from fedveca.errors import UserError, printable
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import require_inside
from fedveca.runs.folder import Run


class Values(NamedTuple):
    """One round as trackers take it."""

    step: int
    numbers: dict[str, float]
    many: dict[str, list[float]]  # one number per client, where clients are more than CLIENTS


class Tracker(Protocol):
    key: str  # what finds it again when a run is resumed

    def send(self, rounds: list[Values]) -> None: ...
    def end(self, run: Run, numbers: dict[str, float]) -> None: ...
    def close(self, ended: bool) -> None: ...


class TensorBoard:
    """Event files in the run folder's `tensorboard`; the kept model as histograms of its parameters."""

    def __init__(self, e: Experiment, folder: Path, key: str) -> None:
        require_inside(folder, "tensorboard")
        summary = importlib.import_module("torch.utils.tensorboard.summary")
        self.writer = importlib.import_module("torch.utils.tensorboard").SummaryWriter(str(folder / "tensorboard"))
        self.key = "tensorboard"
        if not key:
            for part in summary.hparams(asdict(e), {"kept/test_accuracy": 0, "kept/test_loss": 0}):
                self.writer.file_writer.add_summary(part)
            self.writer.add_text("experiment.toml", "".join(f"    {line}\n" for line in e.toml().splitlines()))

    def send(self, rounds: list[Values]) -> None:
        for step, numbers, many in rounds:
            for name, v in numbers.items():
                self.writer.add_scalar(name, v, step)
            for name, each in many.items():
                self.writer.add_histogram(name, np.array(each), step)
        self.writer.flush()

    def end(self, run: Run, numbers: dict[str, float]) -> None:
        for name, v in numbers.items():
            self.writer.add_scalar(name, v, len(run.rounds))
        for name, parameter in run.model.items():
            if bool(parameter.isfinite().all()):
                self.writer.add_histogram(f"model/{name}", parameter, len(run.rounds))

    def close(self, ended: bool) -> None:
        self.writer.close()


class MLflow:
    """MLFLOW_TRACKING_URI where it is set, else a SQLite store and artifacts inside the run folder."""

    def __init__(self, e: Experiment, folder: Path, key: str) -> None:
        os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
        os.environ.setdefault("MLFLOW_CONFIGURE_LOGGING", "false")
        for loud in ("mlflow", "alembic"):
            logging.getLogger(loud).setLevel(logging.ERROR)
        self.entities = importlib.import_module("mlflow.entities")
        place = os.environ.get("MLFLOW_TRACKING_URI", "")
        local = (folder / "mlflow").absolute()
        if not place:
            require_inside(folder, "mlflow")
            local.mkdir(exist_ok=True)
        self.client = importlib.import_module("mlflow.tracking").MlflowClient(place or f"sqlite:///{local}/mlflow.db")
        self.key = key or self._start(folder, "" if place else (local / "artifacts").as_uri())
        if not place:
            self._require_local(local)
        if key:
            self.client.update_run(key, "RUNNING")
        else:
            self._describe(e, folder)

    def _require_local(self, local: Path) -> None:
        """ValueError where the store in the run folder has artifacts written elsewhere."""
        place = self.client.get_run(self.key).info.artifact_uri
        parts = urlsplit(place)
        path = Path(unquote(parts.path)).resolve()
        if parts.scheme != "file" or parts.netloc or not path.is_relative_to(local.resolve()):
            raise UserError(f"mlflow/mlflow.db puts artifacts outside of the run folder, at {printable(place)}")

    def _start(self, folder: Path, artifacts: str) -> str:
        named = os.environ.get("MLFLOW_EXPERIMENT_NAME", "fedveca")
        there = self.client.get_experiment_by_name(named)
        home = there.experiment_id if there else self.client.create_experiment(named, artifacts or None)
        return str(self.client.create_run(home, run_name=folder.name).info.run_id)

    def _describe(self, e: Experiment, folder: Path) -> None:
        settings = [self.entities.Param(k, str(v)[:500]) for k, v in asdict(e).items()]
        self.client.log_batch(self.key, params=settings[:100])
        self.client.log_artifact(self.key, str(folder / "experiment.toml"))

    def send(self, rounds: list[Values]) -> None:
        now = int(time.time() * 1000)
        metrics = [self.entities.Metric(n, v, now, values.step) for values in rounds for n, v in values.numbers.items()]
        for at in range(0, len(metrics), 1000):
            self.client.log_batch(self.key, metrics=metrics[at : at + 1000])

    def end(self, run: Run, numbers: dict[str, float]) -> None:
        self.send([Values(len(run.rounds), numbers, {})])
        assert run.folder
        for name in ("model.safetensors", "summary.json"):
            self.client.log_artifact(self.key, str(run.folder / name), "model" if name.startswith("model") else None)

    def close(self, ended: bool) -> None:
        self.client.set_terminated(self.key, "FINISHED" if ended else "KILLED")


class WandB:
    """Online where a key is known, else offline into the run folder; WANDB_MODE decides where it is set."""

    def __init__(self, e: Experiment, folder: Path, key: str) -> None:
        for place in ("wandb", ".wandb"):
            require_inside(folder, place, "debug-core.log")  # which W&B makes, and no one writes through
        self.wandb = importlib.import_module("wandb")
        self.key = key or uuid.uuid4().hex[:12]
        mode = os.environ.get("WANDB_MODE") or ("online" if _wandb_key() else "offline")
        quiet = self.wandb.Settings(console="off", silent=True, init_timeout=30)
        self.run = self.wandb.init(
            project=os.environ.get("WANDB_PROJECT", "fedveca"),
            name=folder.name,
            id=self.key,
            dir=str(folder),
            config=asdict(e),
            mode=mode,
            settings=quiet,
            **({"resume": "allow"} if mode == "online" else {}),
        )

    def send(self, rounds: list[Values]) -> None:
        for step, numbers, many in rounds:
            shapes = {f"{name}/clients": self.wandb.Histogram(each) for name, each in many.items()}
            self.run.log(numbers | shapes, step=step)

    def end(self, run: Run, numbers: dict[str, float]) -> None:
        self.run.summary.update(numbers)
        model = self.wandb.Artifact(f"model-{self.key}", type="model")
        assert run.folder
        model.add_file(str(run.folder / "model.safetensors"))
        self.run.log_artifact(model)

    def close(self, ended: bool) -> None:
        self.run.finish(exit_code=0 if ended else 1)


BACKENDS: dict[str, Callable[[Experiment, Path, str], Tracker]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WandB,
}


def _wandb_key() -> bool:
    """Whether this machine is logged in to Weights & Biases."""
    host = urlsplit(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    path = Path(os.environ.get("NETRC", "~/.netrc")).expanduser()
    with contextlib.suppress(OSError, netrc.NetrcParseError):
        return bool(os.environ.get("WANDB_API_KEY") or netrc.netrc(path).authenticators(host))
    return bool(os.environ.get("WANDB_API_KEY"))
