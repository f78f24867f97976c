"""Writes a run folder: each file whole or not at all, each round as soon as it is over."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedveca.errors import UserError
from fedveca.runs.experiment import Experiment
from fedveca.runs.files import write_atomic
from fedveca.runs.folder_types import Environment, Partition, Summary
from fedveca.runs.interrupt import FolderUnwritable, how_to_resume
from fedveca.runs.schema import Round
from fedveca.runs.weights import MODEL_FILE
from fedveca.safe_files import open_regular, sync_file

if TYPE_CHECKING:
    from torch import Tensor  # at run time PyTorch is loaded where it is used: opening a folder takes none of it

LAST, FORMER = "checkpoint.safetensors", "checkpoint.former.safetensors"
MEMORY_FILE = "memory.rows"  # the clients' memory: both checkpoints point into it
STOP_MARK = "stopped.json"  # there from a clean stop until the run is resumed
FILES = (
    "experiment.toml",
    "environment.json",
    "partition.json",
    "rounds.jsonl",
    LAST,
    FORMER,
    MODEL_FILE,
    "summary.json",
    "trackers.json",
    STOP_MARK,
)
PARTITION_CLIENTS = 200  # clients of partition.json


class RunFolder:
    """Writes a run folder, each file whole or not at all, each round as soon as it is over."""

    def __init__(self, path: Path) -> None:
        self.path = path
        lines = open_regular(path / "rounds.jsonl", os.O_WRONLY | os.O_APPEND)
        self._rounds = os.fdopen(lines, "ab", buffering=0)

    @staticmethod
    def make(
        path: Path,
        experiment: Experiment,
        environment: Environment,
        counts: Tensor | None,
        held: Mapping[str, Tensor] | None = None,
    ) -> RunFolder:
        """A new folder with environment, partition and, last, the settings; with these it is a run.

        `counts` are the rows of each label [N, C] by client, `held` the rows [N] that each holds back, by what for; of
        very many clients, evenly spaced ones are written.
        """
        try:
            path.mkdir(parents=True, exist_ok=True)
            _remove_drafts(path)
            write_atomic(path / "environment.json", _encode(environment, indent=2))
            write_atomic(path / "rounds.jsonl", b"")
            if counts is not None:
                write_atomic(path / "partition.json", _encode(_describe_partition(counts, held or {})))
            write_atomic(path / "experiment.toml", experiment.toml().encode())
            return RunFolder(path)
        except OSError as error:
            for name in ("experiment.toml", "environment.json", "rounds.jsonl", "partition.json"):
                with contextlib.suppress(OSError):
                    (path / name).unlink(missing_ok=True)
            raise UserError(f"{path} cannot be written: {error.strerror or error}") from error

    @staticmethod
    def reopen(path: Path, experiment: Experiment, rounds: list[Round]) -> RunFolder:
        """A folder to resume, cut back to the rounds of its checkpoint."""
        try:
            content = b"".join(_encode(record) + b"\n" for record in rounds)
        except (ValueError, RecursionError) as error:
            raise UserError(f"{path} cannot be resumed: rounds.jsonl holds what no run writes") from error
        try:
            _remove_drafts(path)
            for name in ("summary.json", STOP_MARK):
                (path / name).unlink(missing_ok=True)
            write_atomic(path / "experiment.toml", experiment.toml().encode())
            write_atomic(path / "rounds.jsonl", content)
            return RunFolder(path)
        except OSError as error:
            raise UserError(f"{path} cannot be written: {error.strerror or error}") from error

    def write_round(self, record: Round) -> None:
        """Appends a round's line and waits until it is on the disk."""
        left = _encode(record) + b"\n"
        with guard_writing(self.path):
            while left:
                left = left[self._rounds.write(left) :]
            sync_file(self._rounds.fileno())

    def write_stop(self, done: int, rounds: int) -> None:
        """Marks the run as stopped cleanly after `done` rounds; resuming removes the mark."""
        with guard_writing(self.path):
            write_atomic(self.path / STOP_MARK, _encode({"rounds": done, "of": rounds, "time": round(time.time(), 3)}))

    def write_end(self, summary: Summary, model: Mapping[str, Tensor]) -> None:
        """Writes the kept model and, last, the summary."""
        from safetensors.torch import save

        with guard_writing(self.path):
            write_atomic(self.path / MODEL_FILE, save({name: v.contiguous() for name, v in model.items()}))
            write_atomic(self.path / "summary.json", _encode(summary, indent=2))

    def __enter__(self) -> RunFolder:
        return self

    def __exit__(self, *error: object) -> None:
        self._rounds.close()


@contextlib.contextmanager
def guard_writing(folder: Path, error_type: type[OSError] = OSError) -> Iterator[None]:
    """FolderUnwritable, with what to do, where the folder of a run under way cannot be written."""
    try:
        yield
    except error_type as error:
        if not folder.is_dir():
            raise FolderUnwritable(f"{folder} is gone: it was deleted or moved during the run") from error
        raise FolderUnwritable(
            f"{folder} cannot be written: {error.strerror or error}; everything up to its last checkpoint is saved: "
            f"resume it with: {how_to_resume(folder)}"
        ) from error


def _describe_partition(counts: Tensor, held: Mapping[str, Tensor]) -> Partition:
    import torch

    pick = torch.linspace(0, len(counts) - 1, min(len(counts), PARTITION_CLIENTS)).round().long()
    found: Partition = {
        "all": len(counts),
        "clients": pick.tolist(),
        "sizes": counts.sum(1)[pick].tolist(),
        "labels": counts[pick].tolist(),
    }
    return cast(Partition, found | {name: sizes[pick].tolist() for name, sizes in held.items()})


def _remove_drafts(folder: Path) -> None:
    """Removes the drafts of processes that were killed."""
    for path in folder.glob(".*"):
        if is_draft(path.name):
            path.unlink(missing_ok=True)


def is_draft(name: str) -> bool:
    """Whether it is the name of a draft of a file of a run."""
    file, _, process = name[1:].rpartition(".")
    return name.startswith(".") and file in FILES and process.isdigit()


def _encode(value: object, indent: int | None = None) -> bytes:
    return json.dumps(value, indent=indent, allow_nan=False).encode()
