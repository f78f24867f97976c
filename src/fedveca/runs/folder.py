"""The run folder: what a run leaves on disk, readable at any moment, and the `Run` that people hold."""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedveca.errors import UserError, printable, suggest
from fedveca.plugins import load_plugin
from fedveca.runs.experiment import Experiment, describe_task, read_experiment
from fedveca.runs.files import decode_text, read_directions, read_inside, read_lines
from fedveca.runs.folder_types import END_REASONS, EndReason, Environment, Json, Summary
from fedveca.runs.folder_writer import FILES, MEMORY_FILE, RunFolder, is_draft
from fedveca.runs.schema import (
    SCHEMA,
    Direction,
    Round,
    describe_quantity,
    find_metric,
    get_number,
    is_number,
    pick_best,
)
from fedveca.runs.validate_records import parse_object, validate_round, validate_summary
from fedveca.runs.weights import StoredModel
from fedveca.version import __version__

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure
    from torch import Tensor  # at run time PyTorch is loaded where it is used: opening a folder takes none of it

ALLOWED_BEFORE = (".lock", "environment.json", "partition.json", "rounds.jsonl", "deployment")  # in a new run's folder
FILE_BYTES = 2**24  # the most of a file that does not grow with the run
COLUMNS_OF_A_FRAME = 1000


def line_bytes(clients: int) -> int:
    """The most of one line of rounds.jsonl: lists over the clients, with room for what a custom method records."""
    return min(2**20 + 2**12 * clients, 2**28)  # the number of clients is read from the folder too


