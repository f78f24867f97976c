"""The run folder: what a run leaves behind, readable at any moment."""

from __future__ import annotations

import contextlib
import json
import math
import os
import platform
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from fedveca.errors import UserError, printable
from fedveca.runs.experiment import Experiment, parse_toml
from fedveca.runs.files import read_inside, read_lines
from fedveca.runs.interrupt import RUN, STARTED_BY, FolderUnwritable, how_to_resume
from fedveca.runs.schema import parse_object, validate_records
from fedveca.safe_files import open_regular
from fedveca.version import __version__

LAST, FORMER = "checkpoint.safetensors", "checkpoint.former.safetensors"
ROWS = "memory.rows"  # the clients' memory: both checkpoints point into it
FILES = (
    "experiment.toml",
    "environment.json",
    "partition.json",
    "rounds.jsonl",
    LAST,
    FORMER,
    "model.safetensors",
    "summary.json",
    "trackers.json",
)
BEFORE = (".lock", "environment.json", "partition.json", "rounds.jsonl", "deployment")  # comes before the settings
FILE_BYTES = 2**24  # the most of a file that does not grow with the run


def line_bytes(clients: int) -> int:
    """The most of one line of rounds.jsonl: lists over the clients, with room for what a custom method records."""
    return min(2**20 + 2**12 * clients, 2**28)  # the number of clients is read from the folder too


