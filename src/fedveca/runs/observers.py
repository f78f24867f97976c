"""Who looks on while a run goes: the terminal, trackers, a deployment's log, and the user's own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from fedveca.errors import UserError, show_value
from fedveca.runs.experiment import Experiment
from fedveca.runs.folder import Run
from fedveca.runs.schema import Round


class Observer:
    """Sees a run from its start to its end; override what you need.

    Examples:
        >>> class Printer(Observer):
        ...     def round(self, record):
        ...         print(record["round"] + 1, record["tau"])
    """

    def start(self, experiment: Experiment, folder: Path | None) -> None:
        """Called before the first round that is run, also where a run is resumed.

        Args:
            experiment: The settings.
            folder: The run folder; None for a run in memory.
        """

    def round(self, record: Round) -> None:
        """Called after each round, once its line is in the folder.

        Args:
            record: A copy of the round's line: what is changed in it stays out of the run.
        """

    def end(self, run: Run) -> None:
        """Called at the end, however the run ended.

        Args:
            run: The run; its `summary` is empty where it was interrupted.
        """


class ComparisonObserver(Observer):
    """Sees a comparison as a whole too, and the rounds of runs in other processes, of which several run at a time."""

    def plan(self, experiment: Experiment, methods: tuple[str, ...], seeds: int, workers: int, folder: Path) -> None:
        """Called once, before the first run."""

    def plan_tuning(
        self,
        experiment: Experiment,
        methods: tuple[str, ...],
        keys: tuple[str, ...],
        trials: int,
        seeds: int,
        workers: int,
        folder: Path,
    ) -> None:
        """Called once, before the first run of a sweep: `trials` settings over `seeds`, which differ in `keys`."""

    def count_done(self, run: Run) -> None:
        """Called for each run that is there already, finished, and is not repeated."""

    def begin_in_worker(self, experiment: Experiment, folder: Path) -> None:
        """Called when a run of another process begins; `end` is called when it is over."""

    def see_round_in_worker(self, folder: Path, record: Round) -> None:
        """Called after the last round that such a run has written."""


def check_observers(observers: Iterable[Observer]) -> tuple[Observer, ...]:
    """The observers; UserError where something else was given."""
    several = isinstance(observers, Iterable) and not isinstance(observers, str)
    found: list[Observer] = []
    for observer in observers if several else (observers,):
        if not isinstance(observer, Observer):
            raise UserError(f"observers: {show_value(observer)} is not an Observer; see fedveca.Observer")
        found.append(observer)
    return tuple(found)


@contextlib.contextmanager
def observe(
    observers: tuple[Observer, ...], experiment: Experiment, folder: Path | None, rounds: list[Round]
) -> Iterator[list[Run]]:
    """Starts the observers; at the end each gets the run that was put into the list, or the run as far as it came."""
    done: list[Run] = []

    def end(observer: Observer) -> None:
        observer.end(done[0] if done else Run(experiment, rounds, {}, folder=folder))

    with contextlib.ExitStack() as ends:  # each is called, also where another one raises
        for observer in reversed(observers):
            ends.callback(end, observer)
        for observer in observers:
            observer.start(experiment, folder)
        yield done


def copy_record(record: Round) -> Round:
    """A round's line for an observer: what it changes there stays out of the run."""
    copied: Round = {name: list(v) if isinstance(v, list) else v for name, v in record.items()}  # type: ignore[assignment]
    return copied