@dataclass(frozen=True)
class Run:
    """One run, finished or not.

    Attributes:
        experiment: Its settings.
        rounds: One record per round: see `fedveca.runs.schema.Round` and docs/metrics.md.
        summary: The closing summary; empty where the run has not ended.
        model: The kept model's parameters by name, ready for `load_state_dict`; empty where the run has not ended.
            Of a run that was opened from a folder they are read when they are first used.
        folder: The run folder; None for a run in memory.
        directions: What a custom metric stated about itself: whether higher or lower is better.
        environment: Versions and machine; empty where the run was opened from a folder, which has them.
    """

    experiment: Experiment
    rounds: list[Round]
    summary: Summary
    model: Mapping[str, Tensor] = field(default_factory=dict, repr=False, compare=False)
    folder: Path | None = None
    directions: dict[str, Direction] = field(default_factory=dict, repr=False)
    environment: Environment = field(default_factory=Environment, repr=False)

    def __repr__(self) -> str:
        """One line: what ran, how far it came, how good the kept model is, and where it is."""
        e, score = self.experiment, self.score
        parts = [describe_task(e), f"{len(self.rounds)}/{e.rounds} rounds"]
        parts += [] if score is None else [f"{self.metric} {score:.4g}"]
        parts += ["diverged"] if self.diverged else []
        parts += [printable(str(self.folder), 400)] if self.folder else []
        return f"Run({', '.join(parts)})"

    @staticmethod
    def open(folder: Path | str) -> Run:
        """Reads a run folder.

        Args:
            folder: The folder that `run`, `compare` or a deployment wrote; the run may still be under way.

        Returns:
            The run.

        Raises:
            UserError: Where it is not a run folder, or holds what no run writes.
        """
        folder = Path(folder)
        try:
            experiment = read_experiment(_read_text(folder, "experiment.toml"))
            summary: Mapping[str, object] = {}
            if (folder / "summary.json").exists():
                summary = parse_object(_read_text(folder, "summary.json"), "summary.json")
                validate_summary(summary)
            rounds: list[Round] = []
            for k, text in enumerate(read_lines(folder, "rounds.jsonl", line_bytes(experiment.clients))):
                record = parse_object(text, f"line {k + 1} of rounds.jsonl")
                if validate_round(record, k):  # at once: what is invalid is not read to its end
                    rounds.append(record)
            return Run(experiment, rounds, cast(Summary, summary), StoredModel(folder), folder, read_directions(folder))
        except (OSError, ValueError, TypeError) as error:
            why = error.strerror if isinstance(error, OSError) and error.strerror else error
            raise UserError(f"{printable(str(folder), 400)} is not a run folder: {why}") from error
        except MemoryError as error:
            raise UserError(f"{printable(str(folder), 400)} cannot be opened: it does not fit in memory") from error

    @property
    def metric(self) -> str:
        """The name of the recorded test value next to the loss: test_accuracy, unless the run has another metric."""
        return find_metric((self.summary.get("kept", {}), *self.rounds))

    @property
    def diverged(self) -> bool:
        """Whether the run ended early because no finite model was left."""
        return "stopped" in self.summary

    @property
    def ended(self) -> EndReason | None:
        """What ended the run early: its `target`, its `patience`, or `stop` of a run in memory; None for nothing."""
        reason = self.summary.get("ended")
        return reason if reason in END_REASONS else None

    @property
    def score(self) -> float | None:
        """The kept model's value of `metric`; of a run that has not ended, the last value that was recorded."""
        kept = self.summary.get("kept")
        lines = (record for record in reversed(self.rounds) if self.metric in record)
        return get_number(kept or next(lines, {}), self.metric)

    @property
    def best(self) -> Round | None:
        """The round after which the test metric was best; None where nothing was tested.

        It is chosen on the test rows, so it flatters. The model that a run returns is the kept one: `summary["kept"]`.
        """
        name = self.metric if self.better(self.metric) else "test_loss"
        best = pick_best((get_number(record, name) for record in self.rounds), self.better(name))
        return next((record for record in self.rounds if best is not None and get_number(record, name) == best), None)

    def better(self, name: str) -> Direction | None:
        """Whether a higher or a lower value of a recorded quantity is better; None where nobody has stated it."""
        return describe_quantity(name, self.directions).better

    def column(self, name: str) -> list[Json]:
        """One recorded quantity over the rounds that have it.

        Raises:
            UserError: Where no round has a quantity of this name.
        """
        lines = [cast("dict[str, Json]", record) for record in self.rounds]
        recorded = sorted({key for line in lines for key in line})
        if lines and name not in {*recorded, *SCHEMA}:
            hint = suggest(name, recorded) or suggest(name, SCHEMA)
            raise UserError(f"{name!r} is not recorded in this run{hint}")
        return [line[name] for line in lines if line.get(name) is not None]

    def frame(self) -> pandas.DataFrame:
        """The rounds as a pandas frame.

        Returns:
            One row per round and one column per recorded quantity; lists stay lists, over the round's `ids`.

        Raises:
            ImportError: Without pandas.
            UserError: Where the rounds have more names than a frame has columns.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError("run.frame() needs pandas: pip install pandas") from error
        names = len({name for record in self.rounds for name in record})
        if names > COLUMNS_OF_A_FRAME:
            raise UserError(f"rounds.jsonl has {names} names; a frame has at most {COLUMNS_OF_A_FRAME} columns")
        return pandas.DataFrame(self.rounds)

    def plot(self, path: Path | str | None = None) -> Figure:
        """Draws the test values and the local steps over the rounds.

        Args:
            path: A file that ends in .svg, .pdf or .png, where the figure is to be written too.

        Returns:
            A figure of matplotlib; a notebook shows it.

        Raises:
            UserError: Where there is nothing to draw, or the file cannot be written.
        """
        figure: Figure = load_plugin("plot")(self, path)
        return figure

    def report(self, path: Path | str = "report.html") -> Path:
        """Writes a report of this run: one HTML file that needs no network.

        Args:
            path: The file, in a folder that exists.

        Returns:
            The file.

        Raises:
            UserError: Where the file cannot be written.
        """
        written: Path = load_plugin("report")([self], path)
        return written

    def save(self, out: Path | str) -> Run:
        """Writes this run into a new folder: a run in memory as `run` would have, a run with a folder as a copy of it.

        Args:
            out: The folder, new or empty.

        Returns:
            The run with its folder. Without checkpoints, which a run in memory has none of, it cannot be resumed.

        Raises:
            UserError: Where the folder is not empty, or cannot be written.
        """
        out = Path(out)
        require_new(out)
        try:
            if self.folder:
                shutil.copytree(self.folder, out, ignore=shutil.ignore_patterns(".*"), dirs_exist_ok=True)
                return replace(self, folder=out)
        except (OSError, shutil.Error) as error:
            raise UserError(f"{printable(str(self.folder), 400)} cannot be copied: {error}") from error
        with RunFolder.make(out, self.experiment, self.environment, None) as folder:
            for record in self.rounds:
                folder.write_round(record)
            if self.summary:
                folder.write_end(self.summary, self.model)
        return replace(self, folder=out)

    def _repr_html_(self) -> str:
        """What a notebook shows: a table and curves."""
        return str(load_plugin("notebook")(self))


def _read_text(folder: Path, name: str) -> str:
    return decode_text(read_inside(folder, name, FILE_BYTES), name)


def require_new(path: Path | str) -> None:
    """UserError where a new run folder cannot be made: also for a folder that holds anything else."""
    path = Path(path)
    require_free(path)
    if path.is_dir():
        others = (p.name for p in path.iterdir() if p.name not in ALLOWED_BEFORE and not is_draft(p.name))
        if other := next(others, ""):
            raise UserError(f"{path} is not empty: it holds {printable(other)}; name a new folder")


def require_free(path: Path) -> None:
    """UserError where a run folder cannot be made; one whose run was killed before it began is not a run's."""
    lines = path / "rounds.jsonl"
    if (path / "experiment.toml").exists() or (lines.exists() and lines.stat().st_size):
        raise UserError(f"{path} already holds a run; name another folder")
    if path.exists() and not path.is_dir():
        raise UserError(f"{path} is a file; name a folder")
    above = next(p for p in (path, *path.absolute().parents) if p.exists())
    if not os.access(above, os.W_OK):
        raise UserError(f"{path} cannot be written: no permission in {above}")


def require_files(folder: Path) -> None:
    """UserError where a folder is in the place of a file that a run writes; a tracker's notes cannot stop a run."""
    for name in (*FILES, MEMORY_FILE):
        if name != "trackers.json" and (folder / name).is_dir():
            raise UserError(f"{folder} cannot be resumed: {name} is not a file")


def describe_environment(device: str) -> Environment:
    """What a result may depend on besides the experiment."""
    import torch

    return {
        "fedveca": __version__,
        "python": sys.version.split()[0],
        "torch": torch.__version__,
        "platform": platform.platform(),
        "processor": platform.machine(),
        "threads": torch.get_num_threads(),
        "device": torch.cuda.get_device_name() if device == "cuda" else device,
    }


def to_json(value: object) -> Json:
    """Tensors as numbers and lists; what JSON cannot say (NaN, infinity) as null."""
    if callable(tolist := getattr(value, "tolist", None)):
        value = tolist()
        if isinstance(value, list) and _is_plain(value):
            return cast(Json, value)
    if isinstance(value, list):
        return [to_json(v) for v in value]
    if isinstance(value, float) and not is_number(value):
        return None
    return cast(Json, value)


def _is_plain(values: list[object]) -> bool:
    """Whether a list has nothing but integers, or nothing but finite floats: it is JSON as it is."""
    kinds = set(map(type, values))
    return kinds <= {int} or (kinds == {float} and all(map(is_number, values)))