@dataclass(frozen=True)
class Run:
    """One run, finished or not: its settings, its rounds and its closing summary."""

    experiment: Experiment
    rounds: list[dict[str, Any]]
    summary: dict[str, Any]
    model: dict[str, Tensor] = field(default_factory=dict, repr=False)  # the kept model's own parameters
    folder: Path | None = None

    @staticmethod
    def open(folder: Path | str) -> Run:
        """Reads a run folder; ValueError with one sentence if it is none."""
        folder = Path(folder)
        try:
            settings = read_inside(folder, "experiment.toml", FILE_BYTES).decode("utf-8")
            experiment = Experiment(**parse_toml(settings, "experiment.toml"))
            closing = (folder / "summary.json").exists() and read_inside(folder, "summary.json", FILE_BYTES)
            summary = parse_object(closing.decode("utf-8"), "summary.json") if closing is not False else {}
            validate_records([], summary)
            rounds: list[dict[str, Any]] = []
            for k, line in enumerate(read_lines(folder, "rounds.jsonl", line_bytes(experiment.clients))):
                rounds.append(parse_object(line, f"line {k + 1} of rounds.jsonl"))
                validate_records(rounds[k:], {}, k)  # at once: what is not sound is not read to its end
            return Run(experiment, rounds, summary, folder=folder)
        except (OSError, ValueError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UserError(f"{printable(str(folder), 400)} is not a run folder: {why}") from error
        except MemoryError as error:
            raise UserError(f"{printable(str(folder), 400)} cannot be opened: it does not fit in memory") from error

    @property
    def metric(self) -> str:
        """The recorded test value beside the loss: test_accuracy, unless the run told another."""
        told = (name for line in (self.summary.get("kept", {}), *self.rounds) for name in line)
        return next((name for name in told if name.startswith("test_") and name != "test_loss"), "test_accuracy")

    def frame(self) -> Any:
        """The rounds as a pandas frame: one row a round, one column a recorded name."""
        from fedveca.views.notebook import frame

        return frame(self)

    def _repr_html_(self) -> str:
        """What a notebook shows: table and curves."""
        from fedveca.views.notebook import html

        return html(self)

    def column(self, name: str) -> list[Any]:
        """One recorded name over the rounds that have it."""
        return [line[name] for line in self.rounds if line.get(name) is not None]


class RunFolder:
    """Writes a run folder, each file whole or not at all, each round as soon as it is over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = open_regular(path / "rounds.jsonl", os.O_WRONLY | os.O_APPEND)
        self._rounds = os.fdopen(lines, "ab", buffering=0)

    @staticmethod
    def make(
        path: Path, experiment: Experiment, device: str, counts: Tensor | None = None, started_by: str = RUN
    ) -> RunFolder:
        """A new folder with environment, partition and, last, the settings; with these it is a run.

        `counts` are the rows of each label [N, C] by client; of very many clients, evenly spaced ones are written.
        """
        require_new(path)
        about = describe_environment(device) | ({STARTED_BY: started_by} if started_by != RUN else {})
        try:
            path.mkdir(parents=True, exist_ok=True)
            _tidy(path)
            write_atomic(path / "environment.json", _json(about, indent=2))
            write_atomic(path / "rounds.jsonl", b"")
            if counts is not None:
                write_atomic(path / "partition.json", _partition(counts))
            write_atomic(path / "experiment.toml", experiment.toml().encode())
            return RunFolder(path)
        except OSError as error:
            for name in ("experiment.toml", "environment.json", "rounds.jsonl", "partition.json"):
                with contextlib.suppress(OSError):
                    (path / name).unlink(missing_ok=True)
            raise UserError(f"{path} cannot be written: {error.strerror or error}") from error

    @staticmethod
    def again(path: Path, experiment: Experiment, lines: list[dict[str, Any]]) -> RunFolder:
        """A folder to go on with, cut back to the rounds of its checkpoint."""
        try:
            content = b"".join(_json(line) + b"\n" for line in lines)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be resumed: rounds.jsonl holds what no run writes") from error
        try:
            _tidy(path)
            (path / "summary.json").unlink(missing_ok=True)
            write_atomic(path / "experiment.toml", experiment.toml().encode())
            write_atomic(path / "rounds.jsonl", content)
            return RunFolder(path)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}") from error

    def round(self, line: dict[str, Any]) -> None:
        left = _json(line) + b"\n"
        with guard_writing(self.path):
            while left:
                left = left[self._rounds.write(left) :]
            os.fsync(self._rounds.fileno())

    def close(self, summary: dict[str, Any], model: dict[str, Tensor]) -> None:
        with guard_writing(self.path):
            write_atomic(self.path / "model.safetensors", save({name: v.contiguous() for name, v in model.items()}))
            write_atomic(self.path / "summary.json", _json(summary, indent=2))

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self._rounds.close()


@contextlib.contextmanager
def guard_writing(folder: Path, what: type[OSError] = OSError) -> Iterator[None]:
    """CutOff, with what to do, where the folder of a run under way cannot be written; `what` says so."""
    try:
        yield
    except what as error:
        if not folder.is_dir():
            raise FolderUnwritable(f"{folder} is gone: it was deleted or moved while the run went on") from error
        raise FolderUnwritable(
            f"{folder} cannot be written: {error.strerror or error}; all up to its last checkpoint is whole, "
            f"and {how_to_resume(folder)} goes on from there"
        ) from error


def write_atomic(path: Path, content: bytes) -> None:
    """A reader sees the former content or the new one, never a part."""
    os.replace(write_draft(path, content), path)


def write_draft(path: Path, content: bytes) -> Path:
    """The content on the disk, beside the place that it is for."""
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    beside.unlink(missing_ok=True)
    try:
        with open(beside, "xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        with contextlib.suppress(OSError):
            beside.unlink()
        raise
    return beside


def _tidy(folder: Path) -> None:
    """Takes away the drafts of processes that were killed."""
    for path in folder.glob(".*"):
        if _is_draft(path.name):
            path.unlink(missing_ok=True)


def _is_draft(name: str) -> bool:
    """Whether it is the name of a draft of a file of a run."""
    of, _, process = name[1:].rpartition(".")
    return name.startswith(".") and of in FILES and process.isdigit()


def require_new(path: Path | str) -> None:
    """ValueError where a new run folder cannot be made: also for a folder that holds anything else."""
    path = Path(path)
    require_free(path)
    if path.is_dir():
        others = (p.name for p in path.iterdir() if p.name not in BEFORE and not _is_draft(p.name))
        if other := next(others, ""):
            raise UserError(f"{path} is not empty: it holds {printable(other)}; name a new folder")


def require_files(folder: Path) -> None:
    """ValueError where a folder stands in the place of a file that a run writes; a tracker's own cannot stop a run."""
    for name in (*FILES, ROWS):
        if name != "trackers.json" and (folder / name).is_dir():
            raise UserError(f"{folder} cannot be resumed: {name} is no file")


def require_free(path: Path) -> None:
    """ValueError where a run folder cannot be made; one that was killed before it was made is none."""
    lines = path / "rounds.jsonl"
    if (path / "experiment.toml").exists() or (lines.exists() and lines.stat().st_size):
        raise UserError(f"{path} already holds a run; name another folder")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a folder")
    above = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not os.access(above, os.W_OK):
        raise UserError(f"{path} cannot be written: no permission in {above}")


def describe_environment(device: str) -> dict[str, Any]:
    """What a result may depend on beside the experiment."""
    return {
        "fedveca": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


def _partition(counts: Tensor, most: int = 200) -> bytes:
    pick = torch.linspace(0, len(counts) - 1, min(len(counts), most)).round().long()
    told = {"all": len(counts), "clients": pick, "sizes": counts.sum(1)[pick], "labels": counts[pick]}
    return _json({name: to_json(value) for name, value in told.items()})


def to_json(value: Any) -> Any:
    """Tensors as numbers and lists, and what JSON cannot say (NaN, infinity) as null."""
    if isinstance(value, Tensor):
        value = value.tolist()
    if isinstance(value, list):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def summary_of(experiment: Experiment, tau_all: int, seconds: float, **rest: Any) -> dict[str, Any]:
    return {"experiment": asdict(experiment), "tau_all": tau_all, "seconds": round(seconds, 3)} | rest


def _json(value: Any, indent: int | None = None) -> bytes:
    return json.dumps(value, indent=indent, allow_nan=False).encode()
